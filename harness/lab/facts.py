"""Reads the properties of a host and of its disks.

Of the host: versions, CPU, programs and kernel modules, and whether KVM really works. A boot of the guest image shows
this; the existence of /dev/kvm does not.

Of disks: identity, links, queue and controller, RAID controllers, temperature and wear. The kernel's facts come from
one command for all disks. The programs smartctl, nvme and storcli are asked if the host has them, and never fail a run.
Broadcom's storcli and Dell's perccli print JSON; ssacli for Smart Array does not.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from platformdirs import user_cache_path

from harness.errors import HarnessError, HostError
from harness.files import install_command, read_script, write_atomically
from harness.lab.counters import CLOCK
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
from harness.units import format_duration
from harness.untrusted import finite, parse_json, reading

_SCRIPT = read_script("harness.lab", "read_host.sh")

RAID_TOOLS = ("storcli64", "storcli", "perccli64", "perccli")
"""Programs that describe MegaRAID controllers, of Broadcom and of Dell. They print the same JSON."""

# Programs for every disk, in addition to those that layouts need; the second line only describes disks.
_TOOLS = (
    *("sfdisk", "wipefs", "blkid", "losetup", "fallocate", "udevadm"),
    *("smartctl", "nvme", *RAID_TOOLS),
    "qemu-storage-daemon",
)
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
                f"{runner.name}: {name} is {values[name][:60]!r}, which is not a number",
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


Accel = Literal["kvm", "tcg"]

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
_NESTED = "cat /sys/module/kvm_amd/parameters/nested /sys/module/kvm_intel/parameters/nested 2>/dev/null; true"


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
    return Acceleration("tcg", f"/dev/kvm opens, but the guest image did not boot under KVM within {took}{last}")


def nested(runner: Runner) -> bool:
    """Whether a guest of this machine's KVM may use KVM itself."""
    return any(word in ("1", "Y") for word in runner.run(["sh", "-c", _NESTED], deadline=10).stdout.split())


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
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({name: asdict(answer) for name, answer in answers.items()}, indent=1))
    return result


def read_answers(path: Path) -> dict[str, Acceleration]:
    """The results stored in `path`, by key; empty if the file cannot be read, because a probe can be repeated."""
    try:
        with reading(str(path)):
            stored = parse_json(path.read_bytes(), str(path)).items()
            answers = {key: Acceleration(answer["accel"], answer["why"]) for key, answer in stored}
    except (OSError, HostError):
        return {}
    kinds = get_args(Accel)
    return {key: answer for key, answer in answers.items() if answer.accel in kinds and isinstance(answer.why, str)}


DEADLINE_SECONDS = 60.0
"""A disk that sleeps needs seconds to answer."""
_UNIT_BYTES = 512_000
"""NVMe counts data in units of 1000 times 512 bytes (NVM Express Base Specification, SMART / Health Information)."""
_KELVIN = 273
_HAVE_NONE = (None, "loop", "dm", "md", "virtio")
"""Transports of disks that have no health of their own. Targets show that of no disk behind them, either."""
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


DRIVER = "megaraid_sas"

_SHOWN = re.compile(r"(/c[0-9]+)/v([0-9]+)")
_SIZE = re.compile(r"([0-9]{1,6}) ?([KM])B")


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of a controller: the device that it is for the system, and what it is."""

    device: str
    controller: str
    array: ArrayFacts


@dataclass(frozen=True, slots=True)
class Described:
    """Disks by their kernel names, with what a controller's tool reports; and by disk why something is not known."""

    disks: Mapping[str, DiskFacts]
    notes: Mapping[str, str] = field(default_factory=dict)


def describe_arrays(runner: Runner, host: HostFacts, disks: Mapping[str, DiskFacts]) -> Described:
    """The disks with what the tool of their controller reports in addition."""
    behind = [name for name, disk in disks.items() if disk.controller and disk.controller.driver == DRIVER]
    tool = next((name for name in RAID_TOOLS if host.has_tool(name)), None)
    if not behind:
        return Described(disks)
    what = "cache policy and strip size of its controller are not known"
    if tool is None:
        why = f"{what}, because {runner.name} has neither storcli64 nor perccli64, which the controller's vendor offers"
        return Described(disks, dict.fromkeys(behind, why))
    try:
        controllers = dict(parse_controllers(_ask_tool(runner, host, tool, "/call")))
        volumes = list(parse_volumes(_ask_tool(runner, host, tool, "/call/vall"), tool))
    except HarnessError as error:
        return Described(disks, dict.fromkeys(behind, f"{what}: {error.message}"))
    # A disk that the controller passes through is no volume. It has neither of the two.
    volumes_of = {volume.device: volume for volume in volumes if volume.device in behind}
    return Described(
        {
            name: _add_volume(disk, volumes_of[name], controllers.get(volumes_of[name].controller))
            if name in volumes_of
            else disk
            for name, disk in disks.items()
        }
    )


