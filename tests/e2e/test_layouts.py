"""Every kind of layout and every level of md for real: built, written to and read back, and gone without a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import pytest

from harness.config.names import RunId
from harness.features.embedded.lab_host import inventory
from harness.lab.counters import MDSTAT, ArrayStatus, parse_mdstat
from harness.lab.created import CreationLog
from harness.lab.facts import HostFacts, read_facts
from harness.lab.inventory import DiskById, DiskSpec
from harness.lab.transport.base import Runner
from harness.lab.transport.ssh import SshRunner
from harness.layout.build import Layouts, built
from harness.layout.storage_files import fill_image, read_nodatacow
from harness.measure.fio import mark_fio
from harness.model.attach import Attach
from harness.model.base import Device, Md
from harness.model.layout import Layout, Lvm, LvmThin, Partition, Qcow2, RawFile
from harness.model.mode import Mode
from tests.e2e.machines import on_lab_host
from tests.patience import patience

KIB = 1024
MIB = 1024**2
SPAN = 16 * MIB
RUN = RunId("20260101-000000-abcd")
LAB = inventory().hosts[0]
DISKS = [LAB.disk(name) for name in ("ssd1", "ssd2", "ssd3", "ssd4")]

ON_ONE_DISK: dict[str, Layout] = {
    "plain": Device(),
    "partition": Partition(),
    "lvm": Lvm(),
    "thin": LvmThin(),
    "raw": RawFile(),
    "sparse": RawFile(preallocation="off"),
    "full": RawFile(preallocation="full"),
    "xfs": RawFile("xfs"),
    "qcow2": Qcow2(),
    "qcow2-chain": Qcow2(snapshots=3),
    "qcow2-lazy": Qcow2("xfs", cluster_size=2 * MIB, preallocation="falloc", lazy_refcounts=True),
}


@pytest.fixture(scope="module")
def facts() -> Iterator[HostFacts]:
    with on_lab_host() as runner:
        yield read_facts(runner)


def build(
    runner: Runner, facts: HostFacts, disks: Sequence[DiskSpec], layouts: Mapping[str, Layout]
) -> AbstractContextManager[Layouts]:
    modes = [Mode(name, layout, Attach()) for name, layout in layouts.items()]
    return built(CreationLog(runner, RUN), facts, disks, modes, span=SPAN)


def hold_what_is_written(host: Runner, layouts: Layouts) -> None:
    """Write a pattern of its own to the start of each stretch, and only then read all of them back."""
    jobs = [
        f"[{name}]\nfilename={source.path}\noffset={source.offset}\nsize=4M\nverify_pattern={number:#010x}"
        for number, (name, source) in enumerate(layouts.regions.items(), start=0x5EED0001)
    ]
    for phase in ("rw=write\ndo_verify=0", "rw=read"):
        common = f"[global]\nthread\ndirect=1\nbs=1M\nverify=pattern\n{phase}"
        host.run(list(mark_fio()), stdin="\n".join((common, *jobs)), deadline=patience(120))


def test_every_layer_of_one_disk_holds_what_is_written(host: SshRunner, facts: HostFacts) -> None:
    disk = LAB.disk("optane")
    with build(host, facts, [disk], ON_ONE_DISK) as layouts:
        assert layouts.span == SPAN
        # The bare device once, and each of the other modes.
        assert len(layouts.regions) == len(ON_ONE_DISK)
        assert set(layouts.twins) == {"qcow2", "qcow2-chain", "qcow2-lazy"}
        hold_what_is_written(host, layouts)
        for image in layouts.images:
            fill_image(image)
            compare = ["qemu-img", "compare", "-f", "qcow2", "-F", "raw", image.guest.path, image.twin.path]
            host.run(compare, deadline=patience(60))


def test_files_on_btrfs_hold_what_is_written_copied_or_in_place(host: SshRunner, facts: HostFacts) -> None:
    files: dict[str, RawFile | Qcow2] = {
        "copied": RawFile("btrfs"),
        "in-place": RawFile("btrfs", nodatacow=True),
        "image": Qcow2("btrfs", nodatacow=True),
    }
    with build(host, facts, [LAB.disk("optane")], files) as layouts:
        hold_what_is_written(host, layouts)
        for image in layouts.images:
            fill_image(image)
        for name, layout in files.items():
            mode = Mode(name, layout, Attach())
            for source in (layouts.guest(mode), layouts.twin(mode)):
                shown = read_nodatacow(host, layout, source.path)
                assert shown is not None
                assert shown.host_nodatacow is bool(layout.nodatacow), source.path


def status(host: Runner, layouts: Layouts, mode: str) -> ArrayStatus:
    return parse_mdstat(host.run(["cat", MDSTAT], deadline=patience(10)).stdout.splitlines())[layouts.arrays[mode]]


def test_an_array_without_a_member_holds_what_is_written(host: SshRunner, facts: HostFacts) -> None:
    degraded = Md(5, 3, chunk=64 * KIB, state="degraded")
    with build(host, facts, DISKS, {"plain": Device(), "raid5": degraded}) as layouts:
        assert status(host, layouts, "raid5") == ArrayStatus(missing=1)
        hold_what_is_written(host, layouts)


def test_an_array_that_is_there_already_is_measured_as_it_is_and_stays(host: SshRunner, facts: HostFacts) -> None:
    members = [disk.id for disk in DISKS[:2] if isinstance(disk, DiskById)]
    create = ["--create", "/dev/md/theirs", "--run", "--quiet", "--level=1", "--raid-devices=2", "--assume-clean"]
    host.run(["mdadm", *create, "--bitmap=none", *members], deadline=patience(60))
    try:
        said = host.run(["mdadm", "--detail", "--export", "/dev/md/theirs"], deadline=patience(30)).stdout
        uuid = next(line for line in said.splitlines() if line.startswith("MD_UUID=")).partition("=")[2]
        disk = DiskById("theirs", f"/dev/disk/by-id/md-uuid-{uuid}", uuid, destroy=True)
        with build(host, facts, [disk], {"plain": Device(), "partition": Partition()}) as layouts:
            assert layouts.disk.startswith("md")
            hold_what_is_written(host, layouts)
        assert host.run(["test", "-b", "/dev/md/theirs"], deadline=patience(10), check=False).status == 0
    finally:
        host.run(["mdadm", "--quiet", "--stop", "/dev/md/theirs"], deadline=patience(60))
        host.run(["mdadm", "--quiet", "--zero-superblock", *members], deadline=patience(60))
        # What mdadm leaves behind the superblock is data to the guard.
        for member in members:
            host.run(["blkdiscard", "-z", "-f", member], deadline=patience(60))
