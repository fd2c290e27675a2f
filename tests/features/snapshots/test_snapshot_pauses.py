"""Snapshots under load: what is planned, which pairs count, what is refused, and what a killed run leaves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import pytest

from harness.analysis.metrics import CompletedIo
from harness.errors import ConfigError, HostError
from harness.features.snapshots.measuring import (
    SnapshotsBeside,
    SnapshotTimes,
    Turn,
    VolumeSnapshot,
    choose_pairs,
    find_slowest,
    make_record,
)
from harness.features.snapshots.report import REPORT, describe_snapshots
from harness.features.snapshots.request import PlannedSnapshots, SnapshotRecord
from harness.lab.counters import Cycles
from harness.lab.transport.local import LocalRunner
from harness.measure.fio import JobResult
from harness.measure.ran_slices import RanSlice
from harness.model.counters import Transferred
from harness.scenario.load import load_scenario
from harness.scenario.plan import plan_for
from harness.scenario.timetable import ScheduledArm, Slice, Timetable, in_order

SCENARIO = """
title = "When a snapshot can be taken"
disk = "optane"
modes = ["host", "passthrough", "lvm", "lvm-thin", "raw", "qcow2", "own"]
workloads = ["randread-4k", "randwrite-4k"]
write_rate = "1 GiB/s"

[mode.own]
layout = { kind = "lvm-thin" }
attach = {}
container = true