def parse_controllers(document: Any) -> Iterator[tuple[str, Controller]]:
    """Model and firmware of each controller by its name (`/c0`), in the output of `storcli64 /call show J`."""
    for number, data in _split_controllers(document):
        model, firmware = data.get("Product Name"), data.get("FW Version")
        yield f"/c{number}", Controller(model=_clean_text(model), firmware=_clean_text(firmware), driver=DRIVER)


def parse_volumes(document: Any, source: str) -> Iterator[Volume]:
    """The volumes with a device, in the output of `storcli64 /call/vall show all J`."""
    for _, data in _split_controllers(document):
        for key, value in data.items():
            shown = _SHOWN.fullmatch(key)
            if shown is None:
                continue
            summary, properties = value[0], data.get(f"VD{shown[2]} Properties", {})
            device = str(properties.get("OS Drive Name", "")).removeprefix("/dev/")
            disks = data.get(f"PDs for VD {shown[2]}", [])
            policy = [_clean_text(summary.get("Cache")), _clean_text(properties.get("Write Cache(initial setting)"))]
            disk_cache = _clean_text(properties.get("Disk Cache Policy"))
            policy.append(f"disk cache: {disk_cache}" if disk_cache else None)
            array = ArrayFacts(
                level=_clean_text(summary.get("TYPE")),
                chunk_bytes=_parse_bytes(properties.get("Strip Size")),
                disks=len(disks) or None,
                cache_policy=", ".join(word for word in policy if word) or None,
                source=source,
            )
            if device:
                yield Volume(device, shown[1], array)


def _ask_tool(runner: Runner, host: HostFacts, tool: str, what: str) -> Any:
    argv = [host[f"tool_{tool}"], what, "show", *(["all"] if what != "/call" else []), "J"]
    printed = runner.run(argv, deadline=DEADLINE_SECONDS, check=False).stdout
    source = f"{runner.name}: the output of {tool} {' '.join(argv[1:])}"
    with reading(source):
        document = parse_json(printed, source)
        # Both are generators elsewhere: what is wrong in the document is found here, where it is explained.
        list(parse_controllers(document))
        list(parse_volumes(document, tool))
    return document


def _split_controllers(document: Any) -> Iterable[tuple[int, Mapping[str, Any]]]:
    for answer in document["Controllers"]:
        status = answer["Command Status"]
        if status.get("Status") == "Success" and type(status["Controller"]) is int:
            yield status["Controller"], answer.get("Response Data", {})


def _add_volume(disk: DiskFacts, volume: Volume, known: Controller | None) -> DiskFacts:
    controller_facts = disk.controller or Controller()
    controller = (
        replace(controller_facts, model=known.model or controller_facts.model, firmware=known.firmware)
        if known
        else controller_facts
    )
    return replace(disk, disk_class="array", controller=controller, array=volume.array)


def _clean_text(value: object) -> str | None:
    return " ".join(value.split())[:100] if isinstance(value, str) and value.strip() else None


