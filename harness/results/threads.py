"""The threads that all I/O of a job goes through, and how busy they were, from the counters of its slices. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from harness.analysis import Thread
from harness.model.attach import Attach
from harness.model.cell import Cell
from harness.model.counters import Counters
from harness.model.job import Job
from harness.results.journal_records import Measurement


def fio_threads(measurements: Sequence[Measurement], job: Job) -> tuple[Thread, ...]:
    """The processes of fio: each has this share of a CPU, on average. Empty if it was not counted."""

    def spent(counters: Counters) -> float | None:
        user, system = counters.fio.user_s, counters.fio.system_s
        return None if user is None or system is None else (user + system) / job.numjobs

    return _thread("fio" if job.numjobs == 1 else "each process of fio", measurements, job, spent)


def md_threads(measurements: Sequence[Measurement], job: Job) -> tuple[Thread, ...]:
    """The kernel's thread of the array, which handles the stripes of RAID 5 and 6. Empty if there is none."""
    return _thread("md's thread of the array", measurements, job, lambda counters: counters.md_s)


def guest_threads(measurements: Sequence[Measurement], cell: Cell) -> tuple[Thread, ...]:
    """The same in the guest: fio, the vCPUs, QEMU's thread that serves the disk, and that of the array on the host.

    Those that were not counted are left out.

    `measurements` are of the guest. The host counts the vCPUs together, so one of several may hide among idle ones.
    """
    attach, job = cell.mode.attach, cell.job
    vcpus = [measurement.counters.cpu_busy for measurement in measurements]
    known = [busy for busy in vcpus if busy is not None]
    found = list(fio_threads(measurements, job))
    if known and len(known) == len(vcpus):
        found.append(Thread("the vCPUs", fmean(known)))
    if isinstance(attach, Attach):
        found += _serving(measurements, job, attach)
    found += md_threads(measurements, job)
    return tuple(found)


def _serving(measurements: Sequence[Measurement], job: Job, attach: Attach) -> tuple[Thread, ...]:
    """The thread that serves the disk: an iothread or QEMU's main thread. With several, each on average."""
    several = attach.threads

    def spent(counters: Counters) -> float | None:
        if counters.threads is None:
            return None
        return counters.threads.iothread_s / several if several else counters.threads.main_s

    names = {0: "QEMU's main thread", 1: "the iothread"}
    return _thread(names.get(several, "each iothread"), measurements, job, spent)


def _thread(
    name: str, measurements: Sequence[Measurement], job: Job, spent: Callable[[Counters], float | None]
) -> tuple[Thread, ...]:
    """The thread with the share of the time, of ramp and job, for which it had a CPU. Empty if it was not counted."""
    shares = []
    for measurement in measurements:
        seconds = spent(measurement.counters)
        if seconds is None:
            return ()
        shares.append(seconds / (job.ramp + measurement.seconds))
    return (Thread(name, fmean(shares)),) if shares else ()
