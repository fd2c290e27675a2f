"""Estimates, intervals and verdicts from the values of blocks: pure functions, no I/O. See docs/statistics.md."""

from harness.analysis.adjusted import HALF_BIN, adjust_values, pool_means, pool_percentiles
from harness.analysis.estimate import (
    CONFIDENCE,
    MARGIN,
    PRACTICAL,
    Change,
    Estimate,
    Relation,
    benjamini_hochberg,
    differences,
    estimate_added,
    estimate_change,
    estimate_mean,
    estimate_overhead,
    estimate_paired_change,
    find_shown_changes,
    holm,
    log_ratios,
    make_estimate,
    mean_interval,
    proven_below,
    spread_added,
)
from harness.analysis.histogram import (
    LatencyHistogram,
    PercentileInterval,
    merged,
    percentile,
    percentile_interval,
    reduce_bins,
    upper_end,
)
from harness.analysis.metrics import METRICS, Better, Calls, Metric, Unit
from harness.analysis.samples import IN_ORDER, Samples, Spread, t_cdf, t_quantile
from harness.analysis.slices import CarryOver, Observation, estimate_drift, find_carry_over, fit_slope, has_drifted
from harness.analysis.stopping import MOST_SAMPLES, Reason, count_samples_to_show, decided, power_to_decide
from harness.analysis.verdict import (
    Both,
    Judgement,
    Limit,
    Look,
    Sequential,
    Verdict,
    correct_verdicts,
    exceeds_p_value,
    judge,
    judge_look,
    looks,
)
