"""A campaign keeps the limit of the bytes written by the disk's own counter, and says what it could not measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import Reason, Verdict
from harness.errors import ConfigError
from harness.events import Event, Events, Note
from harness.features.commands.request import CommandRecord, OwnCommand
from harness.features.commands.running import make_record
from harness.features.write_limit.fitting import MaxWrites, fitted, planned_writes
from harness.features.write_limit.limit import Meter, check_write_limits
from harness.lab.inventory import DiskByFile
from harness.lab.transport.base import Completed
from harness.lab.transport.local import LocalRunner
from harness.measure.campaign import Campaign
from harness.measure.phases import Phases
from harness.measure.resume import Earlier, choose_limit, earlier_part
from harness.measure.series import CampaignSpec, LabFound, OpenSession, PreparedGroup, RoundSegment
from harness.model.job import parse_workload
from harness.report.contents import find_banners
from harness.report.markdown import markdown_table
from harness.report.terminal import summary_lines
from harness.results import Measurement, Run, RunStore
from harness.results.journal import WritesEvent
from harness.scenario.plan import Plan, plan_for
from harness.scenario.scenario import Requested, Scenario
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice
from tests.build import RUN_ID
from tests.unit import killed_campaign
from tests.unit.killed_campaign import HOST
from tests.unit.loop_disks import RUNNER, loop, require, sparse
from tests.unit.recorded_campaign import SECONDS, Played, RecordedMeasurer, write_recording

MIB = 1024**2
WRITE, READ = "randwrite-4k-qd32", "randread-4k-qd32"
PER_SLICE = 10_000 * 4096 * SECONDS
"""Bytes that the host writes in a slice, as played back: 117 MiB."""


class Disk(LocalRunner):
    """A host whose disk counts what is written. It survives the process that measures on it."""

    written = 5000 * MIB

    def run(self, argv: Sequence[str], **_: Any) -> Completed:
        return Completed(tuple(argv), 0, "".join(f"b1/1/nvme0n1 {self.written // 512}\n" for _ in argv[3:]), "")


class Counted(RecordedMeasurer):
    """Has the real meter on such a disk. Filling writes as much as the plan says, slices as much as they may."""

    disk = Disk("host node1")
    speed = 1.0
    """Of all arms, as a multiple of what is recorded."""
    extra = 0
    """What others write to the disk beside each slice."""
    killed_after = 10**6

    def __init__(self, spec: CampaignSpec, store: RunStore, images: object, phases: Phases) -> None:
        super().__init__(spec, store, images, phases)
        self.runner = self.disk
        self.pieces = 0
        self.built = False

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:
        def found(lab: LabFound) -> None:
            examined(replace(lab, builds=not self.built))

        at = super().prepare(plan, group, found)
        if not self.built:
            self.disk.written += plan.fill_bytes(plan.span)
        self.built = True
        return at

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        self.pieces += 1
        if self.pieces > self.killed_after:
            raise KeyboardInterrupt
        found = [
            _limited(each, planned)
            for each, planned in zip(super().measure(group, segment, began), segment.table.slices, strict=True)
        ]
        self.disk.written += sum(each.counters.fio.written + self.extra for each in found)
        return found

    def disturbed(self, iops: float, previous: str | None, discarded: float) -> float:
        return self.speed * super().disturbed(iops, previous, discarded)


def _limited(each: Measurement, planned: Slice) -> Measurement:
    """The measurement with fio's limit, which fio keeps."""
    most = int(planned.write_limit * planned.job.wall) if planned.write_limit is not None else 10**15
    fio, disk = each.counters.fio, each.counters.disk
    assert disk is not None
    fio = replace(fio, written=min(fio.written, most))
    disk = replace(disk, written=min(disk.written, most))
    return replace(each, write_limit=planned.write_limit, counters=replace(each.counters, fio=fio, disk=disk))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Counted, "disk", Disk("host node1"))
    played: Played = {"guest": [0.97, 0.98, 0.96, 0.975], "disk": 1.0}
    write_recording(Path("recording.json"), dict.fromkeys((WRITE, READ, "randwrite-4k-qd1", "randread-4k-qd1"), played))


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "reports", RUN_ID)


