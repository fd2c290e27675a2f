"""A few runs without any difference, by the whole path: `python -m tests.bench.false_alarms` has many."""

from __future__ import annotations

from harness.analysis import Verdict
from tests.bench.false_alarms.runs import MODES, WORKLOADS, Claims, find_worse, simulate_run

RUNS = 12
# With 5 % in each run, four or more of 12 have a claim in 2 of 1000 cases. The seeds are fixed.
MOST = 3


def test_runs_without_any_difference_rarely_claim_one() -> None:
    runs = [simulate_run("one-boot", seed, 8, WORKLOADS[:1]) for seed in range(RUNS)]
    claims = [Claims.of(run) for run in runs]
    assert not any(of_run.void for of_run in claims)
    assert sum(bool(of_run.better or of_run.exceeds) for of_run in claims) <= MOST
    assert sum(find_worse(run, len(MODES)) for run in runs) <= MOST


def test_a_run_of_20_cells_judges_each_of_them_at_a_budget_of_no_loss() -> None:
    run = simulate_run("one-boot", 1, 5)
    guests = [cell for cell in run.cells if not cell.is_baseline]
    assert len(guests) == 20
    assert all(len(cell.rounds) == 20 for cell in guests)
    assert {cell.verdict for cell in guests} <= {Verdict.INCONCLUSIVE, Verdict.WITHIN, Verdict.EXCEEDS}
