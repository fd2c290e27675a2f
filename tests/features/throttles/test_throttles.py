"""Limits of a disk's I/O: whether they hold, those of the host's kernel, and figures that look like a hidden one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from harness.features.throttles import check_limits, find_plateaus
from harness.guest.qemu_process import parse_io_limit, read_io_limit
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import Job
from harness.model.mode import Cell, Mode
from harness.model.values import RateLimit
from harness.results import CellContext, CellRecord, Measurement, ValidityCheck, assemble
from tests.build import A_SLICE
from tests.unit.played_shell import PlayedShell

MIB = 1024**2
JOB = Job(rw="randread", bs=4096, iodepth=32, ramp=0, seconds=1)


def checks(attach: Attach, slices: list[dict[str, float]], *, job: Job = JOB) -> list[ValidityCheck]:
    cell = Cell("optane", "nvme0", Mode("own", Device(), attach), job)
    own = [replace(A_SLICE, arm="guest:own", metrics=metrics) for metrics in slices]
    return check_limits([*own, replace(A_SLICE, arm="host", metrics={"iops": 1e6, "bw": 1e10})], cell)


@pytest.mark.parametrize(
    ("limit", "seconds", "allowed"),
    [
        # A tenth of a second at once, then the limit.
        (RateLimit(1000), 1.0, 1100),
        (RateLimit(1000), 10.0, 10_100),
        # A burst of one second may come at any speed, a longer one only at the speed of the burst.
        (RateLimit(1000, 2000), 1.0, 3000),
        (RateLimit(1000, 2000, 5), 1.0, 2200),
        (RateLimit(1000, 2000, 5), 100.0, 110_000),
    ],
)
def test_qemu_lets_through_what_its_leaky_bucket_holds(limit: RateLimit, seconds: float, allowed: float) -> None:
    assert limit.allowed(seconds) == pytest.approx(allowed)


def test_a_limit_that_holds_is_reported_with_what_qemu_lets_through_at_once() -> None:
    (check,) = checks(Attach(iops=1000), [{"iops": 1098}, {"iops": 1104}])
    assert check == ValidityCheck(
        "throttle iops",
        ok=True,
        detail="1101 I/Os per second with a limit of 1000 I/Os per second: 100.1% of what QEMU lets through in slices "
        "of 1 s, with 100 I/Os at once",
    )


@pytest.mark.parametrize(("iops", "holds"), [(1121.0, True), (1123.0, False), (50.0, True)])
def test_a_guest_beyond_its_limit_makes_the_cell_void(iops: float, holds: bool) -> None:
    (check,) = checks(Attach(iops=1000), [{"iops": iops}])
    assert check.ok is holds


def test_both_limits_are_checked_for_random_access_and_bandwidth_for_every_access() -> None:
    both, figures = Attach(iops=1000, bw=10 * MIB), [{"iops": 900.0, "bw": 20.0 * MIB}]
    found = {check.check: check.ok for check in checks(both, figures)}
    assert found == {"throttle iops": True, "throttle bw": False}
    # The guest merges sequential I/Os, so more of fio's than of QEMU's is no fault.
    sequential = checks(both, [{"iops": 9000.0, "bw": 11.0 * MIB}], job=replace(JOB, rw="write"))
    assert {check.check: check.ok for check in sequential} == {"throttle bw": True}
    assert checks(Attach(), figures) == []


def test_a_limit_of_reads_is_checked_for_jobs_that_only_read() -> None:
    attach, figures = Attach(read_iops=1000, write_iops=100), [{"iops": 1200.0}]
    (check,) = checks(attach, figures)
    assert (check.check, check.ok) == ("throttle read_iops", False)
    assert "1200 reads per second with a limit of 1000 reads per second" in check.detail
    assert [check.check for check in checks(attach, figures, job=replace(JOB, rw="randwrite"))] == [
        "throttle write_iops"
    ]
    assert checks(attach, figures, job=replace(JOB, rw="randrw")) == []


# --- the host's kernel ---

VERSION_2 = """device 259:0
device 8:0
known
limit 8:0 rbps=max wbps=max riops=1000 wiops=max
limit 8:16 rbps=1 wbps=max riops=max wiops=max
limit 8:0 rbps=max wbps=5000 riops=2000 wiops=max
"""


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        (VERSION_2, "8:0 riops=1000 wbps=5000 riops=2000"),
        (VERSION_2.replace("device 8:0\n", ""), "none"),
        # Without the devices below the disk, every limit may apply.
        (VERSION_2.replace("device 8:0\n", "").replace("device 259:0\n", ""),
         "8:0 riops=1000 wbps=5000 riops=2000; 8:16 rbps=1"),
        ("device 8:0\nknown\nknown\nlimit 8:0 riops=1000\n", "8:0 riops=1000"),
        ("known\n", "none"),
        ("device 8:0\n", None),
    ],
)  # fmt: skip
def test_limits_of_a_control_group_count_for_the_devices_below_the_disk(printed: str, found: str | None) -> None:
    assert parse_io_limit(printed) == found


def test_the_limits_are_those_of_qemus_process() -> None:
    shell = PlayedShell({"sh": VERSION_2})
    assert read_io_limit(shell, "/run/qemu.pid", "/dev/sda").host_io_limit == "8:0 riops=1000 wbps=5000 riops=2000"
    assert "/run/qemu.pid" in shell.asked[0]


# --- figures above a limit ---


@pytest.mark.parametrize(
    ("attach", "iops", "noted"),
    [
        # As measured on Proxmox VE: a limit of 200 in slices of 0.65 s.
        (Attach(iops=200), [231.0, 229.0], True),
        (Attach(iops=200, iops_burst=1000), [700.0, 720.0], True),
        (Attach(iops=200), [203.0, 201.0], False),
        (Attach(iops=200), [150.0, 160.0], False),
        (Attach(), [230.0, 230.0], False),
    ],
    ids=["short slices", "a burst", "as limited", "below", "no limit"],
)
def test_a_figure_above_the_limit_says_why(attach: Attach, iops: list[float], noted: bool) -> None:
    notes = [note for note in record(32, iops, attach=attach).notes if "above the limit" in note]
    assert bool(notes) is noted
    if noted and attach.iops_burst is None:
        assert notes[0].startswith(
            "the guest's 230 I/Os per second are above the limit of 200 I/Os per second, because"
        )
        assert "QEMU lets 20 I/Os through at once at the beginning of each slice" in notes[0]


# --- figures that look like a limit ---


def record(depth: int, guest: list[float], host: float = 50_000, attach: Attach | None = None) -> CellRecord:
    cell = Cell("optane", "nvme0", Mode("own", Device(), attach or Attach()), replace(JOB, iodepth=depth))
    figures: Mapping[str, list[float]] = {"host": [host] * len(guest), "guest:own": guest}
    slices: list[Measurement] = [
        replace(A_SLICE, group="g", arm=arm, job=cell.job.id, round=number, metrics={"iops": iops})
        for arm, values in figures.items()
        for number, iops in enumerate(values, start=1)
    ]
    return assemble([cell], slices, {cell.id: CellContext(host="lab", group="g", span_bytes=64 << 20)})[0]


def noted(*records: CellRecord) -> list[int]:
    return [each.job.iodepth for each in records if each.id in find_plateaus(records)]


def test_the_same_round_number_at_several_depths_is_noted_as_a_limit_nobody_requested() -> None:
    records = [record(1, [500.0, 501.0]), record(8, [3001.0, 2999.0]), record(32, [3002.0, 3000.0])]
    assert noted(*records) == [8, 32]
    note = find_plateaus(records)[records[2].id]
    assert note.startswith("the guest has 3000 IOPS at the depths 8 and 32, and the host more: this looks like a limit")


@pytest.mark.parametrize(
    "records",
    [
        [record(8, [3001.0, 2999.0])],
        [record(8, [3301.0, 3299.0]), record(32, [3302.0, 3300.0])],
        [record(8, [3100.0, 2900.0]), record(32, [3050.0, 2950.0])],
        [record(8, [3001.0, 2999.0], host=3100), record(32, [3002.0, 3000.0], host=3100)],
        [record(8, [3001.0], attach=Attach(iops=3000)), record(32, [3002.0], attach=Attach(iops=3000))],
        [record(8, [3000.0, 3000.0]), record(32, [6000.0, 6000.0])],
    ],
    ids=["one depth", "no round number", "unsteady", "the host's too", "requested", "rising"],
)
def test_other_figures_are_not_noted(records: list[CellRecord]) -> None:
    assert noted(*records) == []


def test_the_note_is_in_the_records_of_the_cells() -> None:
    cells = [Cell("optane", "nvme0", Mode("own", Device(), Attach()), replace(JOB, iodepth=depth)) for depth in (8, 32)]
    slices = [
        replace(A_SLICE, group="g", arm=arm, job=cell.job.id, round=number, metrics={"iops": iops})
        for cell in cells
        for arm, iops in (("host", 9000.0), ("guest:own", 2000.0))
        for number in (1, 2)
    ]
    contexts = {cell.id: CellContext(host="lab", group="g", span_bytes=64 << 20) for cell in cells}
    assert all("a limit of 2000 IOPS" in each.notes[-1] for each in assemble(cells, slices, contexts))
