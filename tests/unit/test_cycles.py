"""Cycles: read as perf prints them, in intervals while slices run, and assigned to the slices by their times.

Where this machine lets perf count its own clock (`cpu-clock`, an event without hardware), the real perf is asked;
its refusals and its ends come from a script in its place.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.features.io_costs.cycles import (
    INTERVAL_SECONDS,
    MODIFIERS,
    CycleSeries,
    count_cycles,
    parse_counts,
    parse_series,
    probe_cycle_counting,
)
from harness.lab.counters import CycleCounting
from harness.lab.facts import HostFacts, read_facts
from harness.lab.transport.local import LocalRunner
from harness.model.counters import CycleCounts

RUNNER = LocalRunner("host here")
CLOCK = "cpu-clock"

# As perf 6.1 prints them with -x, (perf-stat(1), "CSV FORMAT"), while a guest works.
PRINTED = """\
920000,,cycles:uG,8004512345,100.00,,
3100000,,cycles:kG,8004512345,100.00,,
410000,,cycles:uH,8004512345,100.00,,
2600000,,cycles:kH,8004512345,100.00,,
"""


def interval(end: float, scale: int = 1, share: str = "100.00") -> str:
    """What perf prints with -I at the end of an interval: four counts that are multiples of `scale`."""
    values = ((1, "uG"), (2, "kG"), (10, "uH"), (40, "kH"))
    return "".join(f"{end:16.9f},{scale * value},,cycles:{name},100000000,{share},,\n" for value, name in values)


SERIES = f"5000.25 9000.00\n{interval(0.1)}{interval(0.2, 2)}{interval(0.3, 3)}"
"""The uptime at perf's start, then three intervals."""


def parsed(printed: str, said: str = "") -> CycleCounts:
    counts = parse_counts(printed.splitlines(), said).counts
    assert counts is not None
    return counts


def note(printed: str, said: str = "") -> str:
    found = parse_counts(printed.splitlines(), said)
    assert not found.counts
    return found.note


# --- what perf prints ---


def test_cycles_are_counted_by_guest_and_host_and_by_user_mode_and_kernel() -> None:
    assert parsed(PRINTED) == CycleCounts(
        guest_user=920_000, guest_kernel=3_100_000, host_user=410_000, host_kernel=2_600_000, share=1.0
    )
    assert parse_counts(PRINTED.splitlines(), "sh: Terminated").note == ""


def test_cores_of_two_kinds_are_counted_together() -> None:
    kinds = [
        f"{count},,cpu_{kind}/cycles/{each},1000,100.00,,"
        for each in MODIFIERS.values()
        for kind, count in (("core", 70), ("atom", 30))
    ]
    counts = parsed("\n".join(kinds))
    assert {getattr(counts, name) for name in MODIFIERS} == {100}


def test_a_note_says_that_perf_scaled_counters_that_took_turns() -> None:
    found = parse_counts(PRINTED.replace("100.00", "74.99", 1).splitlines(), "")
    assert found.counts is not None
    assert found.counts.guest_user == 920_000
    assert found.counts.share == pytest.approx(0.7499)
    assert "scaled up" in found.note


def test_headings_and_other_events_are_passed_over() -> None:
    assert parsed(f"# started on Sat Jan  3 12:00:00 2026\n\n10.00,msec,task-clock,10,100.00,1.0,CPUs\n{PRINTED}") == (
        parsed(PRINTED)
    )


def test_a_cpu_without_counters_is_the_reason() -> None:
    assert "no cycle counter (PMU)" in note("<not supported>,,cycles:uG,0,100.00,,\n")


def test_counters_that_others_hold_are_the_reason() -> None:
    assert "other programs use all of them" in note("<not counted>,,cycles:uG,0,0.00,,\n")


def test_what_perf_complained_of_is_the_reason() -> None:
    said = "Error:\nAccess to performance monitoring and observability operations is limited.\nConsider adjusting ...\n"
    assert note("", said) == (
        "perf counted nothing: Access to performance monitoring and observability operations is limited."
    )
    assert note("", "") == "perf counted nothing: it printed nothing"


def test_there_are_no_counts_if_one_of_them_is_missing() -> None:
    assert note("".join(PRINTED.splitlines(keepends=True)[:3])).startswith("perf counted nothing")


# --- whether a host can ---


def test_a_host_without_perf_says_what_to_install() -> None:
    found = probe_cycle_counting(RUNNER, HostFacts({}))
    assert not found.counted
    assert found.why.startswith("perf is not installed")
    assert "linux-perf" in found.why


def test_this_host_counts_exactly_if_its_kernel_shows_a_pmu() -> None:
    facts = read_facts(RUNNER)
    if not facts["perf"] or os.getuid() != 0:
        pytest.skip("needs perf, and root")
    found = probe_cycle_counting(RUNNER, facts)
    if list(Path("/sys/bus/event_source/devices").glob("cpu*")):
        assert found == CycleCounting(True, facts["perf"])
    else:
        assert not found.counted
        assert "no cycle counter (PMU)" in found.why


def test_a_perf_without_permission_to_count_is_reported(perf: Perf) -> None:
    perf.does("echo 'Error:' >&2; echo 'Access is limited.' >&2; exit 255")
    assert probe_cycle_counting(RUNNER, HostFacts({"perf": "perf version 6.1"})) == CycleCounting(
        False, "perf counted nothing: Access is limited."
    )


def test_a_perf_that_counts_is_named(perf: Perf) -> None:
    perf.does(f"cat <<COUNTS\n{PRINTED}COUNTS")
    assert probe_cycle_counting(RUNNER, HostFacts({"perf": "perf version 6.1"})) == CycleCounting(
        True, "perf version 6.1"
    )


