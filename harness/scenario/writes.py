"""What a plan writes to each disk. Pure."""

from __future__ import annotations

from harness.model.base import Base, Device
from harness.model.cell import Arm
from harness.model.job import Job
from harness.model.layout import Layout, amplification
from harness.scenario.plan import STEADY_FILLS, STEADY_ROUNDS, STEADY_SECONDS, Group, Plan, Setup
from harness.scenario.setups import regions

BUILD_SHARE = 0.05
"""What a layout writes beside its data, as a share of the region: metadata of a file system, an image or a volume."""
BUILD_BYTES = 64 * 1024**2
"""The same of a small region: partition tables, journals, the zeros at the end of a run."""
MARGIN = 1.25
"""How much faster than measured before an arm may be in the next slices."""


def planned_writes(plan: Plan) -> dict[str, float]:
    """The bytes that the plan writes to each disk at most, by the disk's name, in the fewest rounds that it measures.

    Further rounds follow as far as a limit allows.
    """
    return {
        disk: sum(setup_bytes(plan, setup, place) for setup in plan.setups)
        + sum(group_bytes(plan, group, place) for group in plan.groups)
        for place, disk in enumerate(plan.disks)
    }


def setup_bytes(plan: Plan, setup: Setup, place: int) -> float:
    """The bytes that building and conditioning the setup writes to this disk at most."""
    bases: list[Base] = [Device() for bare in setup.bare_places if bare == place]
    bases += [base for base in regions(setup.modes) if place in base.places]
    filled = sum(base.bytes_written / len(base.places) for base in bases) * plan.span
    steady = plan.conditioning == "steady"
    fills = filled * (STEADY_FILLS if steady else 1)
    work = STEADY_ROUNDS[1] * STEADY_SECONDS * plan.write_rate * len(bases) if steady else 0.0
    return fills + filled * BUILD_SHARE + BUILD_BYTES * len(bases) + work


def group_bytes(plan: Plan, group: Group, place: int, *, rounds: int | None = None) -> float:
    """The bytes that so many rounds of the group and its follow-ups write to this disk at most; None: the fewest."""
    round_bytes = sum(
        slice_rate(plan, arm, job) * job.wall for arm in group.arms if place in arm.places for job in group.jobs_of(arm)
    )
    following = (each.bytes_written(plan.write_rate, place) for each in plan.follow_ups if each.group == group.id)
    return (plan.rounds if rounds is None else rounds) * group.blocks * round_bytes + sum(following)


def slice_rate(plan: Plan, arm: Arm, job: Job) -> float:
    """The bytes per second that the jobs of a slice of this arm write at most to each of its disks."""
    writing = [part.job for part in arm.parts(job) if part.job.writes]
    if not all(map(is_paced, writing)):
        return plan.write_rate
    requested = sum(
        (each.rate or 0) * each.bs * (1 - (each.share_of_reads or 0.0)) * _amplified(_layout(arm), each)
        for each in writing
    )
    return min(plan.write_rate, MARGIN * requested / len(arm.places))


def fio_rate(write_rate: int, layout: Layout | None, job: Job) -> float:
    """The bytes per second that fio may write to this layout, so that none of its disks gets more than `write_rate`.

    None is the bare disk.
    """
    return write_rate * (len(layout.base.places) if layout else 1) / max(_amplified(layout, job), 1.0)


def is_paced(job: Job) -> bool:
    """Whether the job has a rate of its own, which bounds its bytes. fio cannot have a second limit then."""
    return job.rate is not None and job.from_file is None


def _layout(arm: Arm) -> Layout | None:
    return arm.mode.layout if arm.mode else None


def _amplified(layout: Layout | None, job: Job) -> float:
    """The bytes that all disks of the layout together write at most for each byte of the job."""
    return amplification(layout, job).most_written if layout is not None else 1.0
