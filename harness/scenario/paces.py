"""How long the kinds of work of a run take: usual times, corrected by what earlier runs on the same host took. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal, get_args

Kind = Literal[
    "program",
    "lab",
    "build",
    "condition",
    "boot",
    "fio",
    "pause",
    "start",
    "recovery",
    "again",
    "end",
]
"""`program`: the command itself, and its report. `lab`: until the host answers. `build`: the layouts. `condition`:
filling them. `boot`: guests. `fio`: its slices. `pause`: between slices. `start`: beginning and ending a timetable.
`recovery`: the same of an array during a timetable. `again`: what is measured again. `end`: taking everything down."""
KINDS: tuple[Kind, ...] = get_args(Kind)

PROGRAM_SECONDS = 7.0
LAB_SECONDS = 33.0
"""The boot of the embedded lab's host."""
BUILD_SECONDS = 2.0
"""For a setup: the partition tables, and what is read of the disks."""
LAYER_SECONDS = 0.8
"""For each region with a layout."""
ARRAY_SECONDS = 2.5
"""For each disk of an array."""
FILL_SECONDS = 1.0
"""For the fio that fills."""
SIMULATED_FILL_RATE = 200 * 1024**2
"""Bytes per second that a simulated host writes at most, whatever its disks could do."""
BOOT_SECONDS = 9.0
ATTACH_SECONDS = 1.3
"""For each mode with a guest: attaching its disk, and reading back how it is attached."""
PAUSE_SECONDS = 0.04
"""Between two slices, of which fio's I/Os in flight need a part."""
START_SECONDS = 2.2
"""For each timetable: login, the start of fio on each machine, and reading what it printed."""
RECOVERY_SECONDS = 5.0
"""For each timetable during which an array recovers: the spare is added before it, and taken out after it."""
AGAIN_SHARE = 0.03
"""Of the time for measuring: jobs whose slices overlapped, or that need longer slices."""
END_SECONDS = 5.0
"""For each setup: shutting down its guests, and removing its layouts."""
REMOVE_SECONDS = 0.8
"""For each mode of it."""
REMOVE_ARRAY_SECONDS = 1.5
"""For each disk of an array: udev looks at each of them, and may assemble the array again."""

OF_THE_HOST: frozenset[Kind] = frozenset({"program", "lab", "boot", "start"})
"""What a run of other scenarios says something about. The rest depends on what is built and measured."""
REAL_HOST: Mapping[Kind, float] = {"lab": 0.1}
"""What a real host takes of the times above, which were measured in the embedded lab: it need not boot. A real host is
faster in other ways, too, but most of a run is fio's slices, and its first run shows the rest."""
RUNNING = 0.1
"""What opening a simulated host takes that runs already, of the time that its boot takes."""
LAST_RUNS = 5
"""Runs of which the median counts."""
LEAST_SECONDS = 1.0
"""What took less than this says nothing about the pace."""
MOST_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What one run took of each kind, as a multiple of the usual time. `scenarios` are those that it measured."""

    scenarios: tuple[str, ...]
    ratios: Mapping[Kind, float]


@dataclass(frozen=True, slots=True)
class Paces:
    """The time of each kind of work on a host, as a multiple of the usual time; 1 if it is not known.

    `fill_rate`: bytes per second that can be filled at most; None if only the disks limit it.
    """

    ratios: Mapping[Kind, float] = field(default_factory=lambda: dict(REAL_HOST))
    fill_rate: float | None = None

    @classmethod
    def of(cls, runs: Sequence[Pace], scenarios: Sequence[str], *, simulated: bool, running: bool = False) -> Paces:
        """The paces for these scenarios from the last runs on the host, the newest first.

        The median of the last runs of the same scenarios, because a single run may have met other load. Without one,
        runs of others count for what depends on the host only.
        `simulated`: as in the embedded lab, which need not boot if it is `running`.
        """
        usual = cls({}, SIMULATED_FILL_RATE) if simulated else cls()
        found: dict[Kind, float] = dict(usual.ratios)
        for kind in KINDS:
            known = [(run.scenarios, run.ratios[kind]) for run in runs if kind in run.ratios]
            same = [ratio for own, ratio in known if own == tuple(scenarios)]
            others = [ratio for _, ratio in known] if kind in OF_THE_HOST else []
            if ratios := (same or others)[:LAST_RUNS]:
                found[kind] = median(ratios)
        if running:
            found["lab"] = RUNNING
        return replace(usual, ratios=found)

    def of_kind(self, kind: Kind) -> float:
        """The multiple of the usual time."""
        return self.ratios.get(kind, 1.0)

    def seconds(self, work: Mapping[Kind, float]) -> float:
        """The time for work whose usual times are these."""
        return sum(seconds * self.of_kind(kind) for kind, seconds in work.items())

    def fill_seconds(self, size: float, write_rate: float) -> float:
        """The usual time to fill so many bytes on disks that write so many per second."""
        return size / (write_rate if self.fill_rate is None else min(write_rate, self.fill_rate))


def pace_of(scenarios: Sequence[str], planned: Mapping[Kind, float], took: Mapping[Kind, float]) -> Pace:
    """The pace of a run: what it took of each kind, and the usual time for what it did, in seconds."""
    ratios = {
        kind: min(took[kind] / usual, MOST_RATIO)
        for kind, usual in planned.items()
        if kind in took and usual >= LEAST_SECONDS
    }
    return Pace(tuple(scenarios), ratios)
