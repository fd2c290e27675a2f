"""How arrays scale, from measured cells: against the single disk of the same rounds, with the limit's evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from harness.features.arrays.records import Bottleneck, ScalingRecord
from harness.features.arrays.scaling import scale_arrays
from harness.model.attach import Attach
from harness.model.base import Device, Md
from harness.model.job import Job, parse_workload
from harness.model.layout import Layout, Lvm
from harness.model.mode import Cell, Mode
from harness.results import CellContext, CellRecord, Measurement, ValidityCheck, assemble
from harness.results.assemble import AssembledRun
from harness.results.judging import mark_better
from tests.build import at_full_speed
from tests.build import counters as counters_of

SINGLE = {1: 10_000.0, 8: 60_000.0, 32: 100_000.0}
"""IOPS of an imagined disk by depth."""


def cell(layout: Layout, workload: str = "randread-4k", depth: int = 32) -> Cell:
    mode = Mode("array", layout, Attach())
    return Cell("disk", "ssd1", mode, parse_workload(workload).job(depth, ramp=1.0, seconds=4.0))


def measured(job: Job, arm: str, number: int, iops: float, counters: Mapping[str, float]) -> Measurement:
    iops *= 1 + number / 10  # what a round's arms share
    return at_full_speed(job, arm, number, iops, counters_of(counters))


def of_members(**busy: float) -> dict[str, float]:
    """Counters of disks that moved 1 MB each in the 5 seconds of ramp and job, and were busy for so many of them."""
    counters = {"cpu_busy": 0.3}
    for name, seconds in busy.items():
        counters |= {
            f"member:{name}_read": 1e6,
            f"member:{name}_written": 0.0,
            f"member:{name}_busy_s": seconds,
            f"member:{name}_queue_s": seconds * 8,
        }
    return counters


def measurements(
    cells: list[Cell], speedup: float, counters: Mapping[str, float], rounds: int = 3
) -> list[Measurement]:
    found = []
    for each in cells:
        single = SINGLE[each.job.iodepth]
        for number in range(1, rounds + 1):
            noise = math.exp(0.01 * (number - 2))
            found += [
                measured(each.job, "host", number, single, {}),
                measured(each.job, "twin:array", number, single * speedup * noise, counters),
                measured(each.job, "guest:array", number, single * 0.4, {}),
            ]
    return found


def scaled(cells: list[Cell], speedup: float, counters: Mapping[str, float] | None = None) -> list[ScalingRecord]:
    own = measurements(cells, speedup, counters or of_members(ssd1=4.5, ssd2=4.4, ssd3=4.6, ssd4=4.5))
    return list(scale_arrays(AssembledRun(cells, records(cells, own), own)))


def records(cells: list[Cell], own: list[Measurement]) -> dict[str, CellRecord]:
    context = CellContext(host="lab1", group="g", span_bytes=64 << 20)
    return {record.id: record for record in assemble(cells, own, {each.id: context for each in cells})}


def test_an_array_is_compared_with_its_disks_and_with_what_its_level_can_deliver() -> None:
    (found,) = scaled([cell(Md(10, 4), "randwrite-4k")], speedup=1.9)
    assert (found.level, found.disks, found.legs, found.ideal) == (10, 4, 1, 2.0)
    assert set(found.metrics) == {"iops", "bw"}
    for metric in found.metrics.values():
        assert metric.speedup.point == pytest.approx(1.9)
        assert metric.efficiency.point == pytest.approx(1.9 / 4)
        assert metric.of_ideal.point == pytest.approx(1.9 / 2)
        assert metric.efficiency.low is not None
        assert metric.efficiency.n == 3
    assert found.bottleneck is Bottleneck.NONE
    assert found.why_ideal == "4 disks, each write needs 2 disk I/Os"


@pytest.mark.parametrize(
    ("layout", "workload", "ideal", "why"),
    [
        (Md(0, 4), "randread-4k", 4, "4 disks, each read uses one of them"),
        (Md(5, 4), "seqwrite-256k", 3, "4 disks, 3 of them hold data when a whole stripe is written"),
        (
            Md(5, 4),
            "randwrite-4k",
            1,
            "4 disks, each write needs 4 disk I/Os (2 reads of old data or parity, 2 writes)",
        ),
        (Md(5, 4, chunk=64 * 1024), "randwrite-192k", 3, "4 disks, 3 of them hold data"),
        (Md(1, 2), "randwrite-4k", 1, "2 disks, each write needs 2 disk I/Os"),
        (Lvm(on=Md(0, 4)), "seqread-256k", 4, "4 disks, each read uses one of them"),
    ],
    ids=str,
)
def test_what_a_level_can_deliver_depends_on_the_job(layout: Layout, workload: str, ideal: float, why: str) -> None:
    (found,) = scaled([cell(layout, workload)], speedup=1.0)
    assert found.ideal == pytest.approx(ideal)
    assert found.why_ideal.startswith(why)


def test_members_have_their_rates_over_ramp_and_job() -> None:
    (found,) = scaled([cell(Md(0, 4))], 2.0, of_members(sd_b=4.5, nvme0n1=2.0))
    nvme, sd = found.members
    assert [(each.name, each.moved) for each in (nvme, sd)] == [("nvme0n1", 2e5), ("sd_b", 2e5)]
    assert [nvme.busy, nvme.in_flight, sd.busy, sd.in_flight] == pytest.approx([0.4, 3.2, 0.9, 7.2])


def test_a_member_that_was_always_busy_is_the_bottleneck() -> None:
    (found,) = scaled([cell(Md(0, 4))], 2.0, of_members(ssd1=5.0, ssd2=2.0, ssd3=2.0, ssd4=2.0))
    assert found.bottleneck is Bottleneck.MEMBER
    assert found.evidence == "ssd1 was busy 100% of the time, the others 40%"


def test_the_single_disk_at_other_depths_shows_that_the_queue_is_not_deep_enough() -> None:
    found = scaled([cell(Md(0, 4), depth=depth) for depth in (1, 8, 32)], speedup=2.3)
    assert [each.bottleneck for each in found] == [Bottleneck.QUEUE] * 3
    assert "with 8, the single disk delivers 60% of its throughput" in found[2].evidence


def test_the_bottleneck_is_not_known_if_nothing_was_counted() -> None:
    (found,) = scaled([cell(Md(0, 4))], 2.0, {"fio_read": 1.0})
    assert (found.members, found.bottleneck) == ((), Bottleneck.UNKNOWN)


def test_only_measured_arrays_at_full_speed_have_a_record() -> None:
    assert scaled([cell(Lvm())], 1.0) == []
    assert scaled([cell(Device())], 1.0) == []
    assert scaled([cell(Md(0, 2), "randread-4k-i1000")], 1.0) == []
    array = cell(Md(0, 2))
    assert scale_arrays(AssembledRun([array], {}, [])) == ()
    skipped = records([array], [])
    assert scale_arrays(AssembledRun([array], skipped, [])) == ()


def test_a_failed_check_of_the_array_or_the_single_disk_is_named() -> None:
    array = cell(Md(5, 4), "randwrite-4k")
    own = measurements([array], 1.0, {})
    made = records([array], own)
    checks = [ValidityCheck(check, ok=False, detail="") for check in ("bytes twin:array", "bytes guest:array", "drift")]
    made[array.id] = replace(made[array.id], validity=tuple(checks))
    (found,) = scale_arrays(AssembledRun([array], made, own))
    assert found.doubt == "bytes twin:array, drift"


def test_a_guest_on_an_array_may_be_faster_than_one_disk_but_not_than_the_array_on_the_host() -> None:
    for guest, unexplained in ((6.75, False), (9.0, True)):  # 0.9 and 1.2 times its twin
        array = cell(Lvm(on=Md(0, 4)))
        own = [
            replace(each, metrics={**each.metrics, "iops": each.metrics["iops"] * guest})
            if each.arm.startswith("guest")
            else each
            for each in measurements([array], 3.0, of_members())
        ]
        (record,) = mark_better(records([array], own).values())
        iops = record.metrics["iops"]
        assert iops.overhead is not None
        assert iops.overhead.high is not None
        assert iops.overhead.high < 0, "both are faster than the single disk"
        assert record.better_than_host is unexplained
        assert any("better than its host" in note for note in record.notes) is unexplained
