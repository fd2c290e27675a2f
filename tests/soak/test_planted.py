"""Faults planted under a guest's volume: the workload for a fault shows it, and a saturating load does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean

from harness.lab.transport.ssh import SshRunner
from harness.model.mode import Place
from harness.results import CellRecord
from tests.e2e.conftest import host
from tests.e2e.machines import latest, started
from tests.patience import patience

__all__ = ["host"]

DELAY_S = 0.02
"""How much later a flush of the volume completes."""
IDLE_S = 0.015
"""After so long without an I/O, the disk sleeps."""
STALL_S = 0.05
"""How long it takes to wake up."""
_GUEST_STARTS_SECONDS = 120.0

# $1: milliseconds. The volume of the mode lvm becomes a dm-delay device that delays flushes, while the guest has it.
_DELAY_FLUSHES = r"""
modprobe dm-delay || exit 1
name=$(dmsetup ls | cut -f1 | grep '^voh.*-lvm$') || exit 1
set -- "$1" $(dmsetup table "$name")
dmsetup suspend "$name"
dmsetup load "$name" --table "$2 $3 delay $5 $6 0 $5 $6 0 $5 $6 $1"
dmsetup resume "$name"
"""

# $1: seconds until the disk sleeps, $2: seconds to wake up, $3: the program. The volume of the mode lvm becomes a disk
# that sleeps, while the guest has it. The program ends when the volume is removed.
_SLEEP = r"""
modprobe nbd nbds_max=1 || exit 1
name=$(dmsetup ls | cut -f1 | grep '^voh.*-lvm$') || exit 1
idle=$1 stall=$2 program=$3
set -- $(dmsetup table "$name")
python3 -c "$program" "/dev/block/$4" "$5" "$2" "$idle" "$stall" || exit
dmsetup suspend "$name"
dmsetup load "$name" --table "0 $2 linear /dev/nbd0 0"
dmsetup resume "$name"
"""
# The program notices within half a second that its volume is gone.
_REMOVE_NBD = "for try in $(seq 20); do modprobe -r nbd && exit; sleep 0.5; done; exit 1"


def when_the_guest_starts(host: SshRunner, plant: Callable[[], None]) -> None:
    """Plant a fault as soon as the guest of the run is there, while it boots."""
    end = time.monotonic() + patience(_GUEST_STARTS_SECONDS)
    while host.run(["sh", "-c", "ls /run/libvirt/qemu/voh-*.pid"], deadline=patience(30), check=False).status != 0:
        assert time.monotonic() < end, "no guest was started"
        time.sleep(1)
    plant()


def measured_with(tmp_path: Path, host: SshRunner, plant: Callable[[], None], jobs: str) -> dict[str, CellRecord]:
    """The cells of the volume by job, measured while the planted fault is there."""
    with started(tmp_path, "-k", f"stalls-lvm and ({jobs})", "--profile=smoke", "--lab=embedded") as run:
        when_the_guest_starts(host, plant)
        output, _ = run.communicate(timeout=patience(400))
    assert run.returncode == 0, output
    return {cell.job.id: cell for cell in latest(tmp_path).cells if cell.mode == "lvm"}


def added(cell: CellRecord, place: Place) -> float:
    """The mean latency that an arm adds to that of the host, in seconds, in the metric of the job."""
    metric = cell.metrics[cell.job.headline if cell.job.headline != "iops" else "clat_mean"]
    return fmean(getattr(metric, str(place))) - fmean(metric.host)


def lost(cell: CellRecord) -> float:
    """The share of the host's IOPS that the volume loses on the host."""
    metric = cell.metrics["iops"]
    return 1 - fmean(metric.twin) / fmean(metric.host)


def test_a_delayed_flush_is_shown_by_wal_and_not_by_a_saturating_load(tmp_path: Path, host: SshRunner) -> None:
    def plant() -> None:
        host.run(["sh", "-s", "--", f"{DELAY_S * 1000:.0f}"], stdin=_DELAY_FLUSHES, deadline=patience(60))

    cells = measured_with(tmp_path, host, plant, "wal or randread")
    for place in (Place.TWIN, Place.GUEST):
        assert added(cells["wal"], place) > 0.8 * DELAY_S
    assert lost(cells["randread-4k-qd32"]) < 0.5


def test_a_disk_that_sleeps_is_shown_after_pauses_and_not_by_a_saturating_load(tmp_path: Path, host: SshRunner) -> None:
    """The same program without sleep is the reference: it costs time itself."""
    program = (Path(__file__).parent / "sleeping_disk.py").read_text()

    def run(name: str, stall: float) -> dict[str, CellRecord]:
        def plant() -> None:
            host.run(["sh", "-s", "--", str(IDLE_S), str(stall), program], stdin=_SLEEP, deadline=patience(60))

        directory = tmp_path / name
        directory.mkdir()
        return measured_with(directory, host, plant, "thinktime or poisson or randread")

    try:
        awake, asleep = run("awake", 0.0), run("asleep", STALL_S)
    finally:
        host.run(["sh", "-c", _REMOVE_NBD], deadline=patience(60))

    def longer(job: str, place: Place) -> float:
        return fmean(values(asleep, job, "clat_mean", place)) / fmean(values(awake, job, "clat_mean", place))

    for place in (Place.TWIN, Place.GUEST):
        assert longer("thinktime", place) > 2, place
        assert longer("poisson", place) > 2, place
        assert longer("randread-4k-qd32", place) < 1.5, place


def values(cells: Mapping[str, CellRecord], job: str, metric: str, place: Place) -> tuple[float, ...]:
    """The values of a metric in an arm, by block."""
    found: tuple[float, ...] = getattr(cells[job].metrics[metric], str(place))
    return found
