"""A guest's QEMU on its host: which thread is for what, and where its CPU time, switches and exits go."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from harness.errors import HostError
from harness.lab.counters import EXITS, VmThreads, parse_threads
from harness.model.counters import KvmCounts
from harness.model.values import names_of

# As the finding script prints it: QEMU 10 under libvirt, one vCPU, two disks with a thread each.
PRINTED = [
    "812",
    "812 qemu-system-x86",
    "815 qemu-system-x86",
    "816 IO mon_iothread",
    "817 IO iothread1",
    "818 IO iothread2",
    "820 CPU 0/KVM",
    "990 worker",
    "991 iou-wrk-817",
    "kvm /sys/kernel/debug/kvm/812-21",
]
THREADS = parse_threads(PRINTED)


def stat(thread: int, name: str, user: int, system: int, guest: int = 0) -> str:
    """A line of /proc/PID/stat: 52 fields, of which the 14th, 15th and 43rd are ticks."""
    fields = ["S", *["0"] * 49]
    fields[11], fields[12], fields[40] = str(user), str(system), str(guest)
    return f"{thread} ({name}) {' '.join(fields)}"


def read(times: Mapping[int, str], exits: int | None = None) -> dict[str, list[str]]:
    """What is read of the files: `times` by thread, 0 being the whole process."""
    lines = {"/proc/812/stat": [times[0]]}
    for thread, text in times.items():
        if thread:
            lines[f"/proc/812/task/{thread}/stat"] = [text]
            lines[f"/proc/812/task/{thread}/status"] = [
                "voluntary_ctxt_switches:\t30",
                "nonvoluntary_ctxt_switches:\t4",
            ]
    if exits is not None:
        lines["/sys/kernel/debug/kvm/812-21/exits"] = [str(exits)]
    return lines


TIMES = {
    0: stat(812, "qemu-system-x86", 900, 700),
    812: stat(812, "qemu-system-x86", 20, 30),
    817: stat(817, "IO iothread1", 100, 150),
    818: stat(818, "IO iothread2", 0, 0),
    820: stat(820, "CPU 0/KVM", 600, 400, guest=550),
}


def test_threads_are_known_by_the_names_that_qemu_gives_them() -> None:
    assert (
        VmThreads(812, {812: "main", 817: "iothread", 818: "iothread", 820: "vcpu"}, kvm="/sys/kernel/debug/kvm/812-21")
        == THREADS
    )


def test_a_guest_without_kvm_has_vcpus_as_well_and_no_exits() -> None:
    threads = parse_threads(["7", "7 kvm", "8 CPU 0/TCG", "9 CPU 1/TCG"])
    assert threads == VmThreads(7, {7: "main", 8: "vcpu", 9: "vcpu"}, kvm=None)
    assert not [file for file in threads.files if "debug" in file]


def test_every_second_of_the_process_is_in_one_place() -> None:
    counts = THREADS.counts(read(TIMES))
    assert counts.guest_s == pytest.approx(5.5)
    assert counts.vcpu_s == pytest.approx(4.5)
    assert counts.iothread_s == pytest.approx(2.5)
    assert counts.main_s == pytest.approx(0.5)
    # What is left of the process's 16 s: the thread pool's threads, also those that ended since.
    assert counts.worker_s == pytest.approx(3.0)
    assert sum(getattr(counts, name) for name in names_of(counts) if name.endswith("_s")) == pytest.approx(16.0)


def test_switches_are_those_of_the_threads_that_stay() -> None:
    counts = THREADS.counts(read(TIMES))
    assert (counts.waits, counts.preemptions) == (4 * 30, 4 * 4)


def test_a_name_with_blanks_and_parentheses_moves_no_field() -> None:
    odd = TIMES | {820: stat(820, "CPU 0/KVM) (x 1 2", 600, 400, guest=550)}
    assert THREADS.counts(read(odd)) == THREADS.counts(read(TIMES))


def test_exits_come_from_debugfs_where_it_is_there() -> None:
    assert THREADS.exits(read(TIMES, exits=4711)) == KvmCounts(exits=4711)
    assert THREADS.exits(read(TIMES)) is None
    assert f"/sys/kernel/debug/kvm/812-21/{EXITS[1]}" in THREADS.files


def test_a_thread_that_ended_is_reported() -> None:
    lines = read(TIMES)
    del lines["/proc/812/task/817/stat"]
    with pytest.raises(HostError, match="/proc/812/task/817/stat is gone"):
        THREADS.counts(lines)
