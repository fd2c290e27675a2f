"""What a check is, and the checks of the whole host: how guests run, what else runs, the versions of the software."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.errors import HarnessError
from harness.features.doctor.probe import HostState, Process, count_cpu_ticks, list_processes
from harness.lab.facts import Acceleration
from harness.lab.guard.room import free_bytes
from harness.lab.inventory import DiskByStorage
from harness.lab.lease import Tunable
from harness.lab.pin import LEASE_DIRECTORY
from harness.lab.space import reserve_bytes
from harness.lab.storage_look import FoundStorage, look_at
from harness.lab.transport.base import Runner
from harness.units import format_size

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


def not_available(check: str, why: str) -> HostFinding:
    """The finding if the host does not report the value."""
    return HostFinding(check, NOT_AVAILABLE, Level.UNKNOWN, why)


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
        return not_available(check, why)
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
