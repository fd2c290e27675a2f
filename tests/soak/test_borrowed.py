"""A running VM of somebody else is borrowed: afterwards it is as it was before, also after a run that was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.lab.transport.ssh import SshRunner
from tests.e2e.attaching import opened
from tests.e2e.machines import (
    command,
    lab_file,
    latest,
    measure,
    on_lab_host,
    started,
    traces,
    wait_for_measurements,
)
from tests.patience import patience
from tests.soak.own_vm import NAME, OwnVm, own_vm

SELECTED = ("-k", "optane and (lvm or raw) and not cached and randread-4k", "--profile=smoke", "--rounds=1")


@pytest.fixture(scope="module")
def host() -> Iterator[SshRunner]:
    with on_lab_host() as runner:
        yield runner


@pytest.fixture(scope="module")
def vm(host: SshRunner) -> Iterator[OwnVm]:
    before = traces(host)
    with opened() as lab, own_vm(lab.host, host) as found:
        yield found
    assert traces(host) == before


def lab(directory: Path, vm: OwnVm, reach: str = "node") -> str:
    """The option with a lab file that borrows the VM."""
    path = lab_file(directory)
    host, disk = path.read_text().split("[host.kvm1.disk", 1)
    path.write_text(f"{host}{vm.lab_table(reach)}[host.kvm1.disk{disk}")
    return f"--lab={path}"


@pytest.mark.parametrize("reach", ["node", "agent"])
def test_it_is_measured_and_is_as_before(tmp_path: Path, vm: OwnVm, host: SshRunner, reach: str) -> None:
    before, left = vm.state(), traces(host)
    done = measure(tmp_path, lab(tmp_path, vm, reach), *SELECTED)
    assert "Traceback" not in done.stdout + done.stderr
    found = latest(tmp_path)
    assert found.run.status == "complete", done.stdout
    guests = {cell.mode for cell in found.cells} - {"host"}
    assert {"lvm", "raw"} <= guests, done.stdout
    for cell in found.cells:
        assert cell.skipped is None, cell.skipped
        assert cell.verdict != "void", done.stdout
        assert cell.metrics["iops"].guest, cell.id
    guest = found.provenance["guest"]
    assert isinstance(guest, dict)
    assert guest["borrowed"] == NAME
    assert "boot_seconds" not in guest
    assert vm.state() == before
    assert traces(host) == left


def test_after_a_kill_reap_unplugs_the_disks_and_leaves_everything_else(
    tmp_path: Path, vm: OwnVm, host: SshRunner
) -> None:
    before, left, definition, own = vm.state(), traces(host), vm.definition(), vm.sources()
    option = lab(tmp_path, vm)
    with started(tmp_path, option, *SELECTED) as run:
        wait_for_measurements(tmp_path, run)
        assert vm.definition() == definition
        run.kill()
        run.communicate(timeout=patience(60))
    assert own < vm.sources()
    done = command("reap", option, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"in the borrowed VM {NAME}" in done.stdout
    assert vm.state() == before
    assert traces(host) == left
    # Nothing is in the way of another run.
    again = measure(tmp_path, option, *SELECTED)
    assert again.returncode == 0, again.stdout
    assert vm.state() == before


def test_modes_that_a_running_vm_cannot_have_are_skipped_with_the_reason(tmp_path: Path, vm: OwnVm) -> None:
    before = vm.state()
    done = measure(tmp_path, lab(tmp_path, vm), "-k", "bus-sata and randread-4k", *SELECTED[2:], "-rs")
    assert 'no disk can be plugged into bus = "sata" of the borrowed VM shop' in done.stdout, done.stdout
    assert vm.state() == before
