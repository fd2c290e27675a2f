"""Cycles: read as perf prints them, counted for as long as an arm measures, and nothing left of it on the host.

Where this machine lets perf count its own clock (`cpu-clock`, an event without hardware), the real perf is asked;
its refusals and its ends come from a script in its place.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.lab.cycles import MODIFIERS, CycleCounting, counting, cycle_counting, parse_counts
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
    found = cycle_counting(RUNNER, HostFacts({}))
    assert not found.counted
    assert found.why.startswith("perf is not installed")
    assert "linux-perf" in found.why


def test_this_host_counts_exactly_if_its_kernel_shows_a_pmu() -> None:
    facts = read_facts(RUNNER)
    if not facts["perf"] or os.getuid() != 0:
        pytest.skip("needs perf, and root")
    found = cycle_counting(RUNNER, facts)
    if list(Path("/sys/bus/event_source/devices").glob("cpu*")):
        assert found == CycleCounting(True, facts["perf"])
    else:
        assert not found.counted
        assert "no cycle counter (PMU)" in found.why


def test_a_perf_without_permission_to_count_is_reported(perf: Perf) -> None:
    perf.does("echo 'Error:' >&2; echo 'Access is limited.' >&2; exit 255")
    assert cycle_counting(RUNNER, HostFacts({"perf": "perf version 6.1"})) == CycleCounting(
        False, "perf counted nothing: Access is limited."
    )


def test_a_perf_that_counts_is_named(perf: Perf) -> None:
    perf.counts()
    assert cycle_counting(RUNNER, HostFacts({"perf": "perf version 6.1"})) == CycleCounting(True, "perf version 6.1")


# --- while something measures ---


class Perf:
    """A script in perf's place."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "perf"

    def does(self, script: str) -> None:
        self._path.write_text(f"#!/bin/sh\n{script}\n")
        self._path.chmod(0o755)

    def counts(self) -> None:
        """It runs the command, as perf does, then prints."""
        self.does(f'while [ "$1" != -- ]; do shift; done; shift; "$@"\ncat <<COUNTS\n{PRINTED}COUNTS')


@pytest.fixture
def perf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Perf:
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return Perf(programs)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Where counts are meanwhile."""
    return tmp_path / "cycles"


def waiting(kept: Path) -> int:
    return int((kept / "waiting").read_text())


def gone(pid: int) -> bool:
    """Not running; a process that nobody waited for is as good as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_counts_are_there_once_the_work_is_done(perf: Perf, kept: Path) -> None:
    perf.counts()
    with counting(RUNNER, 30, directory=str(kept)) as count:
        assert not count.cycles.counts
        process = waiting(kept)
        assert not gone(process)
    assert count.cycles.counts == parsed(PRINTED)
    assert gone(process)
    assert not kept.exists()


def test_a_perf_that_ends_at_once_leaves_the_work_alone_and_says_why(perf: Perf, kept: Path) -> None:
    perf.does("echo 'cannot open: too many open files' >&2; exit 255")
    with counting(RUNNER, 30, directory=str(kept)) as count:
        done = RUNNER.run(["echo", "measured"], deadline=10).stdout
    assert done == "measured\n"
    assert count.cycles.counts is None
    assert count.cycles.note == "perf counted nothing: cannot open: too many open files"
    assert not kept.exists()


def test_a_perf_that_is_killed_meanwhile_counts_nothing(perf: Perf, kept: Path) -> None:
    perf.does('while [ "$1" != -- ]; do shift; done; shift; "$@" & wait; kill -KILL $$')
    with counting(RUNNER, 30, directory=str(kept)) as count:
        process = waiting(kept)
        os.kill(process, signal.SIGKILL)
    assert count.cycles.note.startswith("perf counted nothing")
    assert not kept.exists()


def test_a_number_that_was_given_away_is_left_alone(perf: Perf, kept: Path) -> None:
    perf.counts()
    with subprocess.Popen(["sleep", "60"]) as stranger:
        with counting(RUNNER, 30, directory=str(kept)):
            os.kill(waiting(kept), signal.SIGTERM)
            (kept / "waiting").write_text(f"{stranger.pid}\n")
        assert stranger.poll() is None
        stranger.kill()


def test_an_error_during_the_count_is_raised_and_leaves_nothing(perf: Perf, kept: Path) -> None:
    perf.counts()
    processes = []

    def fail() -> None:
        with counting(RUNNER, 30, directory=str(kept)):
            processes.append(waiting(kept))
            raise HostError("fio hangs")

    with pytest.raises(HostError, match="fio hangs"):
        fail()
    assert gone(processes[0])
    assert not kept.exists()


def test_what_a_killed_run_left_is_in_nobodys_way(perf: Perf, kept: Path) -> None:
    kept.mkdir()
    (kept / "ended").write_text("over\n")
    (kept / "counts").write_text("1,,cycles:uG,1,100.00,,\n")
    perf.counts()
    with counting(RUNNER, 30, directory=str(kept)) as count:
        pass
    assert count.cycles.counts == parsed(PRINTED)


def test_the_real_perf_counts_all_cpus_during_the_block(kept: Path) -> None:
    if shutil.which("perf") is None:
        pytest.skip("perf is not installed")
    started = time.monotonic()
    with counting(RUNNER, 30, event=CLOCK, directory=str(kept)) as count:
        within = time.monotonic()
        time.sleep(0.3)
        least = time.monotonic() - within
    most = time.monotonic() - started
    counts = count.cycles.counts
    if counts is None:
        pytest.skip(f"perf may not count here: {count.cycles.note}")
    # The clock takes no modifiers: each of the four has the milliseconds of all CPUs.
    for name in MODIFIERS:
        cpu_seconds = getattr(counts, name) / 1000 / (os.cpu_count() or 1)
        assert 0.95 * least <= cpu_seconds <= 1.05 * most
    assert counts.share == 1.0
    assert not kept.exists()
