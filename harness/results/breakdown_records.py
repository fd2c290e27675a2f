"""Records of breakdowns: where the microseconds of an I/O go in a guest."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis import Estimate, Part
from harness.model.values import STRICT


@dataclass(frozen=True, slots=True)
class PartTime:
    """One part of the latency of an I/O."""

    __pydantic_config__ = STRICT

    part: Part
    """Its name."""
    host: float | None
    """The mean on the host in seconds; null if an I/O of the host has no such part."""
    guest: float
    """The mean in the guest in seconds."""
    added: Estimate
    """What the guest adds in this part, in seconds. These values add up to `sum` of the breakdown."""


@dataclass(frozen=True, slots=True)
class BreakdownRecord:
    """Where the microseconds of an I/O go in a guest, with one I/O in flight."""

    __pydantic_config__ = STRICT

    id: str
    """Scenario, mode and job, as in the id of a cell: `optane-passthrough-blk-randread-4k-qd1`."""
    scenario: str
    """Name of the scenario."""
    host: str
    """Name of the host in the lab file."""
    disk: str
    """Name of the disk under test in the lab file."""
    mode: str
    """Name of the attach mode."""
    job: str
    """The job's id."""
    baseline: str
    """The arm on the host that the guest is compared with: the twin of the mode, or `host` without one."""
    blocks: int
    """The number of blocks. Each has a slice of both arms without tracing, one of both while the host is traced, and
    one of the guest while the guest is traced."""
    skipped: str | None
    """Why there is no breakdown; null if there is one."""
    parts: tuple[PartTime, ...] = ()
    """The parts, from the outside to the inside; empty if it was skipped."""
    sum: Estimate | None = None
    """The sum of what the parts add, in seconds: from the traced slices."""
    measured: Estimate | None = None
    """The added latency in the slices between them in which nothing was traced, in seconds."""
    deviation: float | None = None
    """The sum against the measured added latency, as a share of it: 0.05 is 5 % more."""
    adds_up: bool | None = None
    """Whether the sum is within 10 % of the measured added latency."""
    guest_cost: Estimate | None = None
    """How much tracing in the guest adds to the latency there, as a share of it."""
    below_cost: Estimate | None = None
    """How much tracing on the host adds to the latency in the guest, as a share of it."""
    host_cost: Estimate | None = None
    """How much tracing on the host adds to the latency there, as a share of it."""
    followed: float | None = None
    """The share of fio's I/Os in the guest that the traces show."""
    kicked: float | None = None
    """The share of the I/Os of the guest for which it exited to KVM. The others were found by polling."""
    interrupted: float | None = None
    """The share of the I/Os of the guest whose interrupt the host's trace shows."""
    notes: tuple[str, ...] = ()
    """What a reader must know, one sentence each."""
