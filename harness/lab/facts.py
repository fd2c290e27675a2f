"""Reads the properties of a host and of its disks.

Of the host: versions, CPU, programs and kernel modules, and whether KVM really works. A boot of the guest image shows
this; the existence of /dev/kvm does not.

Of disks: identity, links, queue and controller. The kernel's facts come from one command for all disks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from platformdirs import user_cache_path

from harness.errors import HostError
from harness.feature import DiskPrograms, list_brought
from harness.files import install_command, read_script, write_stored
from harness.lab.counters import CLOCK
from harness.lab.inventory import Accel
from harness.lab.transport.base import Runner
from harness.model.base import Module, Tools
from harness.model.disk import (
    ArrayFacts,
    Controller,
    DiskClass,
    DiskFacts,
    DiskHealth,
    NetworkPath,
    PcieLink,
    SerialLink,
)
from harness.model.layout import every_requirement
from harness.terminal import quoted
from harness.units import format_duration
from harness.untrusted import read_stored

_SCRIPT = read_script("harness.lab", "read_host.sh")

# Programs in addition to those that layouts need and that describe disks.
_TOOLS = ("sfdisk", "wipefs", "blkid", "losetup", "fallocate", "udevadm", "qemu-storage-daemon")
_NUMBERS = ("cpus", "memory_bytes", "swap_bytes", "user")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A host's properties as text by name. The text is empty if the host does not report the property."""

    values: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")

    def has_tool(self, name: str) -> bool:
        return bool(self[f"tool_{name}"])

    def has_module(self, name: str) -> bool:
        """Whether the kernel has the module: loaded, built in, or loadable."""
        return bool(self[f"module_{name}"])

    def install(self, *packages: str) -> str:
        """The command that installs Debian's `packages` on the host's distribution."""
        return install_command(self["os_id"].strip(), *packages)

    @property
    def has_device_mapper(self) -> bool:
        return bool(self["device_mapper"])

    @property
    def provenance(self) -> dict[str, str]:
        """The properties that a report shows."""
        return {
            name: value
            for name, value in self.values.items()
            if value and not name.startswith(("tool_", "module_")) and name not in ("user", "device_mapper", "os_id")
        }


def read_facts(runner: Runner, fio: str = "fio") -> HostFacts:
    """The facts of the machine behind `runner`, in one round trip. `fio` is the program there."""
    needed = list(every_requirement())
    tools = [*_TOOLS, *(name for need in needed if isinstance(need, Tools) for name in need.names)]
    tools += (name for programs in list_brought(DiskPrograms) for name in programs.names)
    modules = [need.name for need in needed if isinstance(need, Module)]
    script = ["sh", "-s", "--", " ".join(dict.fromkeys(tools)), " ".join(dict.fromkeys(modules)), fio, CLOCK]
    printed = runner.run(script, stdin=_SCRIPT, deadline=60, check=False).stdout
    values = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    if "kernel" not in values:
        raise HostError(
            f"{runner.name}: it did not report its kernel version",
            hint="a host must be a Linux machine with a POSIX shell",
        )
    for name in _NUMBERS:
        if not re.fullmatch("[0-9]{0,18}", values.get(name, "")):
            raise HostError(
                f"{runner.name}: {name} is {quoted(values[name])}, which is not a number",
                hint=f"check what /proc/cpuinfo and /proc/meminfo show on {runner.name}",
            )
    return HostFacts(values)


def require_fio(facts: HostFacts, host: str, fio: str = "fio") -> None:
    """Raise HostError if the host does not have the program fio, which measures the baseline."""
    if facts["fio"].startswith("fio-"):
        return
    if fio != "fio":
        raise HostError(
            f"host {host}: {fio} is not fio, or cannot be started", hint=f"correct host.{host}.fio in the lab file"
        )
    raise HostError(
        f"host {host}: fio is not installed, so there is no baseline to compare guests with",
        hint=f"install it on {host}: {facts.install('fio')}",
    )


PROBE_SECONDS = 60
"""A guest kernel reaches its init in 4 s under nested, emulated KVM. A machine that needs longer than this hangs."""
BOOTED = "virt-overhead: guest is up"

# The guest prints BOOTED on its console and turns itself off (images/guest/init). `timeout` ends a guest that hangs.
# Arguments: kernel, initramfs, seconds, and the command of QEMU. Without the command, the machine's own QEMU runs.
_BOOT = (
    "kernel=$1 initramfs=$2 seconds=$3; shift 3; "
    "[ $# -gt 0 ] || set -- $(command -v qemu-system-x86_64 || command -v /usr/libexec/qemu-kvm); "
    "[ $# -gt 0 ] || { echo no QEMU; exit 3; }; "
    "[ -e /dev/kvm ] || { echo no /dev/kvm; exit 4; }; [ -w /dev/kvm ] || { echo no access to /dev/kvm; exit 4; }; "
    'exec timeout -k 2 "$seconds" "$@" -accel kvm -cpu host -machine q35 -m 256 -nodefaults -display none -no-reboot '
    '-serial stdio -kernel "$kernel" -initrd "$initramfs" '
    '-append "console=ttyS0 quiet virt_overhead.probe" </dev/null 2>&1'
)