[snapshot.pause]
pairs = 4
seconds = "2 s"
"""


def load(directory: Path, text: str) -> list[PlannedSnapshots]:
    path = directory / "when.toml"
    path.write_text(text)
    plan = plan_for(load_scenario(path), "smoke")
    return [follow_up for follow_up in plan.follow_ups if isinstance(follow_up, PlannedSnapshots)]


@pytest.fixture
def planned(tmp_path: Path) -> PlannedSnapshots:
    """The snapshots of the thin volume while it is read."""
    return next(each for each in load(tmp_path, SCENARIO) if each.cell.mode.name == "lvm-thin")


def test_each_mode_whose_layout_has_snapshots_is_measured_with_each_workload(tmp_path: Path) -> None:
    found = load(tmp_path, SCENARIO)
    assert [(each.cell.mode.name, each.job.workload.name) for each in found] == [
        (mode, workload) for workload in ("randread-4k", "randwrite-4k") for mode in ("lvm-thin", "qcow2", "own")
    ]
    assert {each.job.seconds for each in found} == {2.0}
    assert [each.bytes_written(10) > 0 for each in found] == [False] * 3 + [True] * 3
    assert found[0].id == "when-batch1-snapshot-pause-lvm-thin-randread-4k-qd32"


@pytest.mark.parametrize("seconds", ["2 s", "1000 h"])
def test_a_plan_never_takes_longer_than_it_takes_at_most(tmp_path: Path, seconds: str) -> None:
    path = tmp_path / "when.toml"
    path.write_text(SCENARIO.replace("2 s", seconds))
    plan = plan_for(load_scenario(path), "smoke")
    assert plan.minutes <= plan.most_minutes


@pytest.mark.parametrize(
    ("modes", "said"),
    [
        ('["lvm"]', "layout lvm has no snapshots of its own; allowed: lvm-thin, zvol, rbd, qcow2"),
        ('["host"]', "has no disk that a guest's QEMU serves"),
        ('["lvm-blk"]', "not a mode of this scenario"),
    ],
)
def test_a_mode_without_snapshots_is_a_mistake(tmp_path: Path, modes: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, SCENARIO.replace("pairs = 4", f"modes = {modes}"))
    assert "snapshot.pause.modes[0]" in raised.value.message
    assert said in raised.value.message


def test_a_scenario_without_snapshots_is_a_mistake(tmp_path: Path) -> None:
    text = SCENARIO.replace('"lvm-thin", "raw", "qcow2", "own"', '"raw"').replace("[mode.own]\nlayout", "#")
    text = text.replace("attach = {}\ncontainer = true", "").replace('# = { kind = "lvm-thin" }', "")
    with pytest.raises(ConfigError, match="no mode of this scenario has a layout with snapshots"):
        load(tmp_path, text)


def table_of(planned: PlannedSnapshots, *blocks: list[Turn]) -> Timetable:
    return in_order(planned.job, [[ScheduledArm(planned.guest, turn) for turn in turns] for turns in blocks], pause=1.0)


def ran(slice_: Slice, *, iops: float, slowest: int, overlap: str = "") -> RanSlice:
    """A slice that ran as planned. `slowest` is in ns."""
    result = JobResult(
        job="job",
        seconds=slice_.job.seconds,
        started=None,
        ramp_started=None,
        io_bytes=0,
        metrics={"iops": iops},
        histogram={1000: 10, slowest: 1},
        sync_histogram={},
        transferred=Transferred(),
        ios=11,
        user_seconds=0.0,
        system_seconds=0.0,
        switches=0,
        completed=CompletedIo([]),
    )
    return RanSlice(
        planned=slice_,
        result=result,
        first=slice_.start,
        begun=slice_.start,
        ended=slice_.end,
        before=None,
        after=None,
        cycles=Cycles(),
        raw=f"raw/{slice_.block}.json",
        overlap=overlap,
    )


def run_all(table: Timetable) -> list[RanSlice]:
    by_turn = {Turn.ALONE: (1000.0, 2_000_000), Turn.BESIDE: (800.0, 52_000_000)}
    speeds = [by_turn[Turn(slice_.turn.again)] for slice_ in table.slices]
    return [ran(each, iops=iops, slowest=slowest) for each, (iops, slowest) in zip(table.slices, speeds, strict=True)]


def within(slice_: Slice, *, late: float = 0.0) -> SnapshotTimes:
    begun = slice_.start + 0.5 + late
    return SnapshotTimes(begun, begun + 0.1, begun + 0.6, begun + 0.7)


def test_the_pause_and_the_loss_follow_from_pairs(planned: PlannedSnapshots) -> None:
    table = table_of(planned, [Turn.ALONE, Turn.BESIDE], [Turn.BESIDE, Turn.ALONE], [Turn.ALONE, Turn.BESIDE])
    taken = {each.block: within(each) for each in table.slices if each.turn.again == Turn.BESIDE}
    pairs = list(choose_pairs(run_all(table), taken))
    assert len(pairs) == 3
    record = make_record(replace(planned, snapshots=replace(planned.snapshots, pairs=3)), "h", kind="it", pairs=pairs)
    assert record.pause == pytest.approx(0.050)
    assert record.longest == pytest.approx(0.052)
    assert record.loss is not None
    assert record.loss.point == pytest.approx(0.2)
    assert record.taking == pytest.approx((0.1, 0.1, 0.1))
    assert record.problem is None
    assert describe_snapshots(record).startswith(
        "lvm-thin during randread-4k-qd32: a it stops I/O for 50.0 ms (longest 52.0 ms), and costs 20.0 %"
    )


def test_a_snapshot_that_does_not_end_in_its_slice_does_not_count(planned: PlannedSnapshots) -> None:
    table = table_of(planned, [Turn.BESIDE, Turn.ALONE], [Turn.BESIDE, Turn.ALONE], [Turn.ALONE, Turn.BESIDE])
    first, second, third = (each for each in table.slices if each.turn.again == Turn.BESIDE)
    # That of the first pair ends in the slice without a snapshot, and that of the second one in the pause after it.
    taken = {1: within(first, late=2.0), 2: within(second, late=1.0), 3: within(third)}
    pairs = list(choose_pairs(run_all(table), taken))
    assert [pair.taken for pair in pairs] == [taken[3]]
    record = make_record(planned, "h", kind="it", pairs=pairs)
    assert "3 of 4 pairs do not count" in (record.problem or "")
    assert "set seconds above 2" in describe_snapshots(record)


def test_slices_that_overlap_do_not_count(planned: PlannedSnapshots) -> None:
    table = table_of(planned, [Turn.ALONE, Turn.BESIDE])
    alone, beside = run_all(table)
    assert list(choose_pairs([alone, replace(beside, overlap="host")], {1: within(table.slices[1])})) == []
    assert list(choose_pairs([alone, beside], {})) == []
    assert find_slowest(beside) == pytest.approx(0.052)


@dataclass
class Counting:
    """Takes nothing, and keeps in which order it was asked."""

    kind: str = "it"
    asked: list[str] = field(default_factory=list)

    def take(self) -> None:
        self.asked.append("take")

    def remove(self) -> None:
        self.asked.append("remove")


def test_each_slice_that_is_to_have_one_has_a_snapshot(planned: PlannedSnapshots) -> None:
    table = table_of(planned, [Turn.ALONE, Turn.BESIDE], [Turn.BESIDE, Turn.ALONE])
    taker = Counting()
    beside = SnapshotsBeside(taker)
    beside.run(table, -1e6, Event())
    assert taker.asked == ["take", "remove"] * 2
    assert beside.taken.keys() == {1, 2}
    stopped = Event()
    stopped.set()
    SnapshotsBeside(taker).run(table, 1e9, stopped)
    assert len(taker.asked) == 4


LVS = """
[ "$1" = --noheadings ] && cat <<'LIST'
  use|vol|
  use|voh-1|vol
  use|voh-2|other
