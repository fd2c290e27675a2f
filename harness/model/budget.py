"""The overhead that a scenario allows: for which cells, in which metric, in which labs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from harness.analysis import METRICS, Limit
from harness.analysis.verdict import Both
from harness.config.names import choices
from harness.model.cell import Cell
from harness.model.values import VALUE, Added, Iodepth, Share
from harness.model.workloads import WorkloadTuple
from harness.units import format_duration

LabKind = Literal["bare-metal", "nested", "emulated"]
LAB_KINDS: tuple[LabKind, ...] = get_args(LabKind)

_LATENCIES = tuple(name for name, metric in METRICS.items() if metric.is_latency)


def _require_known_metric(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"no such metric; {choices(name, METRICS)}")
    return name


MetricName = Annotated[str, AfterValidator(_require_known_metric)]


@dataclass(frozen=True, slots=True)
class Budget:
    """The overhead that a scenario allows, in one metric, for the cells that the budget covers.

    None for `modes`, `workloads` or `iodepth` is no restriction. `find_reference_problems` checks the names.
    """

    __pydantic_config__ = VALUE

    metric: MetricName
    share: Share | None = None
    """A fraction of the host's value: 0.3 is 30 %."""
    absolute: Added | None = None
    """Seconds added to a latency."""
    both: Both | None = None
    """For two limits: with `looser`, a cell must meet one of them. With `stricter`, it must meet both."""
    modes: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    workloads: WorkloadTuple | None = None
    iodepth: Annotated[tuple[Iodepth, ...], Field(min_length=1)] | None = None
    lab: Annotated[tuple[LabKind, ...], Field(min_length=1)] = ("bare-metal",)
    """The kinds of lab that the budget is for. Labs that do not represent real hardware need their own budgets."""
    difference: Share | None = None
    """Instead of the other limits: the loss against the reference variant that is allowed, as a share of it."""

    @property
    def limit(self) -> Limit:
        """The limit for the analysis."""
        return Limit(self.share if self.difference is None else self.difference, self.absolute, self.both)

    @property
    def key(self) -> str:
        """What it limits. The last one of several budgets with the same key counts."""
        return self.metric if self.difference is None else f"difference in {self.metric}"

    def covers(self, cell: Cell, lab_kind: LabKind) -> bool:
        """Whether the budget is for this cell in such a lab. No budget covers cells of the host, the baseline."""
        return (
            cell.mode.attach is not None
            and lab_kind in self.lab
            and (self.difference is None or cell.mode.against is not None)
            and (self.modes is None or any(name in self.modes for name in cell.mode.names))
            and (self.workloads is None or cell.job.workload in self.workloads)
            and (self.iodepth is None or cell.job.iodepth in self.iodepth)
        )

    @model_validator(mode="after")
    def _require_consistent(self) -> Self:
        if problems := list(self._find_problems()):
            raise ValueError("\n".join(problems))
        return self

    def _find_problems(self) -> Iterator[str]:
        metric = METRICS[self.metric]
        if self.share is None and self.absolute is None and self.difference is None:
            yield "has no limit; allowed: share, absolute, share and absolute with both, or difference"
        if self.difference is not None and (self.share is not None or self.absolute is not None):
            other = "share" if self.share is not None else "absolute"
            yield f"difference conflicts with {other}, which is about the host; allowed: a budget of its own for each"
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
            yield 'share and absolute together need the key both; allowed: both = "looser" or both = "stricter"'
        if self.both is not None and not together:
            yield f'both = "{self.both}" needs two limits; allowed: only together with share and absolute'
