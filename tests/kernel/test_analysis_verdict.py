"""Verdicts against a budget, and whether higher or lower is better for each metric."""

from __future__ import annotations

import math

import pytest

from harness.analysis import METRICS, Estimate, Limit, Verdict, estimate_overhead, judge

US = 1e-6
BELOW = Estimate(0.05, 0.02, 0.08, 5)
ACROSS = Estimate(0.10, 0.05, 0.15, 5)
ABOVE = Estimate(0.15, 0.12, 0.18, 5)


def added(estimate: Estimate) -> Estimate:
    """The same picture against 100 us as `estimate` gives against 10 %."""
    assert estimate.low is not None
    assert estimate.high is not None
    return Estimate(estimate.point * 1e-3, estimate.low * 1e-3, estimate.high * 1e-3, estimate.n)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.02, 0.09, "within"),
        (0.02, 0.10, "within"),
        (-0.05, -0.01, "within"),
        (0.11, 0.20, "exceeds"),
        (0.10, 0.20, "inconclusive"),
        (0.09, 0.11, "inconclusive"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(low: float, high: float, verdict: str) -> None:
    assert judge(Estimate((low + high) / 2, low, high, 5), Limit(share=0.10)) == verdict


def test_one_round_or_none_is_inconclusive() -> None:
    assert judge(Estimate(0.01, None, None, 1), Limit(0.10)) is Verdict.INCONCLUSIVE
    assert judge(None, Limit(0.10)) is Verdict.INCONCLUSIVE
    assert judge(None, Limit(absolute=50 * US)) is Verdict.INCONCLUSIVE


def test_without_a_budget_nothing_is_judged() -> None:
    assert judge(Estimate(0.9, 0.8, 1.0, 5), Limit()) is Verdict.UNJUDGED
    assert judge(None, Limit()) is Verdict.UNJUDGED


def test_a_budget_of_nothing_is_a_budget() -> None:
    assert judge(Estimate(0.2, 0.1, 0.3, 5), Limit(0.0)) is Verdict.EXCEEDS
    assert judge(None, Limit(), Estimate(1e-3, 1e-4, 2e-3, 5)) is Verdict.UNJUDGED
    assert judge(None, Limit(absolute=0.0), Estimate(1e-3, 1e-4, 2e-3, 5)) is Verdict.EXCEEDS


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_a_guest_exactly_at_its_budget_keeps_it_whatever_the_rounding(higher_is_better: bool) -> None:
    host = [1000.0, 3000.0, 700.0]
    guest = [value * (0.9 if higher_is_better else 1.1) for value in host]
    assert judge(estimate_overhead(host, guest, higher_is_better=higher_is_better), Limit(0.1)) is Verdict.WITHIN


@pytest.mark.parametrize(("estimate", "verdict"), [(BELOW, "within"), (ACROSS, "inconclusive"), (ABOVE, "exceeds")])
def test_an_absolute_budget_is_held_against_what_is_added(estimate: Estimate, verdict: str) -> None:
    assert judge(Estimate(9.0, 8.0, 10.0, 5), Limit(absolute=100 * US), added(estimate)) == verdict


@pytest.mark.parametrize(
    ("share", "absolute", "looser", "stricter"),
    [
        (BELOW, BELOW, "within", "within"),
        (BELOW, ACROSS, "within", "inconclusive"),
        (BELOW, ABOVE, "within", "exceeds"),
        (ACROSS, BELOW, "within", "inconclusive"),
        (ACROSS, ACROSS, "inconclusive", "inconclusive"),
        (ACROSS, ABOVE, "inconclusive", "exceeds"),
        (ABOVE, BELOW, "within", "exceeds"),
        (ABOVE, ACROSS, "inconclusive", "exceeds"),
        (ABOVE, ABOVE, "exceeds", "exceeds"),
    ],
)
def test_of_two_limits_the_looser_or_the_stricter_holds(
    share: Estimate, absolute: Estimate, looser: str, stricter: str
) -> None:
    assert judge(share, Limit(0.1, 100 * US, "looser"), added(absolute)) == looser
    assert judge(share, Limit(0.1, 100 * US, "stricter"), added(absolute)) == stricter


def test_a_limit_that_could_not_be_measured_leaves_the_other_to_decide() -> None:
    assert judge(BELOW, Limit(0.1, 100 * US, "looser")) is Verdict.WITHIN
    assert judge(BELOW, Limit(0.1, 100 * US, "stricter")) is Verdict.INCONCLUSIVE
    assert judge(ABOVE, Limit(0.1, 100 * US, "stricter")) is Verdict.EXCEEDS


def test_two_chances_to_exceed_need_wider_intervals() -> None:
    assert Limit(0.1, 100 * US, "stricter").interval_confidence(0.95) == pytest.approx(0.975)
    assert Limit(0.1, 100 * US, "looser").interval_confidence(0.95) == 0.95
    assert Limit(0.1).interval_confidence(0.95) == 0.95


def test_two_limits_that_do_not_say_which_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="looser or stricter"):
        Limit(share=0.1, absolute=50 * US)
    with pytest.raises(ValueError, match="needs both"):
        Limit(share=0.1, both="looser")


def test_a_word_that_is_neither_looser_nor_stricter_is_refused() -> None:
    with pytest.raises(ValueError, match='not "either"'):
        Limit(share=0.1, absolute=50 * US, both="either")  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [math.nan, math.inf, -math.inf])
def test_a_limit_that_is_not_finite_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Limit(share=limit)
    with pytest.raises(ValueError, match="finite"):
        Limit(absolute=limit)


def test_a_share_below_minus_everything_is_refused() -> None:
    with pytest.raises(ValueError, match="above -1"):
        Limit(share=-1.0)


def test_rates_are_better_higher_and_latencies_lower() -> None:
    assert [name for name, metric in METRICS.items() if metric.higher_is_better] == ["iops", "bw"]
    assert [name for name, metric in METRICS.items() if metric.is_latency] == [
        "lat_mean",
        "clat_mean",
        "clat_p50",
        "clat_p99",
        "clat_p999",
        "sync_mean",
        "sync_p99",
    ]