def _parse_bytes(value: object) -> int | None:
    """`256 KB` in bytes. The tool writes KB for 1024 bytes."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return int(match[1]) << {"K": 10, "M": 20}[match[2]] if match else None


@dataclass(frozen=True, slots=True)
class HealthFound:
    """The health of a disk, or why it is not known. smartctl knows names of SATA disks that the kernel shortens."""

    health: DiskHealth | None = None
    why: str | None = None
    model: str | None = None
    firmware: str | None = None


def read_health(runner: Runner, host: HostFacts, disk: DiskFacts) -> HealthFound:
    """The health of this disk now. The reason why it is not known names the package to install."""
    if disk.transport in _HAVE_NONE or disk.network is not None:
        return HealthFound()
    device = f"/dev/{disk.device}"
    is_nvme = disk.transport == "nvme"
    if host.has_tool("smartctl"):
        statistics = [] if is_nvme else ["-l", "devstat"]
        return _read_health(
            runner, [host["tool_smartctl"], "--json=c", "-i", "-A", *statistics, device], parse_smartctl
        )
    if is_nvme and host.has_tool("nvme"):
        return _read_health(runner, [host["tool_nvme"], "smart-log", device, "-o", "json"], parse_nvme)
    command = host.install("smartmontools")
    return HealthFound(why=f"temperature and wear are not known, because {runner.name} has no smartctl: {command}")


def parse_smartctl(document: Mapping[str, Any], at: float) -> HealthFound:
    """The health in the output of `smartctl --json`, of NVMe, SATA and SAS disks. Keys: smartmontools 7.0 and newer.

    Raises ValueError, TypeError or LookupError if it is not such an output.
    """
    if "device" not in document:
        raise ValueError(_read_message(document))
    nvme = document.get("nvme_smart_health_information_log", {})
    written = nvme.get("data_units_written")
    used = (
        nvme.get("percentage_used"),
        document.get("endurance_used", {}).get("current_percent"),
        document.get("scsi_percentage_used_endurance_indicator"),
        _read_statistic(document, "Percentage Used Endurance Indicator"),
    )
    health = DiskHealth(
        at=at,
        source="smartctl",
        celsius=_parse_number(document.get("temperature", {}).get("current")),
        used_percent=next((number for text in used if (number := _parse_number(text)) is not None), None),
        written_bytes=_parse_whole(written) * _UNIT_BYTES if written is not None else _read_written(document),
        hours=_parse_whole_or_none(document.get("power_on_time", {}).get("hours")),
        errors=_parse_whole_or_none(nvme.get("media_errors")),
    )
    return HealthFound(
        health, None, _clean_text(document.get("model_name")), _clean_text(document.get("firmware_version"))
    )


def parse_nvme(document: Mapping[str, Any], at: float) -> HealthFound:
    """The health in the output of `nvme smart-log -o json`, which has the temperature in kelvin.

    Raises ValueError, TypeError or LookupError if it is not such an output.
    """
    return HealthFound(
        DiskHealth(
            at=at,
            source="nvme",
            celsius=_parse_whole(document["temperature"]) - _KELVIN,
            used_percent=_parse_number(document["percent_used"]),
            written_bytes=_parse_whole(document["data_units_written"]) * _UNIT_BYTES,
            hours=_parse_whole_or_none(document.get("power_on_hours")),
            errors=_parse_whole_or_none(document.get("media_errors")),
        )
    )


def _read_health(
    runner: Runner, argv: list[str], parse: Callable[[Mapping[str, Any], float], HealthFound]
) -> HealthFound:
    source = f"{runner.name}: the output of {' '.join(argv)}"
    try:
        # The exit status of smartctl has a bit for each finding, and is not checked.
        printed = runner.run(argv, deadline=DEADLINE_SECONDS, check=False)
        with reading(source):
            return parse(parse_json(printed.stdout, source), time.time())
    except HarnessError as error:
        return HealthFound(why=f"temperature and wear are not known: {error.message}")


def _read_written(document: Mapping[str, Any]) -> int | None:
    """The bytes written by ATA's device statistics, or by the error counters of SCSI, which count gigabytes."""
    sectors = _read_statistic(document, "Logical Sectors Written")
    if sectors is not None:
        return _parse_whole(sectors) * _parse_whole(document.get("logical_block_size", 512))
    gigabytes = document.get("scsi_error_counter_log", {}).get("write", {}).get("gigabytes_processed")
    return round(finite(str(gigabytes)) * 1e9) if gigabytes is not None else None


def _read_statistic(document: Mapping[str, Any], name: str) -> object:
    """A value of ATA's device statistics (`-l devstat`)."""
    pages = document.get("ata_device_statistics", {}).get("pages", [])
    return next((row.get("value") for page in pages for row in page.get("table", []) if row.get("name") == name), None)


def _read_message(document: Mapping[str, Any]) -> str:
    messages = document.get("smartctl", {}).get("messages", [])
    return str(messages[0]["string"])[:200] if messages else "it describes no device"


def _parse_whole(value: object) -> int:
    """A count. nvme-cli writes large counts as floating-point numbers or text, depending on its version."""
    number = _parse_number(value)
    if number is None or not 0 <= number < 1 << 64:
        raise ValueError(f"{str(value)[:40]!r} is not a count")
    return int(number)


def _parse_whole_or_none(value: object) -> int | None:
    return None if value is None else _parse_whole(value)


def _parse_number(value: object) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    return finite(str(value).replace(",", ""))
