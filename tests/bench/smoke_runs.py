"""Smoke runs in sequence: how long they take, how precise they are, and how often the lab fails.

    python -m tests.bench.smoke_runs runs.jsonl --runs=20

Each run is `pytest scenarios -k optane --profile=smoke` in a new start of the embedded lab, with its reports in a new
directory beside the file. A line is appended to the file for each run, and a later call continues until there are
`--runs` runs. A run takes 4 to 6 minutes, so 20 runs take 1 h 20 min to 2 h. `--runs=0` only prints the table.

The lab host is started by `virt-overhead lab up` and not by pytest. So it continues to run if only a guest is lost, and
the notes of a run say which of the two was lost.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from harness.errors import HarnessError, LabUnavailable
from harness.features.embedded import lab_host as embedded
from harness.measure.host_measurer import KEPT_RUNNING, STARTED_AGAIN
from harness.model.values import STRICT
from harness.results import Journal, Run, RunStore
from tests.bench.lines import append, read

ROOT = Path(__file__).resolve().parents[2]
SMOKE = ("scenarios", "-k", "optane", "--profile=smoke", "--lab=embedded", "-p", "no:cacheprovider", "-q")


@dataclass(frozen=True, slots=True)
class SmokeRun:
    """One run: one line of the file. Times in seconds. A run that stored no results has null figures."""

    __pydantic_config__ = STRICT

    reports: str
    """The directory of its reports."""
    status: int
    """pytest's exit status. 1 if a cell exceeds its budget or is void."""
    lab_s: float
    """The time to start the lab host."""
    wall_s: float
    """The time of pytest, without the start of the lab host."""
    complete: bool = False
    """Whether the run measured everything."""
    boot_s: float | None = None
    """The time to boot the guest, of all boots together."""
    fio_s: float | None = None
    """Seconds in which fio ran."""
    measuring_s: float | None = None
    """Seconds of the measuring phase."""
    half_width: float | None = None
    """The median half width of the overheads' 95 % intervals, as a share."""
    slices: int = 0
    overlapping: int = 0
    """Slices during which another slice ran."""
    guests_lost: int = 0
    """How often the guest or its layouts were lost, and the lab host was not."""
    hosts_lost: int = 0
    """How often the lab host was lost."""

    @property
    def efficiency(self) -> float | None:
        return self.fio_s / self.measuring_s if self.fio_s is not None and self.measuring_s else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.smoke_runs", description="Smoke runs in sequence.")
    parser.add_argument("file", type=Path, help="the file of the results, to which lines are appended")
    parser.add_argument("--runs", type=int, default=20, help="how many runs the file has at the end (%(default)s)")
    options = parser.parse_args(arguments)
    try:
        runs = read(options.file, SmokeRun)
        if len(runs) < options.runs:
            _require_no_lab()
        while len(runs) < options.runs:
            runs.append(_run(options.file.with_suffix("").resolve() / f"run{len(runs) + 1}"))
            append(options.file, runs[-1:], SmokeRun)
            print(line(len(runs), runs[-1]), flush=True)
    except HarnessError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if runs:
        print("\n".join(table(runs)))
    return 0


def with_results(bare: SmokeRun, run: Run, journal: Journal) -> SmokeRun:
    """The run with the figures that it stored."""
    headlines = (cell.metrics.get(cell.job.headline) for cell in run.cells)
    overheads = (metric.overhead for metric in headlines if metric is not None)
    widths = [each.half_width for each in overheads if each is not None and each.half_width is not None]
    failures = {note for cell in run.cells for note in cell.notes if note.endswith((KEPT_RUNNING, STARTED_AGAIN))}
    return replace(
        bare,
        complete=run.run.status == "complete",
        boot_s=run.run.phases.get("boot"),
        fio_s=run.run.efficiency.fio_s,
        measuring_s=run.run.efficiency.wall_s,
        half_width=median(widths) if widths else None,
        slices=len(journal.measurements),
        overlapping=sum(each.overlap is not None for each in journal.measurements),
        guests_lost=sum(note.endswith(KEPT_RUNNING) for note in failures),
        hosts_lost=sum(note.endswith(STARTED_AGAIN) for note in failures),
    )


def table(runs: Sequence[SmokeRun]) -> list[str]:
    """A line for each run, and a line for all of them, with medians and sums."""
    header = (
        f"{'run':>6} {'status':>6} {'lab up':>7} {'wall':>8} {'boot':>7} {'efficiency':>10} {'half width':>11} "
        f"{'overlapped':>12} {'guests lost':>11} {'hosts lost':>10}"
    )
    return [header, *(line(number, run) for number, run in enumerate(runs, start=1)), _summary(runs)]


def line(number: int, run: SmokeRun) -> str:
    """The figures of one run."""
    return _line(str(number), str(run.status), [run], f"{run.overlapping} of {run.slices}")


def _summary(runs: Sequence[SmokeRun]) -> str:
    overlapping, slices = sum(run.overlapping for run in runs), sum(run.slices for run in runs)
    incomplete = sum(not run.complete for run in runs)
    return f"{_line('all', '', runs, f'{overlapping} of {slices}')}; {incomplete} of {len(runs)} runs incomplete"


def _line(name: str, status: str, runs: Sequence[SmokeRun], overlapped: str) -> str:
    return (
        f"{name:>6} {status:>6} {_median([run.lab_s for run in runs], '.1f', ' s'):>7} "
        f"{_median([run.wall_s for run in runs], '.1f', ' s'):>8} "
        f"{_median([run.boot_s for run in runs], '.1f', ' s'):>7} "
        f"{_median([run.efficiency for run in runs], '.3f'):>10} "
        f"{_median([run.half_width for run in runs], '.1%'):>11} {overlapped:>12} "
        f"{sum(run.guests_lost for run in runs):11} {sum(run.hosts_lost for run in runs):10}"
    )


def _median(values: Sequence[float | None], form: str, unit: str = "") -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):{form}}{unit}" if known else "-"


def _require_no_lab() -> None:
    if embedded.state().running() is not None:
        raise LabUnavailable(
            "the embedded lab is running, but each run needs a new one", hint="stop it with: virt-overhead lab down"
        )


def _run(reports: Path) -> SmokeRun:
    """Start the lab, make one smoke run and stop the lab. pytest's output is in the file `output` of the reports."""
    reports.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        _lab("up")
    except LabUnavailable as error:
        (reports / "output").write_text(f"{error}\n")
        return SmokeRun(str(reports), 1, lab_s=time.monotonic() - began, wall_s=0.0, hosts_lost=1)
    up = time.monotonic()
    try:
        with (reports / "output").open("wb") as output:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *SMOKE, f"--reports={reports}"],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        ended = time.monotonic()
    finally:
        _lab("down")
    bare = SmokeRun(str(reports), done.returncode, lab_s=up - began, wall_s=ended - up)
    if not (reports / "latest" / "results.json").exists():
        return bare
    store = RunStore.open(reports / "latest")
    return with_results(bare, store.read_results(), store.read_journal())


def _lab(action: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", "lab", action], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise LabUnavailable(
            f"virt-overhead lab {action} failed: {done.stderr.strip()}", hint="run it yourself and read its message"
        )


if __name__ == "__main__":
    sys.exit(main())
