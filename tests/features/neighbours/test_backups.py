"""A backup beside a guest: the modes, when it runs, which slices count, and what libvirt is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import libvirt
import pytest

from harness.analysis import IN_ORDER
from harness.errors import GuestError
from harness.features.borrow.hypervisor import refuse_others
from harness.features.neighbours import make_backup_mode
from harness.features.neighbours.backups import LibvirtBackup, build_backup_xml
from harness.features.neighbours.measured import Backups, Copies, Copy, check_backup, measure_others, note_lost_backups
from harness.guest.libvirt.connection import Connection
from harness.guest.libvirt.requirements import Versions, refuse_mode
from harness.measure.phases import Pauses
from harness.model.attach import Attach
from harness.model.job import Job, parse_workload
from harness.model.layout import Lvm
from harness.model.mode import Arm, Cell, Mode, Place
from harness.report.html import render_html
from harness.report.markdown import markdown_table
from harness.report.terminal import difference_lines
from harness.results.contrasts import Blocks
from harness.results.journal import BackupCounts, Measurement
from harness.scenario.timetable import BACKUP_LEAD, BACKUP_TAIL, ScheduledArm, Slice, backed_up, timetables, waiting
from tests.build import A_SLICE, optane, synthetic_run
from tests.unit.test_scenario_load import complaint, load

ALONE = Mode("lvm", Lvm(), Attach())
DURING = make_backup_mode(ALONE)
JOB = Job("randread", 4096, iodepth=1, ramp=0, seconds=2)
ARM = Arm(Place.GUEST, DURING)
FILE = """
title = "A backup"
modes = ["host", "own"]
workloads = ["randread-4k"]
write_rate = "1 GiB/s"

