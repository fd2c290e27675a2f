"""Percentiles of cells, also of those whose blocks are too short for them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from statistics import geometric_mean

import pytest

from harness.analysis import HALF_BIN, METRICS, Samples, Sequential, estimate_overhead, percentile
from harness.analysis.metrics import QUANTILES
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import Job
from harness.model.layout import Lvm
from harness.model.mode import Budget, Cell, Mode
from harness.report.verdicts import describe_finding, what_decides
from harness.results import CellContext, CellRecord, Measurement, MetricRecord, assemble
from harness.results.metric_records import count_rounds_needed
from tests.build import build_measurement

JOB = Job("randread", 4096, iodepth=1, ramp=0, seconds=1)
PASSTHROUGH = Cell("hdd", "hdd", Mode("passthrough", Device(), Attach()), JOB)
LVM = Cell("hdd", "hdd", Mode("lvm", Lvm(), Attach()), JOB)
P99 = {"clat_p99": Budget("clat_p99", 0.5)}
SLOWER = {"host": 1.0, "twin": 1.1, "guest": 1.2}


def exponential(arm: str, number: int, block: int, boot: int, ios: int) -> Measurement:
    """A slice with exponential latencies. The percentiles are those for which it has enough I/Os, as from fio."""
    chance = random.Random(f"{arm} {number} {block}")
    place = arm.partition(":")[0]
    bins = Counter(round(chance.expovariate(1 / 1e7) * SLOWER[place]) for _ in range(ios))
    names = {metric.quantile: name for name, metric in METRICS.items() if metric.of == "ios"}
    percentiles = {names[q]: value for q in QUANTILES if (value := percentile(bins, q)) is not None}
    return build_measurement(
        arm,
        number,
        job=JOB,
        group="hdd",
        block=block,
        boot=boot,
        started=1000.0 * number + 10 * block + len(arm),
        metrics={"iops": float(ios), **percentiles},
        raw=f"raw/{number}-{block}-{place}.json",
        histogram=dict(bins),
    )


def slices(cell: Cell, ios: int, *, rounds: int, blocks: int = 2, reboot: bool = False) -> list[Measurement]:
    """`ios` in each slice of the host; the other arms are slower."""
    return [
        exponential(arm.id, number, block, number if reboot else 1, round(ios / SLOWER[str(arm.place)]))
        for number in range(1, rounds + 1)
        for block in range(1, blocks + 1)
        for arm in cell.arms
    ]


def record(cell: Cell, measurements: Sequence[Measurement], budgets: dict[str, Budget] | None = None) -> CellRecord:
    context = CellContext("lab", "hdd", 64 << 20, budgets=budgets or {}, sequential=Sequential(1, 40), final=True)
    return assemble([cell], measurements, {cell.id: context})[0]


def p99(found: CellRecord) -> MetricRecord:
    return found.metrics["clat_p99"]


def test_slices_with_too_few_ios_have_a_percentile_together() -> None:
    # 250 I/Os in a slice of the guest; p99 needs 1000, so no slice has one.
    found = record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=6))
    assert p99(found).host == p99(found).guest == ()
    assert len(p99(found).samples("host")) == len(p99(found).samples("guest")) == 12
    assert len(found.metrics["clat_p50"].guest) == 12
    assert "clat_p999" not in found.metrics
    overhead = p99(found).overhead
    assert overhead is not None
    assert overhead.n == 12
    assert overhead.low is not None
    assert overhead.low < 0.2 < (overhead.high or 0)


def test_the_percentile_is_that_of_the_ios_of_all_blocks() -> None:
    measured = slices(PASSTHROUGH, 300, rounds=6)
    together = sum((Counter(m.histogram) for m in measured if m.arm == "guest:passthrough"), Counter[int]())
    mean = geometric_mean(p99(record(PASSTHROUGH, measured)).samples("guest"))
    assert mean == pytest.approx(percentile(together, 0.99), rel=2 * HALF_BIN)


def test_host_twin_and_guest_have_values_of_the_same_blocks() -> None:
    found = p99(record(LVM, slices(LVM, 1100, rounds=6)))
    assert {place: len(values) for place, values in found.adjusted.items()} == {"host": 12, "twin": 12, "guest": 12}
    assert found.layer is not None
    assert found.virtualisation is not None


def test_the_percentiles_of_blocks_with_enough_ios_are_stored_too() -> None:
    measured = slices(PASSTHROUGH, 1300, rounds=3)
    cell = record(PASSTHROUGH, measured)
    found = p99(cell)
    assert found.guest == tuple(m.metrics["clat_p99"] for m in measured if m.arm == "guest:passthrough")
    assert found.overhead is not None
    host, guest = found.samples("host"), found.samples("guest")
    binned = Samples(resolution=HALF_BIN)
    again = estimate_overhead(host, guest, higher_is_better=False, confidence=cell.confidence, samples=binned)
    assert (found.overhead.low, found.overhead.high) == pytest.approx((again.low, again.high))


def test_one_short_slice_does_not_drop_the_percentile_nor_its_block() -> None:
    measured = slices(PASSTHROUGH, 3000, rounds=4)
    measured[4] = exponential("host", 2, 1, 1, 900)
    assert len(p99(record(PASSTHROUGH, measured)).samples("guest")) == 8


def test_of_several_boots_the_means_are_the_samples() -> None:
    found = p99(record(PASSTHROUGH, slices(PASSTHROUGH, 650, rounds=4, blocks=2, reboot=True)))
    assert found.overhead is not None
    assert (found.overhead.n, found.overhead.boots) == (8, 4)


def test_the_record_has_the_ios_of_each_block() -> None:
    found = record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=2))
    assert found.ios == {"host": (300,) * 4, "guest": (250,) * 4}


# --- budgets ---


def test_a_budget_without_enough_ios_is_inconclusive_and_says_why() -> None:
    found = record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=1), P99)
    assert found.verdict == "inconclusive"
    assert found.budget[0].p_value is None
    (note,) = (note for note in found.notes if note.startswith("clat_p99"))
    assert "needs 1000 I/Os of each arm" in note
    assert "guest completed 500 in 2 blocks" in note
    assert "--time" in note
    assert what_decides(found, found.budget[0], judged=1).startswith("an interval takes about 2 rounds ")


def test_with_enough_ios_a_budget_is_judged() -> None:
    loose = {"clat_p99": Budget("clat_p99", 900.0)}
    found = record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=4), loose)
    assert found.verdict == "within"
    assert not any("too few I/Os" in note for note in found.notes)


def test_the_finding_of_a_percentile_says_why_there_is_none() -> None:
    none = record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=1), P99)
    assert describe_finding(none, none.budget[0]) == "no sample: too few I/Os in 2 blocks"


def test_what_decides_counts_in_blocks() -> None:
    found = record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=6), {"clat_p99": Budget("clat_p99", 0.25)})
    assert found.verdict == "inconclusive"
    assert " blocks" in what_decides(found, found.budget[0], judged=1)


def test_the_rounds_for_an_interval_follow_from_the_slowest_arm() -> None:
    found = record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=2))
    assert count_rounds_needed(found, "clat_p99", reboot=False) == 2
    assert count_rounds_needed(found, "clat_p999", reboot=False) == 20
    assert count_rounds_needed(found, "clat_p99", reboot=True) == 2
    assert count_rounds_needed(record(PASSTHROUGH, []), "clat_p99", reboot=False) is None


FLUSHING = Cell("hdd", "hdd", LVM.mode, Job("write", 4096, iodepth=1, ramp=0, seconds=1, syncs=True))


def flushed(syncs: Sequence[int]) -> list[Measurement]:
    """A guest whose slices had so many flushes of 0.3 s; the other arms had five of 0.1 s in each."""
    return [
        build_measurement(
            arm.id,
            1,
            job=FLUSHING.job,
            group="hdd",
            block=block,
            started=10.0 * block + len(arm.id),
            metrics={"iops": 5.0} | ({"sync_mean": of_arm[1] / 1e9} if of_arm[0] else {}),
            raw=f"raw/{block}-{arm.place}.json",
            sync_histogram={of_arm[1]: of_arm[0]} if of_arm[0] else {},
        )
        for block, calls in enumerate(syncs, start=1)
        for arm in FLUSHING.arms
        for of_arm in [(calls, 300_000_000) if arm.in_guest else (5, 100_000_000 + block * 100_000)]
    ]


def test_a_slice_without_a_flush_does_not_take_the_metric_from_the_cell() -> None:
    cell = record(FLUSHING, flushed([3, 2, 0, 3, 1, 2]))
    found = cell.metrics["sync_mean"]
    assert {place: len(values) for place, values in found.adjusted.items()} == {"host": 6, "twin": 6, "guest": 6}
    assert geometric_mean(found.samples("guest")) == pytest.approx(0.3)
    assert found.overhead is not None
    assert found.overhead.point == pytest.approx(2, abs=0.02)
    assert "guest: 1 of 6 slices had no complete flush, so longer ones are missing in its latencies" in " ".join(
        cell.notes
    )


def test_a_guest_without_any_flush_has_no_latency_of_them_and_says_so() -> None:
    cell = record(FLUSHING, flushed([0, 0, 0]))
    assert "sync_mean" not in cell.metrics
    assert "guest: 3 of 3 slices had no complete flush" in " ".join(cell.notes)


def test_slices_that_all_flush_are_compared_as_they_were() -> None:
    cell = record(FLUSHING, flushed([3, 2, 1]))
    assert cell.metrics["sync_mean"].host == (0.1001, 0.1002, 0.1003)
    assert not any("flush" in note for note in cell.notes)
