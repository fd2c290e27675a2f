"""Computes what a calibration finds from the values of its trials: noise, the delay, slices and boots. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis import (
    METRICS,
    Estimate,
    SliceVariance,
    best_slice,
    boot_variance,
    error_in_time,
    estimate_added,
    estimate_overhead,
    log_ratios,
    pooled_sd,
    smallest_detectable,
    variance_components,
)
from harness.calibrate.trials import Trial
from harness.measure.calibration import BootNoise, Delay, Interval, SliceNoise

BLOCKS_SHOWN = (3, 5, 8, 12, 20)
"""The numbers of blocks for which a calibration shows the smallest overhead."""
ERROR_RATE = 0.05
"""How often a 95 % interval does not include the true value."""
DELAY_METRIC = "lat_mean"


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished trial. `rounds` has the values of each block, by the turn's name and then by metric.

    `gap` is the time in seconds that each slice took besides its planned duration.
    """

    trial: Trial
    rounds: tuple[Mapping[str, Mapping[str, float]], ...]
    gap: float

    def values(self, turn: str, metric: str) -> list[float]:
        """One turn's values of a metric, in the order of blocks and in the metric's unit."""
        return [each[turn][metric] for each in self.rounds]


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of a device that is measured against itself. `Calibration` describes the fields."""

    false_alarms: int
    sd: float
    sd_by_job: Mapping[str, float]
    smallest_detectable: Mapping[int, float]


def noise(measured: Sequence[Measured]) -> Noise:
    """False alarms and noise of trials whose turns are `a` and `b`, by the headline metric of their jobs.

    A false alarm is a group whose 95 % interval excludes 0. Raises ValueError if there are fewer than two blocks.
    """
    alarms = 0
    ratios: dict[str, list[list[float]]] = {}
    for each in measured:
        job = each.trial.job
        a, b = (each.values(turn, job.headline) for turn in ("a", "b"))
        alarms += not _includes(estimate_overhead(a, b, higher_is_better=METRICS[job.headline].higher_is_better), 0.0)
        ratios.setdefault(job.id, []).append(log_ratios(a, b))
    sd = pooled_sd([group for groups in ratios.values() for group in groups])
    return Noise(
        false_alarms=alarms,
        sd=sd,
        sd_by_job={job: pooled_sd(groups) for job, groups in ratios.items()},
        smallest_detectable={n: smallest_detectable(sd, n) for n in BLOCKS_SHOWN},
    )


def delay(guest: Sequence[Measured], host: Measured, set_s: float) -> Delay:
    """The measured value of a delay of `set_s` seconds, from the trials of the guest and from the trial of the host."""
    of_each = [_added([measured]) for measured in guest]
    return Delay(
        set_s=set_s,
        found_s=_interval(_added(guest)),
        host_found_s=_interval(_added([host])),
        detected=sum(not _includes(estimate, 0.0) for estimate in of_each),
        recovered=sum(_includes(each, set_s) for each in of_each),
        of=len(guest),
        rounds=host.trial.rounds,
        job=host.trial.job.id,
    )


def slice_noise(measured: Measured) -> SliceNoise:
    """The noise of a series of short slices, and the length of a slice that follows from it.

    Raises ValueError for fewer than 16 slices.
    """
    job = measured.trial.job
    (turn,) = measured.trial.turns
    values = [math.log(value) for value in measured.values(turn.name, job.headline)]
    slice_variance = variance_components(values, job.seconds)
    return SliceNoise(
        place=turn.name,
        job=job.id,
        seconds=job.seconds,
        slices=len(values),
        gap_s=measured.gap,
        within=slice_variance.within,
        between=slice_variance.between,
        best_s=best_slice(measured.gap, slice_variance.within, slice_variance.between),
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


def common_slice(series: Sequence[SliceNoise], *, against: float = 1.0) -> CommonSlice:
    """The length that makes the sum of the variances of all `series` smallest, rounded to two digits.

    All slices of a run have the same length. The gain is against slices of `against` seconds. Raises ValueError without
    a series.
    """
    if not series:
        raise ValueError("the length of a slice needs at least one series")
    variance = SliceVariance(math.fsum(each.within for each in series), math.fsum(each.between for each in series))
    gap = math.fsum(each.gap_s for each in series) / len(series)
    best = float(f"{best_slice(gap, variance.within, variance.between):.2g}")
    before = error_in_time(gap, variance, against)
    return CommonSlice(best, gap, 1 - error_in_time(gap, variance, best) / before if before > 0 else 0.0)


def boot_noise(measured: Sequence[Measured]) -> BootNoise:
    """How much the boots of the guest differ, from one trial for each boot. Raises ValueError for fewer than two."""
    job = measured[0].trial.job
    found = boot_variance(
        log_ratios(*(each.values(turn.name, job.headline) for turn in each.trial.turns)) for each in measured
    )
    return BootNoise(
        job=job.id,
        boots=found.boots,
        blocks=measured[0].trial.rounds,
        sd=math.sqrt(found.between),
        sd_of_blocks=math.sqrt(found.within),
        share=(found.low, found.share, found.high),
    )


def most_by_chance(trials: int, *, rate: float = ERROR_RATE, confidence: float = 0.999) -> int:
    """The largest number of failures in `trials` that chance explains if each trial fails at this `rate`.

    This is the smallest k with P(more than k) <= 1 - `confidence` under the binomial distribution.
    """
    beyond = 1.0
    for k in range(trials + 1):
        beyond -= math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k)
        if beyond <= 1 - confidence:
            return k
    return trials


def doubts(false_alarms: int, groups: int, delay: Delay | None) -> list[str]:
    """Reasons not to trust the figures of this lab, one sentence each. Empty if there are none."""
    found = []
    if false_alarms > (most := most_by_chance(groups)):
        found.append(f"{false_alarms} false alarms in {groups} groups, but chance explains at most {most}")
    if delay is not None:
        least = delay.of - most_by_chance(delay.of)
        if delay.detected < least:
            found.append(
                f"the delay was detected in {delay.detected} of {delay.of} repetitions, but {least} are necessary"
            )
        if delay.recovered < least:
            found.append(
                f"the delay was recovered in {delay.recovered} of {delay.of} repetitions, but {least} are necessary"
            )
    return found


def _added(measured: Sequence[Measured]) -> Estimate:
    """The latency that the delayed disk adds, in seconds, over the blocks of all these trials."""
    plain, late = (
        [value for each in measured for value in each.values(turn, DELAY_METRIC)] for turn in ("plain", "late")
    )
    return estimate_added(plain, late)


def _includes(estimate: Estimate, value: float) -> bool:
    low, _, high = _interval(estimate)
    return low <= value <= high


def _interval(estimate: Estimate) -> Interval:
    if estimate.low is None or estimate.high is None:
        raise ValueError("a calibration needs at least two blocks")
    return estimate.low, estimate.point, estimate.high
