"""What to import and to export, and under which names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.model.attach import Unknown
from harness.model.base import Device
from harness.model.mode import Mode

HOST = Mode("host", Device(), attach=None)


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """What to import: files or directories by arm, and the names that the run gives them.

    `hardware` says what was measured, if it is real hardware; None: not known. With `keep_going`, files that cannot be
    read are left out.
    """

    host: tuple[Path, ...]
    guests: Mapping[str, tuple[Path, ...]]
    disk: str
    scenario: str
    hardware: str | None
    keep_going: bool
    command: str

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The host, and one mode for each guest."""
        return (HOST, *(Mode(name, Device(), Unknown()) for name in self.guests))


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Which run to export, and where to; None for a form that is not wanted."""

    run: Path
    csv: Path | None
    parquet: Path | None
    fio_plot: Path | None
