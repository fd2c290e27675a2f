"""The domain XML of guests: golden files for people, libvirt's own schema for libvirt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import libvirt
import pytest

from harness.guest.libvirt.domain import GuestSpec, domain_xml
from harness.guest.protocol import SERIAL_CHARACTERS, GuestDisk
from harness.layout.source import BlockSource
from harness.scenario.attach import Aio, Attach, Bus, Cache

GOLDEN = Path(__file__).parent / "data" / "domains"
MIB = 1024**2

DEVICE = BlockSource("/dev/disk/by-id/nvme-900P", "block", MIB, 64 * MIB)
VOLUME = BlockSource("/dev/voh-run/lvm", "block", 0, 64 * MIB)
FILE = BlockSource("/var/lib/virt-overhead/mnt/run/raw.raw", "file", 0, 64 * MIB)


def guest(*disks: GuestDisk, accel: str = "kvm") -> GuestSpec:
    return GuestSpec(
        name="voh-run",
        run_id="run",
        accel=accel,
        kernel="/images/vmlinuz",
        initramfs="/images/initramfs",
        ssh_port=20022,
        console="/console/voh-run.log",
        disks=disks,
        vcpus=2,
    )


ARTICLE = (
    GuestDisk("passthrough", DEVICE, Attach()),
    GuestDisk("lvm", VOLUME, Attach()),
    GuestDisk("raw", FILE, Attach()),
    GuestDisk("raw-cached", FILE, Attach(cache="writeback", aio="threads")),
)
SPECS = {
    "article": guest(*ARTICLE),
    "article-tcg": guest(*ARTICLE, accel="tcg"),
    "scsi-without-iothread": guest(GuestDisk("raw", FILE, Attach(iothread=False))),
    "blk": guest(
        GuestDisk("lvm-blk", VOLUME, Attach("virtio-blk")),
        GuestDisk("raw-blk", FILE, Attach("virtio-blk", "unsafe", "io_uring", iothread=False)),
    ),
    "sata": guest(
        GuestDisk("device-sata", DEVICE, Attach("sata", "directsync", "io_uring", iothread=False)),
        GuestDisk("raw-sata", FILE, Attach("sata", "writethrough", "threads", iothread=False)),
    ),
    "every-bus": guest(
        GuestDisk("scsi", DEVICE, Attach()),
        GuestDisk("blk", VOLUME, Attach("virtio-blk")),
        GuestDisk("sata", FILE, Attach("sata", iothread=False)),
    ),
    "no-disk": guest(),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_guest_is_described_as_in_its_golden_file(name: str, regenerate: bool) -> None:
    golden = GOLDEN / f"{name}.xml"
    described = domain_xml(SPECS[name]) + "\n"
    if regenerate:
        golden.write_text(described)
    assert described == golden.read_text(), "if it is meant so: pytest tests/unit/test_domain.py --regenerate"


def test_every_golden_file_belongs_to_a_guest() -> None:
    assert {path.stem for path in GOLDEN.glob("*.xml")} == set(SPECS)


@pytest.mark.parametrize("name", SPECS)
def test_libvirts_own_schema_accepts_every_guest(name: str) -> None:
    assert valid(SPECS[name])


@pytest.mark.parametrize("bus", ["virtio-blk", "virtio-scsi", "sata"])
@pytest.mark.parametrize("cache", ["none", "directsync", "writeback", "writethrough", "unsafe"])
@pytest.mark.parametrize("aio", ["native", "io_uring", "threads"])
def test_libvirts_own_schema_accepts_every_way_to_attach(bus: Bus, cache: Cache, aio: Aio) -> None:
    assert valid(guest(GuestDisk("raw", FILE, Attach(bus, cache, aio, iothread=bus != "sata"))))


def test_the_schema_is_really_asked() -> None:
    with pytest.raises(libvirt.libvirtError, match="XML document failed to validate against schema"):
        valid(guest(GuestDisk("raw", FILE, Attach(cache="lukewarm"))))  # type: ignore[arg-type]


def valid(spec: GuestSpec) -> bool:
    connection = libvirt.open("test:///default")
    try:
        domain = connection.defineXMLFlags(domain_xml(spec), libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
        return bool(domain.name() == spec.name)
    finally:
        connection.close()


def test_every_disk_is_found_again_by_its_own_serial() -> None:
    long = [GuestDisk(f"virtio-blk-with-iothread-{n}", FILE, Attach("virtio-blk")) for n in range(3)]
    live = ET.fromstring(domain_xml(guest(*ARTICLE, *long)))
    serials = [disk.findtext("serial") or "" for disk in live.iterfind("devices/disk")]
    assert serials == [disk.serial for disk in (*ARTICLE, *long)]
    assert len(set(serials)) == len(serials)
    assert max(map(len, serials)) <= SERIAL_CHARACTERS
    assert serials[: len(ARTICLE)] == [disk.name for disk in ARTICLE]


def test_no_two_disks_share_a_controller_or_an_iothread() -> None:
    live = ET.fromstring(domain_xml(SPECS["article"]))
    threads = [driver.get("iothread") for driver in live.iterfind("devices/controller[@type='scsi']/driver")]
    used = [address.get("controller") for address in live.iterfind("devices/disk/address")]
    assert threads == ["1", "2", "3", "4"]
    assert len(set(used)) == len(ARTICLE)
    assert live.findtext("iothreads") == "4"


def test_nothing_about_a_disk_is_left_to_a_default() -> None:
    for spec in SPECS.values():
        for driver in ET.fromstring(domain_xml(spec)).iterfind("devices/disk/driver"):
            assert {"cache", "io", "discard", "detect_zeroes", "type"} <= set(driver.keys())


def test_the_guest_answers_on_the_hosts_loopback_alone() -> None:
    assert "hostfwd=tcp:127.0.0.1:20099-:22" in domain_xml(replace(guest(), ssh_port=20099))
