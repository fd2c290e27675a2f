"""Did a backup run during the slices that request one, and how fast was it? Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.model.cell import Cell, Place
from harness.results.blocks import Blocks
from harness.results.cells import BackupRecord, ValidityCheck
from harness.results.journal_records import Measurement

CHECK = "backup"
"""The name of the check."""
LEAST_BACKUP = 0.9
"""The share of a slice's time in which a backup must be seen running. One that ends is begun again at once."""
ENOUGH = 0.5
"""The smallest share of slices with a backup. With fewer, what is left says little about the mode."""


def without_backup(slice_: Measurement) -> bool:
    """Whether a backup was to run during the slice, and did not all the time."""
    return slice_.backup is not None and slice_.backup.share < LEAST_BACKUP


def backup_checks(measurements: Sequence[Measurement], cell: Cell) -> list[ValidityCheck]:
    """The check that a backup ran; empty for a cell without one. A slice without it does not count."""
    asked = [measurement for measurement in measurements if measurement.backup is not None]
    if not cell.mode.backup or not asked:
        return []
    ran = sum(not without_backup(each) for each in asked)
    ok = ran >= ENOUGH * len(asked)
    detail = f"a backup ran all the time in {ran} of {len(asked)} slices"
    if not ok:
        detail += ": it ends too soon for them; set a larger span or a shorter runtime in the profile"
    return [ValidityCheck(CHECK, ok=ok, detail=detail)]


def backup_notes(measurements: Sequence[Measurement]) -> list[str]:
    """How many blocks do not count because no backup ran in them all the time."""
    asked = {(measurement.round, measurement.block) for measurement in measurements if measurement.backup is not None}
    lost = {(measurement.round, measurement.block) for measurement in measurements if without_backup(measurement)}
    return [f"{len(lost)} of {len(asked)} blocks do not count, because the backup ended in them"] if lost else []


def backup_record(cell: Cell, blocks: Blocks) -> BackupRecord | None:
    """What the backup did in these blocks; None without one, or without blocks."""
    if not cell.mode.backup or not blocks.keys:
        return None
    backups = (slice_.backup for slice_ in blocks.arms[Place.GUEST])
    return BackupRecord(tuple(backup.bw for backup in backups if backup is not None))
