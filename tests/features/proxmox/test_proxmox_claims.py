"""Whose a disk of a node is already, by what its storages, VMs and containers say."""

from __future__ import annotations

import pytest

from harness.features.proxmox.disk_users import DiskNames, NodeConfig, find_claims, find_sharing

DISK = "/dev/nvme1n1"
LINK = "/dev/disk/by-id/nvme-INTEL_900P_PHM1"
BY_PATH = "/dev/disk/by-path/ip-192.0.2.1:3260-iscsi-iqn.2026-11.x:san-lun-1"
NAMES = {DISK, BY_PATH, "/dev/nvme1n1p1", LINK, f"{LINK}-part1", "/dev/disk/by-uuid/0b1c"}
THE_DISK = DiskNames(frozenset(NAMES), frozenset({"0000:03:00.0"}))
STORAGES = (
    {"storage": "local", "type": "dir", "path": "/var/lib/vz", "content": "iso,backup"},
    {"storage": "local-lvm", "type": "lvmthin", "vgname": "pve", "thinpool": "data"},
)
QUIET = NodeConfig(
    storages=STORAGES,
    groups={"pve": ["/dev/nvme0n1p3"]},
    pools={"tank": ["nvme-OTHER-part1"]},
    directories={"/mnt/pve/archive": "/dev/disk/by-uuid/ffff"},
    guests={"VM 100": {"scsi0": "local-lvm:vm-100-disk-0,size=8G", "name": "nvme1n1"}},
)


def test_a_disk_that_nothing_names_is_free() -> None:
    assert find_claims(THE_DISK, QUIET) == []


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (NodeConfig(guests={"VM 101": {"scsi1": f"{LINK},aio=native,backup=0,size=280G"}}), "VM 101 has it as scsi1"),
        (NodeConfig(guests={"VM 101": {"unused0": f"{LINK}-part1"}}), "VM 101 has it as unused0"),
        (NodeConfig(guests={"VM 7": {"args": f"-drive file={DISK},if=none"}}), "VM 7 has it as args"),
        (NodeConfig(guests={"VM 7": {"scsi0": f"file={DISK}"}}), "VM 7 has it as scsi0"),
        (NodeConfig(guests={"container 200": {"mp0": f"{DISK}p1,mp=/data"}}), "container 200 has it as mp0"),
        (NodeConfig(guests={"container 200": {"dev0": f"path={DISK},mode=0660"}}), "container 200 has it as dev0"),
        (
            NodeConfig(
                storages=({"storage": "fast", "type": "lvm", "vgname": "fast"},), groups={"fast": [f"{DISK}p1"]}
            ),
            "volume group fast is on it (used by storage fast)",
        ),
        (NodeConfig(groups={"lonely": [DISK]}), "volume group lonely is on it"),
        (
            NodeConfig(
                storages=({"storage": "z", "type": "zfspool", "pool": "tank/vms"},),
                pools={"tank": ["nvme-INTEL_900P_PHM1-part1"]},
            ),
            "ZFS pool tank is on it (used by storage z)",
        ),
        (
            NodeConfig(
                storages=({"storage": "d", "type": "dir", "path": "/mnt/pve/d"},),
                directories={"/mnt/pve/d": "/dev/disk/by-uuid/0b1c"},
            ),
            "/mnt/pve/d is on it (used by storage d)",
        ),
        (
            NodeConfig(guests={"VM 8": {"hostpci0": "0000:03:00.0,pcie=1"}}),
            "VM 8 has its controller 0000:03:00.0 as hostpci0",
        ),
        (NodeConfig(guests={"VM 8": {"hostpci3": "03:00"}}), "VM 8 has its controller 0000:03:00.0 as hostpci3"),
        (
            NodeConfig(guests={"VM 8": {"hostpci0": "host=02:00.1;03:00.0"}}),
            "VM 8 has its controller 0000:03:00.0 as hostpci0",
        ),
        (
            NodeConfig(guests={"VM 8": {"hostpci0": "mapping=fast,pcie=1"}}, mappings={"fast": ["0000:03:00"]}),
            "VM 8 has its controller 0000:03:00.0 as hostpci0",
        ),
        (
            NodeConfig(guests={"VM 8": {"hostpci0": "mapping=secret"}}, mappings={"fast": ["0000:04:00.0"]}),
            "VM 8 has the PCI devices of the mapping secret as hostpci0, and their addresses are unknown",
        ),
        (
            NodeConfig(guests={"VM 8": {"hostpci0 (snapshot before)": "0000:03:00.0"}}),
            "VM 8 has its controller 0000:03:00.0 as hostpci0 (snapshot before)",
        ),
        (
            NodeConfig(
                storages=({"storage": "san", "type": "iscsi", "portal": "192.0.2.1", "target": "iqn.2026-11.x:san"},)
            ),
            "storage san has it as a LUN of iqn.2026-11.x:san",
        ),
        (NodeConfig(storages=({"storage": "odd", "type": "dir", "path": DISK},)), "storage odd names it"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_the_users_of_a_disk_are_reported(node: NodeConfig, said: str) -> None:
    assert find_claims(THE_DISK, node) == [said]


def test_a_name_with_the_same_beginning_is_not_a_claim() -> None:
    assert find_claims(THE_DISK, NodeConfig(guests={"VM 1": {"scsi0": "/dev/nvme1n10,size=1G"}})) == []


@pytest.mark.parametrize(
    "given", ["0000:03:00.1", "13:00.0", "0001:03:00.0", "host=04:00", "mapping=other", "0000:03:01"]
)
def test_another_pci_device_is_not_a_claim(given: str) -> None:
    node = NodeConfig(guests={"VM 8": {"hostpci0": given}}, mappings={"other": ["0000:04:00.0"]})
    assert find_claims(THE_DISK, node) == []


def test_all_claims_are_reported() -> None:
    node = NodeConfig(groups={"a": [DISK]}, guests={"VM 1": {"scsi0": LINK}, "VM 2": {"virtio3": DISK}})
    assert len(find_claims(THE_DISK, node)) == 3
    assert find_sharing(THE_DISK, node) == ["VM 1 has it as scsi0", "VM 2 has it as virtio3"]