# --- in intervals ---


def series(printed: str, said: str = "") -> CycleSeries:
    return parse_series(printed.splitlines(), said)


def test_each_interval_has_its_times_of_the_hosts_uptime_and_its_cycles() -> None:
    found = series(SERIES)
    assert found.note == ""
    assert [each.begun for each in found.intervals] == pytest.approx([5000.25, 5000.35, 5000.45])
    assert [each.ended for each in found.intervals] == pytest.approx([5000.35, 5000.45, 5000.55])
    assert found.intervals[1].cycles == {"guest_user": 2, "guest_kernel": 4, "host_user": 20, "host_kernel": 80}


def test_a_slice_has_the_cycles_of_the_intervals_within_it_scaled_to_its_length() -> None:
    found = series(SERIES).between(5000.30, 5000.60)
    # Two of three tenths of a second have whole intervals: the second and the third.
    assert found.counts is not None
    assert found.counts.host_kernel == pytest.approx((80 + 120) * 3 / 2)
    assert found.counts.share == 1.0
    assert found.note == ""


def test_a_slice_without_a_whole_interval_has_no_cycles() -> None:
    assert series(SERIES).between(5000.26, 5000.34).counts is None
    assert series(SERIES).between(6000, 6001).counts is None
    assert CycleSeries().between(5000, 5001).counts is None


def test_a_slice_during_which_counters_took_turns_has_a_note() -> None:
    shared = series(f"5000.00 9000.00\n{interval(0.1)}{interval(0.2, share='74.99')}{interval(0.3)}")
    found = shared.between(5000, 5001)
    assert found.counts is not None
    assert found.counts.share == pytest.approx(0.7499)
    assert "scaled up" in found.note
    assert shared.between(5000.205, 5000.305).note == ""


def test_an_interval_without_counts_is_left_out_and_the_next_one_begins_at_its_end() -> None:
    missing = interval(0.2).replace("20,,", "<not counted>,,").replace("2,,cycles:kG", "<not counted>,,cycles:kG")
    found = series(f"5000.00 9000.00\n{interval(0.1)}{missing}{interval(0.3)}")
    assert [each.begun for each in found.intervals] == [5000.0, pytest.approx(5000.2)]
    assert "other programs use all of them" in found.note


def test_a_perf_that_prints_no_interval_is_the_reason() -> None:
    assert series("5000.25 9000.00\n", "Error:\nNo permission.\n") == CycleSeries(
        (), "perf counted nothing: No permission."
    )
    assert series("").note == "perf counted nothing: it printed nothing"
    assert series("5000.25 9000.00\n", "x").between(5000, 5001).note == "perf counted nothing: x"


# --- while slices run ---


class Perf:
    """A script in perf's place."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "perf"

    def does(self, script: str) -> None:
        self._path.write_text(f"#!/bin/sh\n{script}\n")
        self._path.chmod(0o755)


@pytest.fixture
def perf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Perf:
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return Perf(programs)


def test_perf_counts_all_cpus_for_the_time_asked_for(perf: Perf, tmp_path: Path) -> None:
    perf.does(f'echo "$@" >{tmp_path}/asked\ncat <<SERIES\n{SERIES.partition(chr(10))[2]}SERIES')
    before = float(Path("/proc/uptime").read_text().split()[0])
    found = count_cycles(RUNNER, 12.5)
    after = float(Path("/proc/uptime").read_text().split()[0])
    assert len(found.intervals) == 3
    assert before <= found.intervals[0].begun <= after
    asked = (tmp_path / "asked").read_text().split()
    assert "--all-cpus" in asked
    assert f"--interval-print={INTERVAL_SECONDS * 1000:.0f}" in asked
    assert asked[-3:] == ["--", "sleep", "12.50"]


def test_a_perf_that_fails_meanwhile_is_a_note_and_no_error(perf: Perf) -> None:
    perf.does("echo 'cannot open: too many open files' >&2; exit 255")
    assert count_cycles(RUNNER, 1).note == "perf counted nothing: cannot open: too many open files"


def test_what_a_perf_counted_before_it_was_killed_is_read(perf: Perf) -> None:
    perf.does(f"cat <<SERIES\n{interval(0.1)}SERIES\nkill -KILL $$")
    assert len(count_cycles(RUNNER, 1).intervals) == 1


def test_a_perf_that_does_not_end_is_ended(perf: Perf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.features.io_costs.cycles._DEADLINE", 0.2)
    perf.does("exec sleep 60")
    with pytest.raises(HostError):
        count_cycles(RUNNER, 0.2)


def test_the_real_perf_counts_all_cpus_in_intervals() -> None:
    if shutil.which("perf") is None:
        pytest.skip("perf is not installed")
    before = float(Path("/proc/uptime").read_text().split()[0])
    started = time.monotonic()
    found = count_cycles(RUNNER, 0.55, event=CLOCK)
    took = time.monotonic() - started
    if not found.intervals:
        pytest.skip(f"perf may not count here: {found.note}")
    assert found.intervals[0].begun >= before
    assert found.intervals[-1].ended <= before + took + 0.02
    assert len(found.intervals) >= 5
    within = found.between(found.intervals[0].begun, found.intervals[-1].ended)
    assert within.counts is not None
    # The clock takes no modifiers: each of the four has the milliseconds of all CPUs.
    for name in MODIFIERS:
        cpu_seconds = getattr(within.counts, name) / 1000 / (os.cpu_count() or 1)
        assert cpu_seconds == pytest.approx(found.intervals[-1].ended - found.intervals[0].begun, rel=0.1)
    assert within.counts.share == 1.0
