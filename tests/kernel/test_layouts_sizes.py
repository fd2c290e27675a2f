"""What layers share a region, how much room each needs, and that what a host is asked for fits. Pure."""

from __future__ import annotations

import pytest

from harness.features.arrays.building import compute_alignment, compute_member_need
from harness.layout import BlockSource
from harness.layout.build import Layouts
from harness.layout.layers import BasePlan, plan_bases
from harness.layout.regions import ALIGNMENT, Need, add_needs
from harness.model.attach import Attach
from harness.model.base import Device, Md
from harness.model.layout import Layout, Lvm, LvmThin, Partition, Qcow2, RawFile, ZfsFile, Zvol
from harness.model.mode import Mode

KIB = 1024
MIB = 1024**2
GIB = 1024**3


def modes(**layouts: Layout) -> list[Mode]:
    return [Mode(name, layout, Attach()) for name, layout in layouts.items()]


def regions(cut: BasePlan) -> dict[str, float]:
    """Spans per region."""
    return {what: need.shares for what, need in cut.needs.items()}


def test_the_disk_has_a_bare_region_for_the_host_even_if_no_mode_uses_it() -> None:
    (disk,) = plan_bases(modes(lvm=Lvm()))
    assert (disk.base, disk.label, disk.bare) == (Device(), "", ())
    assert list(disk.needs) == ["device", "lvm"]


def test_modes_of_one_kind_share_a_volume_group_and_a_file_system() -> None:
    (disk,) = plan_bases(
        modes(lvm=Lvm(), lvm2=Lvm(), raw=RawFile(), cached=RawFile(preallocation="off"), xfs=RawFile("xfs"), q=Qcow2())
    )
    assert list(disk.needs) == ["device", "lvm", "ext4", "xfs"]
    assert regions(disk)["lvm"] == 2
    # Two RAW files, and a qcow2 file with its twin.
    assert regions(disk)["ext4"] == pytest.approx(4 * 1.05, rel=1e-3)
    assert regions(disk)["xfs"] == pytest.approx(1.05)


def test_a_file_that_is_copied_on_write_has_room_for_its_old_blocks() -> None:
    (disk,) = plan_bases(modes(cow=RawFile("btrfs"), nodatacow=RawFile("btrfs", nodatacow=True)))
    assert list(disk.needs) == ["device", "btrfs"]
    assert regions(disk)["btrfs"] == pytest.approx(3 * 1.05)


def test_each_partition_is_its_own_and_pools_hold_volumes_and_datasets() -> None:
    (disk,) = plan_bases(modes(one=Partition(), two=Partition(), zvol=Zvol(), zfs=ZfsFile(), thin=LvmThin()))
    assert list(disk.needs) == ["device", "part1", "part2", "lvm-thin", "zfs"]
    assert regions(disk)["zfs"] > 2


def test_modes_on_equal_arrays_share_the_array_and_others_have_their_own() -> None:
    five, ten = Md(5, 4), Md(10, 4)
    disk, *arrays = plan_bases(modes(plain=Device(), md5=five, md10=ten, lvm=Lvm(on=Md(5, 4)), raw=RawFile(on=ten)))
    assert (disk.bare, list(disk.needs)) == (("plain",), ["device"])
    assert [(cut.base, cut.label, cut.bare, list(cut.needs)) for cut in arrays] == [
        (five, "m0", ("md5",), ["device", "lvm"]),
        (ten, "m1", ("md10",), ["device", "ext4"]),
    ]


def test_an_array_without_bare_modes_has_no_bare_region() -> None:
    _, array = plan_bases(modes(lvm=Lvm(on=Md(0, 2))))
    assert list(array.needs) == ["lvm"]


def test_names_in_the_partition_table_are_short_enough_for_it() -> None:
    every = modes(
        d=Device(), p=Partition(), l=Lvm(), t=LvmThin(), r=RawFile(), x=RawFile("xfs"), q=Qcow2(), z=Zvol(), m=Md(5, 4)
    )
    labels = [what for cut in plan_bases(every) for what in (*cut.needs, cut.label)]
    assert all(len(f"voh:20260101-000000-abcd:{label}") <= 36 for label in labels)


