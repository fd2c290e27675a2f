"""The overhead that a scenario allows: to which cells, in which metric, in which labs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from harness.analysis import METRICS, Limit
from harness.analysis.verdict import Both
from harness.config.names import choices
from harness.model.job import WorkloadText
from harness.model.mode import Cell
from harness.model.values import VALUE, Added, Iodepth, Share
from harness.units import format_duration

LabKind = Literal["bare-metal", "nested", "emulated"]
LAB_KINDS: tuple[LabKind, ...] = get_args(LabKind)

_LATENCIES = tuple(name for name, metric in METRICS.items() if metric.is_latency)


def _known_metric(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"no such metric; {choices(name, METRICS)}")
    return name


MetricName = Annotated[str, AfterValidator(_known_metric)]


@dataclass(frozen=True, slots=True)
class Budget:
    """The overhead that a scenario allows, in one metric, to the cells that it covers.

    None for `modes`, `workloads` or `iodepth` is no restriction. Whether they are measured is checked with the whole
    scenario.
    """

    __pydantic_config__ = VALUE

    metric: MetricName
    share: Share | None = None
    """A fraction of the host's value: 0.3 is 30 %."""
    absolute: Added | None = None
    """Seconds added to a latency."""
    both: Both | None = None
    """With two limits: `looser` where one of them is enough, `stricter` where each must hold."""
    modes: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    workloads: Annotated[tuple[WorkloadText, ...], Field(min_length=1)] | None = None
    iodepth: Annotated[tuple[Iodepth, ...], Field(min_length=1)] | None = None
    lab: Annotated[tuple[LabKind, ...], Field(min_length=1)] = ("bare-metal",)
    """The kinds of lab that it was written for. A lab that is not like real hardware has budgets of its own."""

    @property
    def limit(self) -> Limit:
        """What the analysis judges by."""
        return Limit(self.share, self.absolute, self.both)

    def covers(self, cell: Cell, lab_kind: LabKind) -> bool:
        """Whether it is for this cell in such a lab. The host is the baseline: no budget covers its cells."""
        return (
            cell.mode.attach is not None
            and lab_kind in self.lab
            and (self.modes is None or cell.mode.name in self.modes)
            and (self.workloads is None or cell.job.workload in self.workloads)
            and (self.iodepth is None or cell.job.iodepth in self.iodepth)
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := list(self._problems()):
            raise ValueError("\n".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        metric = METRICS[self.metric]
        if self.share is None and self.absolute is None:
            yield "has no limit; allowed: share, absolute, or the two with both"
        if self.absolute is not None and not metric.is_latency:
            yield (
                f'absolute = "+{format_duration(self.absolute)}" conflicts with metric = "{metric.name}"; '
                f"allowed: share, or a latency ({', '.join(_LATENCIES)})"
            )
        if self.share is not None and self.share >= 1 and metric.higher_is_better:
            yield (
                f'share = "{self.share * 100:g} %" of metric = "{metric.name}" can never be exceeded; '
                "allowed: less than 100 %"
            )
        together = self.share is not None and self.absolute is not None
        if together and self.both is None:
            yield 'share and absolute need both, to choose one of them; allowed: both = "looser" or both = "stricter"'
        if self.both is not None and not together:
            yield f'both = "{self.both}" has nothing to choose from; allowed: only with share and absolute'
