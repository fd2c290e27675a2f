"""The calibration of a lab host: the contents of its file, its path, and the part that a run quotes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from platformdirs import user_state_path
from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from harness.errors import ResultsError
from harness.features.calibrate.noise import SliceVariance, choose_slice, smallest_detectable
from harness.files import read_regular, write_stored
from harness.lab.inventory import HostSpec
from harness.model.mode import LabKind
from harness.report.numbers import count, microseconds, microseconds_range

if TYPE_CHECKING:
    from harness.image import ImageSet
    from harness.lab.hosts import Host
    from harness.results import Run

REMEDY = "virt-overhead calibrate"

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

_Deviation = Annotated[float, Field(ge=0)]
"""A standard deviation."""

Interval = tuple[float, float, float]
"""Lower end, point, upper end."""


@dataclass(frozen=True, slots=True)
class Delay:
    """A known delay of a disk of the guest, and its measured value. Times in seconds.

    `found_s` is the value from all blocks together. `host_found_s` is the value that the host measured for the same two
    disks. Of `of` repetitions, `detected` had an interval above 0, and `recovered` had one that includes `set_s`.
    """

    __pydantic_config__ = _STRICT

    set_s: float
    found_s: Interval
    host_found_s: Interval
    detected: int
    recovered: int
    of: int
    rounds: int
    job: str


@dataclass(frozen=True, slots=True)
class SliceNoise:
    """The noise of a series of short slices of one job, on the host or in the guest (`place`).

    Each of `slices` had `seconds`, and `gap_s` more passed until the next one. The variance of the logarithm of a slice
    of S seconds is `between` + `within` / S. `best_s` is the length with the narrowest interval in a given time.
    """

    __pydantic_config__ = _STRICT

    place: str
    job: str
    seconds: float
    slices: int
    gap_s: float
    within: float
    between: float
    best_s: float


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
    before = _error_in_time(gap, variance, against)
    return CommonSlice(best, gap, 1 - _error_in_time(gap, variance, best) / before if before > 0 else 0.0)


def _error_in_time(gap: float, variance: SliceVariance, seconds: float) -> float:
    """The standard error of the mean log value after 1 s of measuring, in slices of this length with these gaps.

    With slices of another length, an interval is wider in proportion to it. `gap` and `seconds` are in seconds.
    """
    return math.sqrt((seconds + gap) * variance.of(seconds))


@dataclass(frozen=True, slots=True)
class BootNoise:
    """How much the boots of a guest differ, from `blocks` blocks of guest and host in each of `boots`.

    `sd` is the standard deviation of the boots' true mean log ratios; 0 if chance explains the differences.
    `sd_of_blocks` is that of the blocks within a boot. `share` is the boots' share of the variance, with its interval.
    """

    __pydantic_config__ = _STRICT

    job: str
    boots: int
    blocks: int
    sd: _Deviation
    sd_of_blocks: float
    share: Interval


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a calibration. Another kernel, QEMU, accelerator or image makes it stale. Images by digest."""

    __pydantic_config__ = _STRICT

    kernel: str
    qemu: str
    accel: str
    images: Mapping[str, str]

    @classmethod
    def of(cls, host: Host, images: ImageSet) -> Conditions:
        """The current conditions of the host. For the embedded lab, they include the images of the lab host."""
        made_of = [images.guest, *([images.emulator, images.lab] if host.spec.kind == "embedded" else [])]
        return cls(
            kernel=host.facts["kernel"],
            qemu=host.facts["qemu"],
            accel=host.acceleration.accel,
            images={image.name: image.digest for image in made_of},
        )

    def changes(self, now: Conditions) -> list[str]:
        """The differences from `now`, in words. Empty if there are none."""
        pairs = ((name, getattr(self, name), getattr(now, name)) for name in ("kernel", "qemu", "accel"))
        changes = [f"{name} was {before}, is {after}" for name, before, after in pairs if before != after]
        names = sorted(self.images.keys() | now.images.keys())
        return changes + [f"{name} image changed" for name in names if self.images.get(name) != now.images.get(name)]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result of measuring a device against itself in `groups` of `rounds` blocks. All differences are noise.

    `run` is the id of the directory with the raw outputs. `noise_sd` is the standard deviation of log(b/a) between
    blocks, for all jobs together and by job. `smallest_detectable` is, by number of blocks, the smallest overhead (a
    share) that these blocks show with a probability of 80 %. `slice_s` is the best length of a slice for all series of
    `slices` together. `disk_identity` is the id and serial number of the disk, `lab_kind` the kind of lab.
    """

    __pydantic_config__ = _STRICT

    written: str
    host: str
    disk: str
    run: str
    seed: int
    groups: int
    rounds: int
    false_alarms: int
    noise_sd: _Deviation
    noise_sd_by_job: Mapping[str, float]
    smallest_detectable: Mapping[int, float]
    delay: Delay | None
    conditions: Conditions
    disk_identity: str
    slices: tuple[SliceNoise, ...]
    slice_s: float
    boots: BootNoise
    lab_kind: LabKind
    schema: Literal[2] = 2

    def shown_by(self, blocks: int, boots: int) -> float | None:
        """The smallest overhead that `blocks` in each of `boots` can show, as a share. None if it is not known."""
        if boots == 1:
            return smallest_detectable(self.noise_sd, blocks) if blocks > 1 else None
        return smallest_detectable(self.noise_sd, blocks, boots=boots, sd_of_boots=self.boots.sd)


def identify(host: Host) -> str:
    """The identity of the host's calibration: `embedded`, else the hostname with the machine id."""
    if host.spec.kind == "embedded":
        return "embedded"
    machine = host.runner.run(["cat", "/etc/machine-id"], deadline=20, check=False).stdout.strip()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{host.facts['hostname']}-{machine[:12]}").strip("-.")


