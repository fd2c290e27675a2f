"""Percentiles of cells whose blocks are too short for them: samples are batches of blocks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from harness.analysis import METRICS, Sequential, estimate_overhead, percentile
from harness.analysis.metrics import QUANTILES
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import Job
from harness.model.layout import Lvm
from harness.model.mode import Budget, Cell, Mode
from harness.report.numbers import batch_count
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
    # 250 I/Os in a slice of the guest: p99 needs 1000, so 4 blocks.
    found = record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=6))
    assert p99(found).batches == (4, 4, 4)
    assert len(p99(found).host) == len(p99(found).guest) == 3
    assert found.metrics["clat_p50"].batches == ()
    assert len(found.metrics["clat_p50"].guest) == 12
    assert "clat_p999" not in found.metrics
    overhead = p99(found).overhead
    assert overhead is not None
    assert overhead.n == 3
    assert overhead.low is not None
    assert overhead.low < 0.2 < (overhead.high or 0)


def test_a_value_is_the_percentile_of_the_ios_of_its_blocks() -> None:
    own = slices(PASSTHROUGH, 300, rounds=6)
    guest = [each for each in own if each.arm == "guest:passthrough"]
    together = sum((Counter(each.histogram) for each in guest[4:8]), Counter[int]())
    assert p99(record(PASSTHROUGH, own)).guest[1] == percentile(together, 0.99)


def test_host_twin_and_guest_of_a_sample_are_of_the_same_blocks() -> None:
    found = p99(record(LVM, slices(LVM, 1100, rounds=6)))
    assert found.batches == (2,) * 6
    assert len(found.host) == len(found.twin) == len(found.guest) == 6
    assert found.layer is not None
    assert found.virtualisation is not None


def test_blocks_with_enough_ios_are_the_samples_as_before() -> None:
    own = slices(PASSTHROUGH, 1300, rounds=3)
    found = p99(record(PASSTHROUGH, own))
    assert found.batches == ()
    assert found.guest == tuple(m.metrics["clat_p99"] for m in own if m.arm == "guest:passthrough")
    alone = estimate_overhead(found.host, found.guest, higher_is_better=False)
    assert found.overhead is not None
    assert found.overhead.point == pytest.approx(alone.point)


def test_one_short_slice_does_not_drop_the_percentile_nor_its_block() -> None:
    own = slices(PASSTHROUGH, 3000, rounds=4)
    own[4] = exponential("host", 2, 1, 1, 900)
    found = p99(record(PASSTHROUGH, own))
    assert sum(found.batches) == 8
    assert len(found.batches) > 1


def test_samples_of_several_boots_are_not_mixed() -> None:
    found = p99(record(PASSTHROUGH, slices(PASSTHROUGH, 650, rounds=4, blocks=2, reboot=True)))
    assert found.batches == (2, 2, 2, 2)
    assert found.overhead is not None
    assert found.overhead.boots == 4
    mixed = p99(record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=4, blocks=2, reboot=True)))
    assert mixed.batches == (4, 4)
    assert mixed.overhead is not None
    assert (mixed.overhead.n, mixed.overhead.boots) == (2, 2)


def test_the_record_has_the_ios_of_each_block() -> None:
    found = record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=2))
    assert found.ios == {"host": (300,) * 4, "guest": (250,) * 4}


# --- budgets ---


@pytest.mark.parametrize(("rounds", "samples"), [(1, 0), (2, 1), (3, 1)])
def test_a_budget_without_two_samples_is_inconclusive_and_says_why(rounds: int, samples: int) -> None:
    found = record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=rounds), P99)
    assert found.verdict == "inconclusive"
    assert found.budget[0].p_value is None
    (note,) = (note for note in found.notes if note.startswith("clat_p99"))
    assert f"{samples} of 2 samples" in note
    assert f"guest completed {250 * 2 * rounds} in {2 * rounds} blocks" in note
    assert "--time" in note
    assert what_decides(found, found.budget[0], judged=1).startswith("two samples have an interval, and take about 4 ")


def test_with_two_samples_a_budget_is_judged() -> None:
    loose = {"clat_p99": Budget("clat_p99", 900.0)}
    found = record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=4), loose)
    assert found.verdict == "within"
    assert not any("too few I/Os" in note for note in found.notes)
    assert describe_finding(found, found.budget[0]).endswith("] from 2 samples of 4 blocks each")


def test_the_finding_of_a_percentile_names_its_samples() -> None:
    none = record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=1), P99)
    assert describe_finding(none, none.budget[0]) == "no sample: too few I/Os in 2 blocks"
    alone = record(PASSTHROUGH, slices(PASSTHROUGH, 1300, rounds=3), P99)
    assert "from" not in describe_finding(alone, alone.budget[0])
    assert batch_count((4, 4, 4), None) == "3 samples of 4 blocks each"
    assert batch_count((4, 5), None) == "2 samples of 4 to 5 blocks each"
    assert batch_count((6,), None) == "1 sample of 6 blocks"
    assert batch_count((2, 2, 2, 2), 2) == "2 boots with 4 samples of 2 blocks each"
    assert batch_count((), None) == ""


def test_what_decides_counts_in_samples_of_blocks() -> None:
    found = record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=6), {"clat_p99": Budget("clat_p99", 0.25)})
    assert found.verdict == "inconclusive"
    words = what_decides(found, found.budget[0], judged=1)
    assert "samples of 4 blocks" in words


def test_the_rounds_for_two_samples_follow_from_the_slowest_arm() -> None:
    found = record(PASSTHROUGH, slices(PASSTHROUGH, 300, rounds=2))
    assert count_rounds_needed(found, "clat_p99", reboot=False) == 4
    assert count_rounds_needed(found, "clat_p999", reboot=False) == 40
    assert count_rounds_needed(found, "clat_p99", reboot=True) == 4
    assert count_rounds_needed(record(PASSTHROUGH, []), "clat_p99", reboot=False) is None
