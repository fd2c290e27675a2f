"""The start of jobs at their times: the real script in a shell of this machine, with a stand-in for fio.

The stand-in does what fio does with a job: it creates each one after its delay, and lets its processes wait.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from harness.lab.transport.base import Completed
from harness.lab.transport.local import LocalRunner
from harness.measure.platform import ScheduledFio, Start
from tests.unit.processes import ends

RUNNER = LocalRunner("host here")
# Standard input: a line `DELAY PROCESSES COMMAND` for each job, in place of a job file.
STAND_IN = """\
number=0
while read -r delay processes command; do
    i=0
    while [ $i -lt $processes ]; do
        (sleep $delay; sh -c "$command"; read -r now _ </proc/uptime; echo "$number $now") &
        i=$((i + 1))
    done
    number=$((number + 1))
done
wait
"""
LATE_BY = 30.0
"""Seconds by which a start may be late on a busy machine."""


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def stand_in(path: Path, text: str = STAND_IN) -> tuple[str, ...]:
    (path / "fio").write_text(text)
    return ("sh", str(path / "fio"))


def pacing(tmp_path: Path, starts: Sequence[Start], fio: str = STAND_IN) -> ScheduledFio:
    return ScheduledFio(str(tmp_path / "pacing-here"), stand_in(tmp_path, fio), tuple(starts))


def jobs(of: ScheduledFio, *delays_and_processes: tuple[float, int]) -> str:
    """The stand-in's input."""
    return "".join(
        f"{delay} {processes} {of.waits(number).partition('=')[2]}\n"
        for number, (delay, processes) in enumerate(delays_and_processes)
    )


def run(of: ScheduledFio, text: str) -> Completed:
    return of.run(RUNNER.run, text, deadline=600)


def begun(done: Completed) -> list[tuple[int, float]]:
    """The number of each job and the uptime of its start, one for each of its processes, by time."""
    lines = (line.split() for line in done.stdout.splitlines())
    return sorted(((int(number), float(at)) for number, at in lines), key=lambda each: each[1])


