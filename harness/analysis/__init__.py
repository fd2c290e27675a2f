"""Estimates, intervals and verdicts from the values of blocks: pure functions, no I/O. See docs/statistics.md."""

from harness.analysis.batches import Ios, batches, fewest_rounds, first_blocks
from harness.analysis.boots import BootVariance, boot_variance
from harness.analysis.carryover import CarryOver, Observation, carry_over
from harness.analysis.change import (
    MARGIN,
    PRACTICAL,
    Change,
    Relation,
    changes_shown,
    equal_shown,
    estimate_change,
    paired_change,
)
from harness.analysis.correlation import NO_CORRELATION, Correlation, pooled_correlation
from harness.analysis.distribution import LatencyHistogram, few_bins, quantiles, upper_end, wider_bins
from harness.analysis.drift import drifted, estimate_drift
from harness.analysis.estimate import (
    Estimate,
    differences,
    estimate_added,
    estimate_mean,
    estimate_overhead,
    log_ratios,
    mean_interval,
    proven_below,
)
from harness.analysis.exceedance import exceeds_p_value
from harness.analysis.fairness import fairness, jain_index
from harness.analysis.futility import power_to_decide
from harness.analysis.histogram import PercentileInterval, merged, percentile, percentile_interval
from harness.analysis.io_path import (
    Io,
    Part,
    Passed,
    PathTimes,
    Point,
    follow,
    parts_in_guest,
    parts_on_host,
    path_times,
)
from harness.analysis.judgement import Judgement, judge_look
from harness.analysis.many import benjamini_hochberg, holm, survivors
from harness.analysis.metrics import METRICS, Better, Calls, Metric, Unit
from harness.analysis.power import MOST_SAMPLES, pooled_sd, samples_to_show, smallest_detectable
from harness.analysis.samples import IN_ORDER, INDEPENDENT, Caveat, Samples
from harness.analysis.scaling import Shape
from harness.analysis.sequential import Look, Sequential, looks
from harness.analysis.slices import SliceVariance, best_slice, error_in_time, variance_components
from harness.analysis.steady import SteadyState, steady_state
from harness.analysis.stopping import Reason, decided
from harness.analysis.student import t_cdf, t_quantile, t_survival
from harness.analysis.verdict import Both, Limit, Verdict, judge

__all__ = [
    "INDEPENDENT",
    "IN_ORDER",
    "MARGIN",
    "METRICS",
    "MOST_SAMPLES",
    "NO_CORRELATION",
    "PRACTICAL",
    "Better",
    "BootVariance",
    "Both",
    "Calls",
    "CarryOver",
    "Caveat",
    "Change",
    "Correlation",
    "Estimate",
    "Io",
    "Ios",
    "Judgement",
    "LatencyHistogram",
    "Limit",
    "Look",
    "Metric",
    "Observation",
    "Part",
    "Passed",
    "PathTimes",
    "PercentileInterval",
    "Point",
    "Reason",
    "Relation",
    "Samples",
    "Sequential",
    "Shape",
    "SliceVariance",
    "SteadyState",
    "Unit",
    "Verdict",
    "batches",
    "benjamini_hochberg",
    "best_slice",
    "boot_variance",
    "carry_over",
    "changes_shown",
    "decided",
    "differences",
    "drifted",
    "equal_shown",
    "error_in_time",
    "estimate_added",
    "estimate_change",
    "estimate_drift",
    "estimate_mean",
    "estimate_overhead",
    "exceeds_p_value",
    "fairness",
    "few_bins",
    "fewest_rounds",
    "first_blocks",
    "follow",
    "holm",
    "jain_index",
    "judge",
    "judge_look",
    "log_ratios",
    "looks",
    "mean_interval",
    "merged",
    "paired_change",
    "parts_in_guest",
    "parts_on_host",
    "path_times",
    "percentile",
    "percentile_interval",
    "pooled_correlation",
    "pooled_sd",
    "power_to_decide",
    "proven_below",
    "quantiles",
    "samples_to_show",
    "smallest_detectable",
    "steady_state",
    "survivors",
    "t_cdf",
    "t_quantile",
    "t_survival",
    "upper_end",
    "variance_components",
    "wider_bins",
]