def scenario(*, rounds: int = 2, most_rounds: int = 2, write_rate: int = 50 * MIB) -> Scenario:
    """Reads and writes on the host and in one guest, each job a group of its own."""
    of = killed_campaign.scenario(rounds=rounds)
    profile = replace(of.profiles[0], runtime=SECONDS, most_rounds=most_rounds, target=1e-9, blocks=2)
    return replace(of, profiles=(profile,), write_rate=write_rate, budgets=())


def campaign(
    store: RunStore,
    limit: int,
    *,
    of: Scenario | None = None,
    measurer: type[Counted] = Counted,
    resume: bool = False,
    heard: Callable[[Event], None] = lambda _: None,
    fit: bool = True,
) -> Campaign:
    chosen = of or scenario()
    plan = plan_for(chosen, "smoke")
    plan = fitted(plan, {"optane": limit}) if fit else plan
    scenarios = {chosen.name: chosen}
    text = f"{limit}"
    spec = CampaignSpec(
        RUN_ID, HOST, (plan,), scenarios, "smoke", seed=7, command="pytest", max_writes=text, limits={"optane": limit}
    )
    earlier = Earlier()
    if resume:
        earlier, *_ = earlier_part(store, HOST.name, "smoke")
    phases = Phases(Events(heard))
    return Campaign(spec, store, measurer(spec, store, None, phases), phases, earlier)


def measured(of: Campaign) -> Run:
    for plan in of.spec.plans:
        left_out = [cell for each in plan.left_out for cell in each.cells]
        for cell in (*plan.cells, *left_out):
            of.record(cell)
    return of.close(interrupted=False)


def counted() -> int:
    """What the disk counted since the beginning."""
    return Counted.disk.written - Disk.written


def rounds(run: Run, job: str = WRITE) -> int:
    return max(len(set(cell.rounds)) for cell in run.cells if cell.job.id == job)


def test_the_record_is_what_the_disk_counted(store: RunStore) -> None:
    found = measured(campaign(store, 10**12))
    (writes,) = found.writes
    assert writes.written == counted() > 0
    assert (writes.disk, writes.limit, writes.left_out) == ("optane", 10**12, ())
    assert store.read_results().writes == found.writes
    assert rounds(found) == 2


def test_further_rounds_follow_as_far_as_the_limit_allows(store: RunStore) -> None:
    of = scenario(most_rounds=20)
    limit = 3000 * MIB
    notes: list[str] = []
    found = measured(
        campaign(store, limit, of=of, heard=lambda event: notes.append(event.text) if isinstance(event, Note) else None)
    )
    assert 2 < rounds(found) < 20
    assert limit / 2 < counted() <= limit
    assert rounds(found, READ) == 20
    (group,) = (group for group in found.groups if group.stopped == Reason.WRITES)
    (why,) = found.writes[0].left_out
    assert why in notes
    assert why.startswith("host node1: --max-writes=3145728000 allows 2.93 GiB for disk optane: another round of ")
    assert found.run.status == "complete"
    assert all(cell.skipped is None for cell in found.cells)
    assert group.id in why


def test_jobs_that_only_read_continue_when_the_limit_ends_those_that_write(store: RunStore) -> None:
    of = scenario(most_rounds=12)
    of = replace(of, profiles=(replace(of.profiles[0], round_limit=10_000),))
    limit = 2500 * MIB
    found = measured(campaign(store, limit, of=of))
    assert len(found.groups) == 1
    assert 2 <= rounds(found) < rounds(found, READ) == 12
    assert limit / 2 < counted() <= limit
    (why,) = found.writes[0].left_out
    for cell in found.cells:
        assert (why in cell.notes) == cell.job.writes


@pytest.mark.parametrize("limit", range(200, 2300, 700))
@pytest.mark.parametrize("speed", [0.5, 6.0])
def test_no_limit_is_exceeded_also_by_a_disk_that_is_faster_than_the_scenario_says(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, limit: int, speed: float
) -> None:
    monkeypatch.setattr(Counted, "speed", speed)
    found = measured(campaign(store, limit * MIB, of=scenario(most_rounds=8)))
    assert counted() <= limit * MIB
    assert found.writes[0].written == counted()


def test_cells_that_the_plan_leaves_out_say_why(store: RunStore) -> None:
    limit = 400 * MIB
    found = measured(campaign(store, limit))
    by_job = {job: [cell for cell in found.cells if cell.job.id == job] for job in (READ, WRITE)}
    assert all(cell.skipped is None for cell in by_job[READ])
    for cell in by_job[WRITE]:
        assert cell.skipped == f"--max-writes={limit}: the plan leaves out the workloads randwrite-4k"
    assert found.writes[0].left_out == ("optane: the workloads randwrite-4k (2 cells)",)
    assert counted() <= limit


