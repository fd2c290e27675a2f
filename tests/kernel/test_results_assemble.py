"""Assembling cells: which rounds are pairs, what each estimate compares, and when a cell is void."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from harness.analysis import Estimate
from harness.errors import ResultsError
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import Job
from harness.model.layout import Lvm
from harness.model.mode import Budget, Cell, Mode
from harness.results import CellContext, CellRecord, Measurement, ValidityCheck, assemble
from tests.build import build_measurement, counters

JOB = Job(rw="randread", bs=4096, iodepth=32, ramp=1.0, seconds=10.0)
HOST = Cell("optane", "nvme0", Mode("host", Device(), None), JOB)
PASSTHROUGH = Cell("optane", "nvme0", Mode("passthrough", Device(), Attach()), JOB)
LVM = Cell("optane", "nvme0", Mode("lvm", Lvm(), Attach(bus="virtio-blk")), JOB)


def in_round(arm: str, number: int, job: Job = JOB, group: str = "nvme0", **metrics: float) -> Measurement:
    """A slice of this arm, which has its time in the round."""
    started = 1000.0 + 100 * number + {"h": 0, "t": 10, "g": 20}[arm[0]]
    raw = f"raw/{number}-{arm.replace(':', '-')}.json"
    return build_measurement(arm, number, job=job, group=group, started=started, metrics=metrics, raw=raw)


def campaign(arms: Mapping[str, list[float]]) -> list[Measurement]:
    """IOPS by arm and round, and the latency that 32 I/Os in flight make of them."""
    return [
        in_round(arm, number, iops=iops, lat_mean=32 / iops)
        for arm, values in arms.items()
        for number, iops in enumerate(values, start=1)
    ]


def one(cell: Cell, measurements: list[Measurement], budget: Budget | None = None) -> CellRecord:
    context = CellContext(host="lab", group="nvme0", span_bytes=64 << 20, budgets=_by_metric(budget))
    return assemble([cell], measurements, {cell.id: context})[0]


def _by_metric(budget: Budget | None) -> dict[str, Budget]:
    return {} if budget is None else {budget.metric: budget}


def point(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.point


THREE = {
    "host": [1000.0, 1100.0, 900.0],
    "twin:lvm": [900.0, 990.0, 810.0],
    "guest:lvm": [720.0, 792.0, 648.0],
    "guest:passthrough": [950.0, 1045.0, 855.0],
}


def test_overhead_is_split_into_layer_and_virtualisation() -> None:
    iops = one(LVM, campaign(THREE)).metrics["iops"]
    assert (iops.host, iops.twin, iops.guest) == ((1000, 1100, 900), (900, 990, 810), (720, 792, 648))
    assert point(iops.overhead) == pytest.approx(0.28)
    assert point(iops.layer) == pytest.approx(0.10)
    assert point(iops.virtualisation) == pytest.approx(0.20)
    assert iops.added is None


def test_latency_has_what_the_guest_adds_in_seconds() -> None:
    latency = one(LVM, campaign(THREE)).metrics["lat_mean"]
    assert point(latency.overhead) == pytest.approx(1 / 0.72 - 1)
    assert point(latency.added) == pytest.approx(
        sum(32 / g - 32 / h for h, g in zip(*host_and_guest(), strict=True)) / 3
    )


def host_and_guest() -> tuple[list[float], list[float]]:
    return THREE["host"], THREE["guest:lvm"]


def test_without_a_twin_virtualisation_is_the_whole_overhead() -> None:
    iops = one(PASSTHROUGH, campaign(THREE)).metrics["iops"]
    assert iops.twin == ()
    assert iops.layer is None
    assert iops.virtualisation == iops.overhead
    assert point(iops.overhead) == pytest.approx(0.05)


def test_the_host_mode_has_values_and_nothing_to_compare() -> None:
    record = one(HOST, campaign(THREE))
    iops = record.metrics["iops"]
    assert iops.host == (1000, 1100, 900)
    assert (iops.twin, iops.guest) == ((), ())
    assert (iops.overhead, iops.layer, iops.virtualisation, iops.added) == (None, None, None, None)
    assert record.mode_detail.attach is None


def test_the_record_names_its_cell() -> None:
    record = one(LVM, campaign(THREE))
    assert record.id == "optane-lvm-randread-4k-qd32"
    assert (record.scenario, record.host, record.disk, record.mode) == ("optane", "lab", "nvme0", "lvm")
    assert record.mode_detail.layout == Lvm()
    attach = record.mode_detail.attach
    assert isinstance(attach, Attach)
    assert (attach.bus, attach.cache, attach.aio, attach.iothread) == ("virtio-blk", "none", "native", True)
    assert (record.job.id, record.job.bs, record.job.pattern) == ("randread-4k-qd32", 4096, "randread")
    assert record.raw[:3] == ("raw/1-host.json", "raw/1-twin-lvm.json", "raw/1-guest-lvm.json")


# --- pairing ---


def test_a_round_without_one_of_the_arms_counts_for_no_arm() -> None:
    without = [m for m in campaign(THREE) if not (m.arm == "twin:lvm" and m.round == 2)]
    record = one(LVM, without)
    assert record.rounds == (1, 3)
    assert record.metrics["iops"].host == (1000, 900)
    assert record.metrics["iops"].guest == (720, 648)
    assert "raw/2-guest-lvm.json" in record.raw


def test_a_round_that_lacks_another_modes_arm_counts() -> None:
    without = [m for m in campaign(THREE) if not (m.arm == "twin:lvm" and m.round == 2)]
    assert one(PASSTHROUGH, without).rounds == (1, 2, 3)


def test_values_are_in_round_order_however_they_were_measured() -> None:
    assert one(LVM, campaign(THREE)[::-1]).metrics == one(LVM, campaign(THREE)).metrics


def test_other_groups_and_jobs_stay_out() -> None:
    others = [
        in_round("host", 1, group="hdd", iops=5),
        in_round("host", 1, job=replace(JOB, iodepth=1), iops=6),
    ]
    assert one(LVM, others + campaign(THREE)) == one(LVM, campaign(THREE))


def test_a_metric_missing_in_one_measurement_is_left_out_of_the_cell() -> None:
    measurements = [
        replace(m, metrics={**m.metrics, "clat_p999": 1e-3}) if (m.arm, m.round) != ("guest:lvm", 2) else m
        for m in campaign(THREE)
    ]
    assert list(one(LVM, measurements).metrics) == ["iops", "lat_mean"]
    assert list(one(PASSTHROUGH, measurements).metrics) == ["iops", "lat_mean", "clat_p999"]


def test_a_guest_that_was_never_measured_leaves_no_metrics() -> None:
    record = one(LVM, campaign({"host": [1000.0], "twin:lvm": [900.0]}), Budget("iops", 0.1))
    assert record.metrics == {}
    assert record.rounds == ()
    assert record.verdict == "inconclusive"


# --- verdicts ---


@pytest.mark.parametrize(("share", "verdict"), [(0.3, "within"), (0.2, "exceeds")])
def test_the_budget_judges_the_overhead_of_its_metric(share: float, verdict: str) -> None:
    assert one(LVM, campaign(THREE), Budget("iops", share)).verdict == verdict


def test_one_round_is_inconclusive_and_no_budget_unjudged() -> None:
    first = [m for m in campaign(THREE) if m.round == 1]
    assert one(LVM, first, Budget("iops", 0.9)).verdict == "inconclusive"
    assert one(LVM, campaign(THREE)).verdict == "unjudged"


def test_a_failed_check_makes_the_cell_void_with_or_without_a_budget() -> None:
    check = ValidityCheck("bytes", ok=False, detail="fio counted 4 GiB, the host's disk saw 0 B")
    for budget in (None, Budget("iops", 0.9)):
        context = CellContext("lab", "nvme0", 64 << 20, budgets=_by_metric(budget), validity=(check,))
        assert assemble([LVM], campaign(THREE), {LVM.id: context})[0].verdict == "void"


def test_a_value_of_zero_makes_the_cell_void_and_names_its_file() -> None:
    record = one(LVM, [*campaign(THREE), in_round("guest:lvm", 4, iops=0)], Budget("iops", 0.1))
    assert record.verdict == "void"
    assert [check.detail for check in record.validity] == ["iops is 0 in raw/4-guest-lvm.json"]


def test_a_skipped_cell_keeps_its_reason() -> None:
    context = CellContext(
        "lab", "nvme0", 64 << 20, {"iops": Budget("iops", 0.1)}, skipped="no device-mapper on host lab"
    )
    record = assemble([LVM], [], {LVM.id: context})[0]
    assert (record.verdict, record.skipped, record.metrics) == ("unjudged", "no device-mapper on host lab", {})


def test_notes_of_measurements_reach_the_cell_once() -> None:
    noted = [replace(m, notes=("the host was busy",)) if m.arm == "host" else m for m in campaign(THREE)]
    assert one(LVM, noted).notes.count("the host was busy") == 1


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ResultsError, match="unknown metric iosp"):
        one(LVM, [in_round("host", 1, iosp=3)])


# --- blocks of a round ---


def in_blocks(arms: Mapping[str, list[float]]) -> list[Measurement]:
    """IOPS by arm, of two rounds of two blocks each; the slices of a block follow each other."""
    numbers = [(1, 1), (1, 2), (2, 1), (2, 2)]
    return [
        replace(in_round(arm, round_, iops=iops), block=block, boot=round_, started=100.0 * round_ + 10 * block + at)
        for at, (arm, values) in enumerate(arms.items())
        for (round_, block), iops in zip(numbers, values, strict=True)
    ]


BLOCKS = {"host": [1000.0, 1100.0, 900.0, 1050.0], "guest:passthrough": [950.0, 1045.0, 810.0, 1008.0]}


def overlapped(measurements: list[Measurement], *voids: tuple[str, int, int]) -> list[Measurement]:
    """With slices of these arms, rounds and blocks during which another one ran."""
    return [
        replace(each, overlap="guest:passthrough") if (each.arm, each.round, each.block) in voids else each
        for each in measurements
    ]


def test_each_block_is_a_pair_with_its_round_and_its_boot() -> None:
    record = one(PASSTHROUGH, in_blocks(BLOCKS))
    assert (record.rounds, record.blocks, record.boots) == ((1, 1, 2, 2), (1, 2, 1, 2), (1, 1, 2, 2))
    assert record.metrics["iops"].host == (1000, 1100, 900, 1050)
    assert record.metrics["iops"].guest == (950, 1045, 810, 1008)
    assert not any("blocks do not count" in note for note in record.notes)


def test_a_block_in_which_a_slice_overlapped_another_one_does_not_count_for_any_arm() -> None:
    record = one(PASSTHROUGH, overlapped(in_blocks(BLOCKS), ("host", 1, 2)))
    assert (record.rounds, record.blocks) == ((1, 2, 2), (1, 1, 2))
    assert record.metrics["iops"].host == (1000, 900, 1050)
    assert record.metrics["iops"].guest == (950, 810, 1008)
    assert "1 of 4 blocks do not count, because slices of two arms overlapped" in record.notes


def test_the_overlap_of_an_arm_of_another_cell_does_not_matter() -> None:
    both = in_blocks({**BLOCKS, "twin:lvm": BLOCKS["host"], "guest:lvm": BLOCKS["host"]})
    found = overlapped(both, ("guest:lvm", 2, 1))
    assert len(one(PASSTHROUGH, found).rounds) == 4
    assert len(one(LVM, found).rounds) == 3


def test_a_cell_whose_blocks_all_overlap_has_no_values() -> None:
    every = [("host", round_, block) for round_ in (1, 2) for block in (1, 2)]
    record = one(PASSTHROUGH, overlapped(in_blocks(BLOCKS), *every))
    assert (record.rounds, record.metrics) == ((), {})
    assert "4 of 4 blocks do not count, because slices of two arms overlapped" in record.notes


def test_the_bytes_of_an_overlapped_slice_are_not_checked() -> None:
    wrong = counters({"fio_read": 1e9, "disk_read": 0.0})
    measurements = [
        replace(each, counters=wrong) if (each.arm, each.round, each.block) == ("host", 1, 2) else each
        for each in in_blocks(BLOCKS)
    ]
    assert not all(check.ok for check in one(PASSTHROUGH, measurements).validity)
    assert all(check.ok for check in one(PASSTHROUGH, overlapped(measurements, ("host", 1, 2))).validity)


def test_a_block_whose_counters_were_read_too_late_still_counts() -> None:
    read = counters({"fio_read": 1e9, "disk_read": 1e9})
    late = counters({"fio_read": 1e9})
    measurements = [
        replace(each, counters=late if (each.round, each.block) == (1, 2) else read) for each in in_blocks(BLOCKS)
    ]
    record = one(PASSTHROUGH, measurements)
    assert len(record.rounds) == 4
    assert all(check.ok for check in record.validity)
    assert {check.check for check in record.validity} >= {"bytes host", "bytes guest:passthrough"}
