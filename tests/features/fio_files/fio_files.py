"""fio files of users, read as a scenario reads them."""

from __future__ import annotations

from pathlib import Path

from harness.features.fio_files.reading import read_fio_files
from harness.model.job import Job, Workload

DATABASE = Path(__file__).parent / "data" / "my-database.fio"


def read_in(folder: Path, name: str) -> tuple[Workload, ...]:
    """The workloads of the file in the folder. Raises ValueError with its problems."""
    found = read_fio_files(folder, [name]).workloads[name]
    if isinstance(found, ValueError):
        raise found
    return found


def read(folder: Path, text: str, name: str = "db.fio") -> tuple[Workload, ...]:
    """The workloads of a file with this text."""
    (folder / name).write_text(text)
    return read_in(folder, name)


def job_of(workload: Workload, seconds: float = 1.0) -> Job:
    """Its job at its own depth, without a ramp."""
    return workload.job(workload.iodepths[0], ramp=0, seconds=seconds)
