"""Checks of the CPUs: clock, idle states, SMT, mitigations, clock source."""

from __future__ import annotations

from collections.abc import Iterator

from harness.doctor.findings import Finding, Level, Setting, not_available
from harness.doctor.probe import HostState
from harness.lab.counters import CLOCK

_CPU = "/sys/devices/system/cpu"
IDLE_LIMIT_US = 20
"""A CPU that needs longer to wake up delays I/O by more than a fast NVMe disk takes for it."""


def governor(state: HostState) -> Iterator[Finding]:
    check = "CPU frequency governor"
    why = "CPUs that slow down while they wait for the disk react later, and host and guest wait differently"
    now = state.matching(f"{_CPU}/cpufreq/policy*/scaling_governor")
    if not now:
        yield not_available(check, why)
        return
    slow = [path for path, value in now.items() if value != "performance"]
    settings = tuple(
        # Under "performance" the driver sets the CPU's own preference as well (admin-guide/pm/intel_pstate).
        Setting(
            f"{state.root}{path}", "performance", (f"{state.root}{_beside(path, 'energy_performance_preference')}",)
        )
        for path in slow
        if "performance" in state.text(_beside(path, "scaling_available_governors")).split()
    )
    value = ", ".join(sorted(set(now.values())))
    if not slow:
        yield Finding(check, value, Level.OK, why)
    elif not settings:
        yield Finding(
            check,
            value,
            Level.ADVICE,
            why,
            'the driver does not offer "performance": look for a setting of the firmware',
        )
    else:
        command = f"echo performance | tee {_CPU}/cpufreq/policy*/scaling_governor"
        yield Finding(check, value, Level.ADVICE, why, command, settings)


def turbo(state: HostState) -> Iterator[Finding]:
    check = "turbo"
    why = "a boosted clock depends on temperature and on the load of other CPUs: rounds drift, and hosts differ"
    no_turbo, boost = state.number(f"{_CPU}/intel_pstate/no_turbo"), state.number(f"{_CPU}/cpufreq/boost")
    if no_turbo is None and boost is None:
        yield not_available(check, why)
        return
    on = no_turbo == 0 if no_turbo is not None else boost == 1
    yield Finding(check, "on" if on else "off", Level.OK, why)


def idle_states(state: HostState) -> Iterator[Finding]:
    check = "CPU idle states"
    why = (
        "a CPU that sleeps while the disk works adds this time to each I/O, and guest and host sleep at different times"
    )
    deepest: tuple[int, str] | None = None
    for path in state.matching(f"{_CPU}/cpu0/cpuidle/state*/latency"):
        directory = path.removesuffix("/latency")
        latency = state.number(path)
        if latency is not None and state.number(f"{directory}/disable") in (0, None):
            deepest = max(deepest or (0, ""), (latency, state.text(f"{directory}/name")))
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


def smt(state: HostState) -> Iterator[Finding]:
    check = "SMT"
    why = "two threads of one core slow each other down; compare figures only of hosts with the same setting"
    active = state.number(f"{_CPU}/smt/active")
    if active is None:
        yield not_available(check, why)
    else:
        control = state.text(f"{_CPU}/smt/control")
        yield Finding(check, f"{'active' if active else 'not active'} ({control or 'no control'})", Level.OK, why)


def mitigations(state: HostState) -> Iterator[Finding]:
    check = "mitigations"
    why = "they make each kernel entry and each guest exit slower: compare only hosts with the same mitigations"
    known = {
        path.rpartition("/")[2]: text
        for path, text in state.matching(f"{_CPU}/vulnerabilities/*").items()
        if text != "Not affected"
    }
    if not state.matching(f"{_CPU}/vulnerabilities/*"):
        yield not_available(check, why)
        return
    kernel = [word for word in state.text("/proc/cmdline").split() if word.startswith("mitigations=")]
    value = "; ".join([*kernel, *(f"{name}: {text}" for name, text in known.items())]) or "not affected by any"
    yield Finding(check, value, Level.OK, why)


def clocksource(state: HostState) -> Iterator[Finding]:
    check = "clock source"
    why = (
        "fio reads the clock twice for each I/O; a clock that is not a CPU register costs about a microsecond each time"
    )
    now = state.text(CLOCK)
    if not now:
        yield not_available(check, why)
    elif now in ("tsc", "kvm-clock") or now.startswith("hyperv_clocksource_tsc"):
        yield Finding(check, now, Level.OK, why)
    else:
        yield Finding(
            check,
            now,
            Level.ADVICE,
            why,
            "dmesg | grep -i -e tsc -e clocksource   (shows why the kernel does not use tsc)",
        )


def _beside(path: str, name: str) -> str:
    return f"{path.rpartition('/')[0]}/{name}"


CHECKS = (governor, turbo, idle_states, smt, mitigations, clocksource)
