"""The measured blocks as they are stored, and the groups that they form. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.errors import ResultsError
from harness.model.values import STRICT
from harness.results import Measurement
from harness.results.contrasts import BlockKey
from harness.scenario.timetable import ScheduledArm
from tests.bench.designs.comparisons import COMPARISONS, Design, Sizes

METRICS = ("iops", "lat_mean")
"""The stored metrics, in I/Os per second and in seconds."""


@dataclass(frozen=True, slots=True)
class Block:
    """One pair of values: one line of the file. In the old design, it is of one round."""

    __pydantic_config__ = STRICT

    session: str
    """The id of the session, which had one embedded lab."""
    unit: int
    """The number in the session of what was measured together: one group of each comparison and job."""
    design: Design
    comparison: str
    """The name of the comparison."""
    job: str
    """The job's id."""
    number: int
    """The block's number in its group."""
    of: int
    """The number of blocks of a complete group."""
    slice_s: float
    """The seconds of a slice of the design with slices. The old design's slices give the same wall time."""
    boot: int
    """The number of the guest's boot."""
    started: float
    """The start of the earlier slice, in seconds since 1970-01-01 UTC."""
    apart: float
    """Seconds from the start of the earlier slice to the start of the later one."""
    wall: float
    """The block's share of the wall time, in seconds."""
    overlap: bool
    """Whether another slice ran at the same time as one of the two. Then the block does not count."""
    first: dict[str, float]
    """Values of the comparison's first turn, by metric."""
    second: dict[str, float]
    """Values of its second turn."""


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one comparison, job and design, in the order of time. No value is in two groups."""

    blocks: tuple[Block, ...]

    @property
    def head(self) -> Block:
        return self.blocks[0]

    def first(self, metric: str) -> list[float]:
        return [each.first[metric] for each in self.blocks]

    def second(self, metric: str) -> list[float]:
        return [each.second[metric] for each in self.blocks]

    @property
    def keys(self) -> list[BlockKey]:
        return [(1, each.number) for each in self.blocks]

    @property
    def boots(self) -> list[int]:
        return [each.boot for each in self.blocks]


Unit = Sequence[Group]
"""The groups that one design measured together, of all comparisons and jobs."""


def paired(
    measured: Sequence[Measurement],
    sizes: Sizes,
    *,
    session: str,
    unit: int,
    design: Design,
    wall: float,
) -> list[Block]:
    """The blocks of these measurements, in the order of time. `wall` are the seconds that they took together."""
    found = {(each.arm, each.repeat, each.job, each.block): each for each in measured}
    blocks = []
    for comparison in COMPARISONS:
        for (arm, repeat, job, number), a in found.items():
            if (arm, repeat) != _key(comparison.turns[0]):
                continue
            b = found[*_key(comparison.turns[1]), job, number]
            blocks.append(
                Block(
                    session=session,
                    unit=unit,
                    design=design,
                    comparison=comparison.name,
                    job=job,
                    number=number,
                    of=sizes.samples(design),
                    slice_s=sizes.slice_s,
                    boot=a.boot,
                    started=min(a.started, b.started),
                    apart=abs(a.started - b.started),
                    wall=wall * 2 / len(measured),
                    overlap=a.overlap is not None or b.overlap is not None,
                    first={name: a.metrics[name] for name in METRICS},
                    second={name: b.metrics[name] for name in METRICS},
                )
            )
    return sorted(blocks, key=lambda each: each.started)


def _key(turn: ScheduledArm) -> tuple[str, int]:
    return turn.arm.id, turn.again


def units(blocks: Iterable[Block]) -> list[Unit]:
    """The groups of all blocks by unit and design.

    As in a run, a block with an overlapping slice does not count. A group with less than two thirds of its blocks is
    left out, and one of the old design if any block is missing: it has only three, and version 0.1 always had them.
    Raises ResultsError if the blocks have slices of different lengths, or groups of different sizes: their figures
    cannot be pooled.
    """
    by_group: dict[tuple[str, int, Design], dict[tuple[str, str], list[Block]]] = {}
    sizes: dict[tuple[Design, str], tuple[int, float]] = {}
    for each in blocks:
        by_group.setdefault((each.session, each.unit, each.design), {}).setdefault(
            (each.comparison, each.job), []
        ).append(each)
        size = sizes.setdefault((each.design, each.job), (each.of, each.slice_s))
        if size != (each.of, each.slice_s):
            raise ResultsError(
                f"{each.design}, {each.job}: some groups have {size[0]} blocks with slices of {size[1]:g} s, "
                f"others have {each.of} blocks with slices of {each.slice_s:g} s",
                hint="report files with the same --slice and --blocks together",
            )
    groups_by_unit = ([_group(blocks) for blocks in groups.values()] for groups in by_group.values())
    return [[group for group in groups if group is not None] for groups in groups_by_unit]


def _group(blocks: Sequence[Block]) -> Group | None:
    valid = sorted((each for each in blocks if not each.overlap), key=lambda each: each.number)
    of = blocks[0].of
    least = of if blocks[0].design is Design.OLD else math.ceil(of * 2 / 3)
    return Group(tuple(valid)) if len(valid) >= least else None
