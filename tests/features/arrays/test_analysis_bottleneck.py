"""What limits an array, from the counters: each limit needs its own evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.features.arrays.bottleneck import Evidence, Thread, find_bottleneck
from harness.features.arrays.records import Bottleneck, MemberRecord

CURVE = ((1.0, 10_000.0), (8.0, 60_000.0), (32.0, 100_000.0))
"""A disk: I/Os in flight and IOPS; from a depth of 8 on it gives 60 % of what it gives at 32."""

EVEN = tuple(MemberRecord(f"sd{letter}", moved=1e8, busy=1.0, in_flight=8.0) for letter in "bcde")

ARRAY = Evidence(
    ideal=4.0,
    of_ideal=0.3,
    in_flight=128.0,
    single_in_flight=32.0,
    single=CURVE,
    cpu_busy=0.4,
    members=tuple(replace(member, in_flight=32.0) for member in EVEN),
)
"""Four disks in RAID 0, with as many I/Os for each as the single disk had."""


def found(evidence: Evidence) -> Bottleneck:
    return find_bottleneck(evidence).bottleneck


def test_an_array_that_delivers_what_its_level_can_has_no_bottleneck() -> None:
    finding = find_bottleneck(replace(ARRAY, of_ideal=0.93, cpu_busy=0.99))
    assert finding.bottleneck is Bottleneck.NONE
    assert finding.words == "it delivers 93% of what its level can deliver"


def test_busy_cpus_are_named_first() -> None:
    finding = find_bottleneck(replace(ARRAY, cpu_busy=0.97))
    assert (finding.bottleneck, finding.words) == (Bottleneck.CPU, "the host's CPUs were 97% busy")
    assert found(replace(ARRAY, cpu_busy=0.95)) is not Bottleneck.CPU


def test_a_member_that_is_always_busy_while_others_idle_is_named() -> None:
    slow = (replace(EVEN[0], busy=0.99), *(replace(member, busy=0.5) for member in EVEN[1:]))
    finding = find_bottleneck(replace(ARRAY, members=slow))
    assert finding.bottleneck is Bottleneck.MEMBER
    assert finding.words == "sdb was busy 99% of the time, the others 50%"


def test_a_member_that_serves_more_than_its_part_is_named() -> None:
    one_mirror = (MemberRecord("sdb", 2e8, None, None), MemberRecord("sdc", 0.0, None, None))
    finding = find_bottleneck(replace(ARRAY, ideal=2.0, of_ideal=0.5, members=one_mirror))
    assert finding.bottleneck is Bottleneck.MEMBER
    assert finding.words == "sdb moved 2.00 times the mean of the members"


def test_a_queue_that_has_less_for_each_member_than_the_single_disk_had_is_not_deep_enough() -> None:
    finding = find_bottleneck(replace(ARRAY, of_ideal=0.58, in_flight=32.0, members=EVEN))
    assert finding.bottleneck is Bottleneck.QUEUE
    assert finding.words == (
        "a member has 8 I/Os in flight, the single disk had 32; with 8, the single disk delivers 60% of its throughput"
    )


def test_fewer_ios_than_disks_leave_members_idle() -> None:
    finding = find_bottleneck(replace(ARRAY, of_ideal=0.25, in_flight=1.0, single_in_flight=1.0, single=CURVE[:1]))
    assert finding.bottleneck is Bottleneck.QUEUE
    assert finding.words == "with 1 I/Os in flight, a member has 0.25: it is idle part of the time"


def test_a_write_that_keeps_four_disks_busy_offers_each_member_more() -> None:
    # 32 writes of RAID 5 over 4 disks are 128 I/Os of disks, 32 for each member: deep enough.
    assert replace(ARRAY, ideal=1.0, in_flight=32.0).offered == 32.0
    assert found(replace(ARRAY, ideal=1.0, in_flight=32.0)) is not Bottleneck.QUEUE


def test_a_queue_explains_only_what_it_costs() -> None:
    # With 8 each, the members could give 60 %; they give 20 %.
    assert found(replace(ARRAY, of_ideal=0.2, in_flight=32.0, members=EVEN)) is Bottleneck.SHARED


def test_members_that_idle_though_ios_wait_point_at_what_they_share() -> None:
    idle = tuple(MemberRecord(member.name, 1e8, busy=0.6, in_flight=None) for member in EVEN)
    finding = find_bottleneck(replace(ARRAY, members=idle))
    assert finding.bottleneck is Bottleneck.SHARED
    assert finding.words == "members were busy 60% of the time, with 32 I/Os for each; the CPUs were 40% busy"


def test_ios_that_wait_above_the_members_point_at_what_they_share() -> None:
    finding = find_bottleneck(replace(ARRAY, members=tuple(replace(member, in_flight=4.0) for member in EVEN)))
    assert finding.bottleneck is Bottleneck.SHARED
    assert finding.words.startswith("of 128 I/Os in flight, 16 were at the members, the others waited above them")


def test_members_that_give_less_together_than_alone_point_at_what_they_share() -> None:
    finding = find_bottleneck(ARRAY)
    assert finding.bottleneck is Bottleneck.SHARED
    assert finding.words.startswith(
        "each member has enough I/Os for 100% of the single disk's throughput, and delivers 30% of it"
    )


@pytest.mark.parametrize(
    "evidence",
    [
        replace(ARRAY, cpu_busy=None),
        replace(ARRAY, members=()),
        replace(ARRAY, in_flight=None),
        replace(ARRAY, of_ideal=0.8),
        replace(ARRAY, in_flight=32.0, single=((32.0, 100_000.0),), members=EVEN),
    ],
    ids=["CPUs not counted", "members not counted", "no latency", "a little short of all", "one depth alone"],
)
def test_what_the_evidence_does_not_show_is_not_known(evidence: Evidence) -> None:
    finding = find_bottleneck(evidence)
    assert (finding.bottleneck, finding.words) == (Bottleneck.UNKNOWN, "the counters show no limit")


@pytest.mark.parametrize(
    ("in_flight", "share"),
    [(400.0, 1.0), (32.0, 0.6), (4.0, 0.1), (2.0, 0.05), (128.0, 1.0)],
    ids=["deeper", "8 each", "1 each", "half of one each", "32 each"],
)
def test_what_a_member_can_deliver_comes_from_the_single_disks_own_curve(in_flight: float, share: float) -> None:
    assert replace(ARRAY, in_flight=in_flight).allowed == pytest.approx(share)


def test_between_two_depths_the_curve_is_interpolated_and_below_an_unknown_one_it_is_not() -> None:
    allowed = replace(ARRAY, in_flight=64.0).allowed
    assert allowed == pytest.approx((0.6 * 1.0) ** 0.5)
    assert replace(ARRAY, in_flight=16.0, single=CURVE[1:]).allowed is None


def test_the_limit_of_a_path_comes_before_everything_that_an_array_on_two_paths_exceeds() -> None:
    finding = find_bottleneck(replace(ARRAY, cpu_busy=0.99, path="16 disks do as much as 8"))
    assert (finding.bottleneck, finding.words) == (Bottleneck.PATH, "16 disks do as much as 8")
    assert found(replace(ARRAY, of_ideal=0.95, path="16 disks do as much as 8")) is Bottleneck.NONE


def test_a_thread_that_always_has_a_cpu_is_named_although_other_cpus_are_idle() -> None:
    finding = find_bottleneck(replace(ARRAY, threads=(Thread("fio", 0.97), Thread("md0_raid5", 0.4))))
    assert (finding.bottleneck, finding.words) == (Bottleneck.THREAD, "fio was 97% busy")
    assert found(replace(ARRAY, threads=(Thread("fio", 0.95),))) is not Bottleneck.THREAD


def test_an_io_that_spans_several_chunks_keeps_several_members_busy() -> None:
    # One I/O of 1 MiB over 64 KiB chunks is at all four members at once.
    one_at_a_time = replace(ARRAY, in_flight=1.0, single_in_flight=1.0, single=CURVE[:1], of_ideal=0.5)
    assert found(one_at_a_time) is Bottleneck.QUEUE
    assert replace(one_at_a_time, spread=4.0).offered == 1.0
    assert found(replace(one_at_a_time, spread=4.0)) is not Bottleneck.QUEUE
