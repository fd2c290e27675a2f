"""Directories that look like /sys of hosts with certain disks.

Paths and contents are those that the kernel documents: Documentation/ABI (sysfs-block, sysfs-bus-pci, sysfs-ata,
sysfs-class-sas), the attributes of nvme (nvme-core's sysfs.c), of mpt3sas (mpt3sas_ctl.c), smartpqi and hpsa. None was
recorded on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_PCI = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
QUEUE = {
    "rotational": "0",
    "logical_block_size": "512",
    "physical_block_size": "4096",
    "scheduler": "[none] mq-deadline",
    "write_cache": "write back",
}


class Tree:
    """The root of a host, to which disks are added."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, directory: str, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.root / directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    def link(self, path: str, target: str) -> None:
        here = self.root / path
        here.parent.mkdir(parents=True, exist_ok=True)
        here.symlink_to((self.root / target).resolve())

    def disk(self, name: str, directory: str, *, sectors: int, device: str | None = None, **queue: str) -> None:
        """A block device in `directory`, whose device is `device`."""
        self.write(directory, {"size": str(sectors)} | {f"queue/{key}": text for key, text in (QUEUE | queue).items()})
        self.link(f"sys/class/block/{name}", directory)
        if device is not None:
            self.link(f"{directory}/device", device)

    def pci(self, directory: str, *, speed: str, lanes: int, most_speed: str, most_lanes: int, **more: str) -> None:
        links = {"current_link_speed": speed, "max_link_speed": most_speed}
        widths = {"current_link_width": str(lanes), "max_link_width": str(most_lanes)}
        self.write(directory, links | widths | {"vendor": "0x8086", "device": "0x2700"} | more)


def with_nvme(tree: Tree, *, lanes: int = 4) -> None:
    """An NVMe disk in a slot with so many lanes, on a host with two NUMA nodes."""
    tree.pci(_PCI, speed="8.0 GT/s PCIe", lanes=lanes, most_speed="8.0 GT/s PCIe", most_lanes=4, numa_node="1")
    tree.write(f"{_PCI}/nvme/nvme0", {"model": "INTEL SSDPED1D280GA   ", "firmware_rev": "E2010325", "numa_node": "1"})
    tree.disk("nvme0n1", f"{_PCI}/nvme/nvme0/nvme0n1", sectors=547_002_288, device=f"{_PCI}/nvme/nvme0")


def with_shared_nvme(tree: Tree) -> None:
    """An NVMe disk of a subsystem with native multipath: it is a virtual device, and the controller is elsewhere."""
    with_controller = f"{_PCI}/nvme/nvme1"
    subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys1"
    tree.pci(_PCI, speed="16.0 GT/s PCIe", lanes=4, most_speed="16.0 GT/s PCIe", most_lanes=4, numa_node="-1")
    tree.write(with_controller, {"model": "SAMSUNG MZQL21T9HCJR-00A07", "firmware_rev": "GDC5602Q"})
    tree.write(subsystem, {"model": "SAMSUNG MZQL21T9HCJR-00A07", "firmware_rev": "GDC5602Q"})
    tree.link(f"{subsystem}/nvme1", with_controller)
    tree.disk("nvme1n1", f"{subsystem}/nvme1n1", sectors=3_750_748_848, device=subsystem)


def with_nvme_over_tcp(tree: Tree, *addresses: str) -> None:
    """A namespace of an NVMe subsystem, with a controller for each address (nvme-core's sysfs.c, fabrics.c)."""
    subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    described = {"model": "Linux", "firmware_rev": "6.12.0", "subsysnqn": "nqn.2026-11.test:disk"}
    tree.write(subsystem, described)
    for number, address in enumerate(addresses):
        controller = f"sys/devices/virtual/nvme-fabrics/ctl/nvme{number}"
        tree.write(controller, {**described, "transport": "tcp", "address": address, "numa_node": "-1"})
        tree.link(f"{subsystem}/nvme{number}", controller)
    tree.disk("nvme0n1", f"{subsystem}/nvme0n1", sectors=2_097_152, device=subsystem)