def find_directory() -> Path:
    """The directory with the calibrations of all lab hosts."""
    return user_state_path("virt-overhead") / "calibration"


def find_path(name: str) -> Path:
    """The calibration file of the host with this identity."""
    return find_directory() / f"{name}.json"


def find_calibration(spec: HostSpec) -> Calibration | None:
    """The newest calibration of this host, without a connection to it. None if there is none that can be read.

    A host is recognised by the calibrated disk: its id and serial number. The embedded lab has one calibration.
    """
    if spec.kind == "embedded":
        paths = [find_path("embedded")]
    else:
        paths = sorted(find_directory().glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    disks = {disk.identity for disk in spec.disks}
    for path in paths:
        with suppress(ResultsError):
            calibration = read_calibration(path)
            if calibration is not None and (spec.kind == "embedded" or calibration.disk_identity in disks):
                return calibration
    return None


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the file atomically. Raises ResultsError if it cannot be written."""
    try:
        write_stored(path, asdict(calibration))
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be written: {error.strerror or error}", hint="give this user permission to write there"
        ) from error


def read_calibration(path: Path) -> Calibration | None:
    """The calibration in this file. None if there is no file. Raises ResultsError if it cannot be read."""
    try:
        return TypeAdapter(Calibration).validate_json(read_regular(path))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ResultsError(
            f"{path} cannot be read, or is not a calibration of this version",
            hint="virt-overhead calibrate writes a new one",
        ) from error


def quote(host: Host, images: ImageSet) -> JsonValue:
    """The calibration for a run on this host, as plain JSON. None if the host has none.

    `stale` lists the changes since the calibration. If the file cannot be read, the result has the reason, because this
    must not prevent measurements.
    """
    try:
        calibration = read_calibration(find_path(identify(host)))
    except ResultsError as error:
        return {"unreadable": error.message}
    if calibration is None:
        return None
    plain: dict[str, JsonValue] = json.loads(json.dumps(asdict(calibration)))
    stale: list[JsonValue] = [*calibration.conditions.changes(Conditions.of(host, images))]
    return {**plain, "stale": stale}


def describe_lab(run: Run) -> tuple[str, ...]:
    """What the lab's calibration shows for a run with these numbers of blocks, or that there is no calibration.

    Nothing for an imported run, whose lab virt-overhead cannot calibrate.
    """
    if run.lab.imported:
        return ()
    stored = run.provenance.get("calibration")
    if stored is None:
        unknown = "This lab was never calibrated, so the smallest overhead it can show is not known."
        return (f"{unknown} {REMEDY} finds it out, on a disk that may be overwritten.",)
    calibration = _parse_quoted(stored)
    if calibration is None:
        return (f"The calibration stored with this run cannot be read. {REMEDY} writes a new one.",)
    boots = {(len(cell.rounds), len(set(cell.boots)) or 1) for cell in run.cells if cell.rounds}
    return tuple(_describe(calibration, {(blocks // number, number) for blocks, number in boots}))


def _parse_quoted(stored: JsonValue) -> Calibration | None:
    """The calibration that `quote` stored; None if it cannot be read."""
    plain = {key: value for key, value in stored.items() if key != "stale"} if isinstance(stored, dict) else stored
    try:
        return TypeAdapter(Calibration).validate_python(plain)
    except ValidationError:
        return None


def _describe(calibration: Calibration, samples: Collection[tuple[int, int]]) -> list[str]:
    """What the calibration shows for cells with these numbers of blocks in each boot, and of boots."""
    known = [(n, boots, share) for n, boots in sorted(samples) if (share := calibration.shown_by(n, boots)) is not None]
    all_blocks = [(n, 1, share) for n, share in sorted(calibration.smallest_detectable.items())]
    sentences = []
    if shares := known or all_blocks:
        figures = ", ".join(
            f"{blocks_of_boots(n, boots)} can show here: {share * 100:.2g} %" for n, boots, share in shares
        )
        sentences.append(f"Smallest overhead that {figures}.")
    alarms = f"{count(calibration.false_alarms, 'false alarm')} in {count(calibration.groups, 'group')}"
    sentences.append(f"Calibrated on {calibration.written}: {alarms} of a device against itself.")
    if calibration.delay is not None:
        low, point, high = calibration.delay.found_s
        added, measured = microseconds(calibration.delay.set_s), microseconds(point)
        sentences.append(f"An added delay of {added} us was measured as {measured} us {microseconds_range(low, high)}.")
    return sentences


def blocks_of_boots(blocks: int, boots: int) -> str:
    """ "6 blocks", or "3 boots of 2 blocks" if there are several boots with `blocks` in each."""
    return f"{boots} boots of {count(blocks, 'block')}" if boots > 1 else count(blocks, "block")
