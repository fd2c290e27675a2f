"""Reads the state of a host, and checks the whole host: how guests run, what else runs, the versions of the software.

One script reads sysfs and procfs, and watches CPUs and disks for a moment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from harness.errors import HarnessError, HostError, LabUnavailable
from harness.features.doctor.settings import Tunable
from harness.files import read_script
from harness.lab.facts import Acceleration, HostFacts
from harness.lab.guard.room import free_bytes
from harness.lab.inventory import DiskById, DiskByStorage, DiskSpec
from harness.lab.pin import LEASE_DIRECTORY
from harness.lab.storages import FoundStorage, look_at, reserve_bytes
from harness.lab.transport.base import Runner
from harness.units import format_size
from harness.untrusted import reading

WINDOW_SECONDS = 1.0
"""How long CPUs and disks are watched: long for the kernel's ticks of 1 to 10 ms, short for the user who waits."""
DEADLINE_SECONDS = 60.0

_SCRIPT = read_script("harness.features.doctor", "probe_host.sh")


@dataclass(frozen=True, slots=True)
class DiskState:
    """A disk under test. `device` is the kernel's name of its device, empty if there is none.

    If the disk is a file, `device` is the disk that holds the file. Others use that disk too: `owned` is false.
    `released` says whether the lab file allows a run to overwrite it.
    """

    name: str
    identity: str
    owned: bool
    device: str
    numa_node: int | None
    link_power: str
    released: bool = True


@dataclass(frozen=True, slots=True)
class Process:
    """A process that ran during the whole watched time, and the share of one CPU that it used in this time."""

    pid: int
    parent: int
    command: str
    cpu_share: float


@dataclass(frozen=True, slots=True)
class HostState:
    """The state of a host at one moment. Paths are the host's (`/sys/...`); they were read below `root`.

    `before` and `after` are the counters of CPUs, processes and disks, read `seconds` apart.
    """

    facts: HostFacts
    files: Mapping[str, str]
    disks: tuple[DiskState, ...] = ()
    guests: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The arguments of processes that may be QEMU, by process id."""
    before: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)
    seconds: float = WINDOW_SECONDS
    root: str = ""

    def text(self, path: str) -> str:
        """A file's content; empty if the file does not exist."""
        return self.files.get(path, "")

    def number(self, path: str) -> int | None:
        """The integer in a file; None if the file does not exist or contains something else."""
        content = self.text(path)
        return int(content) if re.fullmatch(r"-?\d+", content) else None

    def matching(self, pattern: str) -> dict[str, str]:
        """The files whose path matches the shell pattern, by path."""
        return {path: text for path, text in sorted(self.files.items()) if fnmatchcase(path, pattern)}

    def chosen(self, path: str) -> str:
        """The word in brackets in a file that lists the allowed values: `always [madvise] never`."""
        content = self.text(path)
        bracketed = re.search(r"\[(\S+)\]", content)
        return bracketed[1] if bracketed else content

    def memory_bytes(self, key: str) -> int | None:
        """A line of /proc/meminfo in bytes; None if the line does not exist."""
        match = re.search(rf"^{key}: *(\d+) kB", self.text("/proc/meminfo"), re.M)
        return int(match[1]) * 1024 if match else None

    @property
    def cpus(self) -> int:
        return int(self.facts["cpus"] or 1)


def look(
    runner: Runner, facts: HostFacts, disks: Sequence[DiskSpec], *, root: str = "", window: float = WINDOW_SECONDS
) -> HostState:
    """The state of the machine behind `runner`, watched for `window` seconds. Changes nothing.

    `root` is a directory to read instead of `/`. Raises HostError if the script did not run to its end.
    """
    named = [word for disk in disks for word in _name_disk(disk)]
    argv = ["sh", "-s", "--", root, str(window), LEASE_DIRECTORY, *named]
    printed = runner.run(argv, stdin=_SCRIPT, deadline=DEADLINE_SECONDS + window, check=False)
    sections = _split_sections(printed.stdout)
    if "end" not in sections:
        reason = printed.stderr.strip()[-300:] or "its output is not usable"
        raise HostError(f"{runner.name}: its settings could not be read: {reason}", hint="use a Linux host that has sh")
    with reading(f"{runner.name}: its settings"):
        return HostState(
            facts=facts,
            files={**sections["files"], **sections["disks"]},
            disks=tuple(_to_state(disk, number, sections["disks"]) for number, disk in enumerate(disks)),
            guests={int(path.split("/")[2]): tuple(text.split("\t")) for path, text in sections["guests"].items()},
            before=sections["before"],
            after=sections["after"],
            seconds=window,
            root=root,
        )


