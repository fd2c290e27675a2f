"""Estimates, intervals and verdicts from the values of rounds: pure functions, no I/O."""

from harness.analysis.estimate import Estimate, estimate_added, estimate_overhead, mean_interval
from harness.analysis.metrics import METRICS, Better, Metric, Unit
from harness.analysis.student import t_quantile
from harness.analysis.verdict import Budget, Verdict, judge

__all__ = [
    "METRICS",
    "Better",
    "Budget",
    "Estimate",
    "Metric",
    "Unit",
    "Verdict",
    "estimate_added",
    "estimate_overhead",
    "judge",
    "mean_interval",
    "t_quantile",
]
