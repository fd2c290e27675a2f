"""A comparison of two runs in words: rows, the figures over all jobs, what else differs, and what was left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from harness.analysis import METRICS, Caveat, Change
from harness.errors import ConfigError
from harness.model.mode import Place
from harness.report.background import moment
from harness.report.numbers import NONE, count, short, significant
from harness.results.compare_records import (
    ArmChange,
    ComparedRun,
    Comparison,
    Difference,
    Finding,
    LeftOut,
    OverallChange,
    ScenarioChange,
    Side,
)

_MOST_CELLS = 3
"""The largest number of cells named with a reason or a difference. The JSON document has all."""
_LONGEST = 160
"""Characters of a value or a reason in a list."""

_CAVEATS = {
    Caveat.NOT_ESTIMATED: "Some figures are from too few blocks to see whether neighbours are correlated: their "
    "intervals assume that they are not.",
    Caveat.ROUGH: "The correlation of neighbouring blocks is estimated from few of them, so some intervals are rough.",
    Caveat.DRIFTING: "Some figures have no interval, because their blocks drift: measure for longer.",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One arm in one job, in one metric, as text."""

    arm: str
    """For example `guest:lvm`; "guest:lvm -> guest:thick" if the names differ."""
    before: str
    after: str
    change: str
    """For example "x 4.10 [3.80, 4.42]"."""
    n: str
    """Samples before and afterwards, for example "12, 11"."""
    finding: Finding


@dataclass(frozen=True, slots=True)
class JobRows:
    """The arms of one job."""

    job: str
    """With the metric and its better direction: "randread-4k-qd32: iops (IOPS), higher is better"."""
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class OverallRow:
    """One arm over its jobs, as text."""

    arm: str
    change: str
    n: str
    jobs: str
    """For example "4 jobs" or "3 of 4 jobs"."""
    finding: Finding


@dataclass(frozen=True, slots=True)
class ScenarioRows:
    """A scenario, as text."""

    title: str
    """The scenarios and disks before and afterwards."""
    overall: tuple[OverallRow, ...]
    jobs: tuple[JobRows, ...]


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """Everything that an output shows of a comparison."""

    runs: tuple[str, str]
    """The two runs, with time, host and lab."""
    scenarios: tuple[ScenarioRows, ...]
    notes: tuple[str, ...]
    """What a reader must know before the figures count as a result."""
    differences: tuple[str, ...]
    left_out: tuple[str, ...]


def comparison_view(comparison: Comparison, metric: str | None = None) -> ComparisonView:
    """The comparison in words, by `metric`, or by each job's headline metric. ConfigError if no cell has the metric."""
    scenarios = tuple(_scenario(each, metric) for each in comparison.scenarios)
    if metric is not None and not any(each.jobs for each in scenarios):
        raise ConfigError(
            f'metric "{metric}": no compared cell has it in both runs',
            hint="choose another metric; a percentile needs enough I/Os in both runs",
        )
    return ComparisonView(
        runs=(_run("before", comparison.before), _run("after", comparison.after)),
        scenarios=scenarios,
        notes=tuple(_notes(comparison)),
        differences=tuple(map(_difference, comparison.differences)),
        left_out=tuple(_left_out(comparison.left_out)),
    )


def change_words(change: Change) -> str:
    """For example "x 4.10 [3.80, 4.42]", or "x 4.10" without an interval."""
    if change.low is None or change.high is None:
        return f"x {significant(change.ratio)}"
    return f"x {significant(change.ratio)} [{significant(change.low)}, {significant(change.high)}]"


def _scenario(scenario: ScenarioChange, metric: str | None) -> ScenarioRows:
    by_job: dict[str, list[ArmChange]] = {}
    for arm in scenario.arms:
        if (metric or arm.headline) in arm.metrics:
            by_job.setdefault(arm.job, []).append(arm)
    return ScenarioRows(
        title=_both(
            f"{scenario.scenario_before} (disk {scenario.disk_before})",
            f"{scenario.scenario_after} (disk {scenario.disk_after})",
        ),
        overall=tuple(map(_overall, scenario.overall)),
        jobs=tuple(
            JobRows(_job(arms[0], metric), tuple(_row(arm, metric) for arm in arms)) for arms in by_job.values()
        ),
    )


