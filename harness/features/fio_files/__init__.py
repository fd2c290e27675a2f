"""Jobs of a user's own fio file: a path such as "my.fio" among the workloads of a scenario.

`reading.py` reads the file and those that it includes. Sections that run at the same time are one workload, and a new
one begins at stonewall. fio gets the options of the I/O pattern as they are in the file. virt-overhead sets target,
region, times and output itself, equally on every arm, and refuses options that would mislead or harm (`options.py`).
The workload carries its sections (`model/job.py`), so that a stored run needs no file. `report.py` shows what
fio got, and which options did not apply.
"""

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