LIST
"""
ZFS = """
case "$*" in
*"-t snapshot"*) case "$*" in *tank/vol) printf 'tank/vol@daily\\ntank/vol@voh-1\\n' ;; *) exit 1 ;; esac ;;
"list -H -o name") echo tank ;;
*) echo "$*" >>"$ASKED" ;;
esac
"""
LVREMOVE = 'echo "$*" >>"$ASKED"'


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the programs of a host with a snapshot of ours, and others, were asked to remove."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("lvs", LVS), ("lvremove", LVREMOVE), ("zfs", ZFS)):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    (tmp_path / "asked").touch()
    return tmp_path / "asked"


@pytest.mark.parametrize(
    ("of", "name", "outcome", "command"),
    [
        ("lvm use/vol", "voh-1", "removed", "--yes --quiet --config a=0 use/voh-1\n"),
        ("lvm use/vol", "voh-9", "absent", ""),
        ("lvm use/vol", "voh-2", "foreign", ""),
        ("zfs tank/vol", "voh-1", "removed", "destroy tank/vol@voh-1\n"),
        ("zfs tank/vol", "voh-2", "absent", ""),
        ("zfs tank/gone", "voh-1", "absent", ""),
    ],
)
def test_only_the_snapshot_of_the_run_is_removed(asked: Path, of: str, name: str, outcome: str, command: str) -> None:
    system, volume = of.split()
    thing = VolumeSnapshot(system=system, of=volume, name=name, settings="a=0")  # type: ignore[arg-type] # one of them
    assert thing.remove(LocalRunner()).outcome == outcome
    assert asked.read_text() == command


def test_a_group_in_use_keeps_its_own_settings(asked: Path) -> None:
    thing = VolumeSnapshot(system="lvm", of="use/vol", name="voh-1")
    assert thing.remove(LocalRunner()).outcome == "removed"
    assert asked.read_text() == "--yes --quiet use/voh-1\n"


def test_a_host_that_does_not_answer_keeps_the_snapshot_in_the_log(asked: Path) -> None:
    (asked.parent / "bin" / "lvs").write_text("#!/bin/sh\nexit 5\n")
    with pytest.raises(HostError, match="the snapshot voh-1 of use/vol cannot be removed"):
        VolumeSnapshot(system="lvm", of="use/vol", name="voh-1").remove(LocalRunner())


def test_the_report_names_what_was_not_measured(planned: PlannedSnapshots) -> None:
    record = make_record(planned, "h", problem="the pool has no room")
    assert describe_snapshots(record) == (
        "lvm-thin during randread-4k-qd32: no snapshot was measured; the pool has no room"
    )
    assert (record.pause, record.longest, record.loss) == (None, None, None)
    assert REPORT.records == (SnapshotRecord,)
