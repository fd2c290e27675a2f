"""Stopping early: the error stays below what is stated, and would not if each look had the level of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import stdtr

from harness.analysis import (
    Judgement,
    Limit,
    Look,
    Sequential,
    Verdict,
    benjamini_hochberg,
    correct_verdicts,
    decided,
    estimate_overhead,
    holm,
    judge_look,
)
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import Job
from harness.model.mode import Cell, Mode
from harness.results import BudgetRecord, CellContext, CellRecord, ValidityCheck, assemble, correct_records
from tests.simulation.campaigns import Flags, Floats, adjust, fixed, naive, overheads, stopped, until
from tests.simulation.stated import stated

PLAN = Sequential(first=3, most=27)
CAMPAIGNS = 20_000
BUDGET = 0.10
TARGET = 0.05
NOISES = (0.01, 0.03, 0.06, 0.12)
CELLS = 200
# Three standard deviations of the count of a rate of 5 % in 20000.
TOLERANCE = 0.005


def at_the_budget(noise: float, campaigns: int = CAMPAIGNS, seed: int = 1) -> Floats:
    """Log ratios of guests whose overhead is the budget, neither more nor less."""
    chance = np.random.default_rng([seed, round(noise * 1000)])
    return math.log1p(-BUDGET) + chance.normal(0, noise, (campaigns, PLAN.most))


def missed_at_any_look(log_ratios: Floats, looks: list[Look]) -> float:
    covered = [overheads(log_ratios[:, : look.rounds], look.confidence).covers(BUDGET) for look in looks]
    return float(1 - np.logical_and.reduce(covered).mean())


def run_one_cell(log_ratios: list[float], cells: int, time: int) -> tuple[Judgement, Look]:
    """What the harness does: rounds until decided, then the judgement at that look."""
    for rounds in range(1, PLAN.most + 1):
        host, guest = [1.0] * rounds, np.exp(log_ratios[:rounds]).tolist()
        spent = rounds == time
        why = decided(
            host,
            guest,
            PLAN,
            higher_is_better=True,
            budget=Limit(BUDGET),
            target=TARGET,
            cells=cells,
            time_spent=spent,
        )
        if why:
            look = PLAN.look(rounds, final=spent)
            assert look is not None
            return judge_look(host, guest, Limit(BUDGET), look, higher_is_better=True), look
    raise AssertionError("a plan ends with its last round")


@pytest.mark.parametrize(("cells", "time"), [(1, 27), (CELLS, 27), (1, 6), (CELLS, 12)])
@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_the_campaigns_stop_where_the_package_stops_and_say_what_it_says(noise: float, cells: int, time: int) -> None:
    log_ratios = at_the_budget(noise, 60)
    # Some that are clearly within and some that clearly exceed, so that every way to stop is taken.
    log_ratios += np.linspace(-0.3, 0.3, 60)[:, None]
    many = stopped(log_ratios, until(PLAN, time), share=BUDGET, target=TARGET, cells=cells)
    for index, ratios in enumerate(log_ratios.tolist()):
        one, look = run_one_cell(ratios, cells, time)
        assert look.rounds == many.rounds[index]
        assert one.overhead.low == pytest.approx(many.overheads.low[index], rel=1e-9, abs=1e-12)
        assert one.p_value == pytest.approx(many.p_values[index], rel=1e-4)
        assert (one.verdict is Verdict.EXCEEDS) == many.exceeds[index]


@pytest.mark.parametrize("noise", NOISES)
def test_all_intervals_of_all_looks_hold_together(noise: float) -> None:
    assert missed_at_any_look(at_the_budget(noise), fixed(PLAN)) <= 0.05 + TOLERANCE


@pytest.mark.parametrize("plan", [Sequential(3, 10), Sequential(2, 40, shape=0.25), Sequential(3, 12, shape=0.5)])
def test_they_hold_together_for_other_plans_too(plan: Sequential) -> None:
    log_ratios = math.log1p(-BUDGET) + np.random.default_rng(3).normal(0, 0.05, (CAMPAIGNS, plan.most))
    assert missed_at_any_look(log_ratios, fixed(plan)) == pytest.approx(0.05, abs=TOLERANCE)


@pytest.mark.parametrize("noise", NOISES)
def test_the_interval_at_the_stop_covers_and_a_false_exceeds_is_as_rare_as_stated(noise: float) -> None:
    end = stopped(at_the_budget(noise), fixed(PLAN), share=BUDGET, target=TARGET)
    assert end.overheads.covers(BUDGET).mean() >= 0.95 - TOLERANCE
    assert end.exceeds.mean() <= 0.025 + TOLERANCE


@pytest.mark.parametrize("time", [2, 4, 7, 15, 18, 26])
def test_the_same_holds_when_the_time_is_spent_between_two_looks(time: int) -> None:
    end = stopped(at_the_budget(0.06), until(PLAN, time), share=BUDGET, target=TARGET)
    # With one look at 2 or 4 rounds the rates are the stated ones and not below: three standard deviations.
    assert end.overheads.covers(BUDGET).mean() >= 0.95 - 0.0046
    assert end.exceeds.mean() <= 0.025 + 0.0033


def test_looks_that_spend_nothing_break_both_promises() -> None:
    end = stopped(at_the_budget(0.06), naive(PLAN), share=BUDGET, target=TARGET)
    assert end.overheads.covers(BUDGET).mean() < 0.93
    assert end.exceeds.mean() > 0.04
    assert missed_at_any_look(at_the_budget(0.06), naive(PLAN)) > 0.10


def test_the_docs_state_what_stopping_early_does() -> None:
    for row, looks in (("looks that share 5 %", fixed(PLAN)), ("every look at 95 %", naive(PLAN))):
        log_ratios = at_the_budget(0.06)
        end = stopped(log_ratios, looks, share=BUDGET, target=TARGET)
        found = [missed_at_any_look(log_ratios, looks), 1 - end.overheads.covers(BUDGET).mean(), end.exceeds.mean()]
        assert found == pytest.approx(stated(row), abs=TOLERANCE)


def test_heavy_tails_do_not_break_the_promises() -> None:
    chance = np.random.default_rng(9)
    log_ratios = math.log1p(-BUDGET) + 0.03 * chance.standard_t(3, (CAMPAIGNS, PLAN.most))
    end = stopped(log_ratios, fixed(PLAN), share=BUDGET, target=TARGET)
    assert missed_at_any_look(log_ratios, fixed(PLAN)) <= 0.05 + TOLERANCE
    assert end.exceeds.mean() <= 0.025 + TOLERANCE


@pytest.mark.parametrize("shape", [0.25, 0.4, 0.5])
def test_quiet_cells_are_done_early_and_the_docs_say_when(shape: float) -> None:
    looks = fixed(Sequential(3, 27, shape=shape))
    found = [
        float(stopped(at_the_budget(noise), looks, share=BUDGET, target=TARGET).rounds.mean())
        for noise in (0.01, 0.03, 0.06, 0.09)
    ]
    assert found == pytest.approx(stated(f"shape {shape:g}"), abs=0.15)


@pytest.mark.parametrize(
    ("plan", "level"),
    [(Sequential(4, 24), 0.0025), (Sequential(2, 12), 0.05), (Sequential(2, 12), 0.0005), (Sequential(6, 40), 0.0005)],
)
def test_the_looks_spend_what_they_may_at_every_level_and_wherever_the_time_ends(
    plan: Sequential, level: float
) -> None:
    chance, campaigns = np.random.default_rng(7), 100_000
    samples = chance.normal(0, 1, (campaigns, plan.most))
    counts = np.arange(1, plan.most + 1)
    means = samples.cumsum(axis=1) / counts
    squares = (samples**2).cumsum(axis=1) - counts * means**2
    t = means[:, 1:] * np.sqrt(counts[1:] * counts[:-1] / squares[:, 1:])
    tails = stdtr(counts[:-1], -abs(t))
    for stop in (plan.most, plan.most - 1, plan.looks[0] + 1):
        looks = fixed(plan) if stop == plan.most else until(plan, stop)
        spent = np.zeros(campaigns, dtype=bool)
        for look in looks:
            spent |= adjust(look, tails[:, look.rounds - 2]) <= level / 2
        assert spent.mean() <= level + 3 * math.sqrt(level / campaigns)
        assert spent.mean() >= 0.6 * level


# --- many cells ---


def run_of_cells(seed: int, runs: int, *, shared: bool) -> Floats:
    """Log ratios (runs * 200, 27) of cells at their budget; `shared`: five cells of a group have one host's noise."""
    chance = np.random.default_rng(seed)
    shape = (runs * CELLS, PLAN.most)
    if not shared:
        return math.log1p(-BUDGET) + chance.normal(0, 0.04, shape)
    host = np.repeat(chance.normal(0, 0.03, (runs * CELLS // 5, PLAN.most)), 5, axis=0)
    return math.log1p(-BUDGET) + chance.normal(0, 0.03, shape) - host


class Hypothesis(NamedTuple):
    """A cell's budget, as the run's correction sees it."""

    verdict: Verdict
    p_value: float | None


Voided = Callable[[Floats], Flags]
"""Which cells of each run are void: from p values (runs, cells)."""


def no_cell(p_values: Floats) -> Flags:
    return np.zeros(p_values.shape, dtype=bool)


def a_tenth(p_values: Floats) -> Flags:
    return np.random.default_rng(21).random(p_values.shape) < 0.1


def all_but_the_five_worst(p_values: Floats) -> Flags:
    """The checks that failed spared what looks most like exceeding its budget: bad luck cannot be worse."""
    return p_values > np.sort(p_values, axis=1)[:, 4:5]


def runs_with_a_false_exceeds(
    looks: list[Look], *, shared: bool = False, correct: bool = True, void: Voided = no_cell, void_count: bool = True
) -> float:
    """The share of runs with any cell that is not void and whose `exceeds` stands."""
    batches, runs = 5, 400
    alarms = 0
    for batch in range(batches):
        log_ratios = run_of_cells(batch, runs, shared=shared)
        cells = CELLS if correct else 1
        end = stopped(log_ratios, looks, share=BUDGET, target=TARGET, cells=cells)
        p_values, exceeds = end.p_values.reshape(runs, CELLS), end.exceeds.reshape(runs, CELLS)
        voided = void(p_values)
        for run in zip(p_values.tolist(), exceeds.tolist(), voided.tolist(), strict=True):
            tested = [
                Hypothesis(Verdict.EXCEEDS if exceeding and not gone else Verdict.INCONCLUSIVE, None if gone else p)
                for p, exceeding, gone in zip(*run, strict=True)
                if void_count or not gone
            ]
            found = (
                correct_verdicts(tested, family=CELLS if void_count else 0, error_rate=PLAN.error_rate)
                if correct
                else [each.verdict for each in tested]
            )
            alarms += Verdict.EXCEEDS in found
    return alarms / batches / runs


@pytest.mark.parametrize(
    ("row", "shared", "void"),
    [
        ("200 cells, independent", False, no_cell),
        ("200 cells, five share a host's noise", True, no_cell),
        ("200 cells, a tenth of them void", False, a_tenth),
        ("200 cells, all but the five worst void", False, all_but_the_five_worst),
    ],
)
def test_a_run_of_200_cells_at_their_budgets_rarely_raises_any_false_exceeds(
    row: str, shared: bool, void: Voided
) -> None:
    found = runs_with_a_false_exceeds(fixed(PLAN), shared=shared, void=void)
    assert found <= PLAN.error_rate
    assert found == pytest.approx(stated(row)[0], abs=TOLERANCE)


def test_void_cells_that_did_not_count_would_break_the_promise() -> None:
    found = runs_with_a_false_exceeds(fixed(PLAN), void=all_but_the_five_worst, void_count=False)
    assert found > 4 * PLAN.error_rate
    assert found == pytest.approx(stated("the same, if void cells did not count")[0], abs=0.03)


def test_without_the_correction_nearly_every_run_raises_one() -> None:
    found = runs_with_a_false_exceeds(fixed(PLAN), correct=False)
    assert found > 0.5
    assert found == pytest.approx(stated("200 cells, not corrected")[0], abs=0.03)


def record_of(judgement: Judgement, *, void: bool) -> CellRecord:
    """The record of a cell whose rounds say `judgement` of its one budget."""
    cell = Cell(
        "s", "disk", Mode("passthrough", Device(), Attach()), Job("randread", 4096, iodepth=32, ramp=0, seconds=3)
    )
    checks = (ValidityCheck("bytes", ok=False, detail="cached"),) if void else ()
    (record,) = assemble([cell], [], {cell.id: CellContext("host", "group", 64 << 20, validity=checks)})
    budget = BudgetRecord("iops", BUDGET, None, None, judgement.verdict, judgement.p_value)
    return replace(record, budget=(budget,), verdict=Verdict.VOID if void else judgement.verdict)


def test_whole_runs_by_the_package_itself_say_what_the_campaigns_say() -> None:
    log_ratios = run_of_cells(99, 1, shared=True)
    # A tenth of the cells truly exceeds, so that there is something to stand and something to be taken back.
    log_ratios[::10] -= 0.12
    log_ratios[5::10] -= 0.06
    end = stopped(log_ratios, fixed(PLAN), share=BUDGET, target=TARGET, cells=CELLS)
    void = np.arange(CELLS) % 20 == 0
    records = [
        record_of(run_one_cell(ratios, CELLS, PLAN.most)[0], void=bool(gone))
        for ratios, gone in zip(log_ratios.tolist(), void, strict=True)
    ]
    written = correct_records(records, family=CELLS, error_rate=PLAN.error_rate)
    found = np.array([record.verdict is Verdict.EXCEEDS for record in written])
    tested = [
        Hypothesis(Verdict.EXCEEDS if exceeding else Verdict.INCONCLUSIVE, None if gone else p)
        for p, exceeding, gone in zip(end.p_values.tolist(), end.exceeds.tolist(), void, strict=True)
    ]
    stands = [
        verdict is Verdict.EXCEEDS for verdict in correct_verdicts(tested, family=CELLS, error_rate=PLAN.error_rate)
    ]
    assert np.array_equal(found, np.array(stands))
    assert found.any()
    assert (end.exceeds & ~found & ~void).any()
    assert all(record.verdict is Verdict.VOID for record, gone in zip(written, void, strict=True) if gone)


def test_the_fixed_design_is_what_it_was() -> None:
    log_ratios = at_the_budget(0.05, 20)[:, :5]
    look = Sequential(5, 5).look(5)
    assert look is not None
    for ratios in log_ratios.tolist():
        host, guest = [1.0] * 5, np.exp(ratios).tolist()
        judgement = judge_look(host, guest, Limit(BUDGET), look, higher_is_better=True)
        assert judgement.overhead == estimate_overhead(host, guest, higher_is_better=True)


@pytest.mark.parametrize(
    ("row", "correct", "exceeding"),
    [
        ("all at 15 %, BH", benjamini_hochberg, 20),
        ("all at 15 %, Holm", holm, 20),
        ("half at 15 %, half at 10 %, BH", benjamini_hochberg, 10),
        ("half at 15 %, half at 10 %, Holm", holm, 10),
    ],
)
def test_cells_that_exceed_are_found_more_often_if_the_expected_share_of_false_ones_is_bounded(
    row: str, correct: Callable[[Sequence[float], float], list[bool]], exceeding: int
) -> None:
    plan, cells, runs = Sequential(4, 24), 20, 400
    chance = np.random.default_rng(1)
    truth = np.where(np.arange(cells) < exceeding, 0.15, BUDGET)
    log_ratios = np.tile(np.log1p(-truth), runs)[:, None] + chance.normal(0, 0.1, (runs * cells, plan.most))
    end = stopped(log_ratios, fixed(plan), share=BUDGET, target=None, cells=cells)
    called = np.array([correct(p, plan.error_rate) for p in end.p_values.reshape(runs, cells).tolist()])
    called &= end.exceeds.reshape(runs, cells)
    power = called[:, :exceeding].mean()
    false = (called[:, exceeding:].sum(axis=1) / np.maximum(called.sum(axis=1), 1)).mean()
    assert false <= plan.error_rate
    assert [power, false] == pytest.approx(stated(row), abs=0.015)
