"""What the feature adds to the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.feature import OWN_JOBS, Feature, ReportPlace

if TYPE_CHECKING:
    from harness.report.blocks import Block
    from harness.report.section import Section
    from harness.scenario.scenario import WorkloadFiles


def _read_workloads(folder: Path, paths: Sequence[str]) -> WorkloadFiles:
    from harness.features.fio_files.reading import read_fio_files

    return read_fio_files(folder, paths)


def _yield_blocks(section: Section) -> Iterable[Block]:
    from harness.features.fio_files.report import fio_file_blocks

    return fio_file_blocks(section)


FEATURE = Feature(
    name="fio_files",
    subject=OWN_JOBS,
    read_workloads=_read_workloads,
    contents={ReportPlace.FINDINGS: _yield_blocks},
)
