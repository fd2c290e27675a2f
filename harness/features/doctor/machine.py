"""Checks of the whole host: how guests run on it, what else runs on it, and the versions of the software."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.errors import HarnessError
from harness.features.doctor.probe import HostState, Process, count_cpu_ticks, list_processes
from harness.lab.facts import Acceleration
from harness.lab.findings import Finding, Level, not_available
from harness.lab.guard.room import free_bytes
from harness.lab.inventory import DiskByStorage
from harness.lab.paths import LEASE_DIRECTORY
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


def check_kvm(state: HostState, proof: Acceleration | None) -> Finding:
    """Whether guests run under KVM. `proof` is the result of booting one; /dev/kvm alone proves nothing."""
    check = "KVM"
    why = "an emulated guest is much slower than any disk, so its overhead says nothing about the attach mode"
    access = state.text("/dev/kvm")
    if not access:
        advice = "enable virtualisation in the firmware, then: modprobe kvm_intel || modprobe kvm_amd"
        return Finding(check, "there is no /dev/kvm", Level.PROBLEM, why, advice)
    if access != "open":
        return Finding(
            check, "this user may not open /dev/kvm", Level.PROBLEM, why, "usermod -aG kvm USER, or use root"
        )
    if proof is None:
        advice = "the next run on this host boots a guest to prove it: virt-overhead run --lab=FILE --profile=smoke"
        return Finding(check, "/dev/kvm opens, but no guest has proved it yet", Level.ADVICE, why, advice)
    if proof.accel != "kvm":
        advice = "repair it (dmesg | grep -i kvm); the next run boots a guest again"
        return Finding(check, proof.why, Level.PROBLEM, why, advice)
    return Finding(check, proof.why, Level.OK, why)


def check_nested(state: HostState) -> Iterator[Finding]:
    check = "nested KVM"
    why = "only a lab host in a guest of this machine needs it: without it, the guests of that host are emulated"
    now = state.text("/sys/module/kvm_intel/parameters/nested") or state.text("/sys/module/kvm_amd/parameters/nested")
    if not now:
        yield not_available(check, why)
    else:
        yield Finding(check, "on" if now in ("1", "Y") else "off", Level.OK, why)


def check_halt_polling(state: HostState) -> Iterator[Finding]:
    check = "KVM halt polling"
    why = "it affects how fast a virtual CPU that waits for the disk wakes up: compare only hosts with the same value"
    now = state.number("/sys/module/kvm/parameters/halt_poll_ns")
    yield not_available(check, why) if now is None else Finding(check, f"up to {now} ns", Level.OK, why)


def check_virtualised(state: HostState) -> Iterator[Finding]:
    check = "the host itself"
    why = "a virtual machine's figures include the layers below it, and its guests are nested: compare only ratios"
    hypervisor = state.facts["hypervisor"]
    if not hypervisor:
        yield Finding(check, "bare metal", Level.OK, why)
        return
    yield Finding(
        check,
        f"a virtual machine ({hypervisor})",
        Level.ADVICE,
        why,
        "measure on bare metal before you publish figures",
    )
    ticks = count_cpu_ticks(state)
    why = "the hypervisor gives this CPU time to others, at moments that are not visible here"
    if not sum(ticks.values()):
        yield not_available("stolen CPU time", why)
        return
    share = ticks["steal"] / sum(ticks.values())
    value = f"{100 * share:.0f} % within {state.seconds:g} s"
    if share <= STEAL_SHARE:
        yield Finding("stolen CPU time", value, Level.OK, why)
    else:
        level = Level.PROBLEM if share > BUSY_SHARE else Level.ADVICE
        yield Finding(
            "stolen CPU time", value, level, why, "give the virtual machine dedicated CPUs, or use another host"
        )


def check_lease(state: HostState) -> Iterator[Finding]:
    """A finding only if there is a lease."""
    if holder := state.text(f"{LEASE_DIRECTORY}/lease"):
        why = "two runs at the same time disturb each other, and the load that is reported here comes from that run"
        yield Finding(
            "lease",
            f"held by {holder}",
            Level.ADVICE,
            why,
            "wait until that run has ended, or end it on the machine that started it",
        )


def check_load(state: HostState) -> Iterator[Finding]:
    check = "other load"
    why = "other programs take CPU time from guest, QEMU and fio, and a different amount in each round"
    ticks = count_cpu_ticks(state)
    if not sum(ticks.values()):
        yield not_available(check, why)
        return
    share = ticks["busy"] / sum(ticks.values())
    minute = float(state.text("/proc/loadavg").split()[0]) if state.text("/proc/loadavg") else 0.0
    value = f"{100 * share:.0f} % of {state.cpus} CPUs busy, load {minute:g}" + _name_consumers(list_processes(state))
    if share < BUSY_SHARE and minute < state.cpus:
        yield Finding(check, value, Level.OK, why)
    else:
        level = Level.PROBLEM if share >= OVERLOADED_SHARE else Level.ADVICE
        yield Finding(check, value, level, why, "end or postpone these programs: top -b -n 1 -o %CPU | head -20")


def check_guests(state: HostState) -> Iterator[Finding]:
    check = "running guests"
    why = "other guests use CPUs, memory and the disk at unpredictable moments"
    names = [name for argv in state.guests.values() if (name := _read_guest_name(argv))]
    if not names:
        yield Finding(check, "none", Level.OK, why)
    else:
        yield Finding(
            check, ", ".join(names), Level.ADVICE, why, "shut them down or migrate them while you measure: virsh list"
        )


def check_irqbalance(state: HostState) -> Iterator[Finding]:
    check = "irqbalance"
    why = "it moves interrupts between CPUs every few seconds, so a disk's interrupts arrive elsewhere in each round"
    if any(process.command == "irqbalance" for process in list_processes(state)):
        yield Finding(check, "running", Level.ADVICE, why, "systemctl stop irqbalance   (and start it afterwards)")
    else:
        yield Finding(check, "not running", Level.OK, why)


def check_versions(state: HostState) -> Iterator[Finding]:
    why = "figures of different versions cannot be compared, and a run needs all of these programs"
    yield Finding("kernel", state.facts["kernel"], Level.OK, why)
    for check, package in (("fio", "fio"), ("qemu", "qemu-system-x86"), ("libvirt", "libvirt-daemon-system")):
        name = "QEMU" if check == "qemu" else check
        if state.facts[check]:
            yield Finding(name, state.facts[check], Level.OK, why)
        else:
            yield Finding(name, "not installed", Level.PROBLEM, why, state.facts.install(package))


def check_trace_events(state: HostState) -> Iterator[Finding]:
    check = "trace events"
    why = "`--breakdown` follows an I/O by them through the layers of host and guest; nothing needs to be installed"
    events = f"{_TRACING}/events"
    supported = "tracefs" in state.text("/proc/filesystems").split()
    mounted = any(line.split()[1:2] == [_TRACING] for line in state.text("/proc/mounts").splitlines())
    if state.text(f"{events}/block/block_rq_issue/id"):
        kvm_too = bool(state.text(f"{events}/kvm/kvm_msi_set_irq/id"))
        value = "of the block layer and of KVM" if kvm_too else "of the block layer; KVM's appear with its module"
        yield Finding(check, value, Level.OK, why)
    elif mounted:
        yield Finding(check, "this user may not read them", Level.UNKNOWN, why, "run the doctor as root")
    elif supported:
        yield Finding(check, "the kernel has them; a run mounts tracefs meanwhile", Level.OK, why)
    elif not state.text("/proc/filesystems"):
        yield not_available(check, why)
    else:
        advice = "use a kernel with CONFIG_EVENT_TRACING=y: those of all distributions have it"
        yield Finding(check, "the kernel has none", Level.ADVICE, why, advice)


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


def examine_storage(runner: Runner, storage: DiskByStorage) -> Finding:
    """Whether the storage can be used, which layouts it offers, and how much space a run may use."""
    check = f"{storage.name}: storage"
    try:
        storage_found = _look_at_storage(runner, storage)
        free, total = free_bytes(runner, storage_found)
    except HarnessError as error:
        return Finding(check, error.message, Level.PROBLEM, _WHY_STORAGE, error.hint or "correct the lab file")
    usable = max(free - reserve_bytes(total), 0)
    value = (
        f"{storage_found.words} offers {', '.join(storage_found.layouts)}; {format_size(usable)} for volumes of a run"
    )
    if usable:
        return Finding(check, value, Level.OK, _WHY_STORAGE)
    return Finding(check, value, Level.PROBLEM, _WHY_STORAGE, "free space there, or name another storage")


def _look_at_storage(runner: Runner, storage: DiskByStorage) -> FoundStorage:
    if storage.key == "pool":
        from harness.guest.libvirt.backend import in_definition  # noqa: PLC0415 - other storages need no libvirt

        dump = ["virsh", "--connect", "qemu:///system", "pool-dumpxml", storage.at]
        text = runner.run(dump, deadline=60).stdout
        return look_at(runner, *in_definition(text, f"{runner.name}: {storage.identity}"))
    assert storage.key != "storage", "the lab file allows it only on a node of Proxmox VE"
    return look_at(runner, storage.key, storage.at)
