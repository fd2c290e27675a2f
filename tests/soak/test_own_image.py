"""Guests of three systems in the lab, in one run: virt-overhead's own, and cloud images of Debian and Ubuntu."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from harness.events import Events
from harness.features.embedded.disks import NullBlkDisk
from harness.lab.transport.ssh import SshRunner
from harness.results import CellRecord
from tests.e2e.conftest import host
from tests.e2e.machines import background, command, pytest_command, traces, wait_for_measurements
from tests.patience import patience
from tests.soak.cloud_images import FIO, CloudImage, cloud_images
from tests.soak.own_disks import measured, own_disks, project, tried

__all__ = ["host"]

DISK = NullBlkDisk("varied", 4 << 30, completion_ns=400_000, queue_depth=64)
DIRECTORY = "/var/lib/libvirt/images"
COPY_SECONDS = 300.0
BOOT_SECONDS = 400.0
"""Until the guests have booted and fio is installed."""
TWO_SYSTEMS = f"""
title = "Guests of other systems"
disk = "varied"
modes = ["lvm"]
workloads = ["randread-4k"]
write_rate = "500 MiB/s"

[variant.ours]

[variant.debian]
guest.image = "{DIRECTORY}/debian.qcow2"
guest.fio = "install"

[profile.smoke]
iodepth = [1]
rounds = 1
most_rounds = 1
"""
SCENARIO = f"""{TWO_SYSTEMS}
[variant.ubuntu]
guest.image = "{DIRECTORY}/ubuntu.qcow2"
guest.fio = "{FIO}"
"""
LACKING = f"""
title = "An image without fio"
disk = "varied"
modes = ["lvm"]
workloads = ["randread-4k"]
write_rate = "500 MiB/s"
guest = {{ image = "{DIRECTORY}/debian.qcow2" }}
"""


@pytest.fixture(scope="module")
def images() -> Mapping[str, CloudImage]:
    """The images on this machine, built if they are not in the cache."""
    return cloud_images(Events())


@pytest.fixture
def on_host(host: SshRunner, images: Mapping[str, CloudImage]) -> Iterator[dict[str, str]]:
    """The images on the lab host, their checksums by path. Afterwards they are the same, and so is everything else."""
    try:
        for name, image in images.items():
            host.put(image.path, f"{DIRECTORY}/{name}.qcow2", deadline=patience(COPY_SECONDS))
        before, found = checksums(host), traces(host)
        with own_disks(host, DISK):
            yield before
        assert checksums(host) == before
        assert traces(host) == found
        assert guests_on(host) == ""
    finally:
        host.run(["sh", "-c", f"rm -f {DIRECTORY}/*.qcow2"], deadline=patience(60))


def show(*words: object) -> None:
    """What a person wants to see of the run."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def checksums(host: SshRunner) -> dict[str, str]:
    printed = host.run(["sh", "-c", f"sha256sum {DIRECTORY}/*.qcow2"], deadline=patience(120)).stdout
    return {path: digest for digest, path in (line.split(maxsplit=1) for line in printed.splitlines())}


def guests_on(host: SshRunner) -> str:
    """The files of guests that are on the host."""
    return host.run(
        ["find", "/var/lib/virt-overhead/guests", "-mindepth", "1"], deadline=patience(30), check=False
    ).stdout


def test_cloud_images_are_measured_beside_our_own_guest_and_never_written_to(
    tmp_path: Path, on_host: dict[str, str], images: Mapping[str, CloudImage]
) -> None:
    del on_host
    run = measured(project(tmp_path, [DISK.spec], {"varied": SCENARIO}), "--lab=lab.toml")
    cells: dict[str, CellRecord] = {cell.mode: cell for cell in run.cells}
    for name, cell in cells.items():
        assert cell.skipped is None, name
        assert cell.metrics["iops"].guest, name
        assert not [check.detail for check in cell.validity if not check.ok], name
        show(name, cell.metrics["iops"].guest, cell.metrics["iops"].overhead, cell.metrics["iops"].difference)
    for name, image in images.items():
        shown = run.provenance[f"guest {name}"]
        assert isinstance(shown, dict)
        show(shown)
        assert str(shown["os"]).startswith(image.system)
        found = cells[f"lvm-{name}"].effective
        assert found.qemu_image == f"{DIRECTORY}/{name}.qcow2"
        assert found.qemu_firmware == "bios"
        assert found.guest_kernel == shown["kernel"]


def test_an_image_that_lacks_fio_is_reported_before_anything_is_measured(
    tmp_path: Path, on_host: dict[str, str]
) -> None:
    del on_host
    done = tried(project(tmp_path, [DISK.spec], {"varied": LACKING}), "--lab=lab.toml", "-rs")
    assert "fio is not installed: apt-get install fio" in done.stdout
    assert 'or set fio = "install" of the guest' in done.stdout
    assert "1 passed" not in done.stdout


def test_reap_removes_the_guests_of_a_killed_run(tmp_path: Path, host: SshRunner, on_host: dict[str, str]) -> None:
    del on_host
    directory = project(tmp_path, [DISK.spec], {"varied": TWO_SYSTEMS})
    reports = directory / "reports"
    with background(pytest_command(reports, "--lab", str(directory / "lab.toml"), str(directory))) as run:
        wait_for_measurements(reports, run, seconds=BOOT_SECONDS)
        os.kill(run.pid, signal.SIGKILL)
        run.communicate(timeout=patience(60))
    assert guests_on(host)
    reaped = command("reap", "--lab", str(directory / "lab.toml"), "--yes")
    assert reaped.returncode == 0, reaped.stdout + reaped.stderr
    assert "the system of a guest" in reaped.stdout
