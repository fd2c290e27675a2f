"""Which layer is responsible for what a guest loses: the disk itself, the storage layer, or virtualisation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from harness.analysis import PRACTICAL, Estimate
from harness.model.attach import Attach
from harness.model.mode import ModeDetail
from harness.results.cells import CellRecord
from harness.results.mode_changes import loss

BUSY = 0.85
"""From this share of a CPU on, a thread limits the disk that it serves."""
_EQUAL = PRACTICAL - 1


class Layer(StrEnum):
    """Where the loss comes from."""

    NOTHING = "nothing to gain"
    """The guest loses less than `PRACTICAL` of the host's throughput, or adds less than that to its latency."""
    DISK = "disk"
    """The host without a guest has most of the latency."""
    STORAGE = "storage layer"
    VIRTUALISATION = "virtualisation"
    BOTH = "storage layer and virtualisation"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Thread:
    """The thread of QEMU that serves a disk, and the share of a CPU that it used."""

    name: str
    busy: float


@dataclass(frozen=True, slots=True)
class Blame:
    """The layer that is responsible for the loss of one mode, in one metric, with the parts of the loss."""

    mode: str
    detail: ModeDetail
    metric: str
    cells: tuple[CellRecord, ...]
    layer: Layer
    overhead: Estimate
    """The guest against the host, as a share."""
    storage: Estimate | None
    """The twin against the host; None on the bare device."""
    virtualisation: Estimate
    """The guest against its twin, or the host."""
    thread: Thread | None
    """The busiest thread that serves the disk, over the jobs; None if it was not counted."""

    @property
    def host(self) -> float:
        """The mean on the bare host, in the metric's unit, over the jobs."""
        return self._mean("host")

    @property
    def guest(self) -> float:
        return self._mean("guest")

    @property
    def on_proxmox(self) -> bool:
        """Whether a guest of Proxmox VE was measured, whose API does not offer every option of QEMU."""
        return any(cell.effective.pve_drive is not None for cell in self.cells)

    def _mean(self, place: str) -> float:
        return fmean(fmean(getattr(cell.metrics[self.metric], place)) for cell in self.cells)


def throughput_blame(cells: Sequence[CellRecord], confidence: float) -> Blame | None:
    """The layer behind the loss of throughput of these cells of one mode; None without a job at full speed."""
    own = tuple(cell for cell in cells if cell.job.is_saturating and "iops" in cell.metrics)
    if not own:
        return None
    overhead, storage, rest = _parts(own, "iops", confidence)
    return Blame(
        own[0].mode,
        own[0].mode_detail,
        "iops",
        own,
        _layer(overhead, storage, rest),
        overhead,
        storage,
        rest,
        _busiest(own),
    )


def flush_blame(cells: Sequence[CellRecord], confidence: float) -> Blame | None:
    """Which side is responsible for the latency of fdatasync, by its p99 if there is one; None without flushes.

    What the host takes without a guest is the disk's part: with more than half of the guest's latency, the disk is
    responsible (the argument of etcd's pull request 10578).
    """
    for metric in ("sync_p99", "sync_mean"):
        own = tuple(cell for cell in cells if metric in cell.metrics and cell.job.flushes)
        if not own:
            continue
        overhead, storage, rest = _parts(own, metric, confidence)
        layer = _side(overhead) or _layer(overhead, storage, rest)
        return Blame(own[0].mode, own[0].mode_detail, metric, own, layer, overhead, storage, rest, _busiest(own))
    return None


def _parts(cells: Sequence[CellRecord], metric: str, confidence: float) -> tuple[Estimate, Estimate | None, Estimate]:
    overhead = loss(cells, metric, confidence)
    if not all(cell.metrics[metric].twin for cell in cells):
        return overhead, None, overhead
    storage = loss(cells, metric, confidence, of="twin")
    return overhead, storage, loss(cells, metric, confidence, than="twin")


def _layer(overhead: Estimate, storage: Estimate | None, rest: Estimate) -> Layer:
    """By intervals: a layer is responsible if its part is shown and the whole interval lies above the other part."""
    if overhead.high is not None and overhead.high < _EQUAL:
        return Layer.NOTHING
    if overhead.low is None or overhead.low <= 0:
        return Layer.UNDECIDED
    if storage is None:
        return Layer.VIRTUALISATION
    (low, high), (rest_low, rest_high) = ((estimate.low or 0.0, estimate.high or 0.0) for estimate in (storage, rest))
    if rest_low > max(high, 0):
        return Layer.VIRTUALISATION
    if low > max(rest_high, 0):
        return Layer.STORAGE
    return Layer.BOTH if low > 0 and rest_low > 0 else Layer.UNDECIDED


def _side(overhead: Estimate) -> Layer | None:
    """The disk, if the interval shows that the host alone has more than half of the guest's latency; else None."""
    if overhead.high is not None and overhead.high < 1:
        return Layer.DISK
    return Layer.UNDECIDED if overhead.low is None or overhead.low < 1 else None


def _busiest(cells: Sequence[CellRecord]) -> Thread | None:
    threads = [thread for cell in cells for thread in _threads(cell)]
    return max(threads, key=lambda thread: thread.busy, default=None)


def _threads(cell: CellRecord) -> list[Thread]:
    """The thread that serves the disk: CPU time per I/O times I/Os per second. Several iothreads share the time."""
    attach = cell.mode_detail.attach
    if not isinstance(attach, Attach):
        return []
    name, cost, number = ("the iothread", "cpu_iothread", attach.threads)
    if not number:
        name, cost, number = ("QEMU's main thread", "cpu_main", 1)
    found = cell.accounting.get(cost)
    if found is None or not found.guest:
        return []
    return [Thread(name, fmean(found.guest) * fmean(cell.metrics["iops"].guest) / number)]