def test_writes_of_others_end_the_measurement_and_what_was_measured_is_kept(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counted, "extra", 200 * MIB)
    limit = 3000 * MIB
    found = measured(campaign(store, limit, of=scenario(rounds=4, most_rounds=4)))
    writing = [cell for cell in found.cells if cell.job.id == WRITE]
    assert all(0 < len(set(cell.rounds)) < 4 or cell.skipped for cell in writing)
    assert found.writes[0].left_out
    # Others wrote after the last check, at most beside one timetable.
    assert counted() <= limit + 8 * Counted.extra


class Shared(Counted):
    """Others write to the disk while it is filled."""

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:
        at = super().prepare(plan, group, examined)
        self.disk.written += 1000 * MIB
        return at


def test_a_group_whose_first_round_does_not_fit_is_skipped_with_the_reason(store: RunStore) -> None:
    found = measured(campaign(store, 1500 * MIB, measurer=Shared))
    skipped = {cell.job.id: cell.skipped for cell in found.cells}
    assert skipped[READ] is None
    why = skipped[WRITE]
    assert why is not None
    assert "the next round of optane-batch2 may write " in why
    assert "--max-writes with a larger limit and --resume continue the run; a disk that is faster than the " in why


def test_what_was_measured_is_kept_if_a_resumed_run_may_not_fill_the_disk_again(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = scenario(rounds=2, most_rounds=20)
    monkeypatch.setattr(Counted, "killed_after", 22)
    first = campaign(store, 2500 * MIB, of=of)
    with pytest.raises(KeyboardInterrupt):
        measured(first)
    before = first.close(interrupted=True)
    monkeypatch.setattr(Counted, "killed_after", 10**6)
    found = measured(campaign(store, counted() + MIB, of=of, resume=True, fit=False))
    assert {cell.id: cell.rounds for cell in found.cells} == {cell.id: cell.rounds for cell in before.cells}
    assert all(cell.skipped is None for cell in found.cells)
    assert "building and filling the regions" in found.writes[0].left_out[-1]


def test_a_resumed_run_continues_its_count(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    of = scenario(rounds=2, most_rounds=20)
    limit = 4000 * MIB
    monkeypatch.setattr(Counted, "killed_after", 25)
    first = campaign(store, limit, of=of)
    with pytest.raises(KeyboardInterrupt):
        measured(first)
    first.close(interrupted=True)
    before = counted()
    assert before > 0
    monkeypatch.setattr(Counted, "killed_after", 10**6)
    found = measured(campaign(store, limit, of=of, resume=True))
    assert found.writes[0].written == counted() > before
    assert counted() <= limit


def test_a_finished_run_continues_with_a_larger_limit(store: RunStore) -> None:
    of = scenario(most_rounds=8)
    small = rounds(measured(campaign(store, 1600 * MIB, of=of)))
    assert rounds(measured(campaign(store, 10**12, of=of, resume=True))) == 8 > small
    assert store.read_results().run.max_writes == str(10**12)


def test_a_finished_run_of_which_cells_were_left_out_stays_as_it_is(store: RunStore) -> None:
    before = measured(campaign(store, 400 * MIB))
    written = counted()
    after = measured(campaign(store, 400 * MIB, resume=True))
    assert (after.cells, after.writes, counted()) == (before.cells, before.writes, written)


def test_a_run_that_is_resumed_without_the_option_keeps_its_limit(store: RunStore) -> None:
    measured(campaign(store, 10**12))
    earlier, *_ = earlier_part(store, HOST.name, "smoke")
    assert choose_limit(earlier, None) == MaxWrites(size=10**12, text=str(10**12))


def test_a_limit_cannot_begin_in_the_middle_of_a_run(store: RunStore) -> None:
    killed_campaign.measured(killed_campaign.campaign(store, resume=False))
    earlier, *_ = earlier_part(store, HOST.name, "smoke")
    assert choose_limit(earlier, None) is None
    with pytest.raises(ConfigError, match="were not counted"):
        choose_limit(earlier, MaxWrites.parse("1TiB"))


def test_what_a_killed_step_may_have_written_counts_also_while_its_disk_is_not_there(
    store: RunStore, tmp_path: Path
) -> None:
    require("fio")
    disk = DiskByFile("disk", tmp_path / "disk.img", 8 * MIB, destroy=True)
    store.append(WritesEvent("writes", "disk", "2 slices", 100, 1000, "another boot 7:0 loop0", 50))
    meter = Meter(store, {"disk": disk})
    meter.read(RUNNER)  # The run is resumed, and has not created the file of the disk yet.
    meter.may_write("building", {"disk": 20.0})
    assert store.read_journal().writes[-1].may_write == 1020
    with loop(sparse(disk.file, disk.size)):
        meter.read(RUNNER)
    assert meter.written == {"disk": 1120}
    meter.may_write("2 slices", {"disk": 7.0})
    meter.read(RUNNER)
    meter.end()
    assert Meter(store, {"disk": disk}).written == {"disk": 1127}


def test_the_report_says_what_was_written_and_left_out_in_every_form(store: RunStore) -> None:
    found = measured(campaign(store, 400 * MIB))
    (banner,) = (each for each in find_banners(found) if each.kind == "writes")
    assert banner.text.startswith("optane: ")
    assert "by the disk's own counter; --max-writes=419430400 allows 400 MiB. Left out: " in banner.text
    assert "the workloads randwrite-4k (2 cells)" in banner.text
    assert f"Limited writes: {banner.text}" in summary_lines(found)
    assert "> **Limited writes.** optane: " in markdown_table(found)


def test_slices_that_reached_fios_limit_make_their_cell_void() -> None:
    slow = Measurement(
        group="g", round=1, arm="host", repeat=1, job=WRITE, started=0.0, seconds=2.0, metrics={}, io_bytes=0,
        raw="raw/1.json", wall=2.0, write_limit=1000,
    )  # fmt: skip
    assert [check.ok for check in check_write_limits([slow])] == [True]
    fast = replace(slow, counters=replace(slow.counters, fio=replace(slow.counters.fio, written=1990)))
    (check,) = check_write_limits([slow, fast])
    assert not check.ok
    assert check.check == "write limit host"
    assert check_write_limits([replace(fast, write_limit=None)]) == ()


def test_an_arm_that_is_much_faster_than_stated_is_void_and_not_slow(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counted, "speed", 100.0)
    of = replace(scenario(write_rate=10 * MIB), workloads=(parse_workload("randwrite-4k"),))
    found = measured(campaign(store, 2000 * MIB, of=of))
    assert {cell.verdict for cell in found.cells if cell.skipped is None} == {Verdict.VOID}
    assert counted() <= 2000 * MIB


def test_the_fewest_rounds_of_a_fitted_plan_are_always_measured(store: RunStore) -> None:
    of = scenario(rounds=3, most_rounds=3, write_rate=200 * MIB)
    limit = ceil(planned_writes(plan_for(of, "smoke"))["optane"])
    found = measured(campaign(store, limit, of=of))
    assert rounds(found) == rounds(found, READ) == 3
    assert found.writes[0].left_out == ()


class WithCommands(Counted):
    """Writes for each command what it declares, in place of its runs."""

    def use_session(self, work: Callable[[OpenSession], Any]) -> Any:
        (planned, *_) = work.args  # type: ignore[attr-defined]
        self.disk.written += planned.command.runs * planned.command.writes
        return make_record(planned, HOST.name)


@pytest.mark.parametrize("extra", [0, 40 * MIB])
def test_commands_take_part_with_what_they_declare(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, extra: int
) -> None:
    monkeypatch.setattr(Counted, "extra", extra)
    requests = (Requested("large", OwnCommand("true", writes=200 * MIB)),)
    of = replace(scenario(), requests=requests)
    limit = int(planned_writes(plan_for(of, "smoke"))["optane"]) + MIB
    run = measured(campaign(store, limit, of=of, measurer=WithCommands))
    problems = [record.problem for record in run.of(CommandRecord)]
    assert len(problems) == 2
    if extra:
        refused = [problem for problem in problems if problem is not None]
        assert refused
        assert all(f"--max-writes={limit} allows" in problem for problem in refused)
        assert all("-command-large-passthrough may write 2.031 GiB, and " in problem for problem in refused)
    else:
        assert problems == [None, None]
        assert counted() <= limit
