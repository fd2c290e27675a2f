"""Verdicts of cells: of each budget by its own rounds, then corrected over all cells of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis import Sequential, Verdict, estimate_added, estimate_overhead
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import Job
from harness.model.mode import Budget, Cell, Mode
from harness.results import (
    BudgetRecord,
    CellContext,
    CellRecord,
    MetricRecord,
    ValidityCheck,
    assemble,
    correct_records,
)
from harness.results.judging import find_gravest, judge_budgets
from harness.results.metric_records import note_stalls

LOOK = Sequential(3, 3).look(3)
HOST = (10_000.0, 10_100.0, 9_900.0)
CELL = Cell(
    "optane", "optane", Mode("passthrough", Device(), Attach()), Job("randread", 4096, iodepth=32, ramp=0, seconds=3)
)
ERROR_RATE = 0.025


def iops(*guest: float) -> MetricRecord:
    overhead = estimate_overhead(HOST, guest, higher_is_better=True) if guest else None
    return MetricRecord("IO/s", "higher", HOST, (), guest, overhead, None, overhead, None)


def latency(*guest: float) -> MetricRecord:
    host = tuple(32 / value for value in HOST)
    overhead = estimate_overhead(host, guest, higher_is_better=False)
    return MetricRecord("s", "lower", host, (), guest, overhead, None, overhead, estimate_added(host, guest))


def verdict_of(rule: Budget, metric: MetricRecord) -> Verdict:
    (budget,) = judge_budgets({rule.metric: rule}, {rule.metric: metric}, LOOK)
    return budget.verdict


# --- one cell ---


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.15, Verdict.WITHIN), (0.05, Verdict.EXCEEDS), (0.1, Verdict.INCONCLUSIVE)]
)
def test_a_loss_of_a_tenth_is_compared_with_its_budget(share: float, verdict: Verdict) -> None:
    assert verdict_of(Budget("iops", share), iops(9_000, 9_100, 8_900)) is verdict


@pytest.mark.parametrize(("both", "verdict"), [("looser", Verdict.WITHIN), ("stricter", Verdict.EXCEEDS)])
def test_of_two_limits_the_looser_or_the_stricter_counts(both: str, verdict: Verdict) -> None:
    # 3.2 ms on the host and 10 % more in the guest: above 5 %, but no more than a millisecond.
    rule = Budget("lat_mean", 0.05, 1e-3, both)  # type: ignore[arg-type]
    assert verdict_of(rule, latency(*(1.1 * 32 / value for value in HOST))) is verdict


def test_the_p_value_and_the_rule_are_on_record() -> None:
    rule = Budget("iops", 0.05)
    (budget,) = judge_budgets({"iops": rule}, {"iops": iops(9_000, 9_100, 8_900)}, LOOK)
    assert (budget.metric, budget.share, budget.absolute, budget.both) == ("iops", 0.05, None, None)
    assert budget.p_value is not None
    assert budget.p_value < ERROR_RATE


def test_a_metric_that_was_not_measured_is_inconclusive_and_has_no_p_value() -> None:
    (budget,) = judge_budgets({"clat_p99": Budget("clat_p99", 0.1)}, {"iops": iops(9_000, 9_100, 8_900)}, LOOK)
    assert (budget.verdict, budget.p_value) == (Verdict.INCONCLUSIVE, None)


def test_without_rounds_or_a_guest_a_budget_is_inconclusive() -> None:
    rules = {"iops": Budget("iops", 0.1)}
    assert [each.verdict for each in judge_budgets(rules, {"iops": iops(9_000, 9_100, 8_900)}, None)] == [
        "inconclusive"
    ]
    assert [each.verdict for each in judge_budgets(rules, {"iops": iops()}, LOOK)] == ["inconclusive"]


def test_every_budget_of_a_cell_is_judged_in_its_own_metric() -> None:
    rules = {"iops": Budget("iops", 0.05), "lat_mean": Budget("lat_mean", 0.5)}
    metrics = {"iops": iops(9_000, 9_100, 8_900), "lat_mean": latency(*(1.1 * 32 / value for value in HOST))}
    assert [(each.metric, each.verdict) for each in judge_budgets(rules, metrics, LOOK)] == [
        ("iops", "exceeds"),
        ("lat_mean", "within"),
    ]


@pytest.mark.parametrize(
    ("verdicts", "of_cell"),
    [
        (["within", "exceeds", "inconclusive"], "exceeds"),
        (["within", "inconclusive"], "inconclusive"),
        (["within", "within"], "within"),
        ([], "unjudged"),
    ],
)
def test_a_cell_is_as_bad_as_the_worst_of_its_budgets(verdicts: list[str], of_cell: str) -> None:
    assert find_gravest(BudgetRecord("iops", 0.1, None, None, Verdict(each), None) for each in verdicts) == of_cell


# --- all cells of a run ---


def record(p_value: float | None, verdict: Verdict = Verdict.EXCEEDS, *, void: bool = False) -> CellRecord:
    """A cell with one budget, whose rounds alone say `verdict`."""
    checks = (ValidityCheck("bytes", ok=False, detail="cached"),) if void else ()
    context = CellContext("lab", "optane-batch1", 64 << 20, validity=checks)
    (found,) = assemble([CELL], [], {CELL.id: context})
    budget = BudgetRecord("iops", 0.1, None, None, verdict, p_value)
    return replace(found, budget=(budget,), verdict=Verdict.VOID if void else verdict)


def verdicts(records: list[CellRecord], family: int) -> list[str]:
    return [str(each.verdict) for each in correct_records(records, family=family, error_rate=ERROR_RATE)]


def test_an_exceeds_that_is_possible_by_chance_does_not_stand_among_many() -> None:
    assert verdicts([record(0.01)], family=1) == ["exceeds"]
    assert verdicts([record(0.01)], family=3) == ["inconclusive"]


def test_the_budget_has_the_verdict_of_the_cell() -> None:
    (found,) = correct_records([record(0.01)], family=3, error_rate=ERROR_RATE)
    assert [budget.verdict for budget in found.budget] == ["inconclusive"]


def test_strong_evidence_makes_it_easier_for_the_next_cells() -> None:
    # Benjamini & Hochberg: the k-th smallest is compared with k / 3 of 0.025.
    assert verdicts([record(0.02), record(0.012), record(0.001)], family=3) == ["exceeds"] * 3
    assert verdicts([record(0.03), record(0.012), record(0.009)], family=3) == ["inconclusive", "exceeds", "exceeds"]
    assert verdicts([record(0.03), record(0.018), record(0.009)], family=3) == ["inconclusive"] * 3


def test_a_verdict_that_stands_before_all_cells_are_measured_stands_at_the_end() -> None:
    first = record(0.004)
    assert verdicts([first], family=6) == ["exceeds"]
    assert verdicts([first, *[record(1.0, Verdict.WITHIN)] * 5], family=6)[0] == "exceeds"


def test_a_cell_may_begin_to_exceed_only_when_the_others_are_known() -> None:
    first = record(0.02)
    assert verdicts([first], family=2) == ["inconclusive"]
    assert verdicts([first, record(0.001)], family=2) == ["exceeds", "exceeds"]


def test_cells_that_are_not_returned_count() -> None:
    first, second = record(0.02), replace(record(0.001), id="other")
    found = correct_records([first, second], family=2, error_rate=ERROR_RATE, only={first.id})
    assert [(each.id, str(each.verdict)) for each in found] == [(first.id, "exceeds")]


def test_a_void_cell_stays_void_and_its_p_value_does_not_count() -> None:
    assert verdicts([record(0.0001, void=True), record(0.02)], family=2) == ["void", "inconclusive"]


def test_within_and_unjudged_need_no_correction() -> None:
    unjudged = replace(record(None), budget=(), verdict=Verdict.UNJUDGED)
    assert verdicts([record(0.9, Verdict.WITHIN), unjudged], family=200) == ["within", "unjudged"]


# --- rare stalls ---


def notes_of(host: list[float], guest: list[float]) -> list[str]:
    overhead = estimate_overhead(host, guest, higher_is_better=True)
    return list(
        note_stalls(MetricRecord("IO/s", "higher", tuple(host), (), tuple(guest), overhead, None, overhead, None))
    )


def test_a_stall_is_counted_and_said_to_be_of_the_guest_the_host_or_both() -> None:
    alike = [1000.0 + number for number in range(40)]
    stalled = [100.0, *alike[1:]]
    again = "so few slices do not show how often this happens"
    (note, *_) = notes_of(alike, stalled)
    assert note == f"one slice of 40 was 10 x slower, in the guest only: {again}"
    (note, *_) = notes_of(stalled, alike)
    assert note == f"one slice of 40 was 10 x slower, on the host only: {again}"
    (note, *_) = notes_of(stalled, [100.0, 50.0, *alike[2:]])
    assert note == f"2 slices of 40 were up to 20 x slower, in the guest, and 1 on the host: {again}"
    assert notes_of(alike, alike) == []


def test_slices_that_are_often_slow_are_no_stalls() -> None:
    alike = [1000.0 + number for number in range(40)]
    assert not any("x slower" in note for note in notes_of(alike, [100.0] * 5 + alike[5:]))


def test_the_overhead_of_all_ios_is_given_if_it_is_outside_of_the_interval() -> None:
    host = [1000.0, 1.0, 1.0, 1000.0, 1.0] * 4
    guest = [900.0 if value == 1000 else value for value in host]
    (note,) = notes_of(host, guest)
    assert note.startswith("the overhead of all I/Os together is 10.0%, and 4.1% in the geometric mean of the slices")
    assert note.endswith("slow slices count for more")
