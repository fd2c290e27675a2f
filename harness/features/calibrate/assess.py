"""Computes what a calibration finds from the values of its trials: noise, the delay, slices and boots. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis import (
    METRICS,
    Estimate,
    SliceVariance,
    choose_slice,
    error_in_time,
    estimate_added,
    estimate_boot_variance,
    estimate_overhead,
    estimate_variance_components,
    log_ratios,
    pool_sd,
    smallest_detectable,
)
from harness.features.calibrate.calibration import BootNoise, Delay, Interval, SliceNoise
from harness.features.calibrate.measuring import Measured

BLOCKS_SHOWN = (3, 5, 8, 12, 20)
"""The numbers of blocks for which a calibration shows the smallest overhead."""
ERROR_RATE = 0.05
"""How often a 95 % interval does not include the true value."""
DELAY_METRIC = "lat_mean"


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of a device that is measured against itself. `Calibration` describes the fields."""

    false_alarms: int
    sd: float
    sd_by_job: Mapping[str, float]
    smallest_detectable: Mapping[int, float]


def measure_noise(measured: Sequence[Measured]) -> Noise:
    """False alarms and noise of trials whose turns are `a` and `b`, by the headline metric of their jobs.

    A false alarm is a group whose 95 % interval excludes 0. Raises ValueError if there are fewer than two blocks.
    """
    alarms = 0
    ratios: dict[str, list[list[float]]] = {}
    for group in measured:
        job = group.trial.job
        a, b = (group.values(turn, job.headline) for turn in ("a", "b"))
        alarms += not _includes(estimate_overhead(a, b, higher_is_better=METRICS[job.headline].higher_is_better), 0.0)
        ratios.setdefault(job.id, []).append(log_ratios(a, b))
    sd = pool_sd([group for groups in ratios.values() for group in groups])
    return Noise(
        false_alarms=alarms,
        sd=sd,
        sd_by_job={job: pool_sd(groups) for job, groups in ratios.items()},
        smallest_detectable={n: smallest_detectable(sd, n) for n in BLOCKS_SHOWN},
    )


def measure_delay(guest: Sequence[Measured], host: Measured, set_s: float) -> Delay:
    """The measured value of a delay of `set_s` seconds, from the trials of the guest and from the trial of the host."""
    of_each = [_estimate_added([trial]) for trial in guest]
    return Delay(
        set_s=set_s,
        found_s=_require_interval(_estimate_added(guest)),
        host_found_s=_require_interval(_estimate_added([host])),
        detected=sum(not _includes(added, 0.0) for added in of_each),
        recovered=sum(_includes(added, set_s) for added in of_each),
        of=len(guest),
        rounds=host.trial.rounds,
        job=host.trial.job.id,
    )


def measure_slice_noise(measured: Measured) -> SliceNoise:
    """The noise of a series of short slices, and the length of a slice that follows from it.

    Raises ValueError for fewer than 16 slices.
    """
    job = measured.trial.job
    (turn,) = measured.trial.turns
    values = [math.log(value) for value in measured.values(turn.name, job.headline)]
    variance = estimate_variance_components(values, job.seconds)
    return SliceNoise(
        place=turn.name,
        job=job.id,
        seconds=job.seconds,
        slices=len(values),
        gap_s=measured.gap,
        within=variance.within,
        between=variance.between,
        best_s=choose_slice(measured.gap, variance.within, variance.between),
    )


@dataclass(frozen=True, slots=True)
class CommonSlice:
    """The best length of a slice for several arms and jobs together, and the time that a slice costs besides.

    `gain` is the share by which an interval of the same measuring time is narrower than with slices of another length.
    Times in seconds.
    """

    seconds: float
    gap: float
    gain: float

    def blocks(self, blocks: int, seconds: float) -> int:
        """How many blocks of such slices take about as long as `blocks` with slices of `seconds`; at least 1."""
        return max(round(blocks * (seconds + self.gap) / (self.seconds + self.gap)), 1)


def choose_common_slice(series: Sequence[SliceNoise], *, against: float = 1.0) -> CommonSlice:
    """The length that makes the sum of the variances of all `series` smallest, rounded to two digits.

    All slices of a run have the same length. The gain is against slices of `against` seconds. Raises ValueError without
    a series.
    """
    if not series:
        raise ValueError("the length of a slice needs at least one series")
    variance = SliceVariance(math.fsum(noise.within for noise in series), math.fsum(noise.between for noise in series))
    gap = math.fsum(noise.gap_s for noise in series) / len(series)
    best = float(f"{choose_slice(gap, variance.within, variance.between):.2g}")
    before = error_in_time(gap, variance, against)
    return CommonSlice(best, gap, 1 - error_in_time(gap, variance, best) / before if before > 0 else 0.0)


def measure_boot_noise(measured: Sequence[Measured]) -> BootNoise:
    """How much the boots of the guest differ, from one trial for each boot. Raises ValueError for fewer than two."""
    job = measured[0].trial.job
    variance = estimate_boot_variance(
        log_ratios(*(trial.values(turn.name, job.headline) for turn in trial.trial.turns)) for trial in measured
    )
    return BootNoise(
        job=job.id,
        boots=variance.boots,
        blocks=measured[0].trial.rounds,
        sd=math.sqrt(variance.between),
        sd_of_blocks=math.sqrt(variance.within),
        share=(variance.low, variance.share, variance.high),
    )


def count_most_by_chance(trials: int, *, rate: float = ERROR_RATE, confidence: float = 0.999) -> int:
    """The largest number of failures in `trials` that chance explains if each trial fails at this `rate`.

    This is the smallest k with P(more than k) <= 1 - `confidence` under the binomial distribution.
    """
    beyond = 1.0
    for k in range(trials + 1):
        beyond -= math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k)
        if beyond <= 1 - confidence:
            return k
    return trials


def list_doubts(false_alarms: int, groups: int, delay: Delay | None) -> list[str]:
    """Reasons not to trust the figures of this lab, one sentence each. Empty if there are none."""
    reasons = []
    if false_alarms > (most := count_most_by_chance(groups)):
        reasons.append(f"{false_alarms} false alarms in {groups} groups, but chance explains at most {most}")
    if delay is not None:
        least = delay.of - count_most_by_chance(delay.of)
        if delay.detected < least:
            reasons.append(
                f"the delay was detected in {delay.detected} of {delay.of} repetitions, but {least} are necessary"
            )
        if delay.recovered < least:
            reasons.append(
                f"the delay was recovered in {delay.recovered} of {delay.of} repetitions, but {least} are necessary"
            )
    return reasons


def _estimate_added(measured: Sequence[Measured]) -> Estimate:
    """The latency that the delayed disk adds, in seconds, over the blocks of all these trials."""
    plain, late = (
        [value for trial in measured for value in trial.values(turn, DELAY_METRIC)] for turn in ("plain", "late")
    )
    return estimate_added(plain, late)


def _includes(estimate: Estimate, value: float) -> bool:
    low, _, high = _require_interval(estimate)
    return low <= value <= high


def _require_interval(estimate: Estimate) -> Interval:
    if estimate.low is None or estimate.high is None:
        raise ValueError("a calibration needs at least two blocks")
    return estimate.low, estimate.point, estimate.high
