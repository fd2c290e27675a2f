"""How often an interval holds the truth if neighbouring samples are correlated: of a cell alone, and of a job."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from harness.analysis import Limit, Samples, Sequential, estimate_overhead, exceeds_p_value, pool_correlations
from tests.simulation.campaigns import Floats, Spreads, fixed, overheads, p_values, spreads
from tests.simulation.noises import (
    Noise,
    autoregression,
    drift_inside_of_pairs,
    gamma,
    neighbour,
    normal,
    of_job,
    one_in_eight_is_loud,
    two_kinds,
)
from tests.simulation.stated import stated

SERIES = 4800
SAMPLES = (6, 12, 30)
MODES = (3, 5)
"""Of a job. One mode is a series alone."""
OF_JOBS = [(modes, n) for modes in MODES for n in SAMPLES]
"""The columns of the docs for jobs: modes, and samples of each."""
# Three standard deviations of a count of 95 % in 4800 are 0.9 %. The seeds are fixed.
CHANCE = 0.009
TOLERANCE = 0.004


def found(noise: Noise, n: int, cells: int) -> Spreads:
    return spreads(noise(np.random.default_rng([n, cells]), SERIES, n), cells)


def coverage(result: Spreads) -> float:
    """Of the series that have an interval."""
    return float(result.covers(0.0, 0.95)[result.given].mean())


@pytest.mark.parametrize("cells", [1, 4])
@pytest.mark.parametrize("n", [3, 5, 6, 12, 30])
@pytest.mark.parametrize("noise", [normal, neighbour, of_job(autoregression(0.5), 4), autoregression(0.97)])
def test_the_campaigns_compute_what_the_package_computes(noise: Noise, n: int, cells: int) -> None:
    log_ratios = noise(np.random.default_rng(n), 24, n)
    many, p = overheads(log_ratios, 0.99, cells), p_values(log_ratios, 0.05, cells)
    given = spreads(log_ratios, cells).given
    for index, series in enumerate(log_ratios.tolist()):
        job = [dict(enumerate(each)) for each in log_ratios[index // cells * cells :][:cells].tolist()]
        samples = Samples(correlation=pool_correlations(job) if cells > 1 else None)
        host, guest = [1.0] * n, np.exp(series).tolist()
        one = estimate_overhead(host, guest, higher_is_better=True, confidence=0.99, samples=samples)
        assert (one.low is not None) == given[index]
        if one.low is not None:
            assert (one.low, one.high) == pytest.approx((many.low[index], many.high[index]), rel=1e-6, abs=1e-9)
            found_p = exceeds_p_value(host, guest, Limit(0.05), higher_is_better=True, samples=samples)
            assert found_p == pytest.approx(p[index], rel=1e-6)


@pytest.mark.parametrize(("column", "n"), list(enumerate(SAMPLES)))
@pytest.mark.parametrize(
    ("row", "noise"),
    [
        ("alone, log-normal", normal),
        ("alone, gamma", gamma),
        ("alone, 30 % drift that the pairs do not share", drift_inside_of_pairs),
    ],
)
def test_a_series_alone_whose_samples_are_independent_is_covered_as_stated(
    row: str, noise: Noise, column: int, n: int
) -> None:
    covered = coverage(found(noise, n, 1))
    assert 0.94 - CHANCE <= covered <= 0.97 + CHANCE
    assert covered == pytest.approx(stated(row)[column], abs=TOLERANCE)


@pytest.mark.parametrize(("column", "n"), list(enumerate(SAMPLES)))
@pytest.mark.parametrize(
    ("row", "noise", "least"),
    [
        ("alone, neighbour of 10 s", neighbour, (0.92, 0.92, 0.92)),
        ("alone, AR(1) 0.5", autoregression(0.5), (0.92, 0.92, 0.92)),
        # What six samples cannot show: the estimate has a caveat.
        ("alone, AR(1) 0.9", autoregression(0.9), (0.79, 0.92, 0.92)),
    ],
)
def test_a_series_alone_whose_samples_are_correlated_is_covered_as_stated(
    row: str, noise: Noise, least: tuple[float, ...], column: int, n: int
) -> None:
    covered = coverage(found(noise, n, 1))
    assert covered >= least[column]
    assert covered == pytest.approx(stated(row)[column], abs=TOLERANCE)


@pytest.mark.parametrize("column", range(len(OF_JOBS)))
@pytest.mark.parametrize(
    ("row", "noise"),
    [
        ("log-normal, half in common", normal),
        ("gamma, half in common", gamma),
        ("one cell in eight with five times the noise, half in common", one_in_eight_is_loud),
        ("30 % drift that the pairs do not share, half in common", drift_inside_of_pairs),
    ],
)
def test_the_modes_of_a_job_whose_samples_are_independent_are_covered_as_stated(
    row: str, noise: Noise, column: int
) -> None:
    modes, n = OF_JOBS[column]
    covered = coverage(found(of_job(noise, modes), n, modes))
    assert 0.94 - CHANCE <= covered <= 0.97 + CHANCE
    assert covered == pytest.approx(stated(row)[column], abs=TOLERANCE)


@pytest.mark.parametrize("column", range(len(OF_JOBS)))
@pytest.mark.parametrize(
    ("row", "noise_of", "least_of_six"),
    [
        ("neighbour of 10 s, half in common", partial(of_job, neighbour), 0.92),
        ("neighbour of 10 s, nine tenths in common", partial(of_job, neighbour, common=0.9), 0.92),
        ("AR(1) 0.5, half in common", partial(of_job, autoregression(0.5)), 0.92),
        ("AR(1) 0.5, nine tenths in common", partial(of_job, autoregression(0.5), common=0.9), 0.92),
        # What six samples cannot show, whatever the number of modes: the estimates have a caveat.
        ("AR(1) 0.9, half in common", partial(of_job, autoregression(0.9)), 0.87),
        ("AR(1) 0.9, nine tenths in common", partial(of_job, autoregression(0.9), common=0.9), 0.8),
    ],
)
def test_the_modes_of_a_job_whose_samples_are_correlated_are_covered_as_stated(
    row: str, noise_of: Callable[[int], Noise], least_of_six: float, column: int
) -> None:
    modes, n = OF_JOBS[column]
    covered = coverage(found(noise_of(modes), n, modes))
    assert covered >= (least_of_six if n == 6 else 0.92)
    assert covered == pytest.approx(stated(row)[column], abs=TOLERANCE)


@pytest.mark.parametrize("modes", [1, *MODES])
def test_modes_of_a_job_make_the_interval_narrower_as_stated(modes: int) -> None:
    for n, typical in zip(SAMPLES[1:], stated("one mode" if modes == 1 else f"{modes} modes"), strict=True):
        log_ratios = of_job(normal, modes)(np.random.default_rng([3, n]), SERIES // 4 // modes * modes, n)
        widths = [spreads(log_ratios, cells).half_widths(0.95) for cells in (modes, 0)]
        assert float(np.median(widths[0] / widths[1])) == pytest.approx(typical, abs=0.04)


@pytest.mark.parametrize(("column", "n"), list(enumerate(SAMPLES)))
def test_the_docs_state_what_a_job_of_two_kinds_of_cells_does(column: int, n: int) -> None:
    covers = found(two_kinds, n, 4).covers(0.0, 0.95)
    assert covers[1::2].mean() == pytest.approx(
        stated("4 modes of a job, this one 0.6, half of them 0")[column], abs=0.004
    )


def test_without_the_correlation_the_interval_is_as_wrong_as_the_docs_say() -> None:
    for row, noise in (
        ("independent t, neighbour of 10 s", neighbour),
        ("independent t, AR(1) 0.5", autoregression(0.5)),
        ("independent t, AR(1) 0.9", autoregression(0.9)),
    ):
        assert [coverage(found(noise, n, 0)) for n in SAMPLES] == pytest.approx(stated(row), abs=TOLERANCE)


def test_most_series_without_a_stable_mean_have_no_interval() -> None:
    walks: Floats = np.cumsum(np.random.default_rng(4).normal(0, 0.05, (SERIES // 4, 60)), axis=1)
    assert spreads(walks, 1).given.mean() < 0.6
    assert spreads(walks, 5).given.mean() < 0.2


# --- interim looks ---


def missed_and_false(plan: Sequential, modes: int, rho: float) -> tuple[float, float]:
    """How often any look's interval misses, and how often a cell at its budget is called exceeding."""
    noise = autoregression(rho) if modes == 1 else of_job(autoregression(rho), modes)
    log_ratios = noise(np.random.default_rng(8), 2400, plan.most)
    missed, false, going = (np.full(len(log_ratios), value) for value in (False, False, True))
    for look in fixed(plan):
        result = spreads(log_ratios[:, : look.rounds], modes)
        given = result.given
        missed |= given & ~result.covers(0.0, look.confidence)
        exceeds = given & (result.tails(-result.mean) * look.alpha_of_all / look.alpha <= look.error_rate)
        within = given & (result.tails(result.mean) <= (1 - look.confidence) / 2)
        false |= going & exceeds
        going &= ~(exceeds | within)
    return float(missed.mean()), float(false.mean())


