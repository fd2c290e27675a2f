"""`virt-overhead calibrate`: measures one disk of each host against itself, and writes a calibration file."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from harness.config.names import choices
from harness.errors import ConfigError, ResultsError
from harness.events import Events
from harness.features.calibrate.assess import (
    ERROR_RATE,
    choose_common_slice,
    count_most_by_chance,
    measure_boot_noise,
    measure_delay,
    measure_noise,
    measure_slice_noise,
)
from harness.features.calibrate.calibration import (
    Calibration,
    Conditions,
    Interval,
    SliceNoise,
    directory,
    identify,
    path_of,
    read_calibration,
    write_calibration,
)
from harness.features.calibrate.measuring import (
    DELAY_NS,
    CalibrationSpec,
    TrialMeasurer,
    measure_trials,
    plan_boots,
    plan_delays,
    plan_host_delay,
    plan_same_device,
    plan_slices,
)
from harness.image import ImageSet
from harness.lab.inventory import ROOT, HostSpec
from harness.measure.phases import Phases
from harness.results import RunStore
from harness.run_id import RunId
from harness.units import format_duration


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
            hint=f"log in as {ROOT} without a token: host.{spec.name}.api.user, .token and .secret",
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
        path = path_of(identify(measurer.host))
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
    return directory() / "runs"
