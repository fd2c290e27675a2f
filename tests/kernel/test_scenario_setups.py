"""Which modes are measured together: what fits on a disk and in a guest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.model.attach import Attach, Vfio
from harness.model.base import Device, Md
from harness.model.layout import Layout, Lvm, Qcow2, RawFile
from harness.model.mode import Mode
from harness.model.option import Bus
from harness.scenario.scenario import PRESETS
from harness.scenario.setups import disks_in_words, places_needed, regions, setups

HOST = Mode("host", Device(), None)


def layered(layout: Layout, count: int) -> list[Mode]:
    return [Mode(f"{layout.kind}-{number}", layout, Attach()) for number in range(count)]


def on_bus(bus: Bus, count: int) -> list[Mode]:
    return [Mode(f"{bus}-{number}", Device(), Attach(bus)) for number in range(count)]


def sizes(modes: Sequence[Mode]) -> list[int]:
    found = setups(modes)
    assert [mode for together in found for mode in together] == list(modes)
    return [len(together) for together in found]


def test_the_usual_modes_are_measured_together() -> None:
    assert setups(PRESETS[:5]) == [PRESETS[:5]]


def test_a_disk_has_room_for_eight_layers_and_any_number_of_modes_on_the_bare_disk() -> None:
    assert sizes([HOST, *layered(Lvm(), 8), *on_bus("virtio-blk", 4)]) == [13]
    assert sizes([HOST, *layered(Lvm(), 8), *layered(RawFile(), 1), *on_bus("virtio-blk", 4)]) == [9, 5]


def test_a_qcow2_file_needs_two_regions_because_its_twin_is_another_file() -> None:
    assert sizes(layered(Qcow2(), 9)) == [4, 4, 1]


def test_an_array_that_is_used_bare_is_one_region_for_all_its_modes() -> None:
    assert sizes(layered(Md(5, 4), 12)) == [12]
    levels = [Mode(f"chunk-{power}", Md(0, 2, 4096 << power), Attach()) for power in range(9)]
    assert sizes(levels) == [8, 1]


def test_a_region_lies_on_the_disk_or_on_an_array() -> None:
    md = Md(10, 4)
    assert regions([HOST, *layered(md, 2), *layered(Lvm(md), 1), *layered(Lvm(), 1)]) == [md, md, Device()]
    assert regions(layered(Qcow2(on=md), 1)) == [md, md]


def test_a_disk_of_a_storage_daemon_is_alone_in_its_guest_whose_memory_is_shared() -> None:
    served = [Mode(name, Device(), Attach("virtio-blk", server="storage-daemon")) for name in ("vhost", "again")]
    assert sizes([HOST, *on_bus("virtio-blk", 2), *served, *on_bus("nvme", 1)]) == [3, 1, 1, 1]
    assert sizes([HOST, served[0]]) == [2]


def test_a_guest_has_room_for_twenty_disks_on_its_root_bus() -> None:
    assert sizes([HOST, *on_bus("virtio-blk", 10), *on_bus("virtio-scsi", 10), *on_bus("nvme", 1)]) == [21, 1]


def test_a_guest_also_has_six_sata_ports() -> None:
    assert sizes([*on_bus("virtio-blk", 16), *on_bus("sata", 7)]) == [22, 1]


def test_a_setup_has_as_many_virtio_disks_as_proxmox_ve_has_places() -> None:
    assert sizes([HOST, *on_bus("virtio-blk", 17)]) == [17, 1]


def test_each_kind_of_scsi_controller_has_its_own_vm_on_proxmox_ve() -> None:
    attached = (Attach(), Attach("lsi", iothread=False), Attach("pvscsi", iothread=False))
    modes = [Mode(str(number), Device(), attach) for number, attach in enumerate(attached)]
    assert sizes([HOST, *modes]) == [4]
    assert sizes([replace(mode, on_node=True) for mode in [HOST, *modes]]) == [2, 1, 1]


def test_ide_disks_have_their_own_setup_because_they_need_another_machine_type() -> None:
    assert sizes([HOST, *on_bus("ide", 5), *on_bus("virtio-blk", 2)]) == [5, 1, 2]


def test_a_disk_that_is_passed_through_whole_is_alone_with_the_host() -> None:
    vfio = [Mode("vfio", Device(), Vfio()), Mode("again", Device(), Vfio())]
    assert sizes([HOST, *vfio]) == [2, 1]
    assert sizes([*on_bus("sata", 1), vfio[0], *on_bus("ide", 1)]) == [1, 1, 1]


def test_as_many_disks_are_needed_as_the_largest_array_has() -> None:
    assert places_needed([HOST, *layered(Lvm(Md(1, 2)), 1), *layered(Md(6, 5), 1)]) == (0, 1, 2, 3, 4)
    assert places_needed([HOST, *layered(Lvm(), 1)]) == (0,)


def test_an_array_that_starts_elsewhere_leaves_the_disks_in_between_alone() -> None:
    two_paths = Md(0, 4, legs=2, starts=(1, 9))
    assert two_paths.places == (0, 1, 8, 9)
    assert places_needed(layered(two_paths, 1)) == (0, 1, 8, 9)
    assert places_needed(layered(Md(0, 2, starts=(4,)), 1)) == (0, 3, 4), "the first disk is the baseline"


def test_legs_follow_each_other_if_nothing_says_where_they_start() -> None:
    assert Md(0, 4, legs=2).places == Md(0, 4).places == (0, 1, 2, 3)
    assert Md(5, 3, state="rebuilding", spares=1).places == (0, 1, 2, 3), "the spare follows the last member"
    assert Md(5, 3, starts=(3,), state="rebuilding", spares=1).places == (2, 3, 4, 5)


def test_many_disks_are_counted_and_few_are_listed() -> None:
    assert disks_in_words(("ssd1", "ssd2")) == "ssd1, ssd2"
    assert disks_in_words([f"ssd{number}" for number in range(1, 25)]) == "ssd1 and 23 other disks"
