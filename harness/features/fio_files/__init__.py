"""Jobs of a user's own fio file: a path such as "my.fio" among the workloads of a scenario.

`reading.py` reads the file and those that it includes. Sections that run at the same time are one workload, and a new
one begins at stonewall. fio gets the options of the I/O pattern as they are in the file. virt-overhead sets target,
region, times and output itself, equally on every arm, and refuses options that would mislead or harm (`options.py`).
The workload carries its sections (`model/job.py`), so that a stored run needs no file. `report.py` shows what
fio got, and which options did not apply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature, import_later

if TYPE_CHECKING:
    from harness.features.fio_files import reading
else:
    (reading,) = import_later(__name__, "reading")


FEATURE = Feature(
    name="fio_files",
    read_workloads=lambda folder, paths: reading.read_fio_files(folder, paths),
)
