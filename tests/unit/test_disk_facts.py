"""What a host's kernel shows of its disks, read from directories that look like /sys, and from this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.lab.facts import read_disks
from harness.lab.transport.base import Completed
from harness.lab.transport.local import LocalRunner
from harness.model.disk import ArrayFacts, Controller, DiskFacts, NetworkPath, PcieLink, SerialLink
from tests.unit.disk_trees import (
    Tree,
    with_iscsi,
    with_md,
    with_nvme,
    with_nvme_over_tcp,
    with_sas,
    with_sata,
    with_shared_nvme,
)

RUNNER = LocalRunner("host here")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def read(tree: Tree, *disks: str) -> dict[str, DiskFacts]:
    return read_disks(RUNNER, disks, root=str(tree.root))


def test_an_nvme_disk_is_described_by_its_controller(tree: Tree) -> None:
    with_nvme(tree)
    assert read(tree, "nvme0n1") == {
        "nvme0n1": DiskFacts(
            device="nvme0n1",
            disk_class="nvme",
            model="INTEL SSDPED1D280GA",
            firmware="E2010325",
            size_bytes=280_065_171_456,
            logical_block_bytes=512,
            physical_block_bytes=4096,
            rotational=False,
            transport="nvme",
            pcie=PcieLink(8.0, 4, 8.0, 4),
            scheduler="none",
            write_cache="write back",
            numa_node=1,
            path="0000:01:00.0",
        )
    }


def test_a_disk_of_a_subsystem_has_the_link_of_its_controller(tree: Tree) -> None:
    with_shared_nvme(tree)
    disk = read(tree, "nvme1n1")["nvme1n1"]
    assert (disk.path, disk.pcie, disk.numa_node) == ("0000:01:00.0", PcieLink(16.0, 4, 16.0, 4), None)
    assert disk.model == "SAMSUNG MZQL21T9HCJR-00A07"


def test_a_sata_disk_has_a_link_of_its_port_and_a_controller(tree: Tree) -> None:
    with_sata(tree, speed="3.0 Gbps")
    disk = read(tree, "sda")["sda"]
    assert (disk.disk_class, disk.transport, disk.vendor, disk.model) == ("hdd", "sata", None, "WDC WD40EFRX-68N")
    assert disk.serial_link == SerialLink("SATA", 3.0, 6.0)
    assert str(disk.link) == "SATA 3 Gbit/s of 6 Gbit/s"
    assert disk.controller == Controller("0x8086", "0xa282", "ahci")
    assert disk.pcie is None


def test_a_solid_state_disk_is_one_that_does_not_rotate(tree: Tree) -> None:
    with_sata(tree, rotational="0")
    assert read(tree, "sda")["sda"].disk_class == "ssd"


def test_a_sas_disk_has_the_firmware_of_its_controller(tree: Tree) -> None:
    with_sas(tree)
    disk = read(tree, "sdb")["sdb"]
    assert disk.name == "SEAGATE ST1200MM0129"
    assert disk.serial_link == SerialLink("SAS", 12.0, 12.0)
    assert disk.controller == Controller("0x8086", "SAS9300-8i", None, "16.00.12.00", PcieLink(8.0, 8, 8.0, 8))


def test_a_volume_of_a_controller_is_an_array_if_its_driver_shows_a_level(tree: Tree) -> None:
    with_sas(tree, model="LOGICAL VOLUME", raid_level="RAID 5")
    disk = read(tree, "sdb")["sdb"]
    assert (disk.disk_class, disk.array) == ("array", ArrayFacts("RAID 5"))


def test_a_disk_that_the_controller_passes_through_is_no_array(tree: Tree) -> None:
    with_sas(tree, raid_level="N/A")
    assert read(tree, "sdb")["sdb"].disk_class == "hdd"


def test_a_disk_of_another_machine_has_the_network_that_leads_to_it(tree: Tree) -> None:
    with_nvme_over_tcp(tree, "traddr=192.0.2.1,trsvcid=4420,src_addr=192.0.2.9", "traddr=fd00::1,trsvcid=4420")
    with_iscsi(tree)
    disks = read(tree, "nvme0n1", "sdd")
    nvme, lun = disks["nvme0n1"], disks["sdd"]
    addresses = ("192.0.2.1:4420", "[fd00::1]:4420")
    assert nvme.network == NetworkPath("NVMe/TCP", "nqn.2026-11.test:disk", addresses)
    assert (nvme.transport, nvme.disk_class, nvme.pcie, nvme.path) == ("nvme-tcp", "nvme", None, None)
    assert lun.network == NetworkPath("iSCSI", "iqn.2026-11.test:disk", ("[fd00::2]:3260",))
    assert (lun.transport, lun.disk_class, lun.name) == ("iscsi", "ssd", "LIO-ORG disk")
    assert str(lun.network) == "iSCSI at [fd00::2]:3260 (iqn.2026-11.test:disk)"


def test_a_disk_in_this_machine_has_no_network(tree: Tree) -> None:
    with_nvme(tree)
    with_sata(tree)
    assert {disk.network for disk in read(tree, "nvme0n1", "sda").values()} == {None}


def test_an_array_and_a_volume_on_it_lead_to_the_disks_below(tree: Tree) -> None:
    with_nvme(tree)
    with_md(tree, "nvme0n1")
    found = read(tree, "dm-0")
    assert list(found) == ["dm-0", "md0", "nvme0n1"]
    assert (found["dm-0"].disk_class, found["dm-0"].transport, found["dm-0"].members) == (None, "dm", ("md0",))
    assert found["md0"].disk_class == "array"
    assert found["md0"].array == ArrayFacts("raid5", 512 << 10, 1)
    assert found["md0"].members == ("nvme0n1",)  # not the partition


def test_a_link_below_what_the_device_can_do_is_reduced(tree: Tree) -> None:
    with_nvme(tree, lanes=2)
    link = read(tree, "nvme0n1")["nvme0n1"].pcie
    assert link is not None
    assert link.is_reduced
    assert str(link) == "PCIe 8 GT/s x2 of 8 GT/s x4"


def test_a_disk_that_is_not_there_is_left_out(tree: Tree) -> None:
    with_nvme(tree)
    assert list(read(tree, "nvme0n1", "sdz", "../../etc", "$(reboot)")) == ["nvme0n1"]
    assert read(tree) == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("8.0 GT/s PCIe", "Unknown"),
        ("8.0 GT/s PCIe", "9" * 400),
        ("547002288", "-1"),
        ("547002288", "9" * 250),
    ],
)
def test_what_cannot_be_read_is_not_known(tree: Tree, old: str, new: str) -> None:
    with_nvme(tree)
    for path in tree.root.rglob("*"):
        if path.is_file() and path.read_text() == f"{old}\n":
            path.write_text(new)
    disk = read(tree, "nvme0n1")["nvme0n1"]
    assert disk.pcie is None or disk.size_bytes is None
    assert disk.model == "INTEL SSDPED1D280GA"


def test_control_characters_of_a_disk_do_not_reach_the_report(tree: Tree) -> None:
    with_nvme(tree)
    (model,) = tree.root.rglob("nvme0/model")
    model.write_bytes(b"EVIL\x1b[2J\tDISK\x00\xff\n")
    assert read(tree, "nvme0n1")["nvme0n1"].model == "EVIL [2J DISK"


def test_other_output_than_that_of_the_program_is_ignored() -> None:
    class Printing(LocalRunner):
        def run(self, argv: Sequence[str], **_: Any) -> Completed:
            lines = ("sdz\tmodel\tX", "sda", "\t\t", "sda\tsize", "sda\texists\t1", "sda\tsize\t8", "sda\tsize\tx\ty")
            return Completed(tuple(argv), 1, "\n".join(lines), "")

    assert read_disks(Printing("lab"), ["sda"]) == {"sda": DiskFacts(device="sda")}


def test_the_disks_of_this_machine_are_those_that_sysfs_lists() -> None:
    # without loop devices: other tests attach and detach these meanwhile
    listed = {path.name: path for path in Path("/sys/block").iterdir() if not path.name.startswith("loop")}
    found = read_disks(RUNNER, list(listed))
    assert listed
    assert found.keys() >= listed.keys()
    for name, path in listed.items():
        scheduler = (path / "queue/scheduler").read_text() if (path / "queue/scheduler").exists() else ""
        assert found[name].size_bytes == int((path / "size").read_text()) * 512
        assert (found[name].scheduler or "") in scheduler
        if (address := found[name].path) is not None:
            assert name in [each.name for each in Path(f"/sys/bus/pci/devices/{address}").resolve().rglob(name)]
