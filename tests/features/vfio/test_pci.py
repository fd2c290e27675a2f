"""Whether a guest may have the PCI device behind a disk, judged from what the host shows of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.features.vfio.passing import GroupMember, PciDisk, find_passable, parse_pci_disk, refuse_passthrough
from tests.unit.played_shell import PlayedShell

LINK = "/dev/disk/by-id/nvme-900P"
# As a host with one NVMe behind a port with ACS prints it.
SEEN = """device\t0000:41:00.0 nvme
group\t23
member\t0000:41:00.0 0x010802 nvme
disk\tnvme0n1
serial\tPHMB7514
vfio\tyes
"""


def seen() -> PciDisk:
    found = parse_pci_disk(LINK, SEEN)
    assert found is not None
    return found


def test_the_device_behind_a_disk_is_read_with_its_group() -> None:
    assert seen() == PciDisk(
        path=LINK,
        address="0000:41:00.0",
        driver="nvme",
        serial="PHMB7514",
        group="23",
        members=(GroupMember("0000:41:00.0", "0x010802", "nvme"),),
        disks=("nvme0n1",),
        has_vfio=True,
    )
    assert refuse_passthrough(seen()) is None


def test_a_disk_without_its_own_device_has_none() -> None:
    assert parse_pci_disk("/dev/loop0", "serial\t\n") is None
    two_paths = SEEN.replace("serial", "device\t0000:42:00.0 nvme\nserial")
    assert parse_pci_disk(LINK, two_paths) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"driver": "ahci"}, "only an NVMe disk is a PCI device: the driver of 0000:41:00.0 is ahci"),
        ({"group": "", "members": ()}, "in no IOMMU group: enable the IOMMU in the firmware"),
        ({"disks": ("nvme0n1", "nvme0n2")}, "one device with 2 disks: nvme0n1, nvme0n2"),
        ({"serial": ""}, "reports no serial number"),
        ({"has_vfio": False}, "no vfio-pci: load it with modprobe vfio-pci"),
    ],
)
def test_a_device_that_cannot_be_passed_through_is_refused_with_the_reason(
    change: dict[str, object], said: str
) -> None:
    assert said in (refuse_passthrough(replace(seen(), **change)) or "")  # type: ignore[arg-type]


def test_others_in_the_iommu_group_are_named() -> None:
    others = (GroupMember("0000:41:00.1", "0x020000", "ixgbe"), GroupMember("0000:42:00.0", "0x010802", ""))
    why = refuse_passthrough(replace(seen(), members=(*seen().members, *others))) or ""
    assert "shares IOMMU group 23 with 0000:41:00.1 (ixgbe), 0000:42:00.0 (no driver), which the guest would" in why


def test_the_port_that_a_device_is_behind_may_be_in_its_group() -> None:
    port = GroupMember("0000:40:01.0", "0x060400", "pcieport")
    assert refuse_passthrough(replace(seen(), members=(port, *seen().members))) is None


def test_a_disk_that_is_not_a_pci_device_is_refused() -> None:
    why = find_passable(PlayedShell({"sh -s": "serial\t\n"}), "/dev/loop0")
    assert why == (
        "VFIO passes a whole PCI device through, and only an NVMe disk is a PCI device: no PCI device is behind it "
        "(a disk on a network, a loop device)"
    )
