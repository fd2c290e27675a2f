"""This machine as the host: its own libvirt, a loop device as the disk, no embedded lab."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.events import Events
from harness.image import ensure_images
from tests.e2e.machines import latest, measure
from tests.patience import patience

DAEMONS = ("virtlogd", "libvirtd")


@pytest.fixture(scope="module")
def local_libvirt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """libvirt of this machine, started where no service manager has done so, and then ended again."""
    needed = ("libvirtd", "virtlogd", "virsh", "sfdisk", "mkfs.ext4", "losetup")
    missing = [tool for tool in needed if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"a local host needs root and {', '.join(missing) or 'nothing else'}")
    if _libvirt_answers():
        yield
        return
    directory = tmp_path_factory.mktemp("libvirt")
    said = directory / "stderr"
    with said.open("wb") as log:
        running = [subprocess.Popen([name, "-p", directory / f"{name}.pid"], stderr=log) for name in DAEMONS]
    try:
        end = time.monotonic() + patience(30)
        while not _libvirt_answers():
            ended = [daemon.args for daemon in running if daemon.poll() is not None]
            if ended or time.monotonic() > end:
                pytest.fail(f"libvirt does not answer; it said: {said.read_text()}")
            time.sleep(0.2)
        yield
    finally:
        for daemon in reversed(running):
            daemon.terminate()
            daemon.wait(timeout=patience(30))


@pytest.fixture
def fio_in_path(tmp_path: Path) -> dict[str, str]:
    """The guest's fio for this machine, too: both sides of a comparison run the same one."""
    with tarfile.open(ensure_images(Events()).fio.path / "fio.tar") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    home = tmp_path / "unpacked" / "fio"
    wrapper = tmp_path / "bin" / "fio"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {home}/lib/ld-linux-x86-64.so.2 --library-path {home}/lib {home}/fio "$@"\n')
    wrapper.chmod(0o755)
    return {"PATH": f"{wrapper.parent}:{os.environ['PATH']}"}


@pytest.mark.usefixtures("local_libvirt")
def test_a_loop_device_is_measured_and_what_the_host_lacks_is_skipped(
    tmp_path: Path, fio_in_path: dict[str, str]
) -> None:
    disk = tmp_path / "disk.img"
    lab = tmp_path / "lab.toml"
    lab.write_text(
        f'[host.here]\nkind = "local"\n[host.here.disk.optane]\nfile = "{disk}"\nsize = "1 GiB"\ndestroy = true\n'
    )
    selected = "optane and randread and not cached"
    done = measure(tmp_path, f"--lab={lab}", "-k", selected, "--profile=smoke", "--rounds=1", env=fio_in_path)
    assert done.returncode == 0, done.stdout
    run = latest(tmp_path)
    assert (run.lab.kind, run.run.status) == ("local", "complete")
    for mode in ("passthrough", "raw"):
        assert run.cell(f"optane-{mode}-randread-4k-qd32").metrics["iops"].guest
    lvm = run.cell("optane-lvm-randread-4k-qd32")
    if not _has_device_mapper():
        assert lvm.skipped is not None
        assert "LVM" in lvm.skipped
        assert "LVM" in done.stdout
    assert not disk.exists()
    assert str(disk) not in subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout
    guests = ["virsh", "-c", "qemu:///system", "list", "--name"]
    assert "voh-" not in subprocess.run(guests, capture_output=True, text=True, check=True).stdout


def _libvirt_answers() -> bool:
    asked = subprocess.run(["virsh", "-c", "qemu:///system", "version"], capture_output=True, check=False)
    return asked.returncode == 0


def _has_device_mapper() -> bool:
    return "device-mapper" in Path("/proc/devices").read_text()
