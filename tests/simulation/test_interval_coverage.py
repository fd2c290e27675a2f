"""The figures of docs/reference/coverage.md are those of the intervals that ship: some simulations run again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.bench.coverage.intervals import (
    BLOCKS,
    LATENCIES,
    PAIRS_OF_GUESTS,
    PAIRS_OF_HOST,
    Simulated,
    simulate_percentiles,
)
from tests.bench.coverage.labels import RECORDED, Job, permute_labels
from tests.bench.coverage.noises import ARMS, NOISES
from tests.bench.coverage.page import FALSE_ALARMS, PAGE, replace_part

CAMPAIGNS = 120


def find_rows(first: str) -> list[list[str]]:
    """The rows of the page that begin with this cell."""
    lines = (line.strip("| ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|"))
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return [row for row in rows if row[0] == first]


def read_share(cell: str) -> float:
    return float(cell.removesuffix(" %")) / 100


@pytest.mark.parametrize("name", NOISES)
def test_the_page_has_a_row_for_each_noise_and_number_of_blocks(name: str) -> None:
    rows = find_rows(name)
    assert [row[1] for row in rows[: len(BLOCKS)]] == list(map(str, BLOCKS))
    assert all(row[-1] == "yes" or row[-1].startswith("**no**: ") for row in rows[: len(BLOCKS)])


@pytest.mark.parametrize("name", ["independent", "environment AR(1) 0.9", "guests twice as sensitive, 2 s"])
@pytest.mark.parametrize("blocks", [6, 20])
def test_coverage_and_width_are_those_that_the_page_states(name: str, blocks: int) -> None:
    row = next(row for row in find_rows(name) if row[1] == str(blocks))
    run = Simulated.run(NOISES[name], blocks, CAMPAIGNS)
    for first, pairs in ((2, PAIRS_OF_HOST), (5, PAIRS_OF_GUESTS)):
        intervals = run.compare(pairs)
        # Comparisons with one host are correlated, so that a campaign counts as less than two of them.
        chance = 3 * math.sqrt(0.05 * 0.95 / CAMPAIGNS)
        assert intervals.coverage == pytest.approx(read_share(row[first]), abs=chance)
        median, _ = map(float, row[first + 1].split(", "))
        assert intervals.median_width == pytest.approx(median, rel=0.25)
        assert intervals.of_t == pytest.approx(float(row[first + 2]), abs=0.04)


def test_an_environment_of_a_second_makes_the_interval_narrower_than_that_of_pairs() -> None:
    intervals = Simulated.run(NOISES["guests twice as sensitive, 2 s"], 20, CAMPAIGNS).compare(PAIRS_OF_GUESTS)
    assert intervals.of_t is not None
    assert intervals.of_t < 0.92
    assert intervals.coverage > 0.9


def test_the_loss_of_a_run_without_end_is_not_covered_if_the_loss_changes_within_minutes() -> None:
    run = Simulated.run(NOISES["guests twice as sensitive, 600 s"], 20, CAMPAIGNS)
    of_run, of_long_run = (run.compare(PAIRS_OF_HOST, of_run=this).coverage for this in (True, False))
    assert of_run > 0.9
    assert of_long_run < 0.6
    stated = next(row for row in find_rows("guests twice as sensitive, 600 s") if len(row) == 1 + len(BLOCKS))
    assert of_long_run == pytest.approx(read_share(stated[1 + BLOCKS.index(20)]), abs=0.2)


@pytest.mark.parametrize("name", ["log-normal", "Pareto 2"])
def test_a_p99_is_covered_if_the_host_has_ten_times_as_many_ios(name: str) -> None:
    intervals = simulate_percentiles(LATENCIES[name], (2000, 200), 10, CAMPAIGNS)
    assert intervals.coverage >= 0.93 - 2 * math.sqrt(0.07 * 0.93 / CAMPAIGNS)
    assert abs(intervals.bias) < 0.05


def test_permuted_labels_of_a_stored_run_show_no_difference() -> None:
    row = next(iter(permute_labels(RECORDED / "options.jsonl.gz", 30)))
    assert (row.blocks, row.guests) == (20, 8)
    assert 0.91 <= row.intervals.coverage <= 0.985
    assert row.intervals.of_t is not None
    assert row.intervals.of_t <= 1.0


def test_only_labels_of_guests_are_permuted_and_slices_keep_their_times() -> None:
    logs = np.arange(12.0).reshape(3, 4)
    job = Job("job", logs, 100 + logs, ("guest:a", "guest:b", "guest:c"))
    permuted = job.permute(np.random.default_rng(1))
    assert permuted.logs[:, 0].tolist() == logs[:, 0].tolist()
    assert np.sort(permuted.logs, axis=1).tolist() == logs.tolist()
    assert (permuted.times - permuted.logs == 100).all()
    assert permuted.logs.tolist() != logs.tolist()


def test_guests_exchange_labels_only_in_blocks_that_have_them() -> None:
    logs = np.arange(20.0).reshape(5, 4)
    logs[2, 3] = math.nan
    job = Job("job", logs, 100 + logs, ("guest:a", "guest:b", "guest:c"))
    permuted = job.permute(np.random.default_rng(1))
    assert np.isnan(permuted.logs).tolist() == np.isnan(logs).tolist()
    assert {guest: list(values) for guest, values in permuted.adjust().items()} == {
        "guest:a": [0, 1, 2, 3, 4],
        "guest:b": [0, 1, 2, 3, 4],
        "guest:c": [0, 1, 3, 4],
    }


@pytest.mark.parametrize("name", ["independent", "guests twice as sensitive, 60 s", "neighbour of 10 s"])
def test_a_simulated_block_has_a_slice_of_each_arm_at_a_moment_of_its_own(name: str) -> None:
    run = Simulated.run(NOISES[name], 6, 20)
    assert run.logs.shape == (20, 6, ARMS)
    assert run.logs.std() > 0.05


def test_each_command_replaces_its_own_part_of_the_page() -> None:
    page = replace_part("", coverage="# Page\n\nrows")
    page = replace_part(page, false_alarms="none")
    assert page == f"# Page\n\nrows\n\n{FALSE_ALARMS}\n\nnone\n"
    assert replace_part(page, coverage="# Page\n\nother") == f"# Page\n\nother\n\n{FALSE_ALARMS}\n\nnone\n"
