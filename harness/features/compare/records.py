"""Records of a comparison of runs: what changed, what else differs, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Literal

from pydantic import JsonValue, TypeAdapter

from harness.analysis import Better, Change, Unit
from harness.features.compare.comparability import Effect
from harness.model.mode import ModeDetail, Place
from harness.model.values import RecordValue
from harness.results.records import LabInfo, RunStatus

COMPARISON_SCHEMA = 2

Side = Literal["before", "after"]


class ChangeFinding(StrEnum):
    """What is shown about a change, corrected for the number of compared arms."""

    BETTER = "better"
    WORSE = "worse"
    EQUAL = "equal"
    """The change is smaller than the margin, whether there is one or not."""
    UNDECIDED = "undecided"
    """Neither is shown: the intervals are too wide for this margin."""


class ComparisonOutcome(StrEnum):
    """What a comparison shows as a whole."""

    NOT_COMPARABLE = "not comparable"
    WORSE = "worse"
    """At least one figure is worse, and none is better."""
    MIXED = "mixed"
    """Some figures are better and others are worse."""
    BETTER = "better"
    """At least one figure is better, and none is worse."""
    EQUAL = "equal"
    """All figures are equal within the margin."""
    UNDECIDED = "undecided"
    """No figure is better or worse, and not all are equal."""


@dataclass(frozen=True, slots=True)
class ComparedRun(RecordValue):
    """One of the two runs."""

    id: str
    """Name of the run."""
    started: float
    """Seconds since 1970-01-01 UTC."""
    status: RunStatus
    """Whether the run is complete."""
    lab: LabInfo
    """Where it was measured."""


@dataclass(frozen=True, slots=True)
class MetricChange(RecordValue):
    """One metric of one arm before and after."""

    unit: Unit
    """The unit of `before` and `after`."""
    better: Better
    """Whether higher or lower values are better."""
    before: float
    """Geometric mean of the samples before."""
    after: float
    """Geometric mean of the samples afterwards."""
    change: Change
    """Afterwards divided by before."""
    finding: ChangeFinding
    """What is shown, corrected for the number of compared arms."""


@dataclass(frozen=True, slots=True)
class ArmChange(RecordValue):
    """One arm in one job: the bare host, the host on a mode's layout (twin), or the guest in a mode."""

    place: Place
    """`host`, `twin` or `guest`."""
    arm_before: str
    """`host`, `twin:MODE` or `guest:MODE`, with the mode's name before."""
    arm_after: str
    """The same with the mode's name afterwards."""
    mode: ModeDetail | None
    """The layout and the attachment, which are the same in both runs; null for the bare host."""
    job: str
    """The job's id."""
    headline: str
    """The main metric of the job: `iops`, `bw`, or `clat_mean` at a fixed rate."""
    cell_before: str
    """The id of the cell with the values before."""
    cell_after: str
    """The id of the cell with the values afterwards."""
    confidence: float
    """The confidence of each interval alone."""
    metrics: dict[str, MetricChange]
    """By name, the metrics that both cells have."""


@dataclass(frozen=True, slots=True)
class OverallChange(RecordValue):
    """The throughput of one arm over several jobs: IOPS of random jobs, bandwidth of sequential ones."""

    place: Place
    """`host`, `twin` or `guest`."""
    arm_before: str
    """As in `ArmChange`."""
    arm_after: str
    """As in `ArmChange`."""
    jobs: tuple[str, ...]
    """The jobs behind the figure, at least two."""
    missing: tuple[str, ...]
    """Jobs that one of the runs has for this arm, and that could not be compared."""
    confidence: float
    """The confidence of the interval alone."""
    change: Change
    """The geometric mean of the jobs' ratios."""
    finding: ChangeFinding
    """What is shown, corrected for the number of overall figures."""


@dataclass(frozen=True, slots=True)
class ScenarioChange(RecordValue):
    """A scenario of the run before with its counterpart, and what changed."""

    scenario_before: str
    """Name of the scenario."""
    scenario_after: str
    """Name of its counterpart."""
    disk_before: str
    """Name of the disk under test."""
    disk_after: str
    """Name of the disk under test afterwards."""
    overall: tuple[OverallChange, ...]
    """One entry per arm with at least two jobs; jobs at a fixed rate do not count."""
    arms: tuple[ArmChange, ...]
    """One entry per job and arm, in the order of the plan before."""


@dataclass(frozen=True, slots=True)
class RunDifference(RecordValue):
    """Something other than the measured values that differs between the runs."""

    what: str
    """For example `host.kernel`, `run.profile`, `job.seconds` or `effective.qemu_aio`."""
    before: JsonValue
    """The value before; null if it was not recorded."""
    after: JsonValue
    """The value afterwards; null if it was not recorded."""
    cells: tuple[str, ...]
    """The compared cells before that have this difference; empty if it concerns the whole run."""
    effect: Effect
    """What it means for the comparison."""


@dataclass(frozen=True, slots=True)
class UncomparedCell(RecordValue):
    """A cell that is not part of the comparison, or whose figure needs an explanation."""

    run: Side
    """The run that has it."""
    cell: str
    """Its id."""
    why: str
    """The reason."""


@dataclass(frozen=True, slots=True)
class RunComparison(RecordValue):
    """Two runs, cell by cell, and further runs compared with the first one."""

    schema: int
    """Version of this format."""
    before: ComparedRun
    """The first run."""
    after: ComparedRun
    """The second run."""
    scenarios: tuple[ScenarioChange, ...]
    """One entry per pair of scenarios."""
    differences: tuple[RunDifference, ...]
    """What else differs, because of which the change may not be that of the disk alone."""
    left_out: tuple[UncomparedCell, ...]
    """Cells without a counterpart or without values that can be trusted."""
    margin: float
    """The share within which figures count as equal: 0.05 is a factor of 1 / 1.05 to 1.05."""
    outcome: ComparisonOutcome
    """What the findings show together, in the main metric of each job or in the chosen one."""
    doubtful: tuple[UncomparedCell, ...] = ()
    """Compared cells whose guest is better than its host, which needs an explanation."""
    further: tuple[RunComparison, ...] = ()
    """The comparisons of the first run with the third and later ones, in their order."""

    @property
    def each(self) -> tuple[RunComparison, ...]:
        """The comparison of the first run with each of the others."""
        return (self, *self.further)

    @property
    def ruled_out_by(self) -> tuple[RunDifference, ...]:
        """The differences because of which the runs cannot be compared."""
        return tuple(difference for difference in self.differences if difference.effect is Effect.RULES_OUT)


def comparison_json(comparison: RunComparison) -> str:
    """The comparison as a JSON document."""
    return _adapter().dump_json(comparison, indent=1, warnings="error").decode()


@cache
def _adapter() -> TypeAdapter[RunComparison]:
    return TypeAdapter(RunComparison)
