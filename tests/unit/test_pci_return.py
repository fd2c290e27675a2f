"""Marks of devices that a guest has: written whole or not at all, and none of them keeps a later run from starting.

The scripts are the real ones; a directory stands for the host's /sys, and a thread for the kernel that binds drivers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.guest.pci import PciDisk
from harness.guest.pci_return import mark, returned_all
from harness.lab.transport.local import LocalRunner
from tests.unit.loop_disks import loop, require, sparse

RUNNER = LocalRunner("host lab")
ADDRESS = "0000:41:00.0"


@dataclass(frozen=True)
class Host:
    """A host with one NVMe, whose driver `sys` shows; `link` is its disk."""

    root: Path
    marks: Path
    link: Path

    @property
    def pci(self) -> Path:
        return self.root / "sys/bus/pci/devices" / ADDRESS

    @property
    def mark(self) -> Path:
        return self.marks / ADDRESS

    @property
    def driver(self) -> str:
        return (self.pci / "driver").readlink().name if (self.pci / "driver").is_symlink() else ""

    def bind(self, driver: str) -> None:
        (self.pci / "driver").unlink(missing_ok=True)
        if driver:
            place = self.root / "sys/bus/pci/drivers" / driver
            place.mkdir(parents=True, exist_ok=True)
            (place / "unbind").write_text("")
            (self.pci / "driver").symlink_to(place)
        block = self.root / "sys/block/nvme0n1"
        block.mkdir(parents=True, exist_ok=True)
        (block / "device").unlink(missing_ok=True)
        if driver == "nvme":
            (block / "device").symlink_to(self.pci)

    def disk(self) -> PciDisk:
        return PciDisk(str(self.link), ADDRESS, "nvme", "S1", "23", (), ("nvme0n1",), has_vfio=True)

    def returned(self) -> list[str]:
        return returned_all(RUNNER, directory=str(self.marks), root=str(self.root))

    @contextmanager
    def kernel(self) -> Iterator[None]:
        """Binds the NVMe's own driver when it is asked to look for one."""
        ended = threading.Event()
        probe = self.root / "sys/bus/pci/drivers_probe"

        def work() -> None:
            while not ended.wait(0.02):
                if probe.read_text().strip() == ADDRESS:
                    probe.write_text("")
                    self.bind("nvme")

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    require()
    found = Host(tmp_path / "root", tmp_path / "run" / "marks", tmp_path / "link")
    found.pci.mkdir(parents=True)
    (found.pci / "driver_override").write_text("vfio-pci\n")
    (found.pci / "modalias").write_text("pci:no-such-device\n")
    (found.pci / "iommu_group").symlink_to("../../../kernel/iommu_groups/23")
    (found.root / "sys/bus/pci/drivers_probe").write_text("")
    found.bind("nvme")
    with loop(sparse(tmp_path / "disk", 1 << 20)) as device:
        # The link of a disk is below /dev, as a mark has it.
        link = Path(f"/dev/voh-test-{os.getpid()}")
        link.symlink_to(device)
        try:
            yield Host(found.root, found.marks, link)
        finally:
            link.unlink()


def test_a_mark_is_whole_and_nothing_else_is_left(host: Host) -> None:
    mark(RUNNER, host.disk(), directory=str(host.marks))
    assert host.mark.read_text() == f"nvme\n{host.link}\n"
    assert [entry.name for entry in host.marks.iterdir()] == [ADDRESS]


def test_a_mark_is_on_the_disk_before_the_device_is_handed_over(host: Host, tmp_path: Path) -> None:
    traced = LocalRunner("host lab")
    trace = tmp_path / "trace"
    strace = ["strace", "-f", "-y", "-o", str(trace), "-e", "trace=fsync,fdatasync,rename,renameat,renameat2"]
    if RUNNER.run(["sh", "-c", "command -v strace"], deadline=10, check=False).status != 0:
        pytest.skip("no strace here: install strace")

    class Traced(LocalRunner):
        def run(self, argv, **options):  # type: ignore[no-untyped-def]
            return traced.run([*strace, *argv], **options)

    mark(Traced("host lab"), host.disk(), directory=str(host.marks))
    calls = [line.split(None, 1)[1] for line in trace.read_text().splitlines() if str(host.marks) in line]
    assert calls[0].startswith("fsync")
    assert ".part>" in calls[0]
    assert calls[1].startswith("rename")
    assert calls[2].startswith("fsync")
    assert f"<{host.marks}>" in calls[2]


