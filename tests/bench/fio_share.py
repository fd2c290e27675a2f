"""Where the seconds of measuring went in stored runs: `python -m tests.bench.fio_share RUN ...`.

For each timetable: its slices, the share of its time in which fio ran, the time since the timetable before, the usual
pause, how many slices overlapped another, and how many have no counters because these were read too late. Then the same
of the whole run, whose share is the efficiency that the report shows.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from harness.results import Measurement, RunStore


@dataclass(frozen=True, slots=True)
class TimetableShare:
    """The slices of one timetable in the order of time. `waited`: seconds since the end of the timetable before."""

    name: str
    slices: Sequence[Measurement]
    waited: float

    @property
    def ended(self) -> float:
        return self.slices[-1].started + self.slices[-1].seconds

    @property
    def seconds(self) -> float:
        return self.ended - self.slices[0].started

    @property
    def fio_seconds(self) -> float:
        """The planned seconds: those in which fio waits for its last I/Os belong to the pauses."""
        return sum(slice_.wall for slice_ in self.slices)

    @property
    def pauses(self) -> list[float]:
        return [after.started - before.started - before.wall for before, after in pairwise(self.slices)]

    def __str__(self) -> str:
        overlapped = sum(slice_.overlap is not None for slice_ in self.slices)
        uncounted = sum(slice_.counters.disk is None for slice_ in self.slices)
        pause = 1000 * median(self.pauses) if self.pauses else 0.0
        return (
            f"{self.name:44} {len(self.slices):4} slices  share {self.fio_seconds / self.seconds:.3f}  waited "
            f"{self.waited:5.2f} s  pause {pause:4.0f} ms  {overlapped} overlapped  {uncounted} without counters"
        )


def find_timetables(measurements: Iterable[Measurement]) -> Iterator[TimetableShare]:
    """The timetables of a run in the order of time, from the names of fio's outputs."""
    by_name: dict[str, list[Measurement]] = {}
    for slice_ in sorted(measurements, key=lambda of_run: of_run.started):
        by_name.setdefault(re.sub(r"(raw/|-(host|guest)[^/]*$)", "", slice_.raw), []).append(slice_)
    ended = None
    for name, slices in by_name.items():
        timetable = TimetableShare(name, slices, slices[0].started - ended if ended is not None else 0.0)
        ended = timetable.ended
        yield timetable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="+", type=Path, help="the directory of a run")
    for path in parser.parse_args().run:
        store = RunStore(path)
        timetables = list(find_timetables(store.read_journal().measurements))
        print(path.name, *timetables, sep="\n  ")
        efficiency = store.read_results().run.efficiency
        print(f"  fio ran {efficiency.fio_s:.0f} s of {efficiency.wall_s:.0f} s: {efficiency.ratio or 0:.3f}")


if __name__ == "__main__":
    main()