def list_processes(state: HostState) -> list[Process]:
    """The processes of the host, sorted by the CPU time that they used while watched, largest first."""
    ticks = count_cpu_ticks(state)
    per_cpu = sum(ticks.values()) / state.cpus
    processes = []
    for path, line in state.after.items():
        old, new = _split_process_fields(state.before.get(path, "")), _split_process_fields(line)
        # Field 22 of proc(5), the start time, distinguishes a process from a later one with the same id.
        if path.startswith("/proc/") and new and old and old[21] == new[21]:
            used = sum(int(new[at]) - int(old[at]) for at in (13, 14))
            processes.append(Process(int(new[0]), int(new[3]), new[1], used / per_cpu if per_cpu else 0.0))
    return sorted(processes, key=lambda process: -process.cpu_share)


def count_cpu_ticks(state: HostState) -> dict[str, int]:
    """Ticks of all CPUs while watched: `busy`, `idle` and `steal`; see proc(5)."""
    old, new = (
        [int(word) for word in sample.get("/proc/stat", "").split()[1:9]] for sample in (state.before, state.after)
    )
    if len(old) < 8 or len(new) < 8:
        return {}
    user, nice, system, idle, iowait, irq, softirq, steal = (end - start for start, end in zip(old, new, strict=True))
    return {"busy": user + nice + system + irq + softirq, "idle": idle + iowait, "steal": steal}


def _name_disk(disk: DiskSpec) -> tuple[str, str]:
    return ("id", disk.id) if isinstance(disk, DiskById) else ("file", str(disk.file))


def _to_state(disk: DiskSpec, number: int, printed: Mapping[str, str]) -> DiskState:
    # The first one was read from the device that is nearest to the disk.
    node = printed.get(f"/{number}/numa", "").partition("\n")[0]
    return DiskState(
        name=disk.name,
        identity=disk.identity,
        owned=isinstance(disk, DiskById),
        device=printed.get(f"/{number}/name", ""),
        numa_node=int(node) if node.isdigit() else None,
        link_power=printed.get(f"/{number}/link", "").partition("\n")[0],
        released=disk.destroy,
    )


def _split_sections(printed: str) -> dict[str, dict[str, str]]:
    """The sections by name; in each, the text of each file by its path from the root."""
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in printed.split("\n"):
        if line.startswith("#"):
            current = sections.setdefault(line[1:], {})
            continue
        path, colon, text = line.partition(":")
        if colon:
            path = f"/{path.removeprefix('./')}"
            current[path] = f"{current[path]}\n{text}" if path in current else text.rstrip()
    return sections


def _split_process_fields(line: str) -> list[str]:
    """The fields of /proc/PID/stat; empty for another line. A command may contain blanks and parentheses."""
    head, _, tail = line.rpartition(")")
    pid, _, command = head.partition(" (")
    rest = tail.split()
    return [pid, command, *rest] if pid.isdigit() and len(rest) > 20 else []


BUSY_SHARE = 0.1
"""Share of the CPUs' time. From here on, rounds differ visibly."""
OVERLOADED_SHARE = 0.5
"""Share of the CPUs' time. From here on, a guest and its iothreads must share CPUs with other programs."""
STEAL_SHARE = 0.01
CONSUMER_SHARE = 0.05
"""Share of one CPU. Processes below it are not named."""
_TRACING = "/sys/kernel/tracing"


NOT_AVAILABLE = "not available here"


class Level(StrEnum):
    """How serious a finding is for measurements on the host in its present state."""

    OK = "ok"
    UNKNOWN = "unknown"
    """The host does not report it: containers and virtual machines lack much of sysfs."""
    ADVICE = "advice"
    """Figures become noisier, slower or harder to compare, but not wrong."""
    PROBLEM = "problem"
    """Figures measured now would be wrong, or cannot be measured."""


