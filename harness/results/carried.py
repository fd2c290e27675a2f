"""Whether a slice depends on the arm that ran before it: a cache that drains, a garbage collection. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from harness.analysis import Observation, carry_over
from harness.model.job import Job
from harness.results.records import CarryOverRecord, Measurement

ERROR_RATE = 0.05
"""How often a group without any carry-over shows some, over all its jobs together."""


def carry_overs(measurements: Sequence[Measurement], jobs: Iterable[Job]) -> tuple[CarryOverRecord, ...]:
    """What each job of one group shows about carry-over, by its headline metric. Jobs with too few slices are left out.

    `measurements` are those of the group in the order of time.
    """
    tested = {job.id: carry_over(_observations(measurements, job)) for job in jobs}
    enough = sum(each.enough for each in tested.values())
    return tuple(
        CarryOverRecord(job, each.p_value, each.effect, each.cause, shown=each.shown(ERROR_RATE / enough))
        for job, each in tested.items()
        if each.p_value is not None and each.effect is not None and each.cause is not None
    )


def carry_over_note(found: CarryOverRecord) -> str:
    """What a reader of the job's cells must know."""
    return (
        f"carry-over: a slice is {found.effect:+.1%} different if {found.cause} ran before it, so the arms disturb "
        "each other; use longer slices (the profile's runtime), or discard the beginning of each (ramp)"
    )


def _observations(measurements: Sequence[Measurement], job: Job) -> list[Observation]:
    blocks: dict[tuple[int, int], int] = {}
    observations = []
    before: Measurement | None = None
    for each in measurements:
        value = each.metrics.get(job.headline, 0.0)
        if each.job == job.id and each.overlap is None and value > 0:
            previous = before.arm if before is not None and before.round == each.round else None
            block = blocks.setdefault((each.round, each.block), len(blocks))
            observations.append(Observation(block, each.arm, previous, math.log(value)))
        before = each
    return observations
