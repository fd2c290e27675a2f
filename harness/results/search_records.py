"""Records of searches for the highest load that keeps a latency below a bound."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis import LimitedBy
from harness.model.values import STRICT


@dataclass(frozen=True, slots=True)
class SearchedRate:
    """One rate on one arm: a point of the curve of latency over load."""

    __pydantic_config__ = STRICT

    rate: int | None
    """I/Os per second requested; null for as many as possible."""
    iops: tuple[float, ...]
    """I/Os per second by block."""
    latencies: tuple[float, ...]
    """The metric in seconds, by block. Blocks with too few I/Os are left out."""
    reached: bool
    """Whether the arm completed at least 95 % of the rate. If not, the rate counts as above the bound."""
    latency: float | None
    """The curve at this rate, in seconds; null if the rate was not reached, or has fewer than two values."""
    low: float | None
    """The lower end of the curve's interval; null as for `latency`."""
    high: float | None
    """The upper end of the curve's interval; null as for `latency`."""
    cpu: float | None
    """CPU time of the host for an I/O in seconds, without fio's own; null if it was not counted."""


@dataclass(frozen=True, slots=True)
class SearchArm:
    """The result of a search on one arm."""

    __pydantic_config__ = STRICT

    arm: str
    """`host`, `twin:MODE` or `guest:MODE`."""
    limited_by: LimitedBy | None
    """What ends the loads that keep the bound; null if too little was measured."""
    iops: float | None
    """The highest load that keeps the bound; null if no measured load does, or if too little was measured."""
    low: float | None
    """The lower end of the interval of `iops`; null if not even the lowest rate surely keeps the bound."""
    high: float | None
    """The upper end of the interval of `iops`; null if no higher rate was measured."""
    rates: tuple[SearchedRate, ...]
    """The rates in the order of the load; empty if the arm was not measured."""
    doubt: str
    """The failed checks because of which this is not a result; empty if no check failed."""


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """A search for the highest load at which a latency stays below a bound, on the arms of one group."""

    __pydantic_config__ = STRICT

    id: str
    """`GROUP-search-NAME`: the group of its measurements in the journal."""
    name: str
    """Name of the search in the scenario."""
    scenario: str
    """Name of the scenario."""
    host: str
    """Name of the host in the lab file."""
    disk: str
    """Name of the disk under test."""
    job: str
    """The id of the job at full speed."""
    metric: str
    """The latency: `clat_p99`, ..."""
    bound: float
    """The bound in seconds."""
    highest: int | None
    """The highest rate that may be measured; null for no limit."""
    confidence: float
    """The confidence of each interval alone."""
    rounds: int
    """Rounds of the search."""
    stopped: str | None
    """Why no further round was measured; null if the run ended before."""
    arms: tuple[SearchArm, ...]
    """One entry per arm, the host first."""
