"""What other programs read while nothing is measured: counted on the double of Proxmox VE, and allowed for exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from harness.lab.counters import CpuTime, HostCounters, Sample
from harness.lab.transport.base import Completed
from harness.measure.platform import Clock
from harness.measure.session import LEAST_AT_ONCE, MOST_AT_ONCE, Idle, IdleReads, count_idle, estimate_idle_reads
from harness.model.counters import Background, FioCounts, HostCounts, MemberCounts, Transferred
from harness.results import Measurement, ValidityCheck
from harness.results.byte_counts import PROBED, check_bytes
from pve_double.pvestatd import INTERVAL_SECONDS, READS
from pve_double.state import Node
from pve_double.storage.volumes import Storage
from pve_double.testing import memory_node
from tests.build import A_SLICE
from tests.unit.played_shell import PlayedShell

KIB, MIB = 1024, 1024**2
SECTOR = 512
SLICES = 4
SECONDS = 0.6
"""Of a slice with the pause after it."""
BETWEEN = 7.3
"""Seconds from one slice of an arm to its next one."""
SLOW = 1.25 * MIB
"""What a slow job reads in a slice: with an iodepth of 1, in a nested lab, or on a hard disk."""


@dataclass
class CountingShell(PlayedShell):
    """The shell of a node on which only pvestatd does something: time passes there as the sampling program waits."""

    node: Node | None = None

    def _answered(self, argv: list[str], said: str, stdin: str, deadline: float) -> Completed:  # noqa: ARG002
        assert argv[2] == "perl"
        return Completed(tuple(argv), 0, "".join(self._samples([float(word) for word in stdin.split()])), "")

    def _samples(self, times: Sequence[float]) -> Iterator[str]:
        assert self.node is not None
        before = times[0]
        for at in times:
            self.node.pvestatd.pass_time(at - before)
            before = at
            sectors = self.node.disks.find("/dev/sdb").read_bytes // SECTOR
            yield f"@ {at:.6f} {at:.6f}\n"
            yield f"/sys/class/block/sdb/stat: 1 0 {sectors} 0 0 0 0 0 0 0 0\n"
            yield "/proc/stat:cpu  1 0 1 100 0 0 0 0 0 0\n/proc/stat:ctxt 1\n/proc/uptime:100.00 100.00\n"


@pytest.fixture
def node() -> Node:
    found = memory_node()
    found.disks.make("lvm", "voh", "/dev/sdb", filesystem="", add_storage=True)
    return found


def counted(node: Node) -> IdleReads:
    idle = count_idle(CountingShell({}, node=node), Clock(0.0, 0.0), ["sdb"], INTERVAL_SECONDS)
    return idle.of(["sdb"])


def slow_rounds(node: Node, idle: IdleReads, rounds: int, *, surplus: float = 0.0) -> list[Measurement]:
    """Slices of a slow job on the disk, while pvestatd polls. The disk reads `surplus` times too much for them."""
    disk, found = node.disks.find("/dev/sdb"), []
    for number in range(rounds * SLICES):
        before = disk.read_bytes
        node.pvestatd.pass_time(SECONDS)
        polled = disk.read_bytes - before
        node.pvestatd.pass_time(BETWEEN - SECONDS)
        counters = replace(
            A_SLICE.counters,
            fio=FioCounts(read=round(SLOW)),
            disk=Transferred(read=round(SLOW * (1 + surplus)) + polled),
            background=Background(expected=idle.rate * SECONDS, burst=idle.burst),
        )
        arm = "guest:passthrough"
        found.append(
            replace(A_SLICE, arm=arm, round=1 + number // SLICES, block=1 + number % SLICES, counters=counters)
        )
    return found


def the_check(measurements: Sequence[Measurement]) -> ValidityCheck:
    (check,) = check_bytes(measurements, 0)
    return check


# The count


def test_a_poll_of_pvestatd_is_seen(node: Node) -> None:
    node.pvestatd.pass_time(INTERVAL_SECONDS - 5)
    # The next poll is the smallest one: the following ones may read four times as much.
    assert counted(node) == IdleReads(LEAST_AT_ONCE / INTERVAL_SECONDS, LEAST_AT_ONCE)


def test_more_than_one_storage_on_the_disk_is_counted_as_it_is(node: Node) -> None:
    node.disks.pools += [replace(pool) for pool in node.disks.pools] * 5
    idle = counted(node)
    assert idle.burst == 6 * READS[0]
    assert idle.rate == pytest.approx(6 * READS[0] / 12)


def test_the_count_takes_a_little_longer_than_from_one_poll_to_the_next(node: Node) -> None:
    shell = CountingShell({}, node=node)
    count_idle(shell, Clock(0.0, 0.0), ["sdb"], INTERVAL_SECONDS)
    (asked,) = shell.asked
    times = [float(word) for word in asked.splitlines()[-1].split()]
    assert times[-1] - times[0] == pytest.approx(1.2 * INTERVAL_SECONDS)


def test_without_a_storage_on_lvm_nothing_is_read_and_nothing_allowed(node: Node) -> None:
    for storage in node.store.storages.values():
        storage.disabled = storage.kind != "dir"
    assert counted(node) == IdleReads()


def test_disabling_only_our_storage_does_not_keep_pvestatd_away(node: Node) -> None:
    # PVE::Storage::LVMPlugin::lvm_vgs lists every group, also for local-lvm, which most nodes have.
    node.store.storages["voh"].disabled = True
    assert counted(node).burst == LEAST_AT_ONCE


def test_a_user_of_the_disk_is_not_allowed_for_beyond_what_a_poll_can_be() -> None:
    samples = [
        Sample(0.5 * number, 0.5 * number, HostCounters(disks, CpuTime(0, 0), HostCounts(busy_s=0.0), None, None))
        for number in range(25)
        for disks in [{"sdb": MemberCounts(read=50 * MIB * number)}]
    ]
    assert estimate_idle_reads(samples, "sdb", INTERVAL_SECONDS) == IdleReads(
        MOST_AT_ONCE / INTERVAL_SECONDS, MOST_AT_ONCE
    )


def test_the_disks_of_an_array_count_together() -> None:
    idle = Idle({"sda": IdleReads(10.0, 100), "sdb": IdleReads(20.0, 300)})
    assert idle.of(["sda", "sdb", "sdc"]) == IdleReads(30.0, 400)


# What is allowed for


def test_a_small_surplus_is_found_in_all_rounds_together(node: Node) -> None:
    # In a single round, it could be a poll.
    measurements = slow_rounds(node, counted(node), 20, surplus=0.15)
    assert the_check(measurements[:SLICES]).ok
    check = the_check(measurements)
    assert not check.ok
    assert "all rounds: fio counted 100 MiB read, the host's disk" in check.detail


@pytest.mark.parametrize("rounds", [1, 2, 8])
def test_a_slow_cell_is_valid_while_pvestatd_polls(node: Node, rounds: int) -> None:
    measurements = slow_rounds(node, counted(node), rounds)
    check = the_check(measurements)
    assert check.ok
    blind = [replace(each, counters=replace(each.counters, background=Background())) for each in measurements]
    if rounds > 2:
        assert "allowed for programs that also read while nothing was measured" in check.detail
        assert not the_check(blind).ok


@pytest.mark.parametrize("surplus", [0.25, 1.0])
def test_a_job_for_which_the_disk_reads_too_much_is_void_although_pvestatd_polls(node: Node, surplus: float) -> None:
    check = the_check(slow_rounds(node, counted(node), 20, surplus=surplus))
    assert not check.ok
    assert "allowed for programs that also read while nothing was measured" in check.detail
    assert "read-ahead, or something else read from the disk" in check.detail


def test_reads_that_did_not_reach_the_disk_are_void_although_pvestatd_polls(node: Node) -> None:
    check = the_check(slow_rounds(node, counted(node), 1, surplus=-0.5))
    assert not check.ok
    assert "the rest did not come from the disk" in check.detail


def test_if_nothing_was_read_while_idle_nothing_is_allowed(node: Node) -> None:
    assert not the_check(slow_rounds(node, IdleReads(), 1, surplus=0.03)).ok


def test_what_udev_may_read_counts_only_where_it_may_have_read(node: Node) -> None:
    measurements = slow_rounds(node, IdleReads(), 1, surplus=0.1)
    assert not the_check(measurements).ok
    probed = replace(measurements[0].counters, background=Background(probed=PROBED))
    assert the_check([replace(measurements[0], counters=probed), *measurements[1:]]).ok


def test_a_storage_of_another_kind_is_not_polled_on_the_disk() -> None:
    node = memory_node()
    node.disks.make("directory", "voh", "/dev/sdb", filesystem="ext4", add_storage=True)
    assert isinstance(node.store.storages["voh"], Storage)
    assert counted(node) == IdleReads()
