"""A comparison of runs in words: the outcome, the figures, what else differs, and what was left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from harness.analysis import METRICS, Caveat, Change
from harness.features.compare.records import (
    ArmChange,
    ComparedRun,
    Comparison,
    Difference,
    Finding,
    LeftOut,
    Outcome,
    OverallChange,
    ScenarioChange,
    Side,
)
from harness.model.mode import Place
from harness.report.background import moment
from harness.report.numbers import NONE, count, percent, short, significant
from harness.results.records import Effect

_MOST_CELLS = 3
"""The largest number of cells named with a reason or a difference. The JSON document has all."""
_LONGEST = 160
"""Characters of a value or a reason in a list."""

_EFFECTS = {
    Effect.RULES_OUT: "What rules the comparison out",
    Effect.CAUSE: "What else differs, and may be the cause of a change",
    Effect.NONE: "What differs without an influence",
}

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
    of: Change
    """The figures behind the text."""


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
    of: Change
    """The figures behind the text."""


@dataclass(frozen=True, slots=True)
class ScenarioRows:
    """A scenario, as text."""

    title: str
    """The scenarios and disks before and afterwards."""
    overall: tuple[OverallRow, ...]
    jobs: tuple[JobRows, ...]


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """Everything that an output shows of one run compared with the first one."""

    title: str
    """The ids of the two runs."""
    outcome: Outcome
    verdict: str
    """The outcome with the number of figures behind it, as a sentence."""
    ruled_out: str | None
    """Why the runs cannot be compared; None if they can be."""
    runs: tuple[str, str]
    """The two runs, with time, host and lab."""
    scenarios: tuple[ScenarioRows, ...]
    notes: tuple[str, ...]
    """What a reader must know before the figures count as a result."""
    differences: tuple[tuple[str, tuple[str, ...]], ...]
    """What else differs: a title for each effect, and a line for each difference."""
    left_out: tuple[str, ...]
    doubtful: tuple[str, ...]
    """Figures that are compared, but need an explanation."""


def comparison_view(comparison: Comparison, metric: str | None = None) -> ComparisonView:
    """One comparison in words, by `metric`, or by each job's headline metric. It has nothing of `further`."""
    scenarios = tuple(_scenario(scenario, metric) for scenario in comparison.scenarios)
    return ComparisonView(
        title=f"{comparison.before.id} -> {comparison.after.id}",
        outcome=comparison.outcome,
        verdict=_verdict(comparison, scenarios),
        ruled_out=_ruled_out(comparison),
        runs=(_run("before", comparison.before), _run("after", comparison.after)),
        scenarios=scenarios,
        notes=tuple(_notes(comparison)),
        differences=tuple(_differences(comparison.differences)),
        left_out=tuple(_left_out(comparison.left_out)),
        doubtful=tuple(_left_out(comparison.doubtful)),
    )


def _verdict(comparison: Comparison, scenarios: Sequence[ScenarioRows]) -> str:
    findings = [row.finding for scenario in scenarios for job in scenario.jobs for row in job.rows]
    counts = ", ".join(f"{findings.count(finding)} {finding}" for finding in Finding if finding in findings)
    margin = f"margin {percent(comparison.margin)} %"
    return f"{comparison.outcome}: of {count(len(findings), 'figure')}, {counts} ({margin})"


def _ruled_out(comparison: Comparison) -> str | None:
    found = comparison.ruled_out_by
    if not found:
        return None
    named = "; ".join(map(_difference, found[:_MOST_CELLS]))
    more = f"; and {count(len(found) - _MOST_CELLS, 'further difference')}" if len(found) > _MOST_CELLS else ""
    return f"The runs cannot be compared, because they were measured differently: {named}{more}."


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
        of=own.change,
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
        of=overall.change,
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
    if comparison.outcome is Outcome.NOT_COMPARABLE:
        yield "The findings of the figures stand for themselves: nothing follows from them about what was measured."
    if any(difference.effect is Effect.CAUSE for difference in comparison.differences):
        yield "Everything that differs between the runs, see below, can be the cause of a change."
    arms = [arm for scenario in comparison.scenarios for arm in scenario.arms]
    yield (
        f"Intervals: {_confidence(arms)}, from the blocks of each run. They do not cover what changes from run to run "
        "of the same disk, for example with a new boot or new data. To see how much that is, measure one side twice "
        "and compare these runs."
    )
    if len(arms) > 1:
        yield (
            "better, worse and equal are corrected for the number of figures, so the interval of an undecided figure "
            "can exclude 1, or lie within the margin."
        )
    for caveat in dict.fromkeys(caveat for arm in arms for caveat in arm.metrics[arm.headline].change.caveats):
        yield _CAVEATS[caveat]
    if any(arm.place is Place.TWIN for arm in arms):
        yield "twin:MODE is fio on the host, on the volume or file that the guest gets in this mode."


def _confidence(arms: Sequence[ArmChange]) -> str:
    least, most = min(arm.confidence for arm in arms), max(arm.confidence for arm in arms)
    return f"{least * 100:.3g} %" if least == most else f"{least * 100:.3g} to {most * 100:.3g} %"


def _differences(differences: Sequence[Difference]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for effect, title in _EFFECTS.items():
        if own := tuple(_difference(difference) for difference in differences if difference.effect is effect):
            yield f"{title} ({len(own)})", own


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