[mode.own]
layout = { kind = "lvm" }
attach = {}
backup = true
"""


def test_the_mode_without_the_backup_is_measured_in_the_same_blocks(tmp_path: Path) -> None:
    host, own, during = load(tmp_path, FILE).modes
    assert (host.name, own.name, during.name) == ("host", "own", "own-backup")
    assert (during.against, during.attached, during.volumes) == (own, own, (own,))
    assert (own.detail.backup, during.detail.backup, during.detail.runs_with_others) == (False, True, True)
    assert len(ARM.parts(JOB)) == 1
    assert Cell("d", "d", during, JOB).by_role[Place.AGAINST] == Arm(Place.GUEST, own)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('kind = "lvm"', 'kind = "device"', 'backup = true conflicts with layout.kind = "device"'),
        (
            "attach = {}",
            'attach = { bus = "virtio-blk", server = "storage-daemon" }',
            "the guest's QEMU makes the backup",
        ),
        ("backup = true", "backup = true\nguests = 2", "backup = true conflicts with guests = 2"),
    ],
)
def test_what_cannot_be_backed_up_is_refused(before: str, after: str, said: str, tmp_path: Path) -> None:
    lines = complaint(tmp_path, FILE.replace(before, after))
    assert any(said in line for line in lines), lines


def test_a_vm_of_others_is_not_backed_up() -> None:
    assert "belongs to others" in (refuse_others("the VM web", DURING) or "")
    assert refuse_others("the VM web", ALONE) is None


def test_a_slice_with_a_backup_has_time_for_it_to_begin_and_end() -> None:
    arms = [Arm(Place.HOST), Arm(Place.GUEST, ALONE), ARM]
    (table,) = timetables({JOB: [ScheduledArm(arm) for arm in arms]}, 3, chance=Random(1), pause=lambda _job, _arm: 0.2)
    ended, after = 0.0, 0.0
    for each in table.slices:
        lead = BACKUP_LEAD if each.arm == ARM else 0.0
        assert each.start - ended == pytest.approx(lead + after)
        ended, after = each.end, 0.2 + (BACKUP_TAIL if each.arm == ARM else 0.0)
    assert waiting(JOB, ARM, [ARM]) == BACKUP_LEAD + BACKUP_TAIL
    assert waiting(JOB, arms[1], arms) == 0


@dataclass
class Clock:
    """Time that passes only when somebody waits."""

    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


@dataclass
class Disk:
    """A backup that takes `seconds`."""

    clock: Clock
    seconds: float
    begun: list[float] = field(default_factory=list)
    cancelled: list[float] = field(default_factory=list)

    def begin(self) -> None:
        self.clock.now += 0.01
        self.begun.append(self.clock.now)

    def copied(self) -> int | None:
        ran = self.clock.now - self.begun[-1]
        return round(1000 * ran) if ran < self.seconds else None

    def cancel(self) -> None:
        self.cancelled.append(self.clock.now)


@pytest.mark.parametrize(("seconds", "copies", "whole"), [(60.0, 1, True), (1.0, 3, False)])
def test_a_backup_that_ends_is_begun_again_until_the_slice_ends(
    seconds: float, copies: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("harness.features.neighbours.measured.time", clock)
    stopped = Event()
    monkeypatch.setattr(stopped, "wait", clock.wait)
    disk = Disk(clock, seconds)
    slice_ = Slice(1, ScheduledArm(ARM), JOB, start=5.0, lead=BACKUP_LEAD, tail=BACKUP_TAIL)
    running = Backups([(slice_, disk)], start=clock.now)
    running.run(stopped)
    found = running.copies
    begun, ended = 100 + slice_.start, 100 + slice_.end
    assert disk.begun[0] == pytest.approx(begun - BACKUP_LEAD, abs=0.02)
    assert len(disk.begun) == copies
    assert (len(disk.cancelled), disk.cancelled[0] >= ended) == (1, True)
    assert (found.share(begun, ended) > 0.999) is whole
    assert found.share(begun, ended) > 0.8
    assert found.rate(begun, ended) == pytest.approx(1000, rel=0.02)
    counts = running.count(slice_, begun, ended)
    assert counts is not None
    assert (counts.share > 0.99) is whole
    assert counts.after == pytest.approx(found.after(begun, ended), abs=0.001)
    other = replace(slice_, turn=ScheduledArm(Arm(Place.GUEST, ALONE)))
    assert running.count(other, begun, ended) is None
    assert running.find_left_over(other, begun, ended) == "backup"
    assert running.find_left_over(slice_, begun, ended) == ""


def test_another_slice_during_which_a_backup_may_run_is_found() -> None:
    copies = Copies([Copy(first=10.0, last=12.0, copied=5, ended=12.4)])
    assert copies.disturb(12.3, 13.0)
    assert not copies.disturb(12.5, 13.0)
    assert copies.share(9.0, 11.0) == 0.5


def slices(*shares: float) -> list[Measurement]:
    return [
        replace(A_SLICE, arm=ARM.id, block=block, backup=BackupCounts(share, 7.0))
        for block, share in enumerate(shares, start=1)
    ]


def test_slices_without_a_backup_do_not_count() -> None:
    cell = Cell("d", "d", DURING, JOB)
    (check,) = check_backup(slices(1.0, 0.99, 0.5), cell)
    assert (check.ok, check.detail) == (True, "a backup ran all the time in 2 of 3 slices")
    assert note_lost_backups(slices(1.0, 0.99, 0.5)) == ["1 of 3 blocks do not count, because the backup ended in them"]
    (check,) = check_backup(slices(1.0, 0.0, 0.5), cell)
    assert not check.ok
    assert "larger span" in check.detail
    assert check_backup(slices(1.0), Cell("d", "d", ALONE, JOB)) == []
    record = measure_others(cell, Blocks(((1, 1),), {Place.GUEST: tuple(slices(1.0))}), IN_ORDER, 0.95)["backup"]
    assert record.bw == (7.0,)


class Domain:
    """libvirt's answers about a job, by its flags, and what was asked."""

    def __init__(self, *jobs: dict[str, Any], completed: int = libvirt.VIR_DOMAIN_JOB_COMPLETED) -> None:
        self.jobs = list(jobs)
        self.completed = {"type": completed, "errmsg": "No space left"}
        self.asked: list[tuple[str, Any, int]] = []
        self.aborted = 0

    def backupBegin(self, xml: str, checkpoint: Any, flags: int) -> int:  # noqa: N802 - libvirt's name
        self.asked.append((xml, checkpoint, flags))
        return 0

    def jobStats(self, flags: int) -> dict[str, Any]:  # noqa: N802
        if flags:
            return self.completed
        return self.jobs.pop(0) if self.jobs else {"type": libvirt.VIR_DOMAIN_JOB_NONE}

    def abortJob(self) -> int:  # noqa: N802
        self.aborted += 1
        if not self.jobs:
            raise libvirt.libvirtError("no job is active on the domain")
        return 0