@pytest.fixture(params=["sh", "busybox sh"], autouse=True)
def _shell(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guests have the shell of busybox, hosts mostly dash or bash."""
    if request.param == "sh":
        return
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox is not installed")
    programs = tmp_path / "programs"
    programs.mkdir()
    subprocess.run([busybox, "--install", "-s", str(programs)], check=True)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


def test_each_job_starts_at_its_time(tmp_path: Path) -> None:
    start = uptime() + 0.5
    times = [start, start + 0.35, start + 0.4, start + 1.0]
    of = pacing(tmp_path, [Start(at, 1) for at in times])
    done = run(of, jobs(of, *[(0.0, 1)] * 4))
    assert done.status == 0, done.stderr
    found = begun(done)
    assert [number for number, _ in found] == [0, 1, 2, 3]
    for (_, at), planned in zip(found, times, strict=True):
        assert planned - 0.02 <= at <= planned + LATE_BY


def test_it_says_when_the_first_job_waited_for_its_start(tmp_path: Path) -> None:
    asked = uptime()
    of = pacing(tmp_path, [Start(asked + 1.5, 1), Start(asked + 1.7, 1)], f"sleep 0.5\n{STAND_IN}")
    ready = of.ready(run(of, jobs(of, (0.0, 1), (0.0, 1))))
    assert ready is not None
    assert asked + 0.45 <= ready <= asked + 0.5 + LATE_BY
    assert of.ready(Completed(of.argv, 0, "", "")) is None


def test_all_processes_of_a_job_start_together(tmp_path: Path) -> None:
    start = uptime() + 0.4
    of = pacing(tmp_path, [Start(start, 3), Start(start + 0.5, 1)])
    found = begun(run(of, jobs(of, (0.0, 3), (0.0, 1))))
    assert [number for number, _ in found] == [0, 0, 0, 1]
    assert all(start - 0.02 <= at <= start + LATE_BY for _, at in found[:3])
    assert found[3][1] >= start + 0.48


def test_the_jobs_of_a_fio_that_starts_late_start_when_they_are_created(tmp_path: Path) -> None:
    start = uptime() + 0.1
    of = pacing(tmp_path, [Start(start, 1), Start(start + 0.2, 2)], f"sleep 0.8\n{STAND_IN}")
    found = begun(run(of, jobs(of, (0.0, 1), (0.3, 2))))
    assert [number for number, _ in found] == [0, 1, 1]
    assert found[0][1] >= start + 0.6
    assert found[1][1] >= found[0][1] + 0.2


def test_the_end_and_the_output_of_fio_are_those_of_the_command(tmp_path: Path) -> None:
    of = pacing(tmp_path, [Start(uptime(), 1)], "cat; echo wrong >&2; exit 3")
    done = run(of, "job file\nof two lines\n")
    assert (done.status, done.stdout, done.stderr) == (3, "job file\nof two lines\n", "wrong\n")


def test_a_fio_that_dies_early_ends_the_command(tmp_path: Path) -> None:
    start = uptime()
    of = pacing(tmp_path, [Start(start + 0.1, 1), Start(start + 0.5, 1), Start(start + 600, 1)], "exit 1")
    asked = time.monotonic()
    assert run(of, "").status == 1
    assert time.monotonic() - asked < 300, "it did not wait for the last job"
    assert not Path(of.directory).exists()


def test_nothing_is_left_in_the_directory(tmp_path: Path) -> None:
    of = pacing(tmp_path, [Start(uptime(), 1)])
    assert run(of, jobs(of, (0.0, 1))).status == 0
    assert not Path(of.directory).exists()


def test_what_a_killed_run_left_is_in_nobodys_way_and_is_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name, pid in (("pacing-here", ended.pid), ("pacing-old", ended.pid), ("pacing-other", os.getpid())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pid").write_text(f"{pid}\n")
    of = pacing(tmp_path, [Start(uptime(), 1)])
    done = run(of, jobs(of, (0.0, 1)))
    assert done.status == 0, done.stderr
    assert [path.name for path in tmp_path.glob("pacing*")] == ["pacing-other"]


def test_a_directory_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    of = pacing(tmp_path, [Start(uptime(), 1)])
    Path(of.directory).mkdir()
    (Path(of.directory) / "pid").write_text(f"{os.getpid()}\n")
    assert run(of, jobs(of, (0.0, 1))).status == 1
    assert (Path(of.directory) / "pid").exists()


class Running:
    """The command in another thread."""

    def __init__(self, of: ScheduledFio, text: str) -> None:
        self.done: Completed | None = None
        self._thread = threading.Thread(target=self._run, args=(of, text))
        self._thread.start()
        end = time.monotonic() + 300
        while not (Path(of.directory) / "wait_until").exists():
            assert time.monotonic() < end
            time.sleep(0.02)

    def _run(self, of: ScheduledFio, text: str) -> None:
        self.done = run(of, text)

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)
        assert self.done is not None, "it still runs"


def test_a_stopped_command_ends_fio_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    of = pacing(tmp_path, [Start(uptime(), 1)], f"echo $$ >{tmp_path}/fio-pid; exec sleep 20")
    running = Running(of, "")
    time.sleep(0.3)
    of.stop(RUNNER)
    running.join(300)
    assert running.done is not None
    assert running.done.status == 143
    assert not Path(of.directory).exists()
    fio = int((tmp_path / "fio-pid").read_text())
    assert ends(fio)


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_a_stop_ends_a_fio_whose_job_waits_and_the_command_in_which_it_waits(tmp_path: Path) -> None:
    start = uptime() + 299.25
    of = ScheduledFio(str(tmp_path / "pacing-here"), ("fio", "-"), (Start(start, 1),))
    running = Running(of, f"[job]\nthread=1\nioengine=null\nsize=1M\n{of.waits(0)}\n")
    end = time.monotonic() + 300
    while not (waiting := sleeping()):
        assert time.monotonic() < end
        time.sleep(0.05)
    of.stop(RUNNER)
    running.join(300)
    assert running.done is not None
    assert running.done.status == 143
    assert all(ends(pid) for pid in waiting)


def sleeping() -> list[int]:
    """The processes that sleep for 299 s, or less."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"sleep" in words and any(re.fullmatch(rb"2[0-9]{2}\.[0-9]{3}", word) for word in words):
                found.append(int(path.parent.name))
    return found


def test_to_stop_what_does_not_run_is_no_error(tmp_path: Path) -> None:
    pacing(tmp_path, []).stop(RUNNER)


def test_host_and_guest_have_directories_of_their_own() -> None:
    assert (
        ScheduledFio.of("batch1-host", ("fio",), ()).directory
        != ScheduledFio.of("batch1-guest", ("fio",), ()).directory
    )
