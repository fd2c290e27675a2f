"""The figures of a benchmark at one number of cells, and how they are printed."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Figures:
    """`wall` is the time for all cells, and `cpu` the CPU seconds in it, which other processes hardly change.

    `peak_bytes` is the largest resident memory of the process that did the work. `details` are further figures in
    words.
    """

    cells: int
    wall: float
    cpu: float
    peak_bytes: int
    details: tuple[str, ...] = field(default=())


def lines(found: Figures, before: Figures | None) -> list[str]:
    """A line with the CPU time per cell in relation to `before`, and one for each detail."""
    each = found.cpu / found.cells
    growth = f"{each / (before.cpu / before.cells):.2f}" if before else "-"
    first = (
        f"{found.cells:7} cells {found.wall:8.2f} s {found.cpu:8.2f} CPU s {each * 1000:8.3f} ms per cell "
        f"{found.peak_bytes / 1024**2:6.0f} MiB   growth {growth}"
    )
    return [first, *(f"{'':8}{detail}" for detail in found.details)]


class Clock:
    """Counts from its creation: `wall` and `cpu` in seconds, of this process with all its threads."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()

    @property
    def wall(self) -> float:
        return time.monotonic() - self._wall

    @property
    def cpu(self) -> float:
        return time.process_time() - self._cpu


def peak_bytes(who: int = resource.RUSAGE_SELF) -> int:
    """The largest resident memory of this process so far, or of its largest child."""
    return resource.getrusage(who).ru_maxrss * 1024


@contextmanager
def workplace() -> Iterator[Path]:
    """An empty directory, in memory if possible."""
    parent = _IN_MEMORY if _IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="virt-overhead-", dir=parent) as directory:
        yield Path(directory)
