"""The user's own systems in guests: what they lack is known before anything is written to a disk under test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from harness.config.names import RunId
from harness.errors import GuestError
from harness.events import Events
from harness.guest.libvirt.backend import LibvirtHypervisor
from harness.guest.libvirt.connection import Connection
from harness.guest.protocol import Guest, GuestDisk
from harness.lab.created import CreationLog
from harness.lab.hosts import Host
from harness.lab.inventory import DiskByFile, HostSpec
from harness.measure.phases import Phases
from harness.measure.prepare import SetupRequest, find_skipped_modes, open_session
from harness.measure.series import NothingToCompare
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.mode import Mode, ModeVariant
from tests.unit.loop_disks import RUNNER, require, traces
from tests.unit.played_shell import PlayedShell
from tests.unit.this_host import connection, this_host

__all__ = ["connection"]

MIB = 1024**2
HOST = Mode("host", Device(), None)
BLK = Mode("blk", Device(), Attach("virtio-blk"))
COMPLETE = {"user": "0", "fio": "fio-3.39", "os": "debian ", "virtio_blk": "yes", "virtio_scsi": "yes"}


class Reached(Exception):
    """The session has begun to build layouts."""


@dataclass
class Looking(LibvirtHypervisor):
    """Boots guests whose systems say what `systems` has for their initramfs. It notes what happens, in `order`."""

    host: Host
    connection: Connection
    systems: dict[str, dict[str, str]]
    order: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.host, self.connection, Events())

    @contextmanager
    def guest(
        self, log: CreationLog, disks: Sequence[GuestDisk], options: GuestOptions = ANY_GUEST, *, variant: str = ""
    ) -> Iterator[Guest]:
        del log
        initramfs = str(options.initramfs)
        if initramfs not in self.systems:
            raise GuestError(f"{initramfs} did not answer over SSH")
        said = "\n".join("=".join(each) for each in self.systems[initramfs].items())
        self.order.append(f"boot {Path(initramfs).name} {variant} {[disk.name for disk in disks]}")
        yield cast(Guest, Booted(PlayedShell({"modprobe": said})))
        self.order.append("end")

    def layouts(self, *_: object, **__: object) -> Any:
        self.order.append("layouts")
        raise Reached


@dataclass
class Booted:
    """A guest that is looked at."""

    runner: PlayedShell
    fio: str = "fio"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """This machine, with a disk in a file that is made when it is needed."""
    require("sfdisk")
    disk = DiskByFile("loop", tmp_path / "disk.img", 256 * MIB, destroy=True)
    return this_host(HostSpec("here", "local", ssh=None, disks=(disk,)))


def own(tmp_path: Path, name: str, mode: Mode = BLK) -> Mode:
    """The mode with a guest of the initramfs of this name, which is a file of the host."""
    path = tmp_path / name
    path.touch()
    return replace(mode, guest=GuestOptions(initramfs=str(path), vcpus=1, memory=256 * MIB))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"fio": ""}, "fio is not installed: apt-get install fio when the initramfs is made"),
        ({"virtio_blk": ""}, "the kernel has no driver virtio_blk"),
    ],
    ids=["fio", "driver"],
)
def test_a_guest_that_lacks_something_is_reported_before_anything_is_built_or_filled(
    *, host: Host, connection: Connection, tmp_path: Path, changed: dict[str, str], why: str
) -> None:
    mode = own(tmp_path, "theirs")
    hypervisor = Looking(host, connection, {str(mode.guest.initramfs): COMPLETE | changed})
    before = traces(tmp_path)
    request = SetupRequest(("loop",), (HOST, mode), jobs=(), span=64 * MIB, conditioning="fill")
    log = CreationLog(RUNNER, RunId.new(), str(tmp_path / "created"))
    for _ in range(2):
        opened = open_session(host, hypervisor, host.spec.disks, request, log=log, seed=1, phases=Phases(Events()))
        with pytest.raises(NothingToCompare) as refused, opened:
            pytest.fail("it was opened")
        assert f"host here: in the guest of {mode.guest.initramfs}, {why}" in refused.value.message
    assert hypervisor.order == ["boot theirs look []", "end"], "once in a run, without disks"
    assert traces(tmp_path) == before


def test_a_complete_guest_ends_before_the_layouts_are_built(host: Host, connection: Connection, tmp_path: Path) -> None:
    mode = own(tmp_path, "theirs")
    hypervisor = Looking(host, connection, {str(mode.guest.initramfs): COMPLETE})
    request = SetupRequest(("loop",), (HOST, mode), jobs=(), span=64 * MIB, conditioning="fill")
    log = CreationLog(RUNNER, RunId.new(), str(tmp_path / "created"))
    opened = open_session(host, hypervisor, host.spec.disks, request, log=log, seed=1, phases=Phases(Events()))
    with pytest.raises(Reached), opened:
        pytest.fail("it was opened")
    assert hypervisor.order == ["boot theirs look []", "end", "layouts"]


def test_only_the_modes_that_lack_something_are_skipped(host: Host, connection: Connection, tmp_path: Path) -> None:
    scsi = Mode("scsi", Device(), Attach("virtio-scsi"))
    modes = [own(tmp_path, "theirs"), own(tmp_path, "theirs", scsi), own(tmp_path, "bare"), BLK]
    without = {"theirs": COMPLETE | {"virtio_scsi": ""}, "bare": COMPLETE | {"fio": ""}}
    hypervisor = Looking(host, connection, {str(tmp_path / name): system for name, system in without.items()})
    variant = ModeVariant("bare", "blk", "theirs")
    modes[2] = replace(modes[2], name="blk-bare", variant=variant, base=BLK, against=modes[0])
    modes[3] = replace(BLK, name="ours", guest=GuestOptions(vcpus=1))
    log, phases = CreationLog(RUNNER, RunId.new(), str(tmp_path / "created")), Phases(Events())
    found = find_skipped_modes(host, hypervisor, host.spec.disks[0], modes, log=log, phases=phases)
    assert list(found) == ["scsi", "blk-bare"]
    assert "no driver virtio_scsi" in found["scsi"]
    assert hypervisor.order == ["boot theirs look []", "end", "boot bare look []", "end"], "ours is not looked at"
    assert phases.seconds["boot"] > 0


def test_a_guest_that_does_not_boot_is_an_error_before_anything_is_built(
    host: Host, connection: Connection, tmp_path: Path
) -> None:
    hypervisor = Looking(host, connection, {})
    request = SetupRequest(("loop",), (HOST, own(tmp_path, "dead")), jobs=(), span=64 * MIB, conditioning="fill")
    log = CreationLog(RUNNER, RunId.new(), str(tmp_path / "created"))
    opened = open_session(host, hypervisor, host.spec.disks, request, log=log, seed=1, phases=Phases(Events()))
    with pytest.raises(GuestError, match="did not answer"), opened:
        pytest.fail("it was opened")
    assert hypervisor.order == []