def _job(arm: ArmChange, metric: str | None) -> str:
    shown = METRICS[metric or arm.headline]
    return f"{arm.job}: {shown.name} ({shown.shown.unit}), {shown.better} is better"


def _row(arm: ArmChange, metric: str | None) -> Row:
    own = arm.metrics[metric or arm.headline]
    shown = METRICS[metric or arm.headline].shown
    return Row(
        arm=_both(arm.arm_before, arm.arm_after),
        before=short(own.before / shown.scale),
        after=short(own.after / shown.scale),
        change=change_words(own.change),
        n=_samples(own.change),
        finding=own.finding,
    )


def _overall(overall: OverallChange) -> OverallRow:
    of = len(overall.jobs) + len(overall.missing)
    jobs = count(of, "job") if not overall.missing else f"{len(overall.jobs)} of {count(of, 'job')}"
    return OverallRow(
        arm=_both(overall.arm_before, overall.arm_after),
        change=change_words(overall.change),
        n=_samples(overall.change),
        jobs=jobs,
        finding=overall.finding,
    )


def _samples(change: Change) -> str:
    return f"{change.n_before}, {change.n_after}"


def _both(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _run(side: Side, run: ComparedRun) -> str:
    return f"{side}: run {run.id} of {moment(run.started)}, host {run.lab.host} ({run.lab.kind}, {run.lab.accel})"


def _notes(comparison: Comparison) -> Iterator[str]:
    runs = comparison.before, comparison.after
    for side, run in zip(("before", "after"), runs, strict=True):
        if run.status != "complete":
            yield f"The run {side} is not complete ({run.status}): its measured cells are compared."
    emulated = [run for run in runs if not run.lab.representative]
    if emulated:
        why = " / ".join(dict.fromkeys(run.lab.why for run in emulated))
        yield f"The changes say nothing about real disks, because a lab does not represent real hardware: {why}."
    if comparison.before.lab.host != comparison.after.lab.host:
        yield "The runs are of different hosts: the changes are not those of the disk alone."
    if comparison.differences:
        yield "Everything that differs between the runs, see below, can be the cause of a change."
    arms = [arm for each in comparison.scenarios for arm in each.arms]
    yield (
        f"Intervals: {_confidence(arms)}, from the blocks of each run. They do not cover what changes from run to run "
        "of the same disk, for example with a new boot or new data. To see how much that is, measure one side twice "
        "and compare these runs."
    )
    if len(arms) > 1:
        yield (
            "better and worse are corrected for the number of arms, so an interval can exclude 1 where no difference "
            "is shown."
        )
    for caveat in dict.fromkeys(each for arm in arms for each in arm.metrics[arm.headline].change.caveats):
        yield _CAVEATS[caveat]
    if any(arm.place is Place.TWIN for arm in arms):
        yield "twin:MODE is fio on the host, on the volume or file that the guest gets in this mode."


def _confidence(arms: Sequence[ArmChange]) -> str:
    least, most = min(arm.confidence for arm in arms), max(arm.confidence for arm in arms)
    return f"{least * 100:.3g} %" if least == most else f"{least * 100:.3g} to {most * 100:.3g} %"


def _difference(difference: Difference) -> str:
    cells = f" ({_named(difference.cells)})" if difference.cells else ""
    return f"{difference.what}: {_text(difference.before)} -> {_text(difference.after)}{cells}"


def _left_out(left_out: Sequence[LeftOut]) -> Iterator[str]:
    by_reason: dict[tuple[Side, str], list[str]] = {}
    for each in left_out:
        by_reason.setdefault((each.run, _shortened(each.why)), []).append(each.cell)
    for (side, why), cells in by_reason.items():
        yield f"{side}: {_named(cells)}: {why}"


def _named(cells: Sequence[str]) -> str:
    more = len(cells) - _MOST_CELLS
    return ", ".join(cells[:_MOST_CELLS]) + (f" and {more} more" if more > 0 else "")


def _text(value: JsonValue) -> str:
    if value is None or value == "":
        return NONE
    return _shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _shortened(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
