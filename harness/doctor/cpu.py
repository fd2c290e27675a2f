"""Checks of the CPUs: how fast they run, how deep they sleep, what they are told to guard against."""

from __future__ import annotations

from collections.abc import Iterator

from harness.doctor.findings import Finding, Level, Setting, not_available
from harness.doctor.probe import HostState

_CPU = "/sys/devices/system/cpu"
IDLE_LIMIT_US = 20
"""A deeper sleep than this takes longer to wake from than a fast NVMe disk takes to answer."""


def governor(seen: HostState) -> Iterator[Finding]:
    check = "CPU frequency governor"
    why = "CPUs that slow down while they wait for the disk answer it later, and host and guest wait differently"
    now = seen.matching(f"{_CPU}/cpufreq/policy*/scaling_governor")
    if not now:
        yield not_available(check, why)
        return
    slow = [path for path, value in now.items() if value != "performance"]
    settings = tuple(
        # Under "performance" the driver sets the CPU's own preference as well (admin-guide/pm/intel_pstate).
        Setting(f"{seen.root}{path}", "performance", (f"{seen.root}{_beside(path, 'energy_performance_preference')}",))
        for path in slow
        if "performance" in seen.text(_beside(path, "scaling_available_governors")).split()
    )
    value = ", ".join(sorted(set(now.values())))
    if not slow:
        yield Finding(check, value, Level.OK, why)
    elif not settings:
        yield Finding(
            check, value, Level.ADVICE, why, 'the driver offers no "performance": see the firmware\'s setting'
        )
    else:
        command = f"echo performance | tee {_CPU}/cpufreq/policy*/scaling_governor"
        yield Finding(check, value, Level.ADVICE, why, command, settings)


def turbo(seen: HostState) -> Iterator[Finding]:
    check = "turbo"
    why = "a boosted clock follows temperature and the load of other CPUs: rounds drift, and hosts differ in it"
    no_turbo, boost = seen.number(f"{_CPU}/intel_pstate/no_turbo"), seen.number(f"{_CPU}/cpufreq/boost")
    if no_turbo is None and boost is None:
        yield not_available(check, why)
        return
    on = no_turbo == 0 if no_turbo is not None else boost == 1
    yield Finding(check, "on" if on else "off", Level.OK, why)


def idle_states(seen: HostState) -> Iterator[Finding]:
    check = "CPU idle states"
    why = (
        "a CPU that sleeps while the disk works takes so long to wake up, and a guest sleeps at other times than a host"
    )
    deepest: tuple[int, str] | None = None
    for path in seen.matching(f"{_CPU}/cpu0/cpuidle/state*/latency"):
        state = path.removesuffix("/latency")
        latency = seen.number(path)
        if latency is not None and seen.number(f"{state}/disable") in (0, None):
            deepest = max(deepest or (0, ""), (latency, seen.text(f"{state}/name")))
    if deepest is None:
        yield not_available(check, why)
        return
    latency, name = deepest
    value = f"deepest is {name}, {latency} us to wake up"
    if latency <= IDLE_LIMIT_US:
        yield Finding(check, value, Level.OK, why)
    else:
        advice = f"cpupower idle-set -D {IDLE_LIMIT_US}   (and afterwards: cpupower idle-set -E)"
        yield Finding(check, value, Level.ADVICE, why, advice)


def smt(seen: HostState) -> Iterator[Finding]:
    check = "SMT"
    why = "two threads of one core slow each other down; compare figures only of hosts that have it set alike"
    active = seen.number(f"{_CPU}/smt/active")
    if active is None:
        yield not_available(check, why)
    else:
        control = seen.text(f"{_CPU}/smt/control")
        yield Finding(check, f"{'active' if active else 'not active'} ({control or 'no control'})", Level.OK, why)


def mitigations(seen: HostState) -> Iterator[Finding]:
    check = "mitigations"
    why = "they make each entry into the kernel and each exit of a guest cost more: compare only where they are alike"
    known = {
        path.rpartition("/")[2]: text
        for path, text in seen.matching(f"{_CPU}/vulnerabilities/*").items()
        if text != "Not affected"
    }
    if not seen.matching(f"{_CPU}/vulnerabilities/*"):
        yield not_available(check, why)
        return
    kernel = [word for word in seen.text("/proc/cmdline").split() if word.startswith("mitigations=")]
    value = "; ".join([*kernel, *(f"{name}: {text}" for name, text in known.items())]) or "not affected by any"
    yield Finding(check, value, Level.OK, why)


def clocksource(seen: HostState) -> Iterator[Finding]:
    check = "clock source"
    why = "fio reads the clock twice for each I/O; one that is no CPU register costs about a microsecond each time"
    now = seen.text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if not now:
        yield not_available(check, why)
    elif now in ("tsc", "kvm-clock") or now.startswith("hyperv_clocksource_tsc"):
        yield Finding(check, now, Level.OK, why)
    else:
        yield Finding(
            check, now, Level.ADVICE, why, "dmesg | grep -i -e tsc -e clocksource   (why the kernel left tsc)"
        )


def _beside(path: str, name: str) -> str:
    return f"{path.rpartition('/')[0]}/{name}"


CHECKS = (governor, turbo, idle_states, smt, mitigations, clocksource)
