"""Several guests at the same time through Proxmox VE: the API is the double's, and its guests run in the lab.

They share a disk with a known speed. `test_neighbours.py` has the same for hosts with libvirt.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest

from harness.report.terminal import difference_lines
from tests.e2e.machines import background, command, on_lab_host, wait_for_measurements
from tests.e2e.test_proxmox import SECRETS, Node, running_node
from tests.patience import patience
from tests.soak.own_disks import measured, own_disks, project
from tests.soak.test_neighbours import ALONE, DISK, FOUR, cell, scenario

ADDRESSES = ", ".join(f'"10.99.0.{last}/16"' for last in range(50, 54))


@pytest.fixture(scope="module")
def crowded(lab: None) -> Iterator[Node]:  # noqa: ARG001 - it has to be up
    """The node with a disk of this test."""
    with on_lab_host() as host, own_disks(host, DISK), running_node([DISK]) as found:
        yield found


@pytest.fixture
def node(crowded: Node) -> Iterator[Node]:
    """The same. After each test it has what it had before."""
    before = crowded.left()
    yield crowded
    assert crowded.left() == before


def directory_of(node: Node, directory: Path, text: str) -> Path:
    """A project that measures this scenario on the node, whose guests have an address each."""
    # Each round boots all guests, one after the other, and a boot takes half a minute here.
    own = text.replace('"crowded"', '"optane"').replace("rounds = 2", "rounds = 1")
    found = project(directory, [], {"crowded": own})
    path = node.lab(found, id=DISK.spec.id, serial=DISK.spec.serial)
    path.write_text(path.read_text().replace('"10.99.0.50/16"', f"[{ADDRESSES}]"))
    return found


def test_four_vms_share_a_disk(tmp_path: Path, node: Node) -> None:
    run = measured(directory_of(node, tmp_path, scenario("four", FOUR, 8)), "--lab=lab.toml", env=SECRETS)
    found = cell(run, "four")
    several = found.several
    assert several is not None
    assert [each.number for each in several.guests] == [1, 2, 3, 4]
    total = fmean(found.metrics["iops"].guest)
    assert sum(fmean(each.guest) for each in several.guests) == pytest.approx(total, rel=1e-6)
    # The disk can do no more for all of them together.
    assert total < 1.1 * DISK.queue_depth / (DISK.completion_ns * 1e-9)
    assert several.fairness.point > 0.8
    assert all(each.p99 is not None for each in several.guests)
    assert {name for name in run.provenance if name.startswith("guest")} == {
        "guest",
        *(f"guest g{n}" for n in (2, 3, 4)),
    }
    assert found.effective.pve_drive is not None
    assert ":vm-9000-voh-" in found.effective.pve_drive


def test_a_neighbour_in_a_second_vm_is_visible_and_named(tmp_path: Path, node: Node) -> None:
    # With the neighbour, the guest does some 110 I/Os per second, and a p99 needs 1000 in a block.
    text = scenario("alone", ALONE, 4).replace('"6 s"', '"10 s"').replace("blocks = 3", "blocks = 4")
    run = measured(directory_of(node, tmp_path, text), "--lab=lab.toml", env=SECRETS)
    found = cell(run, "alone-neighbour")
    assert found.neighbour is not None
    assert found.neighbour.job == "randwrite-4k-qd16"
    assert min(found.neighbour.iops) > 0
    assert fmean(cell(run, "alone").metrics["clat_mean"].guest) < fmean(found.metrics["clat_mean"].guest)
    (line,) = (each for each in difference_lines(run) if "with the neighbour" in each)
    assert "p99 with the neighbour randwrite-4k-qd16: x " in line
    assert line.endswith("worse")


def test_reap_removes_both_vms_of_a_killed_run(tmp_path: Path, node: Node) -> None:
    directory = directory_of(node, tmp_path, scenario("alone", ALONE, 4))
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--lab=lab.toml"]
    with background(words, cwd=directory, env=SECRETS) as run:
        wait_for_measurements(directory / "reports", run)
        run.kill()
        run.communicate(timeout=patience(60))
    running = node.runner.run(["sh", "-c", "ls /var/run/qemu-server/*.pid"], deadline=patience(60)).stdout
    assert running.split() == ["/var/run/qemu-server/9000.pid", "/var/run/qemu-server/9001.pid"]
    done = command("reap", f"--lab={directory / 'lab.toml'}", "--yes", env=SECRETS)
    assert done.returncode == 0, done.stdout + done.stderr
    for what in ("VM 9000, of run", "VM 9001, of run"):
        assert f"removed after a killed run: {what}" in done.stdout