@dataclass(frozen=True, slots=True)
class Acceleration:
    """The accelerator to use, and the reason as text."""

    accel: Accel
    why: str


def probe(runner: Runner, kernel: str, initramfs: str, qemu: Sequence[str] = ()) -> Acceleration:
    """Boot the guest image at these paths of the machine under KVM, and return the result.

    `qemu` is the command that starts QEMU there. Without it, the installed QEMU runs.
    """
    started = time.monotonic()
    done = runner.run(
        ["sh", "-c", _BOOT, "sh", kernel, initramfs, str(PROBE_SECONDS), *qemu],
        deadline=PROBE_SECONDS + 30,
        check=False,
    )
    took = format_duration(time.monotonic() - started)
    if BOOTED in done.stdout:
        return Acceleration("kvm", f"the guest image booted under KVM in {took}")
    if done.status in (3, 4):
        return Acceleration("tcg", f"KVM cannot be used: {done.stdout.strip()}")
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    last = f"; last line printed: {lines[-1][:120]}" if lines else ""
    return Acceleration("tcg", f"/dev/kvm opens, but the guest image did not boot under KVM: QEMU ran for {took}{last}")


def probes_file() -> Path:
    """The file with the latest probe results of all hosts."""
    return user_cache_path("virt-overhead") / "kvm-probes.json"


def load_or_probe(path: Path, key: str, run_probe: Callable[[], Acceleration]) -> Acceleration:
    """The result stored in `path` under `key` if a guest booted then, else that of `run_probe`, which takes a boot.

    A failed boot is stored as well, for the doctor, but probed again: meanwhile, somebody may have added a kernel
    module, access for this user, or QEMU.
    """
    stored = read_answers(path).get(key)
    if stored and stored.accel == "kvm":
        return stored
    result = run_probe()
    # Read the file again, because another run may have stored its result meanwhile. The newest result comes last.
    answers = {name: answer for name, answer in read_answers(path).items() if name != key} | {key: result}
    with suppress(OSError):  # of a cache that cannot be written
        write_stored(path, {name: asdict(answer) for name, answer in answers.items()})
    return result


def read_answers(path: Path) -> dict[str, Acceleration]:
    """The results stored in `path`, by key; empty if the file cannot be read, because a probe can be repeated."""
    return read_stored(path, dict[str, Acceleration]) or {}


DEADLINE_SECONDS = 60.0
"""A disk that sleeps needs seconds to answer."""
MOST_LEVELS = 8
"""Devices on top of each other: a volume on a thin pool on an array on partitions of disks has six."""

_PROGRAM = read_script("harness.lab", "read_disks.pl")

_NUMBER = re.compile(r"[0-9]{1,18}")
_RATE = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,2})?)(?![0-9])")
_TRANSPORTS = (
    *(("/usb", "usb"), ("/ata", "sata"), ("/end_device-", "sas"), ("/session", "iscsi"), ("/host", "scsi")),
    ("/virtio", "virtio"),
)
"""A part of the device's path in sysfs, and what the disk is then attached by; the first one counts."""


def read_disks(runner: Runner, disks: Sequence[str], *, root: str = "") -> dict[str, DiskFacts]:
    """The facts of these disks, and of those below them, by their kernel names (`nvme0n1`).

    Disks that are not there are left out, as one that is passed through to a guest. `root` is a directory to read
    instead of `/`. Raises HostError if the host cannot run the command.
    """
    disks_read: dict[str, DiskFacts] = {}
    wanted = list(dict.fromkeys(disks))
    for _ in range(MOST_LEVELS):
        if not wanted:
            break
        read = _read(runner, wanted, root)
        disks_read |= read
        wanted = list(dict.fromkeys(name for disk in read.values() for name in disk.members if name not in disks_read))
    return disks_read


def _read(runner: Runner, disks: Sequence[str], root: str) -> dict[str, DiskFacts]:
    argv = ["perl", "-", root, *disks]
    printed = runner.run(argv, stdin=_PROGRAM, deadline=DEADLINE_SECONDS, check=False).stdout
    values: dict[str, dict[str, str]] = {}
    for line in printed.splitlines():
        disk, _, rest = line.partition("\t")
        key, _, value = rest.partition("\t")
        if disk in disks and value:
            values.setdefault(disk, {})[key] = value
    return {disk: _parse_facts(disk, values[disk]) for disk in disks if disk in values}


