"""What is known about the lab's noise: the calibration that is stored with a run, in words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from harness.analysis import smallest_detectable
from harness.report.numbers import blocks_of_boots, count, microseconds, microseconds_range
from harness.results import Run

REMEDY = "virt-overhead calibrate"

_Deviation = Annotated[float, Field(ge=0)]
"""A standard deviation."""


@dataclass(frozen=True, slots=True)
class AddedDelay:
    """A known delay added to the disk of a guest, and the measured delay: low, point, high. All in seconds."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    set_s: float
    found_s: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class BootNoise:
    """How much the boots of a guest differ."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    sd: _Deviation
    """Standard deviation of the boots' true mean log(guest/host)."""


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
    noise_sd: _Deviation
    """Standard deviation of log(guest/host) between blocks."""
    delay: AddedDelay | None = None
    boots: BootNoise | None = None
    """Null in a calibration of an older version."""

    def shown_by(self, blocks: int, boots: int) -> float | None:
        """The smallest overhead that `blocks` in each of `boots` can show, as a share. None if it is not known."""
        if boots == 1:
            return smallest_detectable(self.noise_sd, blocks) if blocks > 1 else None
        return (
            smallest_detectable(self.noise_sd, blocks, boots=boots, sd_of_boots=self.boots.sd) if self.boots else None
        )


def calibration_sentences(run: Run) -> tuple[str, ...]:
    """What the lab's calibration shows for a run with these numbers of blocks, or that there is no calibration.

    Nothing for an imported run, whose lab virt-overhead cannot calibrate.
    """
    if run.lab.imported:
        return ()
    stored = run.provenance.get("calibration")
    if stored is None:
        return (f"This lab was never calibrated, so the smallest overhead it can show is not known. Run {REMEDY}.",)
    calibration = _read(stored)
    if calibration is None:
        return (f"The calibration stored with this run cannot be read. {REMEDY} writes a new one.",)
    boots = {(len(cell.rounds), len(set(cell.boots)) or 1) for cell in run.cells if cell.rounds}
    return tuple(_sentences(calibration, {(blocks // number, number) for blocks, number in boots}))


def _read(stored: JsonValue) -> CalibrationTable | None:
    try:
        return TypeAdapter(CalibrationTable).validate_python(stored)
    except ValidationError:
        return None


def _sentences(calibration: CalibrationTable, samples: Collection[tuple[int, int]]) -> list[str]:
    """What the calibration shows for cells with these numbers of blocks in each boot, and of boots."""
    known = [(n, boots, share) for n, boots in sorted(samples) if (share := calibration.shown_by(n, boots)) is not None]
    all_blocks = [(n, 1, share) for n, share in sorted(calibration.smallest_detectable.items())]
    sentences = []
    if found := known or all_blocks:
        figures = ", ".join(
            f"{blocks_of_boots(n, boots)} can show here: {share * 100:.2g} %" for n, boots, share in found
        )
        sentences.append(f"Smallest overhead that {figures}.")
    alarms = f"{count(calibration.false_alarms, 'false alarm')} in {count(calibration.groups, 'group')}"
    sentences.append(f"Calibrated on {calibration.written}: {alarms} of a device against itself.")
    if calibration.delay is not None:
        low, point, high = calibration.delay.found_s
        added, measured = microseconds(calibration.delay.set_s), microseconds(point)
        sentences.append(f"An added delay of {added} us was measured as {measured} us {microseconds_range(low, high)}.")
    return sentences