@dataclass(frozen=True, slots=True)
class HostFinding:
    """One check of one host.

    `advice` is a command to run on the host, or a text if there is no command. It is empty if nothing needs to be done.
    `settings` are what `--tune` would write: safe while guests run, and reversible.
    """

    check: str
    value: str
    level: Level
    why: str
    advice: str = ""
    settings: tuple[Tunable, ...] = ()


def as_records(findings: Iterable[HostFinding]) -> list[dict[str, str]]:
    """The findings as plain JSON values, for `--json` and for the stored run: check, value, level, advice."""
    return [
        {"check": finding.check, "value": finding.value, "level": finding.level.value, "advice": finding.advice}
        for finding in findings
    ]


def list_settings(findings: Iterable[HostFinding]) -> list[Tunable]:
    """The settings that the findings request."""
    return [setting for finding in findings for setting in finding.settings]


def has_problem(findings: Sequence[HostFinding]) -> bool:
    """Whether measurements on this host would give wrong figures, or none."""
    return any(finding.level is Level.PROBLEM for finding in findings)


@dataclass(frozen=True, slots=True)
class CheckedValue:
    """What a check thinks of a value. `why` replaces the reason of the check."""

    value: str
    level: Level = Level.OK
    advice: str = ""
    settings: tuple[Tunable, ...] = ()
    why: str = ""


Check = Callable[[HostState], Iterator[HostFinding]]
CHECKS: list[Check] = []
"""All checks but those of KVM and of the record of held settings, in the order of their findings."""


def advise(value: str, advice: str, settings: tuple[Tunable, ...] = (), *, why: str = "") -> CheckedValue:
    return CheckedValue(value, Level.ADVICE, advice, settings, why)


def report_problem(value: str, advice: str, settings: tuple[Tunable, ...] = ()) -> CheckedValue:
    return CheckedValue(value, Level.PROBLEM, advice, settings)


def make_finding(check: str, why: str, checked: CheckedValue | None) -> HostFinding:
    """The finding of a check. Without a value, the host does not report it."""
    if checked is None:
        return HostFinding(check, NOT_AVAILABLE, Level.UNKNOWN, why)
    return HostFinding(check, checked.value, checked.level, checked.why or why, checked.advice, checked.settings)


def add_check(name: str, why: str) -> Callable[[Callable[[HostState], CheckedValue | None]], None]:
    """Make a check of a function that judges one value of the host. It returns None if there is no such value."""

    def add(judge: Callable[[HostState], CheckedValue | None]) -> None:
        CHECKS.append(lambda state: iter([make_finding(name, why, judge(state))]))

    return add


def add_findings(check: Check) -> Check:
    """Make a check of a function whose findings depend on the host."""
    CHECKS.append(check)
    return check


def check_kvm(state: HostState, proof: Acceleration | None) -> HostFinding:
    """Whether guests run under KVM. `proof` is the result of booting one; /dev/kvm alone proves nothing."""
    why = "an emulated guest is much slower than any disk, so its overhead says nothing about the attach mode"
    access = state.text("/dev/kvm")
    if not access:
        advice = "enable virtualisation in the firmware, then: modprobe kvm_intel || modprobe kvm_amd"
        checked = report_problem("there is no /dev/kvm", advice)
    elif access != "open":
        checked = report_problem("this user may not open /dev/kvm", "usermod -aG kvm USER, or use root")
    elif proof is None:
        advice = "the next run on this host boots a guest to prove it: virt-overhead run --lab=FILE --profile=smoke"
        checked = advise("/dev/kvm opens, but no guest has proved it yet", advice)
    elif proof.accel != "kvm":
        checked = report_problem(proof.why, "repair it (dmesg | grep -i kvm); the next run boots a guest again")
    else:
        checked = CheckedValue(proof.why)
    return make_finding("KVM", why, checked)


@add_check(
    "nested KVM",
    "only a lab host in a guest of this machine needs it: without it, the guests of that host are emulated",
)
def _judge_nesting(state: HostState) -> CheckedValue | None:
    now = state.text("/sys/module/kvm_intel/parameters/nested") or state.text("/sys/module/kvm_amd/parameters/nested")
    return CheckedValue("on" if now in ("1", "Y") else "off") if now else None


