"""What applies to a whole group: whether the host changed while the group was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from harness.analysis import drifted, estimate_drift
from harness.model.mode import Place
from harness.results.cells import ValidityCheck
from harness.results.records import DriftRecord, Measurement

DRIFT = "drift"
"""The name of the check."""
DRIFT_BOUND = 0.2
"""The largest valid change of the bare host from the group's first measurement to its last; beyond it, cells are void.

Rounds are paired, so a drift mostly cancels. But a host that changed by a fifth is no longer the same baseline.
"""


def host_drift(measurements: Iterable[Measurement]) -> tuple[DriftRecord, ...]:
    """The drift of each job of one group on the bare host, in I/Os per second, in the order of the jobs."""
    by_job: dict[str, list[Measurement]] = {}
    for each in measurements:
        if each.arm == Place.HOST and each.metrics.get("iops", 0.0) > 0:
            by_job.setdefault(each.job, []).append(each)
    found = []
    for job, several in by_job.items():
        if len({each.started for each in several}) < 2:
            continue
        change = estimate_drift([each.started for each in several], [each.metrics["iops"] for each in several])
        found.append(DriftRecord(job, change, drifted(change, DRIFT_BOUND)))
    return tuple(found)


def drift_check(drift: DriftRecord) -> ValidityCheck | None:
    """The failed check for every cell of the job if its host drifted too much, else None."""
    if not drift.too_much:
        return None
    return ValidityCheck(
        DRIFT,
        ok=False,
        detail=f"the bare host changed by {drift.change.point:+.1%} while the group was measured, more than "
        f"{DRIFT_BOUND:.0%}: warm up the host, or find out what else it does",
    )
