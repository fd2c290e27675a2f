"""Checks of the host as a whole: how guests run on it, what else runs on it, which versions measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.doctor.findings import Finding, Level, not_available
from harness.doctor.probe import HostState, Process, cpu_ticks, processes
from harness.lab.accel import Acceleration
from harness.lab.paths import LEASE_DIRECTORY

BUSY_SHARE = 0.1
"""Of the CPUs' time; so much makes rounds differ visibly."""
OVERLOADED_SHARE = 0.5
"""Of the CPUs' time; with so much a guest and its iothreads no longer find CPUs of their own."""
STEAL_SHARE = 0.01
CONSUMER_SHARE = 0.05
"""Of one CPU; processes below it are not named."""


def kvm(seen: HostState, proof: Acceleration | None) -> Finding:
    """Whether guests run under KVM. `proof` is what came of booting one; /dev/kvm alone proves nothing."""
    check = "KVM"
    why = "an emulated guest is slower by far than any disk: what it loses says nothing of the attach mode"
    access = seen.text("/dev/kvm")
    if not access:
        advice = "switch virtualisation on in the firmware, then: modprobe kvm_intel || modprobe kvm_amd"
        return Finding(check, "there is no /dev/kvm", Level.PROBLEM, why, advice)
    if access != "open":
        return Finding(check, "/dev/kvm is closed to this user", Level.PROBLEM, why, "usermod -aG kvm USER, or be root")
    if proof is None:
        advice = "the next run here boots a guest to prove it: pytest --lab=FILE --profile=smoke"
        return Finding(check, "/dev/kvm opens, not proven yet", Level.ADVICE, why, advice)
    if proof.accel != "kvm":
        advice = "repair it (dmesg | grep -i kvm); the next run boots a guest again"
        return Finding(check, proof.why, Level.PROBLEM, why, advice)
    return Finding(check, proof.why, Level.OK, why)


def nested(seen: HostState) -> Iterator[Finding]:
    check = "nested KVM"
    why = "only a lab host inside a guest of this machine needs it: without it that one is emulated"
    now = seen.text("/sys/module/kvm_intel/parameters/nested") or seen.text("/sys/module/kvm_amd/parameters/nested")
    if not now:
        yield not_available(check, why)
    else:
        yield Finding(check, "on" if now in ("1", "Y") else "off", Level.OK, why)


def halt_polling(seen: HostState) -> Iterator[Finding]:
    check = "KVM halt polling"
    why = "a virtual CPU that waits for the disk is woken early or late by it: compare only where it is alike"
    now = seen.number("/sys/module/kvm/parameters/halt_poll_ns")
    yield not_available(check, why) if now is None else Finding(check, f"up to {now} ns", Level.OK, why)


def virtualised(seen: HostState) -> Iterator[Finding]:
    check = "the host itself"
    why = "figures of a virtual machine's disks hold the layers below it, and its guests are nested: relative only"
    hypervisor = seen.facts["hypervisor"]
    if not hypervisor:
        yield Finding(check, "bare metal", Level.OK, why)
        return
    yield Finding(
        check, f"a virtual machine ({hypervisor})", Level.ADVICE, why, "measure on bare metal what is to be published"
    )
    ticks = cpu_ticks(seen)
    why = "CPU time that the hypervisor gives to others is missing here at moments that nobody sees"
    if not sum(ticks.values()):
        yield not_available("stolen CPU time", why)
        return
    share = ticks["steal"] / sum(ticks.values())
    value = f"{100 * share:.0f} % within {seen.seconds:g} s"
    if share <= STEAL_SHARE:
        yield Finding("stolen CPU time", value, Level.OK, why)
    else:
        level = Level.PROBLEM if share > BUSY_SHARE else Level.ADVICE
        yield Finding(
            "stolen CPU time", value, level, why, "give the virtual machine CPUs of its own, or take another host"
        )