def test_a_mark_that_does_not_fit_leaves_the_one_before(host: Host) -> None:
    host.marks.mkdir(parents=True)
    host.mark.write_text("nvme\n/dev/before\n")
    RUNNER.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=3", "none", str(host.marks)], deadline=20)
    try:
        host.mark.write_text("nvme\n/dev/before\n")
        with pytest.raises(HostError, match="No space left on device"):
            mark(RUNNER, host.disk(), directory=str(host.marks))
        assert host.mark.read_text() == "nvme\n/dev/before\n"
    finally:
        RUNNER.run(["umount", str(host.marks)], deadline=20)


@pytest.mark.parametrize("driver", ["nvme", "vfio-pci", ""])
def test_a_device_with_a_mark_comes_back_to_its_driver(host: Host, driver: str) -> None:
    mark(RUNNER, host.disk(), directory=str(host.marks))
    host.bind(driver)
    with host.kernel():
        assert host.returned() == [f"{host.link}, back from a guest"]
    assert host.driver == "nvme"
    assert not host.marks.exists()
    assert host.returned() == []


CUT = ["", "n", "nvme", "nvme\n", "nvme\n/dev", "nvme\n/dev/disk/by-id/nvme-90"]
FOREIGN = [
    b"\0\0\0\0",
    b"\xff\xfe\n\n",
    b"one two three four\n",
    b"nvme\n/dev/x\nmore\n",
    b"\n\n\n",
    b"x" * 10_000,
    b"nvme\nx\n",
]


@pytest.mark.parametrize("text", [*(cut.encode() for cut in CUT), *FOREIGN])
@pytest.mark.parametrize("driver", ["nvme", "vfio-pci", ""])
def test_a_mark_that_cannot_be_read_is_found_out_from_the_device(host: Host, text: bytes, driver: str) -> None:
    host.marks.mkdir(parents=True)
    host.mark.write_bytes(text)
    host.bind(driver)
    with host.kernel():
        (said,) = host.returned()
    assert said == (f"the mark of PCI device {ADDRESS}, which could not be read: its driver is nvme, its disk nvme0n1")
    assert host.driver == "nvme"
    assert host.returned() == []


def test_a_device_that_no_driver_takes_is_reported_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.guest.pci_return._RESOLVE_SECONDS", 1)
    host.marks.mkdir(parents=True)
    host.mark.write_text("")
    host.bind("")
    (said,) = host.returned()
    assert said.endswith("its driver is none, its disk not there")
    assert host.returned() == []


def test_a_device_that_another_driver_has_is_left_alone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.guest.pci_return._RESOLVE_SECONDS", 1)
    host.marks.mkdir(parents=True)
    host.mark.write_text("")
    host.bind("ixgbe")
    with host.kernel():
        (said,) = host.returned()
    assert said.endswith("its driver is ixgbe, its disk not there")
    assert host.driver == "ixgbe"
    assert (host.root / "sys/bus/pci/drivers/ixgbe/unbind").read_text() == ""


@pytest.mark.parametrize("text", ["", "nvme\n/dev/disk/by-id/nvme-900P\n"])
def test_a_device_that_is_gone_is_reported_once(host: Host, text: str) -> None:
    host.marks.mkdir(parents=True)
    for name in ("0000:42:00.0", "notes"):
        (host.marks / name).write_text(text)
    assert host.returned() == [
        f"the mark {host.marks}/{name}: the host has no such PCI device" for name in ("0000:42:00.0", "notes")
    ]
    assert host.returned() == []


def test_a_part_of_a_mark_that_a_crash_left_is_no_mark(host: Host) -> None:
    host.marks.mkdir(parents=True)
    (host.marks / f".{ADDRESS}.4711.part").write_text("nv")
    assert host.returned() == []
    assert list(host.marks.iterdir()) == []