@add_check(
    "KVM halt polling",
    "it affects how fast a virtual CPU that waits for the disk wakes up: compare only hosts with the same value",
)
def _judge_halt_polling(state: HostState) -> CheckedValue | None:
    now = state.number("/sys/module/kvm/parameters/halt_poll_ns")
    return None if now is None else CheckedValue(f"up to {now} ns")


@add_check(
    "the host itself",
    "a virtual machine's figures include the layers below it, and its guests are nested: compare only ratios",
)
def _judge_virtualisation(state: HostState) -> CheckedValue:
    hypervisor = state.facts["hypervisor"]
    if not hypervisor:
        return CheckedValue("bare metal")
    return advise(f"a virtual machine ({hypervisor})", "measure on bare metal before you publish figures")


@add_findings
def _check_steal(state: HostState) -> Iterator[HostFinding]:
    if not state.facts["hypervisor"]:
        return
    ticks, checked = count_cpu_ticks(state), None
    if sum(ticks.values()):
        share = ticks["steal"] / sum(ticks.values())
        level = Level.OK if share <= STEAL_SHARE else Level.PROBLEM if share > BUSY_SHARE else Level.ADVICE
        advice = "" if level is Level.OK else "give the virtual machine dedicated CPUs, or use another host"
        checked = CheckedValue(f"{100 * share:.0f} % within {state.seconds:g} s", level, advice)
    why = "the hypervisor gives this CPU time to others, at moments that are not visible here"
    yield make_finding("stolen CPU time", why, checked)


@add_findings
def _check_lease(state: HostState) -> Iterator[HostFinding]:
    if holder := state.text(f"{LEASE_DIRECTORY}/lease"):
        why = "two runs at the same time disturb each other, and the load that is reported here comes from that run"
        advice = "wait until that run has ended, or end it on the machine that started it"
        yield HostFinding("lease", f"held by {holder}", Level.ADVICE, why, advice)


@add_check("other load", "other programs take CPU time from guest, QEMU and fio, and a different amount in each round")
def _judge_load(state: HostState) -> CheckedValue | None:
    ticks = count_cpu_ticks(state)
    if not sum(ticks.values()):
        return None
    share = ticks["busy"] / sum(ticks.values())
    minute = float(state.text("/proc/loadavg").split()[0]) if state.text("/proc/loadavg") else 0.0
    value = f"{100 * share:.0f} % of {state.cpus} CPUs busy, load {minute:g}" + _name_consumers(list_processes(state))
    if share < BUSY_SHARE and minute < state.cpus:
        return CheckedValue(value)
    level = Level.PROBLEM if share >= OVERLOADED_SHARE else Level.ADVICE
    return CheckedValue(value, level, "end or postpone these programs: top -b -n 1 -o %CPU | head -20")


@add_check("running guests", "other guests use CPUs, memory and the disk at unpredictable moments")
def _judge_guests(state: HostState) -> CheckedValue:
    names = [name for argv in state.guests.values() if (name := _read_guest_name(argv))]
    if not names:
        return CheckedValue("none")
    return advise(", ".join(names), "shut them down or migrate them while you measure: virsh list")


@add_check(
    "irqbalance",
    "it moves interrupts between CPUs every few seconds, so a disk's interrupts arrive elsewhere in each round",
)
def _judge_irqbalance(state: HostState) -> CheckedValue:
    if any(process.command == "irqbalance" for process in list_processes(state)):
        return advise("running", "systemctl stop irqbalance   (and start it afterwards)")
    return CheckedValue("not running")


@add_findings
def check_versions(state: HostState) -> Iterator[HostFinding]:
    why = "figures of different versions cannot be compared, and a run needs all of these programs"
    yield HostFinding("kernel", state.facts["kernel"], Level.OK, why)
    for name, key, package in (
        ("fio", "fio", "fio"),
        ("QEMU", "qemu", "qemu-system-x86"),
        ("libvirt", "libvirt", "libvirt-daemon-system"),
    ):
        version = state.facts[key]
        missing = report_problem("not installed", state.facts.install(package))
        yield make_finding(name, why, CheckedValue(version) if version else missing)
    if state.facts["libvirt"]:
        yield _check_binding()


