"""Estimates, intervals and verdicts from the values of blocks: pure functions, no I/O. See docs/statistics.md."""

from harness.analysis.estimate import (
    MARGIN,
    PRACTICAL,
    Change,
    Estimate,
    Relation,
    benjamini_hochberg,
    changes_shown,
    differences,
    drifted,
    equal_shown,
    estimate_added,
    estimate_change,
    estimate_drift,
    estimate_mean,
    estimate_overhead,
    holm,
    log_ratios,
    mean_interval,
    paired_change,
    proven_below,
)
from harness.analysis.histogram import (
    LatencyHistogram,
    PercentileInterval,
    few_bins,
    merged,
    percentile,
    percentile_interval,
    quantiles,
    upper_end,
    wider_bins,
)
from harness.analysis.metrics import METRICS, Better, Calls, Metric, Unit
from harness.analysis.samples import (
    IN_ORDER,
    INDEPENDENT,
    NO_CORRELATION,
    Caveat,
    Correlation,
    Ios,
    Samples,
    batches,
    fewest_rounds,
    first_blocks,
    pooled_correlation,
)
from harness.analysis.slices import (
    BootVariance,
    CarryOver,
    Observation,
    SliceVariance,
    best_slice,
    boot_variance,
    carry_over,
    error_in_time,
    variance_components,
)
from harness.analysis.stopping import (
    MOST_SAMPLES,
    Reason,
    decided,
    pooled_sd,
    power_to_decide,
    samples_to_show,
    smallest_detectable,
)
from harness.analysis.student import t_cdf, t_quantile, t_survival
from harness.analysis.verdict import (
    Both,
    Judgement,
    Limit,
    Look,
    Sequential,
    Verdict,
    exceeds_p_value,
    judge,
    judge_look,
    looks,
    survivors,
)
