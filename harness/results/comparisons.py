"""Records of decompositions: a latency step by step."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis import Estimate
from harness.model.values import STRICT


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One arm of a decomposition, against the arm before it."""

    __pydantic_config__ = STRICT

    arm: str
    """`host`, `twin:MODE` or `guest:MODE`."""
    change: str
    """The one thing that it changes against the arm before, in words; empty for the first arm."""
    values: tuple[float, ...]
    """Its values in the order of the decomposition's rounds, in seconds."""
    added: Estimate | None
    """What the step adds, in seconds. These values add up over the steps. Null for the first arm."""
    overhead: Estimate | None
    """What the step adds, as a share of the arm before. The values of 1 + overhead multiply. Null for the first arm."""
    so_far: Estimate | None
    """What this step and all steps before it add, as a share of the host. Null for the first arm."""
    p_value: float | None
    """The p value of "the step changes nothing", not corrected; null for the first arm and after one round."""
    shown: bool
    """Whether the step changes anything at all, corrected for the number of steps (Holm)."""
    doubt: str
    """The failed checks because of which the arm's values are not a result; empty if no check failed."""


@dataclass(frozen=True, slots=True)
class DecompositionRecord:
    """The latency of one job from the bare host to another arm, step by step."""

    __pydantic_config__ = STRICT

    id: str
    """`SCENARIO-NAME-JOB`, for example `decompose-attach-randread-4k-qd1`."""
    scenario: str
    """Name of the scenario."""
    name: str
    """Name of the decomposition in the scenario."""
    host: str
    """Name of the host in the lab file; empty if nothing was measured."""
    disk: str
    """Name of the disk under test."""
    job: str
    """The job's id."""
    metric: str
    """The metric of all values: `lat_mean`."""
    rounds: tuple[int, ...]
    """The rounds in which every arm of the decomposition was measured. The estimates use only these."""
    left_out: tuple[int, ...]
    """Rounds that have only some of the arms. They are not used."""
    confidence: float
    """The confidence of each interval alone."""
    steps: tuple[StepRecord, ...]
    """One entry per arm, beginning with the bare host; empty if the decomposition was skipped."""
    added: Estimate | None
    """The last arm minus the first, in seconds, from the same rounds. Its point is the sum of the steps' points."""
    overhead: Estimate | None
    """The last arm against the first, as a share of the host."""
    skipped: str | None
    """Why there is no decomposition, or null."""