def _check_binding() -> HostFinding:
    check, why = "libvirt's Python binding", "this machine creates guests on a host with libvirt through it"
    try:
        import harness.guest.libvirt.binding  # noqa: F401, PLC0415 - it may be missing
    except LabUnavailable as error:
        return HostFinding(check, "not installed on this machine", Level.PROBLEM, why, error.hint or "install it")
    return HostFinding(check, "installed", Level.OK, why)


@add_check(
    "trace events",
    "`--breakdown` follows an I/O by them through the layers of host and guest; nothing needs to be installed",
)
def _judge_trace_events(state: HostState) -> CheckedValue | None:
    events = f"{_TRACING}/events"
    if state.text(f"{events}/block/block_rq_issue/id"):
        kvm_too = bool(state.text(f"{events}/kvm/kvm_msi_set_irq/id"))
        return CheckedValue(
            "of the block layer and of KVM" if kvm_too else "of the block layer; KVM's appear with its module"
        )
    if any(line.split()[1:2] == [_TRACING] for line in state.text("/proc/mounts").splitlines()):
        return CheckedValue("this user may not read them", Level.UNKNOWN, "run the doctor as root")
    if "tracefs" in state.text("/proc/filesystems").split():
        return CheckedValue("the kernel has them; a run mounts tracefs meanwhile")
    if not state.text("/proc/filesystems"):
        return None
    return advise("the kernel has none", "use a kernel with CONFIG_EVENT_TRACING=y: those of all distributions have it")


def _name_consumers(busiest: Sequence[Process]) -> str:
    named = [
        f"{process.command} (pid {process.pid}) {100 * process.cpu_share:.0f} % of one"
        for process in busiest[:3]
        if process.cpu_share >= CONSUMER_SHARE
    ]
    return f": {', '.join(named)}" if named else ""


def _read_guest_name(argv: Sequence[str]) -> str:
    """The name of a QEMU process's guest, or "unnamed" if it has none. Empty for other commands."""
    first = argv[0].rpartition("/")[2] if argv else ""
    loaded = first.startswith("ld-linux")  # QEMU that is started by its own loader, as in the embedded lab
    programs = [word.rpartition("/")[2] for word in (argv if loaded else argv[:1])]
    if not any(program in ("kvm", "qemu-kvm") or program.startswith("qemu-system-") for program in programs):
        return ""
    name = argv[argv.index("-name") + 1] if "-name" in argv[:-1] else "unnamed"
    return name.removeprefix("guest=").partition(",")[0]


_WHY_STORAGE = "a run creates its own volumes on a storage in use, and keeps enough of it free for others"


def examine_storage(runner: Runner, storage: DiskByStorage) -> HostFinding:
    """Whether the storage can be used, which layouts it offers, and how much space a run may use."""
    check = f"{storage.name}: storage"
    try:
        used = _look_at_storage(runner, storage)
        free, total = free_bytes(runner, used)
    except HarnessError as error:
        return HostFinding(check, error.message, Level.PROBLEM, _WHY_STORAGE, error.hint or "correct the lab file")
    usable = max(free - reserve_bytes(total), 0)
    value = f"{used.words} offers {', '.join(used.layouts)}; {format_size(usable)} for volumes of a run"
    full = report_problem(value, "free space there, or name another storage")
    return make_finding(check, _WHY_STORAGE, CheckedValue(value) if usable else full)


def _look_at_storage(runner: Runner, storage: DiskByStorage) -> FoundStorage:
    if storage.key == "pool":
        from harness.guest.libvirt.backend import parse_pool  # noqa: PLC0415 - other storages need no libvirt

        dump = ["virsh", "--connect", "qemu:///system", "pool-dumpxml", storage.at]
        text = runner.run(dump, deadline=60).stdout
        return look_at(runner, *parse_pool(text, f"{runner.name}: {storage.identity}"))
    assert storage.key != "storage", "the lab file allows it only on a node of Proxmox VE"
    return look_at(runner, storage.key, storage.at)
