"""Verdicts against a budget, and which way each metric is better."""

from __future__ import annotations

import pytest

from harness.analysis import METRICS, Budget, Estimate, Verdict, judge


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
    assert judge(Estimate((low + high) / 2, low, high, 5), Budget(share=0.10)) == verdict


def test_one_round_or_none_is_inconclusive() -> None:
    assert judge(Estimate(0.01, None, None, 1), Budget(0.10)) is Verdict.INCONCLUSIVE
    assert judge(None, Budget(0.10)) is Verdict.INCONCLUSIVE


def test_without_a_budget_nothing_is_judged() -> None:
    assert judge(Estimate(0.9, 0.8, 1.0, 5), Budget()) is Verdict.UNJUDGED
    assert judge(None, Budget()) is Verdict.UNJUDGED


def test_a_budget_of_nothing_is_a_budget() -> None:
    assert judge(Estimate(0.2, 0.1, 0.3, 5), Budget(0.0)) is Verdict.EXCEEDS


def test_rates_are_better_higher_and_latencies_lower() -> None:
    assert [name for name, metric in METRICS.items() if metric.higher_is_better] == ["iops", "bw"]
    assert [name for name, metric in METRICS.items() if metric.is_latency] == [
        "lat_mean",
        "clat_mean",
        "clat_p50",
        "clat_p99",
        "clat_p999",
    ]
