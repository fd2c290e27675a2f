"""What comparisons show: the finding of each arm, corrected for the number of cells, and the outcome. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.analysis import METRICS, Better, Change, changes_shown, equal_shown
from harness.results.compare_records import ArmChange, Comparison, Finding, Outcome, OverallChange, ScenarioChange


def with_findings(comparisons: Sequence[Comparison], margin: float) -> list[Comparison]:
    """The comparisons with what is shown of each change, among all changes of its metric in all comparisons."""
    arms = [arm for comparison in comparisons for arm in arms_of(comparison)]
    found = {
        name: iter(_findings([arm.metrics[name].change for arm in arms if name in arm.metrics], metric.better, margin))
        for name, metric in METRICS.items()
    }
    overall = [each.change for comparison in comparisons for own in comparison.scenarios for each in own.overall]
    found_overall = iter(_findings(overall, "higher", margin))

    def with_own(scenario: ScenarioChange) -> ScenarioChange:
        return replace(
            scenario,
            arms=tuple(_with_own(arm, found) for arm in scenario.arms),
            overall=tuple(replace(each, finding=next(found_overall)) for each in scenario.overall),
        )

    return [replace(comparison, scenarios=tuple(map(with_own, comparison.scenarios))) for comparison in comparisons]


def outcome(comparison: Comparison, metric: str | None) -> Outcome:
    """What the findings in `metric`, or in the main metric of each job, and over all jobs show together."""
    if comparison.ruled_out_by:
        return Outcome.NOT_COMPARABLE
    shown = [
        arm.metrics[name].finding for arm in arms_of(comparison) if (name := metric or arm.headline) in arm.metrics
    ]
    overall: list[OverallChange] = [each for scenario in comparison.scenarios for each in scenario.overall]
    # The throughput over all jobs is not that of the chosen metric.
    findings = {*shown, *(each.finding for each in overall if metric is None)}
    if Finding.WORSE in findings:
        return Outcome.MIXED if Finding.BETTER in findings else Outcome.WORSE
    if Finding.BETTER in findings:
        return Outcome.BETTER
    return Outcome.EQUAL if set(shown) == {Finding.EQUAL} else Outcome.UNDECIDED


def arms_of(comparison: Comparison) -> Iterator[ArmChange]:
    """All arms of the comparison, in their order."""
    for scenario in comparison.scenarios:
        yield from scenario.arms


def _with_own(arm: ArmChange, found: dict[str, Iterator[Finding]]) -> ArmChange:
    return replace(arm, metrics={name: replace(own, finding=next(found[name])) for name, own in arm.metrics.items()})


def _findings(changes: Sequence[Change], better: Better, margin: float) -> Iterator[Finding]:
    """A change that is more than chance but within the margin is `equal`: it is too small to matter."""
    shown, equal = changes_shown(changes), equal_shown(changes, margin)
    for change, is_shown, is_equal in zip(changes, shown, equal, strict=True):
        if is_equal:
            yield Finding.EQUAL
        elif is_shown:
            yield Finding.BETTER if (change.ratio > 1) == (better == "higher") else Finding.WORSE
        else:
            yield Finding.UNDECIDED
