"""Reads the properties of a host: versions, CPU, programs and kernel modules, and whether KVM really works.

A boot of the guest image shows the last one; the existence of /dev/kvm does not.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from platformdirs import user_cache_path

from harness.errors import HostError
from harness.files import write_atomically
from harness.lab.counters import CLOCK
from harness.lab.transport.base import Runner
from harness.model.base import Module, Tools
from harness.model.layout import every_requirement
from harness.shipped import install_command, read_script
from harness.units import format_duration
from harness.untrusted import parse_json, reading

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
