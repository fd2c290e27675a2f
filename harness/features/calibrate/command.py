"""`virt-overhead calibrate`: measures a disk of a host, computes what its trials show, and writes the calibration."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from harness.analysis import METRICS, Estimate, estimate_added, estimate_overhead, log_ratios
from harness.config.names import RunId, choices
from harness.errors import ConfigError, ResultsError
from harness.events import Events
from harness.features.calibrate.calibration import (
    BootNoise,
    Calibration,
    Conditions,
    Delay,
    Interval,
    SliceNoise,
    choose_common_slice,
    find_directory,
    find_path,
    identify,
    read_calibration,
    write_calibration,
)
from harness.features.calibrate.measuring import (
    DELAY_NS,
    CalibrationSpec,
    Measured,
    TrialMeasurer,
    measure_trials,
    plan_boots,
    plan_delays,
    plan_host_delay,
    plan_same_device,
    plan_slices,
)
from harness.features.calibrate.noise import (
    choose_slice,
    estimate_boot_variance,
    estimate_variance_components,
    pool_sd,
    smallest_detectable,
)
from harness.image import ImageSet
from harness.lab.inventory import HostSpec
from harness.measure.phases import Phases
from harness.results import RunStore
from harness.units import format_duration

BLOCKS_SHOWN = (3, 5, 8, 12, 20)
"""The numbers of blocks for which a calibration shows the smallest overhead."""
ERROR_RATE = 0.05
"""How often a 95 % interval does not include the true value."""
DELAY_METRIC = "lat_mean"


@dataclass(frozen=True, slots=True)
class DeviceNoise:
    """The noise of a device that is measured against itself. `Calibration` describes the fields."""

    false_alarms: int
    sd: float
    sd_by_job: Mapping[str, float]
    smallest_detectable: Mapping[int, float]


def measure_noise(measured: Sequence[Measured]) -> DeviceNoise:
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
    return DeviceNoise(
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


def count_most_by_chance(trials: int) -> int:
    """The largest number of failures in `trials` that chance explains if each trial fails at ERROR_RATE.

    This is the smallest k with P(more than k) <= 0.1 % under the binomial distribution.
    """
    from scipy.special import bdtrc  # noqa: PLC0415

    return next(k for k in range(trials + 1) if bdtrc(k, trials, ERROR_RATE) <= 1 - 0.999)


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


def choose_disk(spec: HostSpec, wanted: str | None) -> str:
    """The name of the disk to calibrate with: `wanted`, else the host's first disk.

    Raises ConfigError if there is no such disk, or if the lab's login cannot give a whole disk to a guest.
    """
    names = [disk.name for disk in spec.disks]
    if not names:
        raise ConfigError(f"host {spec.name} has no disk to calibrate with", hint="add a disk in the lab file")
    if wanted is not None and wanted not in names:
        raise ConfigError(f'host {spec.name}: no disk "{wanted}"; {choices(wanted, names)}')
    if why := spec.hypervisor.why_no_devices:
        raise ConfigError(
            f"host {spec.name}: a calibration gives the whole disk to the guest: {why}",
            hint=f"log in as root@pam without a token: host.{spec.name}.api.user, .token and .secret",
        )
    if not spec.hypervisor.boots_guests:
        raise ConfigError(
            f"host {spec.name}: a calibration boots guests, but the lab file borrows a VM that already runs",
            hint=f"calibrate without host.{spec.name}.guest.borrow",
        )
    return wanted or names[0]


def calibrate(
    host: HostSpec, disk: str, spec: CalibrationSpec, *, seed: int, images: ImageSet, events: Events
) -> tuple[Calibration, Path]:
    """Measure one disk of one host and write the host's calibration file. Returns the calibration and the file's path.

    Raises what measuring raises. After an error or an interrupt, the file is unchanged.
    """
    run_id = RunId.new()
    store = RunStore.create(_open_runs(), run_id)
    measurer = TrialMeasurer(host, run_id, store, disk, seed=seed, images=images, phases=Phases(events))
    try:
        # The delay comes first. If it cannot be measured, the user sees this in the first minutes.
        late = plan_delays(spec) if measurer.can_delay() else []
        on_host = [plan_host_delay(spec)] if late else []
        same, series, boots = plan_same_device(spec, disk), plan_slices(spec, disk), plan_boots(spec, disk)
        kinds = (on_host, late, same, series, boots)
        measured = iter(measure_trials([trial for kind in kinds for trial in kind], measurer, events, seed=seed))
        of_host, of_late, of_same, of_series, of_boots = (list(islice(measured, len(kind))) for kind in kinds)
        same_noise = measure_noise(of_same)
        slices = tuple(map(measure_slice_noise, of_series))
        calibration = Calibration(
            written=time.strftime("%Y-%m-%d"),
            host=host.name,
            disk=disk,
            run=run_id,
            seed=seed,
            groups=spec.groups,
            rounds=spec.rounds,
            false_alarms=same_noise.false_alarms,
            noise_sd=same_noise.sd,
            noise_sd_by_job=same_noise.sd_by_job,
            smallest_detectable=same_noise.smallest_detectable,
            delay=measure_delay(of_late, of_host[0], DELAY_NS / 1e9) if late else None,
            conditions=Conditions.of(measurer.host, images),
            disk_identity=host.disk(disk).identity,
            slices=slices,
            slice_s=choose_common_slice(slices).seconds,
            boots=measure_boot_noise(of_boots),
            lab_kind=measurer.host.lab_kind,
        )
        path = find_path(identify(measurer.host))
    except KeyboardInterrupt:
        shutil.rmtree(store.path, ignore_errors=True)
        raise
    finally:
        measurer.close()
    _replace(path, calibration)
    return calibration, path


def summarise(calibration: Calibration) -> list[str]:
    """The calibration as lines of text."""
    groups, alarms = calibration.groups, calibration.false_alarms
    most = count_most_by_chance(groups)
    shares = ", ".join(f"{n} blocks: {share:.2%}" for n, share in calibration.smallest_detectable.items())
    expected = f"{ERROR_RATE:.0%} nominal, up to {most} by chance"
    lines = [
        f"host {calibration.host}, disk {calibration.disk}, {groups} groups of {calibration.rounds} blocks",
        f"  false alarms of a device against itself: {alarms} of {groups} ({expected})",
        f"  noise between blocks: {calibration.noise_sd:.2%}",
        f"  smallest overhead that can be shown: {shares}",
    ]
    lines += _describe_slices(calibration.slices)
    boots = calibration.boots
    low, share, high = boots.share
    lines += [
        f"  noise of {boots.job} between boots: {boots.sd:.2%}, between blocks of a boot: {boots.sd_of_blocks:.2%}",
        f"  share of the variance due to boots: {share:.0%} ({low:.0%} to {high:.0%}, from {boots.boots} boots)",
    ]
    if (delay := calibration.delay) is None:
        return [*lines, "  a delay of known size: not measured"]
    return [
        *lines,
        f"  a delay of {format_duration(delay.set_s)} in the guest: {_format_interval(delay.found_s)}",
        f"  the same on the host: {_format_interval(delay.host_found_s)}",
        f"  detected in {delay.detected} of {delay.of} repetitions, recovered in {delay.recovered}",
    ]


def _describe_slices(series: Sequence[SliceNoise]) -> list[str]:
    """The best length of a slice: of each series, and of all together."""
    if not series:
        return []
    best = choose_common_slice(series)
    lengths = ", ".join(
        f"{noise.place} {noise.job}: {format_duration(noise.best_s)} (gap {format_duration(noise.gap_s)})"
        for noise in series
    )
    gains = f"in the same time, intervals are {best.gain:.0%} narrower than with slices of 1 s"
    return [
        f"  best length of a slice: {format_duration(best.seconds)}; {gains}",
        f"  best length by arm and job: {lengths}",
    ]


def _format_interval(interval: Interval) -> str:
    low, point, high = (format_duration(seconds) for seconds in interval)
    return f"{point} ({low} to {high})"


def _replace(path: Path, calibration: Calibration) -> None:
    """Write the file, and remove the raw outputs of the calibration that it replaces."""
    earlier = None
    with suppress(ResultsError):
        earlier = read_calibration(path)
    write_calibration(path, calibration)
    if earlier is not None:
        shutil.rmtree(_open_runs() / Path(earlier.run).name, ignore_errors=True)


def _open_runs() -> Path:
    """The directory for fio's raw outputs of calibrations."""
    return find_directory() / "runs"