@pytest.mark.parametrize(
    ("row", "plan", "modes", "rho"),
    [
        ("one mode, AR(1) 0.5, 6 to 30 blocks", Sequential(6, 30), 1, 0.5),
        ("one mode, AR(1) 0.9, 12 to 30 blocks", Sequential(12, 30), 1, 0.9),
        ("3 modes, independent, 6 to 30 blocks", Sequential(6, 30), 3, 0.0),
        ("3 modes, AR(1) 0.5, 6 to 30 blocks", Sequential(6, 30), 3, 0.5),
        ("3 modes, AR(1) 0.9, 12 to 30 blocks", Sequential(12, 30), 3, 0.9),
        ("5 modes, AR(1) 0.5, 6 to 30 blocks", Sequential(6, 30), 5, 0.5),
        ("5 modes, AR(1) 0.9, 12 to 30 blocks", Sequential(12, 30), 5, 0.9),
    ],
)
def test_the_intervals_of_all_looks_hold_together_although_samples_are_correlated(
    row: str, plan: Sequential, modes: int, rho: float
) -> None:
    missed, false = missed_and_false(plan, modes, rho)
    assert missed <= 0.05
    assert false <= 0.025
    assert (missed, false) == pytest.approx(stated(row), abs=TOLERANCE)


@pytest.mark.parametrize(("modes", "missed"), [(1, 0.09), (3, 0.07), (5, 0.06)])
def test_looks_at_fewer_than_six_blocks_are_as_wrong_as_the_docs_say(modes: int, missed: float) -> None:
    assert missed_and_false(Sequential(3, 27), modes, 0.5)[0] == pytest.approx(missed, abs=0.005)


# --- boots ---


@pytest.mark.parametrize(("column", "boots"), list(enumerate((2, 3, 5))))
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_means_of_boots_are_covered_as_often_as_stated(share: float, column: int, boots: int) -> None:
    chance = np.random.default_rng(boots)
    each = chance.normal(0, math.sqrt(share), (SERIES * 4, boots, 1))
    blocks = each + chance.normal(0, math.sqrt(1 - share), (SERIES * 4, boots, 10))
    means = spreads(blocks.mean(axis=2)).covers(0.0, 0.95).mean()
    assert means == pytest.approx(0.95, abs=0.005)
    if share:
        one_sample = spreads(blocks.reshape(len(blocks), -1)).covers(0.0, 0.95).mean()
        assert one_sample == pytest.approx(
            stated("every block a sample, boots are half of the variance")[column], abs=0.005
        )
        assert means == pytest.approx(stated("boots' means, boots are half of the variance")[column], abs=0.005)
