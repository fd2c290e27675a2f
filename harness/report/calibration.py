"""What is known about the lab's noise: the calibration that is stored with a run, in words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

from harness.report.numbers import count, microseconds, microseconds_range
from harness.results import Run

REMEDY = "virt-overhead calibrate"


@dataclass(frozen=True, slots=True)
class AddedDelay:
    """A known delay added to the disk of a guest, and the measured delay: low, point, high. All in seconds."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    set_s: float
    found_s: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class CalibrationTable:
    """A device measured against itself in several groups: all differences are noise."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    written: str
    """Date in the form of ISO 8601."""
    false_alarms: int
    """Groups in which a difference was found although there is none."""
    groups: int
    smallest_detectable: dict[int, float]
    """The smallest overhead that can be shown, as a share, by number of blocks."""
    noise_sd: float
    """Standard deviation of log(guest/host) between blocks."""
    delay: AddedDelay | None = None


def calibration_sentences(run: Run) -> tuple[str, ...]:
    """What the lab's calibration shows for a run with these numbers of blocks, or that there is no calibration."""
    stored = run.provenance.get("calibration")
    if stored is None:
        return (f"This lab was never calibrated, so the smallest overhead it can show is not known. Run {REMEDY}.",)
    calibration = _read(stored)
    if calibration is None:
        return (f"The calibration stored with this run cannot be read. {REMEDY} writes a new one.",)
    return tuple(_sentences(calibration, {len(cell.rounds) for cell in run.cells if cell.rounds}))


def _read(stored: JsonValue) -> CalibrationTable | None:
    try:
        return TypeAdapter(CalibrationTable).validate_python(stored)
    except ValidationError:
        return None


def _sentences(calibration: CalibrationTable, blocks: Collection[int]) -> list[str]:
    shown = {n: share for n, share in sorted(calibration.smallest_detectable.items()) if n in blocks}
    sentences = []
    if found := shown or dict(sorted(calibration.smallest_detectable.items())):
        figures = ", ".join(f"{count(n, 'block')} can show here: {share * 100:.2g} %" for n, share in found.items())
        sentences.append(f"Smallest overhead that {figures}.")
    alarms = f"{count(calibration.false_alarms, 'false alarm')} in {count(calibration.groups, 'group')}"
    sentences.append(f"Calibrated on {calibration.written}: {alarms} of a device against itself.")
    if calibration.delay is not None:
        low, point, high = calibration.delay.found_s
        added, measured = microseconds(calibration.delay.set_s), microseconds(point)
        sentences.append(f"An added delay of {added} us was measured as {measured} us {microseconds_range(low, high)}.")
    return sentences
