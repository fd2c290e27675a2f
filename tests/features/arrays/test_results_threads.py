"""Threads that all I/O goes through: how busy they were, and that a busy one is named for the guest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.features.arrays.bottleneck import Thread, fio_threads, guest_threads, saturated
from harness.model.attach import Attach
from harness.model.base import Md
from harness.model.counters import Counters, FioCounts, QemuCounts
from harness.model.job import parse_workload
from harness.model.mode import Cell, Mode
from harness.results import Measurement
from tests.build import A_SLICE

QEMU = QemuCounts(guest_s=2.0, vcpu_s=0.5, iothread_s=2.45, main_s=0.1, worker_s=0.0)


def cell(attach: Attach, workload: str = "randread-4k") -> Cell:
    return Cell("d", "ssd1", Mode("m", Md(0, 4), attach), parse_workload(workload).job(32, ramp=0.5, seconds=2.0))


def slices(counters: Counters, number: int = 2) -> list[Measurement]:
    return [replace(A_SLICE, seconds=2.0, counters=counters)] * number


def busy(threads: tuple[Thread, ...]) -> dict[str, float]:
    return {each.name: round(each.busy, 6) for each in threads}


def test_fio_is_busy_for_its_cpu_time_over_ramp_and_job() -> None:
    counted = slices(Counters(fio=FioCounts(user_s=0.5, system_s=1.5)))
    assert busy(fio_threads(counted, cell(Attach()).job)) == {"fio": 0.8}
    assert busy(fio_threads(counted, cell(Attach(), "randread-4k-nj4").job)) == {"each process of fio": 0.2}


def test_what_was_not_counted_has_no_thread() -> None:
    job = cell(Attach()).job
    assert fio_threads([], job) == ()
    assert fio_threads([*slices(Counters(fio=FioCounts(user_s=0.5, system_s=1.5))), *slices(Counters())], job) == ()
    assert guest_threads(slices(Counters()), cell(Attach())) == ()


@pytest.mark.parametrize(
    ("attach", "name", "share"),
    [
        (Attach(), "the iothread", 0.98),
        (Attach(iothread=False), "QEMU's main thread", 0.04),
        (Attach(bus="virtio-blk", iothread=False, queues=4, iothread_vq_mapping=2), "each iothread", 0.49),
    ],
    ids=["iothread", "main thread", "two iothreads"],
)
def test_the_thread_that_serves_the_disk_depends_on_the_attachment(attach: Attach, name: str, share: float) -> None:
    found = guest_threads(slices(Counters(threads=QEMU, cpu_busy=0.5)), cell(attach))
    assert busy(found) == {"the vCPUs": 0.5, name: share}


def test_the_busiest_thread_is_named_if_it_had_no_time_left() -> None:
    found = guest_threads(slices(Counters(threads=QEMU, cpu_busy=0.97)), cell(Attach()))
    assert saturated(found) == "the iothread was 98% busy"
    assert saturated(guest_threads(slices(Counters(threads=QEMU, cpu_busy=0.5)), cell(Attach(iothread=False)))) == ""
