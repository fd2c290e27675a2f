"""What the feature adds to the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.feature import Feature

if TYPE_CHECKING:
    from harness.scenario.scenario import WorkloadFiles


def _read_workloads(folder: Path, paths: Sequence[str]) -> WorkloadFiles:
    from harness.features.fio_files.reading import read_fio_files

    return read_fio_files(folder, paths)


FEATURE = Feature(
    name="fio_files",
    read_workloads=_read_workloads,
)
