"""What the groups of each design show: width and coverage of the intervals, false alarms, power. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from scipy.stats import binomtest

from harness.analysis import Estimate, Samples, estimate_added, estimate_overhead
from tests.bench.designs.blocks import Group, Unit
from tests.bench.designs.comparisons import COMPARISONS, Comparison, Design

LOSS = 0.05
"""The loss whose detection is counted, as a share of the throughput."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A group's estimates. `shifted` is of a second turn that is slower by LOSS; None for a delay, which is real."""

    group: Group
    found: Estimate
    shifted: Estimate | None
    truth: float

    @property
    def covers(self) -> bool:
        return _includes(self.found, self.truth)

    @property
    def detects(self) -> bool:
        """Whether the interval excludes 0 although there is a difference."""
        return not _includes(self.shifted or self.found, 0.0)


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one design in one comparison. `job` is the id of the job, or "all".

    `half_width` is a median, in points of the share or in seconds. The counts are of the groups with an interval, but
    `power` is of all `groups`. `false_alarms` is None if there is a true difference. `error` is the mean difference
    of estimate and truth. `apart` is the median time between the two slices of a pair in seconds, and `wall` the mean
    wall time of a group.
    """

    comparison: Comparison
    design: Design
    job: str
    groups: int
    intervals: int
    half_width: float
    covered: int
    false_alarms: int | None
    detected: int
    error: float
    apart: float
    wall: float

    @property
    def coverage(self) -> tuple[float, float, float]:
        """The share of the intervals that contain the truth, with its exact 95 % interval (Clopper & Pearson 1934)."""
        interval = binomtest(self.covered, self.intervals).proportion_ci(0.95)
        return self.covered / self.intervals, interval.low, interval.high


def judged(unit: Unit) -> Iterator[Judged]:
    """The estimates of the groups, as a run of this design reports them."""
    by_name = {each.name: each for each in COMPARISONS}
    for group in unit:
        samples = Samples(tuple(group.boots) if group.head.design is Design.SLICES else ())
        yield _judged(group, by_name[group.head.comparison], samples)


def _judged(group: Group, comparison: Comparison, samples: Samples) -> Judged:
    if comparison.added_s is not None:
        found = estimate_added(group.first("lat_mean"), group.second("lat_mean"), samples=samples)
        return Judged(group, found, None, comparison.added_s)
    first, second = group.first("iops"), group.second("iops")
    slower = [(1 - LOSS) * value for value in second]
    return Judged(
        group,
        estimate_overhead(first, second, higher_is_better=True, samples=samples),
        estimate_overhead(first, slower, higher_is_better=True, samples=samples),
        0.0,
    )


def rows(units: Iterable[Unit]) -> list[Row]:
    """The figures by comparison, job and design: first all jobs of a comparison together, then each of them."""
    found = [each for unit in units for each in judged(unit)]
    table = []
    for comparison in COMPARISONS:
        mine = [each for each in found if each.group.head.comparison == comparison.name]
        for job in ("all", *sorted({each.group.head.job for each in mine})):
            for design in Design:
                these = [
                    each for each in mine if each.group.head.design is design and job in ("all", each.group.head.job)
                ]
                if these:
                    table.append(_row(comparison, design, job, these))
    return table


def _row(comparison: Comparison, design: Design, job: str, found: Sequence[Judged]) -> Row:
    known = [each for each in found if each.found.half_width is not None]
    covered = sum(each.covers for each in known)
    return Row(
        comparison=comparison,
        design=design,
        job=job,
        groups=len(found),
        intervals=len(known),
        half_width=median(each.found.half_width or 0.0 for each in known) if known else float("nan"),
        covered=covered,
        false_alarms=len(known) - covered if comparison.added_s is None else None,
        detected=sum(each.detects for each in found),
        error=fmean(each.found.point - each.truth for each in found),
        apart=median(block.apart for each in found for block in each.group.blocks),
        wall=fmean(sum(block.wall for block in each.group.blocks) for each in found),
    )


def table(all_rows: Sequence[Row]) -> list[str]:
    """The rows as lines of text."""
    header = (
        f"{'comparison':20} {'job':20} {'design':6} {'groups':>6} {'no int.':>7} {'half width':>11} "
        f"{'coverage (95 % interval)':>26} {'false alarms':>12} {'power':>7} {'error':>10} {'apart':>7} {'wall':>7}"
    )
    lines = [header]
    for row in all_rows:
        size = _milliseconds if row.comparison.added_s is not None else _points
        alarms = "-" if row.false_alarms is None else _share(row.false_alarms, row.intervals)
        lines.append(
            f"{row.comparison.name:20} {row.job:20} {row.design:6} {row.groups:6} {row.groups - row.intervals:7} "
            f"{size(row.half_width):>11} {_coverage(row):>26} {alarms:>12} {_share(row.detected, row.groups):>7} "
            f"{size(row.error):>10} {row.apart:5.1f} s {row.wall:5.1f} s"
        )
    return lines


def _coverage(row: Row) -> str:
    if not row.intervals:
        return "-"
    share, low, high = row.coverage
    return f"{share:.1%} ({low:.1%} to {high:.1%})"


def _share(count: int, of: int) -> str:
    return f"{count / of:.1%}" if of else "-"


def _points(share: float) -> str:
    return f"{100 * share:.2f} pts"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3f} ms"


def _includes(estimate: Estimate, value: float) -> bool:
    """Whether the interval includes the value. Without an interval, no value is excluded."""
    if estimate.low is None or estimate.high is None:
        return True
    return estimate.low <= value <= estimate.high
