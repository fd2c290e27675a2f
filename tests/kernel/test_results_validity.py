"""Whether a measurement is valid: bytes counted three times, settings as requested, and what limited it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from harness.model.base import Md, RaidLevel
from harness.model.counters import ArmBytes, ArrayCounts, Background, Transferred
from harness.model.job import Job
from harness.model.layout import Layout, Lvm, LvmThin, Partition, Qcow2, RawFile, ZfsFile, Zvol, amplification
from harness.results import Measurement, ValidityCheck
from harness.results.byte_counts import check_bytes
from harness.results.validity import rate_checks, saturation_notes
from tests.build import build_measurement
from tests.build import counters as counters_of

GIB = 1024**3
RATED = Job("randread", 4096, rate=1000, iodepth=8, ramp=0, seconds=1)


def counted(
    arm: str = "guest:raw", number: int = 1, metrics: Mapping[str, float] | None = None, **counts: float
) -> Measurement:
    """A slice with these counters."""
    return build_measurement(arm, number, metrics=dict(metrics or {}), raw=f"raw/{number}.json", counts=counts)


def the_check(*measurements: Measurement, in_flight: int = 0) -> ValidityCheck:
    (check,) = check_bytes(measurements, in_flight)
    return check


# --- bytes ---


@pytest.mark.parametrize(("disk", "ok"), [(1.02, True), (0.98, True), (1.021, False), (0.979, False)])
def test_counts_of_the_same_bytes_may_lie_two_percent_apart_either_way(disk: float, ok: bool) -> None:
    assert the_check(counted("host", fio_written=1e9, disk_written=disk * 1e9)).ok is ok


def test_agreement_is_reported_with_the_counters_and_the_difference() -> None:
    # 2 MiB of the difference may be udev's.
    guest = the_check(counted(fio_read=1e9, qemu_read=1e9, disk_read=1.005e9))
    host = the_check(counted("host", fio_read=1e9, disk_read=1e9))
    assert (guest.check, guest.detail) == ("bytes guest:raw", "fio, QEMU and the disk agree within 0.3%")
    assert (host.check, host.detail) == ("bytes host", "fio and the disk agree within 0.1%")


@pytest.mark.parametrize(
    ("counters", "reason"),
    [
        (
            {"fio_read": 1e9, "qemu_read": 1e9, "disk_read": 0.0},
            "the host's page cache served it, or it was never written",
        ),
        ({"fio_read": 1e9, "qemu_read": 1e9, "disk_read": 1.3e9}, "read-ahead, or something else read from the disk"),
        ({"fio_written": 1e9, "qemu_written": 1e9, "disk_written": 0.2e9}, "the host's page cache holds it, or zeros"),
        ({"fio_written": 1e9, "qemu_written": 1e9, "disk_written": 1.5e9}, "(metadata, journal, parity)"),
        ({"fio_read": 1e9, "qemu_read": 0.1e9, "disk_read": 0.1e9}, "the guest's own cache served the rest"),
        ({"fio_read": 1e9, "qemu_read": 1.5e9, "disk_read": 1.5e9}, "something else in the guest used the disk"),
    ],
    ids=["reads from the host's cache", "read-ahead", "writes not yet there", "amplified", "guest's cache", "company"],
)
def test_bytes_that_disagree_are_reported_with_the_likely_reason(counters: dict[str, float], reason: str) -> None:
    check = the_check(replace(counted(), counters=counters_of(counters)))
    assert not check.ok
    assert reason in check.detail


def test_a_cached_read_is_reported_with_round_both_counts_and_their_ratio() -> None:
    rounds = [
        counted(number=1, fio_read=GIB, qemu_read=GIB, disk_read=GIB),
        counted(number=2, fio_read=GIB, qemu_read=GIB, disk_read=GIB / 4),
    ]
    assert the_check(*rounds).detail.startswith(
        "round 2: fio counted 1 GiB read, the host's disk 256 MiB (25.0%): the rest did not come from the disk"
    )


def test_qemu_is_named_if_bytes_were_lost_before_the_host() -> None:
    assert ", QEMU 102.4 MiB (10.0%)" in the_check(counted(fio_read=GIB, qemu_read=GIB / 10, disk_read=GIB / 10)).detail


def test_bytes_that_udev_reads_after_writing_on_the_host_are_allowed() -> None:
    # A job of 3 s on a hard disk reads less than that.
    assert the_check(counted("twin:lvm", fio_read=2.5e6, disk_read=3.9e6)).ok
    assert not the_check(counted("twin:lvm", fio_read=2.5e6, disk_read=4.9e6)).ok
    assert not the_check(counted("twin:lvm", fio_read=2.5e6, disk_read=1.1e6)).ok
    # In the slice after a write on the host, udev may read whatever its arm is. QEMU counts none of that.
    assert the_check(counted("guest:lvm", fio_read=2.5e6, qemu_read=2.5e6, disk_read=3.9e6)).ok
    assert not the_check(counted("guest:lvm", fio_read=2.5e6, qemu_read=3.9e6, disk_read=3.9e6)).ok
    assert not the_check(counted("twin:lvm", fio_written=2.5e6, disk_written=3.9e6)).ok


def test_bytes_in_flight_when_fio_ended_are_allowed() -> None:
    # A short job on a slow disk: 32 requests of 256 KiB are more than 2 % of it.
    slow = counted("host", fio_read=100e6, disk_read=108e6)
    assert not the_check(slow).ok
    assert the_check(slow, in_flight=32 * 256 * 1024).ok
    assert not the_check(counted("host", fio_read=100e6, disk_read=113e6), in_flight=32 * 256 * 1024).ok


def test_bytes_that_the_slice_before_had_in_flight_are_allowed() -> None:
    # On the lab's hdd, 3 of the 8 reads of 256 KiB of the slice before ended after the counters were read.
    small = counted("host", fio_read=912 * 1024, disk_read=(912 + 768) * 1024, fio_written=1e6, disk_written=1e6)

    def after(earlier: Transferred, of: Measurement = small) -> Measurement:
        return replace(of, counters=replace(of.counters, background=Background(earlier=earlier)))

    assert not the_check(after(Transferred())).ok
    assert the_check(after(Transferred(read=8 * 256 * 1024))).ok
    assert not the_check(after(Transferred(written=8 * 256 * 1024))).ok
    # It adds bytes. It is no reason for fewer.
    fewer = counted("host", fio_read=912 * 1024, disk_read=200 * 1024)
    assert not the_check(after(Transferred(read=8 * 256 * 1024), fewer)).ok


def slices(*disk: float | None, fio: float = 10e6) -> list[Measurement]:
    """The slices of a host arm in one round, with the bytes that the disk wrote in each; None was read too late."""
    return [
        replace(
            counted("host"),
            counters=counters_of({"fio_written": fio} | ({} if written is None else {"disk_written": written})),
            block=number,
            started=1000.0 + number,
        )
        for number, written in enumerate(disk, start=1)
    ]


def test_the_slices_of_a_round_are_checked_together() -> None:
    # What one slice still wrote when it ended counts in the next one.
    assert the_check(*slices(9e6, 11e6, 10e6)).ok
    assert not the_check(*slices(9e6, 9e6, 9e6)).ok
    assert not the_check(*slices(10e6)[:1], replace(slices(8e6)[0], round=2)).ok


def test_a_slice_whose_counters_were_read_too_late_is_left_out_of_the_check() -> None:
    assert the_check(*slices(10e6, None, 10e6)).ok
    assert not the_check(*slices(10e6, None, 8e6)).ok
    assert check_bytes(slices(None, None), 0) == ()


def test_each_slice_may_have_bytes_in_flight_at_its_end() -> None:
    together = slices(9e6, 9e6, 9e6)
    assert the_check(*together, in_flight=1_000_000).ok
    assert not the_check(*together, in_flight=500_000).ok


def of_arm(number: int, fio: float, arm_fio: float, arm_qemu: float, raw: str = "raw/1.json") -> Measurement:
    """A slice of a guest arm whose slices together moved these bytes, by fio and by QEMU."""
    slice_ = counted("guest:raw", fio_read=fio, disk_read=fio)
    together = ArmBytes(qemu=Transferred(read=round(arm_qemu)), fio=Transferred(read=round(arm_fio)))
    return replace(slice_, block=number, raw=raw, counters=replace(slice_.counters, arm=together))


def test_qemus_bytes_are_compared_once_for_all_slices_of_an_arm_in_a_timetable() -> None:
    assert the_check(of_arm(1, 4e7, 1e8, 1e8), of_arm(2, 6e7, 1e8, 1e8)).ok
    check = the_check(of_arm(1, 4e7, 1e8, 2e7), of_arm(2, 6e7, 1e8, 2e7))
    assert not check.ok
    assert "QEMU" in check.detail
    assert "the guest's own cache served the rest" in check.detail


def test_qemus_bytes_of_the_pieces_of_a_round_are_added() -> None:
    pieces = [of_arm(1, 5e7, 5e7, 5e7, "raw/1.json"), of_arm(2, 5e7, 5e7, 5e7, "raw/2.json")]
    assert the_check(*pieces).ok
    lost = of_arm(2, 5e7, 5e7, 1e7, "raw/2.json")
    assert not the_check(pieces[0], lost).ok


def test_reads_and_writes_of_a_mixed_job_are_compared_separately() -> None:
    mixed = counted("host", fio_read=1e9, disk_read=1.4e9, fio_written=1e9, disk_written=0.6e9)
    assert not the_check(mixed).ok


def test_every_arm_has_its_own_check_and_one_without_counters_has_none() -> None:
    checks = check_bytes(
        [
            counted("host", fio_read=1e9, disk_read=1e9),
            counted("twin:raw"),
            counted("guest:raw", fio_read=1e9, qemu_read=1e9, disk_read=0),
        ],
        in_flight=0,
    )
    assert [(check.check, check.ok) for check in checks] == [("bytes host", True), ("bytes guest:raw", False)]


# --- bytes of layouts that multiply them ---

BLOCKS = Job("randwrite", 4096, iodepth=32, ramp=0.0, seconds=3.0)
STREAM = Job("write", 256 * 1024, iodepth=32, ramp=0.0, seconds=3.0)


def on(layout: Layout, job: Job = BLOCKS, **gigabytes: float) -> ValidityCheck:
    counters = {name: round(count * 1e9) for name, count in gigabytes.items()}
    (check,) = check_bytes([replace(counted("twin:x"), counters=counters_of(counters))], 0, amplification(layout, job))
    return check


@pytest.mark.parametrize(
    ("layout", "fewest", "most"),
    [
        (Md(0, 4), 1, 1),
        (Md(1, 2), 2, 2),
        (Md(1, 3), 3, 3),
        (Md(10, 4), 2, 2),
        (Md(1, 4, legs=2), 2, 2),
        (Md(5, 4), 4 / 3, 2),
        (Md(5, 6, legs=2), 3 / 2, 2),
        (Md(6, 6), 6 / 4, 3),
        (Md(1, 2, state="degraded"), 1, 2),
        (Md(10, 4, state="degraded"), 1, 2),
        (Md(5, 6, state="degraded"), 1, 2),
        (Md(6, 6, state="degraded"), 5 / 4, 3),
        (Md(6, 6, state="rebuilding", spares=1), 5 / 4, 3),
        (Lvm(on=Md(10, 4)), 2, 2),
        (RawFile(on=Md(5, 4)), 4 / 3, 2.06),
        (Partition(), 1, 1),
        (Lvm(), 1, 1),
        (LvmThin(), 1, 1.03),
        (RawFile("xfs"), 1, 1.03),
        (Qcow2(), 1, 1.03),
    ],
    ids=str,
)
def test_what_a_layout_writes_for_each_byte_is_expected_and_neither_less_nor_more(
    layout: Layout, fewest: float, most: float
) -> None:
    assert on(layout, fio_written=1, disk_written=fewest).ok
    assert on(layout, fio_written=1, disk_written=most).ok
    assert not on(layout, fio_written=1, disk_written=fewest * 0.97).ok
    assert not on(layout, fio_written=1, disk_written=most * 1.03).ok


def test_writes_that_reached_only_one_mirror_are_fewer_than_the_layout_needs() -> None:
    check = on(Md(1, 2), fio_written=1, disk_written=1)
    assert not check.ok
    assert "(100.0%; its layout needs 2 times as much as fio): the rest was not on the disk" in check.detail


@pytest.mark.parametrize(
    "layout", [Md(0, 4), Md(1, 2), Md(5, 4), Md(6, 6), Lvm(on=Md(10, 4)), Lvm(), RawFile()], ids=str
)
def test_reads_are_expected_once_whatever_the_level(layout: Layout) -> None:
    job = Job("randread", 4096, iodepth=32, ramp=0.0, seconds=3.0)
    assert on(layout, job, fio_read=1, disk_read=1).ok
    assert not on(layout, job, fio_read=1, disk_read=0.97).ok
    assert not on(layout, job, fio_read=1, disk_read=1.03).ok


def test_a_mixed_job_may_read_old_data_and_parity_for_its_writes() -> None:
    def mixed(disk_read: float) -> bool:
        job = Job("randrw", 4096, iodepth=32, ramp=0.0, seconds=3.0, read_share=0.5)
        return on(Md(5, 4), job, fio_read=1, fio_written=1, disk_read=disk_read, disk_written=2).ok

    assert mixed(1.0)
    assert mixed(3.0)
    assert not mixed(3.2)
    assert not mixed(0.97)


RANDOM_READS = Job("randread", 4096, iodepth=32, ramp=0.0, seconds=3.0)


@pytest.mark.parametrize("level", [5, 6])
def test_a_block_of_a_missing_member_is_read_from_all_others(level: RaidLevel) -> None:
    degraded = Md(level, 6, state="degraded")
    assert on(degraded, RANDOM_READS, fio_read=1, disk_read=1).ok
    assert on(degraded, RANDOM_READS, fio_read=1, disk_read=5).ok
    assert not on(degraded, RANDOM_READS, fio_read=1, disk_read=5.2).ok
    assert not on(degraded, RANDOM_READS, fio_read=1, disk_read=0.97).ok


def test_the_other_mirror_reads_each_block_once() -> None:
    assert not on(Md(1, 2, state="degraded"), RANDOM_READS, fio_read=1, disk_read=1.03).ok


def rebuilding(rebuilt: int, **gigabytes: float) -> ValidityCheck:
    """A slice in which the recovery of a RAID 1 completed so many bytes of the spare."""
    layout = Md(1, 2, state="rebuilding", spares=1)
    counters = counters_of({name: round(count * 1e9) for name, count in gigabytes.items()})
    array = ArrayCounts(state="rebuilding", missing=1, rebuilt=rebuilt, seconds=1.0)
    slice_ = replace(counted("twin:x"), counters=replace(counters, array=array))
    (check,) = check_bytes([slice_], 0, amplification(layout, RANDOM_READS))
    return check


def test_a_rebuild_may_read_what_md_says_that_it_rebuilt_and_not_more() -> None:
    assert rebuilding(5 * 10**8, fio_read=1, disk_read=1.5).ok
    assert rebuilding(5 * 10**8, fio_read=1, disk_read=1.0).ok, "a block that both read is read once"
    assert not rebuilding(5 * 10**8, fio_read=1, disk_read=1.54).ok
    assert not rebuilding(0, fio_read=1, disk_read=1.5).ok
    assert not rebuilding(5 * 10**8, fio_read=1, disk_read=0.97).ok


def test_a_rebuild_writes_to_the_spare_what_it_rebuilt() -> None:
    assert rebuilding(5 * 10**8, fio_written=1, disk_written=2.5).ok
    assert not rebuilding(5 * 10**8, fio_written=1, disk_written=2.6).ok
    assert "and the rebuild up to " in rebuilding(5 * 10**8, fio_written=1, disk_written=2.5).detail


def test_the_rebuild_of_a_parity_array_reads_all_other_members() -> None:
    needs = amplification(Lvm(on=Md(6, 6, state="rebuilding", spares=1)), RANDOM_READS)
    assert (needs.rebuild_read, needs.rebuild_written) == (5, 1)
    assert amplification(Md(6, 6), RANDOM_READS).rebuild_read == 0


def test_amplified_bytes_are_reported_with_what_the_layout_needs() -> None:
    check = on(Md(5, 4), STREAM, fio_written=1, disk_written=1.4)
    assert check.detail == (
        "fio and the disks agree: the disks moved 1.4 times as much as fio, the layout needs 1.33 to 2"
    )
    assert on(RawFile(), fio_written=1, disk_written=1.04).detail == "fio and the disk agree within 4.0%"


def test_the_host_and_qemu_count_each_byte_once_whatever_lies_below() -> None:
    expected = amplification(Md(1, 2), BLOCKS)
    host = counted("host", fio_written=1e9, disk_written=2e9)
    guest = counted("guest:raid1", fio_written=1e9, qemu_written=2e9, disk_written=2e9)
    assert [check.ok for check in check_bytes([host, guest], 0, expected)] == [False, False]
    guest = counted("guest:raid1", fio_written=1e9, qemu_written=1e9, disk_written=2e9)
    assert [check.ok for check in check_bytes([guest], 0, expected)] == [True]


def test_zfs_may_read_and_write_whole_records_but_never_less_than_requested() -> None:
    assert on(Zvol(volblocksize=16 * 1024), fio_written=1, disk_written=4).ok
    assert on(Zvol(volblocksize=16 * 1024), fio_written=1, disk_written=8).ok
    assert not on(Zvol(volblocksize=16 * 1024), fio_written=1, disk_written=9).ok
    assert on(Zvol(volblocksize=16 * 1024), fio_written=1, disk_written=0.5).ok, "ZFS writes the rest later"
    # 4 KiB in records of the same size: to the log with a header, and to their place.
    assert on(Zvol(volblocksize=4 * 1024), fio_written=1, disk_written=3).ok
    assert not on(Zvol(volblocksize=4 * 1024), fio_written=1, disk_written=3.2).ok
    assert not on(ZfsFile(), Job("randread", 4096, iodepth=1, ramp=0.0, seconds=3.0), fio_read=1, disk_read=0.1).ok


# --- saturation ---


def test_busy_cpus_are_noted_for_the_arm_and_the_machine_they_belong_to() -> None:
    notes = saturation_notes([counted(cpu_busy=0.99, host_cpu_busy=0.5)], depth=32)
    assert notes == ("guest:raw: the guest's CPUs were 99% busy, so they limit the figure rather than the disk",)
    notes = saturation_notes([counted(cpu_busy=0.3, host_cpu_busy=0.97)], depth=32)
    assert notes == ("guest:raw: the host's CPUs were 97% busy, so they limit the figure rather than the disk",)


def test_a_host_that_was_busy_only_while_fio_ran_is_noted() -> None:
    (note,) = saturation_notes([counted("host", cpu_busy=0.98, host_cpu_busy=0.9)], depth=32)
    assert note.startswith("host: the host's CPUs were 98% busy")


def test_several_slices_are_noted_once_by_their_mean() -> None:
    slices = [counted(number=number, cpu_busy=busy, host_cpu_busy=0.1) for number, busy in enumerate((0.96, 0.98, 1.0))]
    (note,) = saturation_notes(slices, depth=32)
    assert "98% busy" in note


def test_one_disturbed_slice_of_many_limits_no_figure() -> None:
    slices = [counted(number=number, cpu_busy=0.4, metrics={"iops": 1e5, "lat_mean": 32e-5}) for number in range(20)]
    stalled = counted(number=20, cpu_busy=0.99, metrics={"iops": 1.0, "lat_mean": 0.25})
    assert saturation_notes([*slices, stalled], depth=32) == ()


def test_cpus_at_95_percent_are_not_noted() -> None:
    assert saturation_notes([counted(cpu_busy=0.95, host_cpu_busy=0.95)], depth=32) == ()


@pytest.mark.parametrize(("latency", "said"), [(32e-5, ()), (26e-5, ()), (25e-5, ("25",)), (1e-5, ("1",))])
def test_fewer_ios_in_flight_than_requested_are_noted(latency: float, said: tuple[str, ...]) -> None:
    notes = saturation_notes([counted("twin:raw", metrics={"iops": 1e5, "lat_mean": latency})], depth=32)
    assert notes == tuple(f"twin:raw: {number} I/Os in flight on average, 32 requested" for number in said)


def test_slices_that_are_short_for_their_ios_are_named_with_the_remedy() -> None:
    # A disk of 100 IOPS: a full queue takes 320 ms. It does 82 I/Os in 0.5 s and while the queue drains.
    waited = sum(number / 100 for number in range(1, 33)) + 50 * 0.32
    short = replace(counted(metrics={"iops": 100.0, "lat_mean": waited / 82}), seconds=0.82)
    (note,) = saturation_notes([short], depth=32)
    assert note.startswith(
        "guest:raw: slices of 820 ms are short for I/Os of 320 ms: while the queue fills and drains, "
    )
    assert note.endswith('latencies are 19% too low (IOPS are not); set `runtime = "2 s"` in the profile')
    # A disk of 1000 IOPS does enough I/Os in such slices. If a process cannot fill the queue, its disk is not slow.
    long_enough = replace(counted(metrics={"iops": 1000.0, "lat_mean": 0.031}), seconds=0.53)
    assert saturation_notes([long_enough], depth=32) == ()
    slow_process = replace(counted(metrics={"iops": 100.0, "lat_mean": 0.01}), seconds=0.82)
    assert saturation_notes([slow_process], depth=32) == ("guest:raw: 1 I/Os in flight on average, 32 requested",)


# --- a fixed rate ---


@pytest.mark.parametrize(
    ("iops", "ok"), [(1000.0, True), (951.0, True), (1049.0, True), (949.0, False), (1051.0, False)]
)
def test_an_arm_may_differ_by_five_percent_from_the_requested_rate(iops: float, ok: bool) -> None:
    (check,) = rate_checks([counted("host", metrics={"iops": iops})], RATED)
    assert (check.check, check.ok) == ("rate host", ok)


def test_the_round_that_is_furthest_from_the_rate_is_reported_for_each_arm() -> None:
    rounds = [counted(number=number, metrics={"iops": iops}) for number, iops in ((1, 990.0), (2, 620.0), (3, 998.0))]
    guest, host = rate_checks([*rounds, counted("host", metrics={"iops": 1000.0})], RATED)
    assert guest == ValidityCheck(
        "rate guest:raw",
        ok=False,
        detail="620 of 1000 I/Os per second in round 2: request a rate that every arm can reach",
    )
    assert (host.check, host.ok) == ("rate host", True)


@pytest.mark.parametrize(("share", "ok"), [(1.0, True), (1.24, True), (1.26, False), (0.74, False)])
def test_random_arrivals_must_have_the_rate_in_all_slices_together(share: float, ok: bool) -> None:
    """In 4 s, there are 400 I/Os with a standard deviation of 20. So 4 x 20 / 4 + 5 I/Os per second are allowed."""
    poisson = replace(RATED, rate=100, poisson=True)
    slices = [
        counted("host", number, {"iops": iops * share}) for number, iops in enumerate((70.0, 130.0, 100.0, 100.0))
    ]
    (check,) = rate_checks(slices, poisson)
    assert check.ok is ok
    assert check.detail.startswith(f"{100 * share:.0f} of 100 I/Os per second in all 4 slices")


def test_without_a_rate_there_is_no_rate_check() -> None:
    assert rate_checks([counted("host", metrics={"iops": 1.0})], replace(RATED, rate=None)) == ()


def test_at_a_fixed_rate_few_ios_in_flight_are_not_noted() -> None:
    rated = counted("host", metrics={"iops": 1000.0, "lat_mean": 1e-4})
    assert saturation_notes([rated], depth=32)
    assert saturation_notes([rated], depth=None) == ()
