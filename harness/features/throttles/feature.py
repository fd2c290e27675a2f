"""What the feature adds to the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from harness.feature import Feature

if TYPE_CHECKING:
    from harness.model.mode import Cell
    from harness.results import CellRecord, Measurement, ValidityCheck


def _find_checks(measurements: Sequence[Measurement], cell: Cell) -> Iterable[ValidityCheck]:
    from harness.features.throttles.limits import check_limits

    return check_limits(measurements, cell)


def _annotate(records: Sequence[CellRecord]) -> Iterable[tuple[str, str]]:
    from harness.features.throttles.limits import find_plateaus, yield_excess_notes

    yield from find_plateaus(records).items()
    yield from yield_excess_notes(records)


FEATURE = Feature(name="throttles", find_checks=_find_checks, annotate=_annotate)