RUNNING = {"type": libvirt.VIR_DOMAIN_JOB_UNBOUNDED, "disk_processed": 4096}


def backup(domain: Domain) -> LibvirtBackup:
    return LibvirtBackup(Connection(None, "here"), domain, "vdb", "/b/disk.raw")


def test_libvirt_pushes_one_disk_to_the_file_and_shows_its_progress() -> None:
    domain = Domain(RUNNING)
    own = backup(domain)
    own.begin()
    ((xml, checkpoint, flags),) = domain.asked
    assert (xml, checkpoint) == (build_backup_xml("vdb", "/b/disk.raw"), None)
    assert flags == libvirt.VIR_DOMAIN_BACKUP_BEGIN_REUSE_EXTERNAL
    assert xml == (
        '<domainbackup mode="push"><disks><disk name="vdb" backup="yes" type="file"><driver type="raw" />'
        '<target file="/b/disk.raw" /></disk></disks></domainbackup>'
    )
    assert (own.copied(), own.copied()) == (4096, None)


@pytest.mark.parametrize("jobs", [[], [RUNNING, RUNNING]], ids=["ended by itself", "runs"])
def test_a_backup_is_cancelled_and_waited_for(jobs: list[dict[str, Any]]) -> None:
    domain = Domain(*jobs)
    backup(domain).cancel()
    assert (domain.aborted, domain.jobs) == (1, [])


def test_a_failed_backup_is_an_error_with_its_reason() -> None:
    with pytest.raises(GuestError, match="the backup of vdb failed: No space left"):
        backup(Domain(completed=libvirt.VIR_DOMAIN_JOB_FAILED)).copied()


def test_an_old_libvirt_has_no_backups() -> None:
    assert refuse_mode(DURING, Versions(6_000_000, 10_000_000)) is None
    why = refuse_mode(DURING, Versions(5_010_000, 10_000_000))
    assert why is not None
    assert why.startswith("backup needs libvirt 6.0.0, but the host has 5.10.0")


def test_the_time_after_a_slice_is_learned_from_those_with_a_backup_alone() -> None:
    pauses = Pauses()
    assert pauses.after_backup == BACKUP_TAIL
    before = pauses.after(JOB, in_guest=True, rotational=False)
    slow = replace(A_SLICE, arm=ARM.id, job=JOB.id, seconds=9.0, backup=BackupCounts(1.0, 7.0, after=3.0))
    pauses.learn([slow])
    assert pauses.after_backup == pytest.approx(3.6)
    assert pauses.after(JOB, in_guest=True, rotational=False) == before
    pauses.learn([replace(slow, backup=BackupCounts(1.0, 7.0, after=60.0))])
    assert pauses.after_backup == pytest.approx(12)


def speed(arm: Arm, job: Job) -> float:
    """A backup takes half."""
    return 10_000.0 * job.iodepth / (2 if backed_up(arm) else 1)


def test_the_report_names_the_backup_with_its_cost_and_its_speed() -> None:
    one = replace(optane(), modes=(optane().modes[0], ALONE, DURING), workloads=(parse_workload("randread-4k"),))
    shown = synthetic_run(scenario=one, speed=speed, rounds=12, budget=None, noise=0.02)
    cell = shown.cell("optane-lvm-backup-randread-4k-qd32")
    assert cell.against == "optane-lvm-randread-4k-qd32"
    assert cell.backup is not None
    assert cell.backup.bw == (400 * 1024**2,) * 12
    (line,) = (each for each in difference_lines(shown) if each.startswith("lvm-randread-4k-qd32: "))
    assert line.startswith("lvm-randread-4k-qd32: p99 during a backup: x 2.0")
    assert line.endswith("; the backup did 400 MiB/s: worse")
    assert "| `lvm-randread-4k-qd32` | `backup` | p99 |" in markdown_table(shown)
    assert "With a neighbour or a backup" in render_html(shown)
