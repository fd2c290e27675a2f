"""How blocks hang together: what the arms of a job say about a moment, and which blocks the mean over jobs pairs."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from harness.analysis import Estimate, Sequential, estimate_overhead
from harness.measure.interim_analysis import Looking, find_reasons_to_stop
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import Job
from harness.model.mode import Cell, Mode, Place
from harness.report.modes import ModeSummary, compare_modes
from harness.results import CellContext, CellRecord, Measurement, assemble
from harness.results.contrasts import pair_blocks
from harness.scenario.plan import Plan, group_cells
from tests.build import synthetic_run

READ = Job("randread", 4096, iodepth=32, ramp=0, seconds=1)
WRITE = Job("randwrite", 4096, iodepth=32, ramp=0, seconds=1)
MODES = tuple(Mode(name, Device(), Attach(name)) for name in ("virtio-scsi", "virtio-blk", "sata"))
READS = [Cell("disk", "disk", mode, READ) for mode in MODES]
WRITES = [Cell("disk", "disk", mode, WRITE) for mode in MODES]
BLOCKS = 12


def draw_block(job: Job, block: int, discarded_s: float = 0.0) -> dict[str, tuple[float, float]]:
    """When the slice of each arm begins within a block, and its value: a guest loses 20 %.

    The arms are in random order, and slices that follow each other are alike.
    """
    chance = random.Random(f"{job.id} {block} {discarded_s}")
    arms = ["host", *(f"guest:{mode.name}" for mode in MODES)]
    luck, slices = chance.gauss(0, 0.1), {}
    for place, arm in enumerate(chance.sample(arms, len(arms))):
        speed = 10_000 if arm == "host" else 8_000
        slices[arm] = 0.3 * place, speed * math.exp(luck + chance.gauss(0, 0.01))
        luck = 0.8 * luck + chance.gauss(0, 0.06)
    return slices


def measurements(cells: Sequence[Cell], *, discarded_s: float = 0.0, first_round: int = 1) -> list[Measurement]:
    arms = dict.fromkeys((arm.id, cell.job) for cell in cells for arm in cell.arms)
    return [
        Measurement(
            group="g",
            round=first_round,
            block=block,
            boot=1,
            arm=arm,
            repeat=1,
            job=job.id,
            started=1000.0 * first_round + 10 * block + began,
            seconds=1.0,
            wall=1.2,
            metrics={"iops": iops},
            io_bytes=4096,
            raw=f"raw/{first_round}.json",
            discarded_s=discarded_s,
        )
        for arm, job in arms
        for block in range(1, BLOCKS + 1)
        for began, iops in [draw_block(job, block, discarded_s)[arm]]
    ]


def assembled(
    cells: Sequence[Cell], measured: Sequence[Measurement], plan: Sequential | None = None
) -> dict[str, CellRecord]:
    context = CellContext("lab", "g", 64 << 20, sequential=plan, final=plan is None)
    contexts = {cell.id: context for cell in cells}
    return {record.id: record for record in assemble(cells, measured, contexts)}


def overhead(record: CellRecord) -> Estimate:
    found = record.metrics["iops"].overhead
    assert found is not None
    return found


# --- the arms of a job ---


def test_the_arms_of_a_job_say_what_a_moment_was_like_and_those_of_other_jobs_do_not() -> None:
    alone = assembled(READS, measurements(READS))
    together = assembled([*READS, *WRITES], measurements([*READS, *WRITES]))
    assert [together[cell.id].metrics for cell in READS] == [alone[cell.id].metrics for cell in READS]


def test_the_adjusted_values_of_an_arm_are_the_same_in_every_cell_with_the_same_blocks() -> None:
    records = assembled(READS, measurements(READS))
    hosts = {record.metrics["iops"].samples("host") for record in records.values()}
    assert len(hosts) == 1
    assert hosts != {record.metrics["iops"].host for record in records.values()}


def test_modes_in_one_environment_make_the_intervals_of_each_narrower() -> None:
    alone, together = (overhead(assembled(cells, measurements(cells))[READS[0].id]) for cells in (READS[:1], READS))
    assert alone.half_width is not None
    assert together.half_width is not None
    assert together.half_width < alone.half_width


def test_the_stored_values_repeat_the_interval() -> None:
    for record in assembled(READS, measurements(READS)).values():
        iops = record.metrics["iops"]
        again = estimate_overhead(iops.samples("host"), iops.samples("guest"), higher_is_better=True)
        assert again == iops.overhead


def test_a_block_without_the_slice_of_another_arm_still_counts() -> None:
    measured = measurements(READS)
    lost = measured.index(next(slice_ for slice_ in measured if slice_.arm == READS[1].by_role[Place.GUEST].id))
    records = assembled(READS, [*measured[:lost], *measured[lost + 1 :]])
    assert [overhead(records[cell.id]).n for cell in READS] == [BLOCKS, BLOCKS - 1, BLOCKS]


def test_what_shorter_slices_gave_is_from_the_shorter_slices() -> None:
    shorter = measurements(READS)
    both = [*shorter, *measurements(READS, discarded_s=4.0, first_round=2)]
    for record in assembled(READS, both).values():
        first = assembled(READS, shorter)[record.id].metrics["iops"]
        assert record.longer_slices is not None
        assert record.longer_slices.naive == estimate_overhead(first.host, first.guest, higher_is_better=True)


@pytest.mark.parametrize(("target_widths", "stops"), [(1.01, True), (0.99, False)])
def test_a_cell_stops_by_the_interval_that_its_record_has(target_widths: float, stops: bool) -> None:
    cells, looks = [*READS, *WRITES], Sequential(1, 3)
    records = assembled(cells, measurements(cells), looks)
    width = overhead(records[READS[0].id]).half_width
    assert width is not None
    groups = tuple(group_cells(cells, 300))
    plan = Plan("disk", groups, 1, 64 << 20, 1 << 30, most_rounds=3, target=target_widths * width)
    looking = Looking(plan, looks, {cell: {} for cell in records}, 1, spent=None, reachable=None)
    assert (READS[0].id in find_reasons_to_stop(READS[:1], records, looking)) is stops


# --- the mean over jobs ---


def cell_with(rounds: Sequence[int], blocks: Sequence[int] = (), boots: Sequence[int] = ()) -> CellRecord:
    record = next(iter(assembled(READS[:1], measurements(READS[:1])).values()))
    return replace(record, rounds=tuple(rounds), blocks=tuple(blocks), boots=tuple(boots))


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        # The same rounds of one boot.
        (([1, 1, 2], [1, 2, 1], [1, 1, 1]), ([1, 1, 2], [1, 2, 1], [1, 1, 1]), [(0, 0), (1, 1), (2, 2)]),
        # Measured again in a later round, with fewer blocks.
        (([1, 1, 1], [1, 2, 3], [1, 1, 1]), ([4, 4], [1, 2], [1, 1]), [(0, 0), (1, 1)]),
        # A block of a boot that the other job lacks does not move the blocks of later boots.
        (([1, 1, 2], [1, 2, 1], [1, 1, 2]), ([1, 2, 2], [2, 1, 2], [1, 2, 2]), [(0, 0), (2, 1)]),
        # Boots that only one of them has.
        (([1, 2, 3], [1, 1, 1], [1, 2, 3]), ([2, 3], [1, 1], [2, 3]), [(1, 0), (2, 1)]),
        # Measured again in boots of its own.
        (([1, 1, 2, 2], [1, 2, 1, 2], [1, 1, 2, 2]), ([3, 4, 4], [1, 1, 2], [3, 4, 4]), [(0, 0), (2, 1), (3, 2)]),
    ],
)
def test_the_blocks_of_a_boot_are_paired_in_the_order_of_time(
    first: tuple[list[int], ...], second: tuple[list[int], ...], pairs: list[tuple[int, int]]
) -> None:
    assert pair_blocks([cell_with(*boots).boots for boots in (first, second)]) == pairs


def summary(cells: Sequence[CellRecord]) -> ModeSummary:
    (found,) = compare_modes([*cells]).modes
    return found


def cells_of_lvm() -> list[CellRecord]:
    run = synthetic_run(modes=("host", "lvm"), rounds=8)
    return [cell for cell in run.cells if cell.mode == "lvm"]


def test_a_job_that_was_measured_again_later_leaves_the_mean_over_jobs_its_interval() -> None:
    cells = cells_of_lvm()
    again = [replace(cells[0], rounds=tuple(range(9, 17)), boots=(1,) * 8), *cells[1:]]
    before, after = summary(cells), summary(again)
    assert after.overhead.n == 8
    assert after.overhead.low is not None
    assert after == before


def test_the_mean_over_jobs_has_the_samples_of_the_job_with_the_fewest() -> None:
    cells = cells_of_lvm()
    fewer = [_first(cells[0], 6), *cells[1:]]
    found = summary(fewer).overhead
    assert found.n == 6
    assert found == summary([_first(cell, 6) for cell in cells]).overhead


def _first(cell: CellRecord, n: int) -> CellRecord:
    metrics = {
        name: replace(
            metric,
            host=metric.host[:n],
            twin=metric.twin[:n],
            guest=metric.guest[:n],
            adjusted={arm: values[:n] for arm, values in metric.adjusted.items()},
        )
        for name, metric in cell.metrics.items()
    }
    return replace(cell, rounds=cell.rounds[:n], blocks=cell.blocks[:n], boots=cell.boots[:n], metrics=metrics)


def test_of_several_boots_the_mean_over_jobs_has_their_means_as_samples() -> None:
    cells = [replace(cell, boots=(1, 1, 2, 2, 3, 3, 4, 4)) for cell in cells_of_lvm()]
    later: Mapping[int, int] = {1: 5, 2: 6, 3: 7, 4: 8}
    again = [replace(cells[0], boots=tuple(later[boot] for boot in cells[0].boots)), *cells[1:]]
    assert summary(again).overhead.boots == 4
    assert summary(again) == summary(cells)