def lease(seen: HostState) -> Iterator[Finding]:
    """Worth a line where there is one."""
    if holder := seen.text(f"{LEASE_DIRECTORY}/lease"):
        why = "two that measure at once measure each other, and what is said of load here is that run's"
        yield Finding(
            "lease", f"held by {holder}", Level.ADVICE, why, "wait for that run, or end it where it was started"
        )


def load(seen: HostState) -> Iterator[Finding]:
    check = "other load"
    why = "whatever else runs takes CPU time from guest, QEMU and fio, and never the same amount in two rounds"
    ticks = cpu_ticks(seen)
    if not sum(ticks.values()):
        yield not_available(check, why)
        return
    share = ticks["busy"] / sum(ticks.values())
    minute = float(seen.text("/proc/loadavg").split()[0]) if seen.text("/proc/loadavg") else 0.0
    value = f"{100 * share:.0f} % of {seen.cpus} CPUs busy, load {minute:g}" + _consumers(processes(seen))
    if share < BUSY_SHARE and minute < seen.cpus:
        yield Finding(check, value, Level.OK, why)
    else:
        level = Level.PROBLEM if share >= OVERLOADED_SHARE else Level.ADVICE
        yield Finding(check, value, level, why, "end or postpone what is named: top -b -n 1 -o %CPU | head -20")


def guests(seen: HostState) -> Iterator[Finding]:
    check = "running guests"
    why = "guests take CPU time, memory and the disk at moments of their own"
    names = [name for argv in seen.guests.values() if (name := _guest_name(argv))]
    if not names:
        yield Finding(check, "none", Level.OK, why)
    else:
        yield Finding(
            check, ", ".join(names), Level.ADVICE, why, "shut them down or move them away while measuring: virsh list"
        )


def irqbalance(seen: HostState) -> Iterator[Finding]:
    check = "irqbalance"
    why = "it moves interrupts between CPUs every few seconds, so that rounds differ in where a disk's answers arrive"
    if any(process.command == "irqbalance" for process in processes(seen)):
        yield Finding(check, "running", Level.ADVICE, why, "systemctl stop irqbalance   (and start it afterwards)")
    else:
        yield Finding(check, "not running", Level.OK, why)


def versions(seen: HostState) -> Iterator[Finding]:
    why = "figures of other versions are other figures, and what is missing cannot be measured with"
    yield Finding("kernel", seen.facts["kernel"], Level.OK, why)
    for check, package in (("fio", "fio"), ("qemu", "qemu-system-x86"), ("libvirt", "libvirt-daemon-system")):
        name = "QEMU" if check == "qemu" else check
        if seen.facts[check]:
            yield Finding(name, seen.facts[check], Level.OK, why)
        else:
            yield Finding(name, "not installed", Level.PROBLEM, why, f"apt-get install {package}")


def _consumers(found: Sequence[Process]) -> str:
    named = [
        f"{process.command} (pid {process.pid}) {100 * process.cpu_share:.0f} % of one"
        for process in found[:3]
        if process.cpu_share >= CONSUMER_SHARE
    ]
    return f": {', '.join(named)}" if named else ""


def _guest_name(argv: Sequence[str]) -> str:
    """What a QEMU process calls its guest, "unnamed" where it does not; empty for other commands."""
    first = argv[0].rpartition("/")[2] if argv else ""
    loaded = first.startswith("ld-linux")  # QEMU brought along with a loader of its own, as the embedded lab's is
    programs = [word.rpartition("/")[2] for word in (argv if loaded else argv[:1])]
    if not any(each in ("kvm", "qemu-kvm") or each.startswith("qemu-system-") for each in programs):
        return ""
    name = argv[argv.index("-name") + 1] if "-name" in argv[:-1] else "unnamed"
    return name.removeprefix("guest=").partition(",")[0]


CHECKS = (nested, halt_polling, virtualised, lease, load, guests, irqbalance, versions)