def _parse_facts(device: str, values: Mapping[str, str]) -> DiskFacts:
    sectors = _parse_count(values.get("size"))
    transport = _find_transport(device, values)
    array = _parse_array(values)
    rotational = {"0": False, "1": True}.get(values.get("rotational", ""))
    link = _parse_pcie(values)
    # SATA disks have ATA as their vendor, and virtio disks a PCI id.
    vendor = values.get("device/vendor", "")
    return DiskFacts(
        device=device,
        disk_class=_find_class(transport, rotational=rotational, is_array=array is not None),
        vendor=vendor if vendor and vendor != "ATA" and not vendor.startswith("0x") else None,
        model=values.get("device/model"),
        firmware=values.get("device/firmware_rev") or values.get("device/rev"),
        size_bytes=sectors * 512 if sectors is not None else None,
        logical_block_bytes=_parse_count(values.get("logical_block_size")),
        physical_block_bytes=_parse_count(values.get("physical_block_size")),
        rotational=rotational,
        transport=transport,
        pcie=link if transport == "nvme" else None,
        network=_parse_network(values),
        serial_link=_parse_serial(values),
        scheduler=_find_chosen(values.get("scheduler", "")),
        write_cache=values.get("write_cache"),
        numa_node=_parse_count(values.get("numa")),
        path=values.get("pci"),
        controller=_parse_controller(values, link) if transport != "nvme" and "pci" in values else None,
        array=array,
        members=tuple(values.get("members", "").split()),
    )


def _find_class(transport: str | None, *, rotational: bool | None, is_array: bool) -> DiskClass | None:
    if is_array:
        return "array"
    if transport is not None and transport.startswith("nvme"):
        return "nvme"
    # A virtio disk rotates unless its hypervisor says otherwise, and few do.
    if transport in (None, "loop", "dm", "virtio") or rotational is None:
        return None
    return "hdd" if rotational else "ssd"


def _find_transport(device: str, values: Mapping[str, str]) -> str | None:
    if device.startswith("nvme"):
        fabric = values.get("network/protocol")
        return f"nvme-{fabric}" if fabric else "nvme"
    for key, transport in (("md/level", "md"), ("dm/uuid", "dm"), ("loop/backing_file", "loop")):
        if key in values:
            return transport
    path = values.get("sysfs", "")
    return next((transport for part, transport in _TRANSPORTS if part in path), None)


def _parse_network(values: Mapping[str, str]) -> NetworkPath | None:
    protocol = values.get("network/protocol")
    if protocol is None:
        return None
    known = {"iscsi": "iSCSI", "tcp": "NVMe/TCP", "rdma": "NVMe/RDMA", "fc": "NVMe/FC"}
    addresses = (text for key, text in values.items() if key.startswith("network/address"))
    return NetworkPath(known.get(protocol, f"NVMe/{protocol}"), values.get("network/target"), tuple(addresses))


def _parse_array(values: Mapping[str, str]) -> ArrayFacts | None:
    if "md/level" in values:
        chunk = _parse_count(values.get("md/chunk_size"))
        return ArrayFacts(values["md/level"], chunk or None, _parse_count(values.get("md/raid_disks")))
    # smartpqi and hpsa show the level of a volume, and N/A for a disk that they pass through.
    level = values.get("device/raid_level", "N/A")
    return ArrayFacts(level) if level not in ("N/A", "") else None


def _parse_controller(values: Mapping[str, str], link: PcieLink | None) -> Controller:
    return Controller(
        vendor=values.get("pci/vendor_name") or values.get("pci/vendor"),
        model=values.get("host_model") or values.get("pci/model_name") or values.get("pci/device"),
        driver=values.get("pci/driver"),
        firmware=values.get("host_firmware"),
        link=link,
    )


def _parse_pcie(values: Mapping[str, str]) -> PcieLink | None:
    speed, lanes = _parse_rate(values.get("pci/current_link_speed")), _parse_count(values.get("pci/current_link_width"))
    if not speed or not lanes:
        return None
    # An emulated device shows 255 lanes as its highest number, which stands for unknown.
    most = _parse_count(values.get("pci/max_link_width"))
    return PcieLink(speed, lanes, _parse_rate(values.get("pci/max_link_speed")), most if most and most < 255 else None)


def _parse_serial(values: Mapping[str, str]) -> SerialLink | None:
    if sata := _parse_rate(values.get("sata_spd")):
        return SerialLink("SATA", sata, _parse_rate(values.get("sata_most")))
    if sas := _parse_rate(values.get("sas_rate")):
        return SerialLink("SAS", sas, _parse_rate(values.get("sas_most")))
    return None


def _find_chosen(listed: str) -> str | None:
    """The active scheduler. The kernel lists all with the active one in brackets: `[none] mq-deadline`."""
    match = re.search(r"\[(\S+)\]", listed) or re.fullmatch(r"(\S+)", listed)
    return match[1] if match else None


def _parse_count(text: str | None) -> int | None:
    """A number that is not negative. The kernel writes -1 for a NUMA node that does not matter."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def _parse_rate(text: str | None) -> float | None:
    """The number at the beginning of `8.0 GT/s PCIe`, `6.0 Gbps` or `12.0 Gbit`; None for `<unknown>`."""
    match = _RATE.match(text or "")
    return float(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class Described:
    """Disks by their kernel names, with what a controller's tool reports; and by disk why something is not known."""

    disks: Mapping[str, DiskFacts]
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HealthFound:
    """The health of a disk, or why it is not known. smartctl knows names of SATA disks that the kernel shortens."""

    health: DiskHealth | None = None
    why: str | None = None
    model: str | None = None
    firmware: str | None = None
