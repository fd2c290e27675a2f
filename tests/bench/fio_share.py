"""What share of the wall time fio runs: one process for several jobs against one process per job.

Run it with `python -m tests.bench.fio_share`. Both ways run the same jobs on the same file, in turn, so that their
ratio holds on any machine; the figures themselves do not.
"""

from __future__ import annotations

import statistics
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.events import Events
from harness.image import ensure_images
from harness.measure.fio import Target, TimedSection, job_file
from harness.model.job import Job

JOBS = tuple(Job(rw, 4096, iodepth=32, ramp=0, seconds=1) for rw in ("randread", "randwrite", "read", "write"))
TURNS = 5
MIB = 1024**2


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="virt-overhead-") as directory:
        home = Path(directory)
        fio = _fio(home)
        disk = home / "disk"
        disk.write_bytes(b"\xa5" * (64 * MIB))
        target = Target(str(disk), 0, 64 * MIB, direct=True)
        sections = [TimedSection(job.id, job, target) for job in JOBS]
        together, apart = [], []
        for _ in range(TURNS):
            together.append(_wall(fio, [job_file(sections, seed=1)]))
            apart.append(_wall(fio, [job_file([section], seed=1) for section in sections]))
    asked = sum(job.seconds for job in JOBS)
    for name, walls in (("one process for all jobs", together), ("one process per job", apart)):
        median = statistics.median(walls)
        print(f"{name:26} {median:6.2f} s for {asked:.0f} s of jobs: share {asked / median:.3f}")
    ratios = [one / many for one, many in zip(together, apart, strict=True)]
    print(f"wall time, together / apart: median {statistics.median(ratios):.3f} of {TURNS} pairs")


def _wall(fio: Sequence[str], files: Sequence[str]) -> float:
    started = time.monotonic()
    for text in files:
        command = [*fio, "--output-format=json+", "-"]
        subprocess.run(command, input=text.encode(), stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - started


def _fio(home: Path) -> list[str]:
    """The fio of the images, with its own loader and libraries."""
    with tarfile.open(ensure_images(Events()).fio.path / "fio.tar") as archive:
        archive.extractall(home, filter="data")
    return [f"{home}/fio/lib/ld-linux-x86-64.so.2", "--library-path", f"{home}/fio/lib", f"{home}/fio/fio"]


if __name__ == "__main__":
    main()