@pytest.mark.parametrize(
    ("base", "data"),
    [
        (Md(0, 4), 4),
        (Md(1, 2), 1),
        (Md(5, 4), 3),
        (Md(6, 4), 2),
        (Md(10, 4), 2),
        (Md(10, 3), 1.5),
        (Md(5, 6, legs=2), 4),
    ],
    ids=str,
)
def test_a_member_is_slightly_larger_than_the_arrays_size_per_data_disk(base: Md, data: float) -> None:
    need = compute_member_need(base, [Need(0, 1)])
    for span in (64 * MIB, 16 * GIB):
        assert span / data < need.bytes(span) < span / data * 1.01 + 32 * MIB


@pytest.mark.parametrize(
    ("base", "bytes_"),
    [
        (Md(0, 4), 2 * MIB),
        (Md(1, 2), 1 * MIB),
        (Md(5, 4), 3 * MIB),
        (Md(6, 4), 1 * MIB),
        (Md(5, 4, chunk=64 * KIB), 3 * MIB),
        (Md(10, 4), 2 * MIB),
        (Md(5, 6, legs=2), 2 * MIB),
    ],
    ids=str,
)
def test_regions_of_an_array_begin_where_its_stripes_do(base: Md, bytes_: int) -> None:
    assert compute_alignment(base) == bytes_
    assert bytes_ % ALIGNMENT == 0


def test_regions_side_by_side_have_room_to_be_aligned() -> None:
    need = add_needs([Need(MIB, 1), Need(0, 2.5)], alignment=3 * MIB)
    assert need == Need(7 * MIB, 3.5)
    assert need.bytes(4 * MIB) == 21 * MIB


@pytest.mark.parametrize("chunk", [64 * KIB, 256 * KIB, 192 * KIB, 4 * MIB])
def test_thin_pools_have_room_for_whole_chunks_of_every_volume_and_their_metadata_twice(chunk: int) -> None:
    (disk,) = plan_bases(modes(a=LvmThin(chunk), b=LvmThin(chunk)))
    span = GIB
    chunks = 2 * -(-span // chunk)
    assert disk.needs["lvm-thin"].bytes(span) > chunks * chunk + 2 * max(2 * MIB, 64 * chunks) + 4 * MIB


def test_clusters_of_half_a_kilobyte_need_a_fiftieth_more() -> None:
    (small,) = plan_bases(modes(q=Qcow2(cluster_size=512)))
    (usual,) = plan_bases(modes(q=Qcow2()))
    assert regions(small)["ext4"] - regions(usual)["ext4"] == pytest.approx(1.05 * 10 / 512, rel=0.02)


def test_layouts_distinguish_guest_twin_and_the_disks_below() -> None:
    device = BlockSource("/dev/disk/by-id/a", "block", MIB, GIB)
    image, twin = BlockSource("/m/q.qcow2", "file", 0, GIB, "qcow2"), BlockSource("/m/q.raw", "file", 0, GIB)
    array = BlockSource("/dev/md127", "block", MIB, GIB)
    plain, qcow2, md5, again = modes(plain=Device(), qcow2=Qcow2(), md5=Md(5, 3), md5b=Md(5, 3))
    layouts = Layouts(
        device,
        {"plain": device, "qcow2": image, "md5": array, "md5b": array},
        GIB,
        disk="sda",
        twins={"qcow2": twin},
        members={"md5": ("sda", "sdb", "sdc"), "md5b": ("sda", "sdb", "sdc")},
    )
    assert layouts.twin(None) == layouts.twin(plain) == layouts.guest(plain) == device
    assert (layouts.guest(qcow2), layouts.twin(qcow2)) == (image, twin)
    assert layouts.disks(None) == layouts.disks(plain) == layouts.disks(qcow2) == ("sda",)
    assert layouts.disks(md5) == ("sda", "sdb", "sdc")
    assert layouts.guest(again) == layouts.guest(md5)
    # What is filled on the host: each stretch once, and of a qcow2 file the twin.
    assert layouts.regions == {"device": device, "qcow2": twin, "md5": array}
    assert [(each.guest, each.twin) for each in layouts.images] == [(image, twin)]