def with_iscsi(tree: Tree) -> None:
    """A LUN of an iSCSI target (scsi_transport_iscsi.c)."""
    session = "sys/devices/platform/host6/session1"
    scsi = f"{session}/target6:0:0/6:0:0:1"
    tree.write(f"{session}/iscsi_session/session1", {"targetname": "iqn.2026-11.test:disk"})
    portal = {"persistent_address": "fd00::2", "persistent_port": "3260", "address": "fd00::2", "port": "3260"}
    tree.write(f"{session}/connection1:0/iscsi_connection/connection1:0", portal)
    tree.write(scsi, {"vendor": "LIO-ORG ", "model": "disk            ", "rev": "4.0 "})
    tree.disk("sdd", f"{scsi}/block/sdd", sectors=2_097_152, device=scsi)


def with_sata(tree: Tree, *, speed: str = "6.0 Gbps", rotational: str = "1") -> None:
    """A SATA disk behind AHCI."""
    port = f"{_PCI}/ata3"
    scsi = f"{port}/host2/target2:0:0/2:0:0:0"
    tree.write(_PCI, {"vendor": "0x8086", "device": "0xa282", "numa_node": "-1"})
    (tree.root / "drivers/ahci").mkdir(parents=True)
    tree.link(f"{_PCI}/driver", "drivers/ahci")
    tree.write(f"{port}/link3/ata_link/link3", {"sata_spd": speed, "hw_sata_spd_limit": "6.0 Gbps"})
    tree.write(scsi, {"vendor": "ATA     ", "model": "WDC WD40EFRX-68N", "rev": "0A82"})
    tree.disk("sda", f"{scsi}/block/sda", sectors=7_814_037_168, device=scsi, rotational=rotational)


def with_sas(tree: Tree, *, model: str = "ST1200MM0129", raid_level: str | None = None) -> None:
    """A SAS disk behind an HBA of the driver mpt3sas, or a volume, as smartpqi shows it."""
    host = f"{_PCI}/host4"
    port = f"{host}/port-4:0"
    scsi = f"{port}/end_device-4:0/target4:0:0/4:0:0:0"
    tree.pci(_PCI, speed="8.0 GT/s PCIe", lanes=8, most_speed="8.0 GT/s PCIe", most_lanes=8, numa_node="0")
    tree.write(f"{host}/scsi_host/host4", {"version_fw": "16.00.12.00", "board_name": "SAS9300-8i"})
    phy = {"negotiated_linkrate": "12.0 Gbit", "maximum_linkrate": "12.0 Gbit"}
    tree.write(f"{port}/phy-4:0/sas_phy/phy-4:0", phy)
    tree.write(scsi, {"vendor": "SEAGATE ", "model": model, "rev": "C003"})
    if raid_level is not None:
        tree.write(scsi, {"raid_level": raid_level})
    tree.disk("sdb", f"{scsi}/block/sdb", sectors=2_344_225_968, device=scsi, rotational="1")


def with_md(tree: Tree, *disks: str) -> None:
    """A RAID 5 of md over the first partition of each disk, and a volume of device-mapper on it."""
    md = "sys/devices/virtual/block/md0"
    tree.disk("md0", md, sectors=1_000_000, scheduler="")
    tree.write(md, {"md/level": "raid5", "md/chunk_size": "524288", "md/raid_disks": str(len(disks))})
    for disk in disks:
        partition = f"{(tree.root / 'sys/class/block' / disk).resolve().relative_to(tree.root.resolve())}/{disk}p1"
        tree.write(partition, {"partition": "1", "size": "1000000"})
        tree.link(f"{md}/slaves/{disk}p1", partition)
    volume = "sys/devices/virtual/block/dm-0"
    tree.disk("dm-0", volume, sectors=500_000)
    tree.write(volume, {"dm/uuid": "LVM-x"})
    tree.link(f"{volume}/slaves/md0", md)
