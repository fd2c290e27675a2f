"""The domain XML of guests: golden files for people, libvirt's own schema for libvirt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import libvirt
import pytest

from harness.errors import Unsupported
from harness.features.own_image.booting import SystemFiles
from harness.features.vfio.passing import build_hostdev_xml
from harness.guest.libvirt.domain import GuestSpec, assign_root_ports, build_domain_xml, name_alias
from harness.guest.libvirt.requirements import DATA_FILE, Versions, refuse_attach, refuse_guest
from harness.guest.protocol import SERIAL_CHARACTERS, GuestDisk
from harness.layout import BlockSource
from harness.model.attach import Aio, Attach, Cache, Controller, Vfio
from harness.model.base import Device, Md
from harness.model.guest import GuestOptions
from harness.model.layout import Layout, Qcow2, RawFile, ZfsFile
from harness.model.mode import Mode
from harness.model.option import BUSES, SCSI_BUSES, Bus
from harness.scenario.setups import setups
from tests.shipped_scenarios import SCENARIOS
from tests.unit.attach_options import options
from tests.unit.guest_options import GUEST_OPTIONS

GOLDEN = Path(__file__).parent / "data" / "domains"
MIB = 1024**2

DEVICE = BlockSource("/dev/disk/by-id/nvme-900P", "block", MIB, 64 * MIB)
VOLUME = BlockSource("/dev/voh-run/lvm", "block", 0, 64 * MIB)
FILE = BlockSource("/var/lib/virt-overhead/mnt/run/raw.raw", "file", 0, 64 * MIB)
QCOW2 = BlockSource("/var/lib/virt-overhead/mnt/run/qcow2.qcow2", "file", 0, 64 * MIB, format="qcow2")
OTHER_SCSI = [bus for bus in SCSI_BUSES if bus != "virtio-scsi"]
NEW = Versions(libvirt=99_000_000, qemu=99_000_000)


def guest(*disks: GuestDisk, accel: str = "kvm") -> GuestSpec:
    return GuestSpec(
        name="voh-run",
        uuid="6f0b8f6e-5d0a-4f5e-9a0e-0d5b1d0c9a11",
        run_id="run",
        accel=accel,
        kernel="/images/vmlinuz",
        initramfs="/images/initramfs",
        ssh_port=20022,
        console="/console/voh-run.log",
        disks=disks,
        vcpus=2,
    )


def every_option(bus: Bus, *, start: int = 0, stop: int | None = None, controller: Controller = "single") -> GuestSpec:
    """Without the mapping of queues to threads, which would keep an older libvirt from judging all the others.

    Nor with polling, for the same reason.
    """
    found = [(name, attach) for name, attach in options(bus).items() if name not in ("mapping", "no-polling")]
    return guest(*(file_disk(name, replace(each, controller=controller)) for name, each in found[start:stop]))


def file_disk(name: str, attach: Attach) -> GuestDisk:
    """On a file of its own."""
    return GuestDisk(name, replace(FILE, path=FILE.path.replace("raw.raw", f"{name}.raw")), attach)


ARTICLE = (
    GuestDisk("passthrough", DEVICE, Attach()),
    GuestDisk("lvm", VOLUME, Attach()),
    file_disk("raw", Attach()),
    file_disk("raw-cached", Attach(cache="writeback", aio="threads")),
)
PASSED = (GuestDisk("vfio", DEVICE, Vfio()), file_disk("raw", Attach()), GuestDisk("vfio-2", DEVICE, Vfio()))
SPECS = {
    "article": guest(*ARTICLE),
    "article-tcg": guest(*ARTICLE, accel="tcg"),
    "no-disk": guest(),
    "pinned": replace(guest(*ARTICLE), vcpus=2, pinned_cpu=1),
    "virtio-blk": every_option("virtio-blk"),
    "virtio-scsi": every_option("virtio-scsi"),
    "virtio-scsi-shared": every_option("virtio-scsi", controller="shared"),
    "virtio-scsi-lun": guest(GuestDisk("lun", DEVICE, Attach(device="lun", aio="threads"))),
    "virtio-blk-mapping": guest(GuestDisk("mapping", FILE, options("virtio-blk")["mapping"])),
    "virtio-scsi-mapping": guest(GuestDisk("mapping", FILE, options("virtio-scsi")["mapping"])),
    "polling-of-a-disk": replace(
        guest(
            GuestDisk("blk", FILE, options("virtio-blk")["no-polling"]),
            GuestDisk("scsi", VOLUME, options("virtio-scsi")["no-polling"]),
            GuestDisk("plain", DEVICE, Attach()),
        ),
        options=GuestOptions(poll_grow=2),
    ),
    "qcow2-cache": guest(GuestDisk("qcow2", QCOW2, Attach("virtio-blk", metadata_cache=4 * MIB))),
    "vhost-user": replace(
        guest(GuestDisk("vhost", DEVICE, Attach("virtio-blk", queues=2, queue_size=256, server="storage-daemon"))),
        options=GuestOptions(hugepages=2 * MIB),
        sockets={"vhost": "/run/voh-a/socket"},
    ),
    "sata": every_option("sata"),
    **{
        f"ide-{number}": every_option("ide", start=start, stop=start + BUSES["ide"].most)
        for number, start in enumerate(range(0, len(options("ide")), BUSES["ide"].most), start=1)
    },
    "nvme": every_option("nvme"),
    "scsi-controllers": guest(
        *(
            GuestDisk(bus, replace(FILE, path=FILE.path.replace("raw.raw", f"{bus}.raw")), Attach(bus, iothread=False))
            for bus in OTHER_SCSI
        ),
        file_disk("virtio", Attach()),
    ),
    "pvscsi": every_option("pvscsi"),
    "ide-and-sata": guest(
        file_disk("ide", Attach("ide", iothread=False)),
        file_disk("sata", Attach("sata", iothread=False)),
        file_disk("scsi", Attach()),
    ),
    "sources": guest(
        GuestDisk("device", DEVICE, Attach()),
        GuestDisk("volume", VOLUME, Attach("virtio-blk")),
        GuestDisk("file", FILE, Attach("sata", iothread=False)),
        GuestDisk("qcow2", QCOW2, Attach()),
    ),
    "data-file": guest(
        GuestDisk("qcow2", replace(QCOW2, data_file=QCOW2.path.replace("qcow2.qcow2", "q.data")), Attach())
    ),
    "vfio": guest(*PASSED),
    "same-device": guest(
        GuestDisk("passthrough", DEVICE, Attach()),
        GuestDisk("cached", DEVICE, Attach(cache="writeback", aio="threads")),
    ),
    **{
        f"guest-{name}": replace(
            guest(*ARTICLE),
            vcpus=each.vcpu_count or 2,
            options=each,
            system=SystemFiles("/guests/one", each.firmware or "bios") if each.image else None,
        )
        for name, each in GUEST_OPTIONS.items()
    },
    "guest-over-pinned": replace(guest(*ARTICLE), pinned_cpu=3, options=GUEST_OPTIONS["pins"]),
    "many": guest(*(file_disk(f"blk-{number}", Attach("virtio-blk")) for number in range(40))),
}


def source_of(name: str, layout: Layout) -> BlockSource:
    """What stands for the layout of the mode called `name`; modes on a bare disk or the same bare array share it."""
    if isinstance(layout, Device):
        return DEVICE
    if isinstance(layout, Md):
        return replace(
            VOLUME, path=f"/dev/md/voh-raid{layout.level}-{layout.disks}-{layout.legs}-{layout.chunk // 1024}k"
        )
    if isinstance(layout, RawFile | ZfsFile):
        return replace(FILE, path=FILE.path.replace("raw.raw", f"{name}.raw"))
    if isinstance(layout, Qcow2):
        return replace(QCOW2, path=QCOW2.path.replace("qcow2.qcow2", f"{name}.qcow2"))
    return replace(VOLUME, path=f"/dev/voh-run/{name}")


def attached(modes: Sequence[Mode]) -> GuestSpec:
    """The guest of a setup, with as many vCPUs as the most queues of a disk here."""
    disks = [GuestDisk(mode.name, source_of(mode.name, mode.layout), mode.attach) for mode in modes if mode.attach]
    served = (disk.name for disk in disks if isinstance(disk.attach, Attach) and not disk.attach.in_qemu)
    return replace(guest(*disks), vcpus=4, sockets={name: f"/run/voh-{name}/socket" for name in served})


SITTINGS = {
    f"scenario-{name}-{number}": attached(modes)
    for name, scenario in SCENARIOS.items()
    for number, modes in enumerate(setups(scenario.modes), start=1)
}
"""Every guest of the scenarios that come with the project: every combination of layout and attachment in them."""
GUESTS = SPECS | SITTINGS


@pytest.mark.parametrize("name", GUESTS)
def test_a_guest_is_described_as_in_its_golden_file(name: str, regenerate: bool) -> None:
    as_in_golden_file(f"{name}.xml", build_domain_xml(GUESTS[name]), regenerate=regenerate)


def test_a_device_that_is_passed_through_is_described_as_in_its_golden_file(regenerate: bool) -> None:
    described = build_hostdev_xml("0000:41:00.1", assign_root_ports(PASSED)["vfio-2"], name_alias(PASSED[2]))
    as_in_golden_file("hostdev.xml", described, regenerate=regenerate)


def as_in_golden_file(name: str, described: str, *, regenerate: bool) -> None:
    golden = GOLDEN / name
    if regenerate:
        golden.write_text(described + "\n")
    assert described + "\n" == golden.read_text(), "if it is meant so: pytest tests/unit/test_domain.py --regenerate"


def test_every_golden_file_belongs_to_a_guest() -> None:
    assert {path.stem for path in GOLDEN.glob("*.xml")} == {*GUESTS, "hostdev"}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_mode_of_every_scenario_is_in_a_golden_file_with_its_requested_disk(name: str) -> None:
    files = sorted(GOLDEN.glob(f"scenario-{name}-[0-9]*.xml"))
    disks = {disk.findtext("serial"): disk for file in files for disk in ET.parse(file).iterfind("devices/disk")}
    for mode in SCENARIOS[name].modes:
        if isinstance(mode.attach, Attach) and mode.attach.device == "disk" and mode.attach.in_qemu:
            source = source_of(mode.name, mode.layout)
            disk = disks[GuestDisk(mode.name, source, mode.attach).serial]
            driver, target = disk.find("driver"), disk.find("target")
            assert driver is not None
            assert target is not None
            assert disk.get("type") == source.kind
            assert (driver.get("cache"), driver.get("io"), driver.get("type")) == (
                mode.attach.cache,
                mode.attach.aio,
                source.format,
            )
            assert target.get("bus") == BUSES[mode.attach.bus].hypervisor


@pytest.mark.parametrize("name", SITTINGS)
def test_libvirts_own_schema_accepts_all_of_a_scenario_that_it_is_new_enough_for(name: str) -> None:
    here = Versions(libvirt.getVersion(), NEW.qemu)
    spec = SITTINGS[name]
    known = [
        disk
        for disk in spec.disks
        if not isinstance(disk.attach, Attach) or refuse_attach(disk.attach, here, cpus=spec.vcpus) is None
    ]
    assert accepted(build_domain_xml(replace(spec, disks=tuple(known))))
    assert len(known) >= len(spec.disks) - 2  # at most NVMe and the mapping of queues


@pytest.mark.parametrize("name", SPECS)
def test_libvirts_own_schema_accepts_every_guest(name: str) -> None:
    assert valid(SPECS[name])


def test_libvirts_own_schema_accepts_a_device_that_is_passed_through() -> None:
    domain = ET.fromstring(build_domain_xml(SPECS["vfio"]))
    devices = domain.find("devices")
    assert devices is not None
    devices.append(ET.fromstring((GOLDEN / "hostdev.xml").read_text()))
    assert accepted(ET.tostring(domain, encoding="unicode"))


@pytest.mark.parametrize("bus", BUSES)
@pytest.mark.parametrize("cache", ["none", "directsync", "writeback", "writethrough", "unsafe"])
@pytest.mark.parametrize("aio", ["native", "io_uring", "threads"])
def test_libvirts_own_schema_accepts_every_way_to_attach(bus: Bus, cache: Cache, aio: Aio) -> None:
    assert valid(guest(GuestDisk("raw", FILE, Attach(bus, cache, aio, iothread=bus.startswith("virtio")))))


def test_the_schema_rejects_a_mistake() -> None:
    with pytest.raises(libvirt.libvirtError, match="XML document failed to validate against schema"):
        valid(guest(GuestDisk("raw", FILE, Attach(cache="lukewarm"))))  # type: ignore[arg-type]


def valid(spec: GuestSpec) -> bool:
    """Whether libvirt accepts the guest; the test is skipped where the one here is too old to know what it has."""
    here = Versions(libvirt.getVersion(), NEW.qemu)
    for disk in spec.disks:
        if isinstance(disk.attach, Attach) and (why := refuse_attach(disk.attach, here, cpus=spec.vcpus)):
            pytest.skip(f"libvirt's schema here does not know it yet: {why}")
        if disk.source.data_file and here.libvirt < DATA_FILE:
            pytest.skip("libvirt's schema here does not know data files yet")
    if why := refuse_guest(spec.options, here):
        pytest.skip(f"libvirt's schema here does not know it yet: {why}")
    return accepted(build_domain_xml(spec))


def accepted(xml: str) -> bool:
    connection = libvirt.open("test:///default")
    try:
        return bool(connection.defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE).name() == "voh-run")
    finally:
        connection.close()


def test_every_disk_is_found_again_by_its_own_serial_and_alias() -> None:
    long = [GuestDisk(f"virtio-blk-with-iothread-{n}", FILE, Attach("virtio-blk")) for n in range(3)]
    live = ET.fromstring(build_domain_xml(guest(*ARTICLE, *long)))
    serials = [disk.findtext("serial") or "" for disk in live.iterfind("devices/disk")]
    assert serials == [disk.serial for disk in (*ARTICLE, *long)]
    assert len(set(serials)) == len(serials)
    assert max(map(len, serials)) <= SERIAL_CHARACTERS
    assert serials[: len(ARTICLE)] == [disk.name for disk in ARTICLE]
    assert [alias.get("name") for alias in live.iterfind("devices/disk/alias")] == [f"ua-{each}" for each in serials]


def test_no_two_disks_share_a_controller_or_an_iothread() -> None:
    live = ET.fromstring(build_domain_xml(SPECS["article"]))
    threads = [driver.get("iothread") for driver in live.iterfind("devices/controller[@type='scsi']/driver")]
    used = [address.get("controller") for address in live.iterfind("devices/disk/address")]
    assert threads == ["1", "2", "3", "4"]
    assert len(set(used)) == len(ARTICLE)
    assert live.findtext("iothreads") == "4"


def test_disks_share_a_controller_if_the_mode_requests_it_and_its_queues_are_the_same() -> None:
    shared = Attach(controller="shared")
    live = ET.fromstring(
        build_domain_xml(
            guest(
                GuestDisk("a", FILE, shared),
                GuestDisk("b", FILE, replace(shared, cache="directsync")),
                GuestDisk("c", FILE, replace(shared, queues=2)),
                GuestDisk("d", FILE, Attach()),
            )
        )
    )
    places = [(at.get("controller"), at.get("unit")) for at in live.iterfind("devices/disk/address")]
    assert places == [("0", "0"), ("0", "1"), ("1", "0"), ("2", "0")]


def test_only_the_threads_of_a_disk_that_requests_it_do_not_poll() -> None:
    live = ET.fromstring(build_domain_xml(SPECS["polling-of-a-disk"]))
    polls = {each.get("id"): dict(poll.attrib) for each in live.iterfind("iothreadids/iothread") for poll in each}
    assert polls == {"1": {"max": "0", "grow": "2"}, "2": {"max": "0", "grow": "2"}, "3": {"grow": "2"}}


def test_disks_that_poll_differently_share_no_controller() -> None:
    shared = Attach(controller="shared")
    live = ET.fromstring(
        build_domain_xml(guest(GuestDisk("a", FILE, shared), GuestDisk("b", FILE, replace(shared, poll_max_ns=0))))
    )
    assert [at.get("controller") for at in live.iterfind("devices/disk/address")] == ["0", "1"]


def test_a_thread_for_all_queues_and_a_mapping_to_one_thread_are_no_common_controller() -> None:
    shared = Attach(controller="shared", queues=2)
    mapped = replace(shared, iothread=False, iothread_vq_mapping=1)
    live = ET.fromstring(build_domain_xml(guest(GuestDisk("a", FILE, shared), GuestDisk("b", FILE, mapped))))
    assert [at.get("controller") for at in live.iterfind("devices/disk/address")] == ["0", "1"]


def test_nothing_about_a_disk_is_left_to_a_default() -> None:
    for spec in SPECS.values():
        disks = ET.fromstring(build_domain_xml(spec)).iterfind("devices/disk")
        # A storage daemon has these options instead of libvirt.
        for driver in (each for disk in disks if disk.get("type") != "vhostuser" for each in disk.iterfind("driver")):
            assert {"cache", "io", "discard", "detect_zeroes", "type"} <= set(driver.keys())


@pytest.mark.parametrize("disks", [1, 27, 28, 100, 223])
def test_each_device_has_its_own_place_on_the_root_bus(disks: int) -> None:
    spec = guest(*(GuestDisk(f"blk-{number}", VOLUME, Attach("virtio-blk")) for number in range(disks)))
    live = ET.fromstring(build_domain_xml(spec))
    places = Counter((at.get("slot"), at.get("function")) for at in live.iterfind("devices/*/address[@type='pci']"))
    assert set(places.values()) == {1}
    assert places.keys().isdisjoint({("0x00", "0x0"), ("0x01", "0x0"), ("0x1e", "0x0"), ("0x1f", "0x0")})
    # A device that shares its slot is found only where the slot's first function says that there are more.
    several = {slot for slot, function in places if function != "0x0"}
    first = {at.get("slot") for at in live.iterfind("devices/*/address[@multifunction='on']")}
    assert several <= first
    assert accepted(build_domain_xml(spec))


def test_more_devices_than_the_root_bus_has_room_for_are_refused_with_both_numbers() -> None:
    spec = guest(*(GuestDisk(f"blk-{number}", VOLUME, Attach("virtio-blk")) for number in range(224)))
    with pytest.raises(Unsupported, match="225 devices do not fit on a guest's root bus, which has room for 224"):
        build_domain_xml(spec)


def test_more_disks_than_libvirt_has_letters_have_names_of_their_own() -> None:
    spec = guest(*(GuestDisk(f"blk-{number}", VOLUME, Attach("virtio-blk")) for number in range(30)))
    names = [at.get("dev") for at in ET.fromstring(build_domain_xml(spec)).iterfind("devices/disk/target")]
    assert names[24:29] == ["vdy", "vdz", "vdaa", "vdab", "vdac"]


def test_sata_disks_beyond_the_ports_of_a_controller_get_another() -> None:
    live = ET.fromstring(build_domain_xml(every_option("sata")))
    places = [(at.get("controller"), at.get("unit")) for at in live.iterfind("devices/disk/address")]
    assert places[BUSES["sata"].most - 1 : BUSES["sata"].most + 1] == [("0", "5"), ("1", "0")]
    # The first is part of the chip set.
    more = range(1, -(-len(places) // BUSES["sata"].most))
    assert [each.get("index") for each in live.iterfind("devices/controller[@type='sata']")] == list(map(str, more))


def test_only_a_guest_with_a_disk_on_ide_is_the_older_machine() -> None:
    machines = {name: ET.fromstring(build_domain_xml(spec)).find("os/type") for name, spec in SPECS.items()}
    old = {name for name, machine in machines.items() if machine is not None and machine.get("machine") == "pc"}
    assert old == {name for name in SPECS if name.startswith("ide")} | {"guest-pc"}
    assert "bus=pci.0" in build_domain_xml(SPECS["ide-1"])


def test_a_fifth_disk_on_ide_is_refused() -> None:
    with pytest.raises(Unsupported, match="room for 4 disks on IDE"):
        build_domain_xml(every_option("ide", stop=5))


def test_ide_and_a_device_that_is_passed_through_cannot_be_in_one_guest() -> None:
    with pytest.raises(Unsupported, match="no machine type has both IDE, which old requests, and PCIe, which vfio"):
        build_domain_xml(guest(GuestDisk("old", FILE, Attach("ide", iothread=False)), PASSED[0]))


def test_each_device_that_is_passed_through_has_a_port_of_its_own() -> None:
    assert assign_root_ports(PASSED) == {"vfio": 1, "vfio-2": 2}
    ports = ET.fromstring(build_domain_xml(SPECS["vfio"])).iterfind("devices/controller[@model='pcie-root-port']")
    assert [port.get("index") for port in ports] == ["1", "2"]


def test_the_guest_answers_only_on_the_hosts_loopback() -> None:
    assert "hostfwd=tcp:127.0.0.1:20099-:22" in build_domain_xml(replace(guest(), ssh_port=20099))


# --- what libvirt and QEMU must know ---

DEBIAN_12 = Versions(libvirt=9_000_000, qemu=7_002_000)
DEBIAN_13 = Versions(libvirt=11_003_000, qemu=10_000_000)


def test_polling_needs_a_libvirt_that_has_it_in_its_xml() -> None:
    polling = GUEST_OPTIONS["polling"]
    said = "polling of iothreads needs libvirt 9.4.0, but the host has 9.0.0: upgrade the host"
    assert said in (refuse_guest(polling, DEBIAN_12) or "")
    assert refuse_guest(polling, DEBIAN_13) is None
    assert {name for name, each in GUEST_OPTIONS.items() if refuse_guest(each, DEBIAN_12)} == {"polling", "no-polling"}


def test_options_of_a_cpu_are_for_proxmox_ve_only() -> None:
    assert "request the model only" in (refuse_guest(GuestOptions(cpu="host,flags=+aes"), DEBIAN_13) or "")


@pytest.mark.parametrize(
    ("attach", "machine", "said"),
    [
        (Attach("ide", iothread=False), "q35", 'machine = "q35" has no IDE: request a machine type of pc, or none'),
        (Vfio(), "pc-i440fx-9.2", 'machine = "pc-i440fx-9.2" has no PCIe: request a machine type of q35, or none'),
    ],
)
def test_a_disk_on_a_machine_type_without_its_bus_is_refused(attach: Attach | Vfio, machine: str, said: str) -> None:
    spec = replace(guest(GuestDisk("own", DEVICE, attach)), options=GuestOptions(machine=machine))
    with pytest.raises(Unsupported, match=f"own: {said}"):
        build_domain_xml(spec)


@pytest.mark.parametrize(
    ("attach", "said"),
    [
        (Attach("nvme", iothread=False), 'bus = "nvme" needs libvirt 11.5.0, but the host has 9.0.0'),
        (Attach("virtio-blk", iothread_vq_mapping=2), "needs libvirt 10.0.0, but the host has 9.0.0"),
        (Attach("virtio-blk", iothread_vq_mapping=2), "needs QEMU 9.0.0, but the host has 7.2.0"),
        (Attach(iothread_vq_mapping=2), "needs libvirt 11.2.0, but the host has 9.0.0"),
        (Attach(poll_max_ns=0), "polling of iothreads needs libvirt 9.4.0, but the host has 9.0.0"),
        (Attach(queues=5), "queues = 5 needs as many vCPUs, but the host has 4 CPUs"),
    ],
)
def test_the_refusal_of_an_old_host_names_the_required_version(attach: Attach, said: str) -> None:
    assert said in (refuse_attach(attach, DEBIAN_12, cpus=4) or "")


def test_rings_caches_and_storage_daemons_need_newer_programs_than_debian_11() -> None:
    old = Versions(libvirt=5_000_000, qemu=5_002_000)
    asked = {
        "packed needs libvirt 6.3.0": Attach(packed=True),
        "metadata_cache needs libvirt 7.0.0": Attach(metadata_cache=1 << 20),
        'server = "storage-daemon" needs libvirt 7.1.0': Attach("virtio-blk", server="storage-daemon"),
        'server = "storage-daemon" needs QEMU 7.0.0': Attach("virtio-blk", server="storage-daemon"),
    }
    assert [said for said, attach in asked.items() if said not in (refuse_attach(attach, old, cpus=4) or "")] == []
    # A storage daemon's thread polls as its arguments say, whatever libvirt knows.
    assert refuse_attach(Attach("virtio-blk", server="storage-daemon", poll_max_ns=0), DEBIAN_12, cpus=4) is None


def test_debian_13_has_all_but_nvme() -> None:
    lacking = {
        bus for bus in BUSES
        for attach in options(bus).values() if refuse_attach(attach, DEBIAN_13, cpus=2)
    }  # fmt: skip
    assert lacking == {"nvme"}
