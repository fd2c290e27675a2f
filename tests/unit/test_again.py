"""Which jobs are measured again after a series of rounds: in which slices, and how often."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from harness.measure.rounds import Again, find_jobs_again
from harness.model.job import Job
from harness.results import CellContext, Measurement, assemble
from harness.results.cells import ValidityCheck
from harness.scenario.plan import Plan
from tests.unit import killed_campaign
from tests.unit.draining import draining_scenario

JOB = "randwrite-4k-qd32"


def a_plan() -> Plan:
    return killed_campaign.plan(draining_scenario("randwrite-4k", "randread-4k"))


def a_round(plan: Plan, number: int, *, discarded: float = 0.0, overlap: str | None = None) -> list[Measurement]:
    """A round of the job with six blocks on its two arms."""
    return [
        Measurement(
            group=plan.groups[0].id,
            round=number,
            block=block,
            arm=arm,
            repeat=1,
            job=JOB,
            started=1000.0 * number + 10 * block + place,
            seconds=1.0,
            wall=1.0,
            metrics={"iops": 1000.0},
            io_bytes=4096,
            raw="raw/1.json",
            overlap=overlap,
            discarded_s=discarded,
        )
        for block in range(1, 7)
        for place, arm in enumerate(("host", "guest:passthrough"))
    ]


def again(
    plan: Plan,
    measured: Sequence[Measurement],
    *,
    without: Collection[Job] = (),
    validity: tuple[ValidityCheck, ...] = (),
) -> Again | None:
    """What is measured again after these rounds, which show no carry-over."""
    (group,) = plan.groups
    contexts = {cell.id: CellContext("node1", group.id, plan.span, validity=validity) for cell in group.cells}
    records = {record.id: record for record in assemble(group.cells, measured, contexts)}
    return find_jobs_again(plan, group, (), records, measured, without=without)


def test_slices_that_overlapped_are_measured_again_as_long_as_they_were() -> None:
    plan = a_plan()
    found = again(plan, [*a_round(plan, 1), *a_round(plan, 2), *a_round(plan, 3, discarded=4.0, overlap="host")])
    assert found is not None
    assert {job.id: length.discarded_s for job, length in found.lengths.items()} == {JOB: 4.0}


def test_a_job_with_two_blocks_that_count_is_not_measured_again() -> None:
    plan = a_plan()
    assert again(plan, [*a_round(plan, 1), *a_round(plan, 2, overlap="host")]) is None


def test_a_job_that_was_measured_twice_as_often_as_planned_is_not_measured_again() -> None:
    plan = a_plan()
    rounds = [each for number in (1, 2, 3) for each in a_round(plan, number, overlap="host")]
    assert again(plan, rounds) is not None
    assert again(plan, [*rounds, *a_round(plan, 4, overlap="host")]) is None


def test_a_job_whose_cells_are_void_anyway_is_not_measured_again() -> None:
    plan = a_plan()
    overlapped = a_round(plan, 1, overlap="host")
    assert again(plan, overlapped, validity=(ValidityCheck("bytes host", ok=True, detail=""),)) is not None
    assert again(plan, overlapped, validity=(ValidityCheck("bytes host", ok=False, detail=""),)) is None


def test_a_job_that_is_left_out_is_not_measured_again() -> None:
    plan = a_plan()
    overlapped = a_round(plan, 1, overlap="host")
    assert again(plan, overlapped) is not None
    assert again(plan, overlapped, without=plan.groups[0].jobs) is None
