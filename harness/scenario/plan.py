"""The plan for one disk: its groups of cells and their setups, and what measuring them costs. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, TypeVar

from harness.feature import Conditioner, features, find_conditioner, is_asked
from harness.model.job import Job, Workload
from harness.model.layout import Layout, amplification
from harness.model.mode import Cell, Mode
from harness.model.workloads import Conditioning, Profile, find_profile
from harness.scenario.scenario import Scenario
from harness.scenario.setups import (
    AGAIN_SHARE,
    FILL_SECONDS,
    KINDS,
    LAB_SECONDS,
    PROGRAM_SECONDS,
    Group,
    Kind,
    Paces,
    Setup,
    disks_in_words,
    places_of,
    setups,
)
from harness.scenario.timetable import MOST_SECONDS, find_interval, last_whole_intervals, takes_turns
from harness.units import format_size

FIO_SHARE = 0.84
"""The share of a round in which fio runs, measured with `smoke`. Starts of fio and pauses take the rest."""
MOST_ROUNDS = 1000
"""The largest number of rounds of a plan whose time the user sets."""


@dataclass(frozen=True, kw_only=True)
class FollowUp(ABC):
    """What a feature measures after the rounds of a group. `cells` are those of the group that it is about."""

    kind: ClassVar[str]
    """A word for what it is."""
    title: ClassVar[str]
    """As a plan names it, for example "highest load"."""
    description: ClassVar[str]
    """As a sentence about a plan names it, for example "the search for the highest load"."""

    group: str
    name: str
    cells: tuple[Cell, ...]

    @property
    def id(self) -> str:
        """The name of its own rounds in the journal, and of its record: `GROUP-KIND-NAME`."""
        return f"{self.group}-{self.kind}-{self.name}"

    @property
    @abstractmethod
    def usual_seconds(self) -> float:
        """fio seconds that it usually takes."""

    @property
    @abstractmethod
    def most_seconds(self) -> float:
        """The longest time that it takes."""

    @property
    @abstractmethod
    def writes(self) -> bool:
        """Whether its jobs write."""

    @abstractmethod
    def bytes_written(self, write_rate: int, place: int | None = None) -> float:
        """The bytes that it writes at most to disks that write `write_rate` bytes per second.

        With `place`, only to the disk at this place of the scenario's disks.
        """


_FollowUpT = TypeVar("_FollowUpT", bound=FollowUp)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a plan leaves out to write less: in words, and the cells that are therefore not measured."""

    what: str
    cells: tuple[Cell, ...] = ()
    option: str = ""
    """The option that limits what is written."""


@dataclass(frozen=True)
class Plan:
    """What to measure on one disk, and the cost. `span` in bytes, `write_rate` in bytes per second.

    `rounds` is the minimum and `most_rounds` the maximum number of rounds. `target`, `time_limit`, `conditioning` and
    `reboot` have the meaning that they have in the profile. `disks` are the disks for arrays, `disk` first. Without
    arrays, `disks` has only `disk`. `follow_ups` come after the rounds of their groups. `limits` are the bytes that
    it may write to each disk, by the disk's name; empty without a limit. `left_out` is what it therefore leaves out.
    """

    disk: str
    groups: tuple[Group, ...]
    rounds: int
    span: int
    write_rate: int
    most_rounds: int = 0
    target: float | None = None
    time_limit: float | None = None
    conditioning: Conditioning = "fill"
    reboot: bool = False
    disks: tuple[str, ...] = ()
    follow_ups: tuple[FollowUp, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    paces: Paces = field(default_factory=Paces)
    """How long the kinds of work take on its host."""
    offered: tuple[str, ...] | None = None
    """The kinds of layouts that its storage in use offers; None if that is not known, or on a disk."""
    further_seconds: float = 0.0
    """For how long features measure beside rounds and follow-ups."""

    def __post_init__(self) -> None:
        if self.most_rounds < self.rounds:
            object.__setattr__(self, "most_rounds", self.rounds)
        if not self.disks:
            object.__setattr__(self, "disks", (self.disk,))

    def on(
        self,
        known: Paces,
        disk_iops: float | None,
        offered: tuple[str, ...] | None = None,
        further_seconds: float = 0.0,
    ) -> Plan:
        """The same plan, with times as on this host. `disk_iops`: of its slowest disk, if that is known.

        `offered` are the kinds of layouts that its storage offers. The run skips the other modes, which take no time.
        `further_seconds`: for how long features measure beside rounds and follow-ups.
        """
        groups = self.groups
        if disk_iops is not None:
            groups = tuple(replace(group, disk_iops=disk_iops) for group in groups)
        return replace(self, groups=groups, paces=known, offered=offered, further_seconds=further_seconds)

    @cached_property
    def _expected(self) -> Plan:
        """The plan without the cells of which it is known that the run skips them."""
        if self.offered is None:
            return self
        gone = [
            cell for cell in self.cells if cell.mode.attach is not None and cell.mode.layout.kind not in self.offered
        ]
        left = replace(self, offered=None).without(gone)
        # Nothing is measured just for the host.
        guests = [group for group in left.groups if any(cell.mode.attach is not None for cell in group.cells)]
        whole = {group.id for group in self.groups if all(cell.mode.attach is None for cell in group.cells)}
        return replace(left, groups=tuple(group for group in left.groups if group in guests or group.id in whole))

    def with_rounds(self, number: int) -> Plan:
        """The same plan with a fixed number of rounds."""
        return replace(self, rounds=number, most_rounds=number)

    def with_time(self, seconds: float) -> Plan:
        """The same plan with as many rounds as this time allows, but at least `rounds`."""
        return replace(self, time_limit=seconds, most_rounds=max(self.rounds, MOST_ROUNDS))

    def without(self, cells: Iterable[Cell]) -> Plan:
        """The same plan without these cells. The groups and setups keep their names."""
        gone = {cell.id for cell in cells}
        groups = (replace(group, cells=_others(group.cells, gone)) for group in self.groups)
        follow_ups = (replace(follow_up, cells=_others(follow_up.cells, gone)) for follow_up in self.follow_ups)
        return replace(
            self,
            groups=tuple(group for group in groups if group.cells),
            follow_ups=tuple(follow_up for follow_up in follow_ups if follow_up.cells),
        )

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for group in self.groups for cell in group.cells)

    @cached_property
    def setups(self) -> tuple[Setup, ...]:
        """The setups in the order in which they are measured."""
        by_number: dict[int, list[Group]] = {}
        for group in self.groups:
            by_number.setdefault(group.setup, []).append(group)
        return tuple(Setup(number, self._disks_of(groups), tuple(groups)) for number, groups in by_number.items())

    @property
    def expected_setups(self) -> tuple[Setup, ...]:
        """The setups that are built, as far as is known before the run."""
        return self._expected.setups

    def follow_ups_of(self, kind: type[_FollowUpT], group: Group) -> tuple[_FollowUpT, ...]:
        """What follows the rounds of this group, of one kind."""
        return tuple(
            follow_up for follow_up in self.follow_ups if isinstance(follow_up, kind) and follow_up.group == group.id
        )

    def setup_of(self, group: Group) -> Setup:
        """The setup of the group."""
        return next(setup for setup in self.setups if setup.number == group.setup)

    @cached_property
    def fio_seconds(self) -> float:
        """fio seconds of the fewest rounds of all groups and of usual follow-ups, without conditioning."""
        return self.rounds * self._round_seconds + sum(follow_up.usual_seconds for follow_up in self.follow_ups)

    def seconds_of(self, rounds: int) -> float:
        """The time for measuring so many rounds of all groups, with the starts of fio and the pauses."""
        return rounds * self._round_seconds / FIO_SHARE

    @property
    def minutes(self) -> float:
        """The estimate in minutes, from the command to its end: the fewest rounds, and the shortest conditioning."""
        return self.paces.seconds(self.work(self.conditioner.rounds[0])) / 60

    @property
    def most_minutes(self) -> float:
        """The upper bound in minutes: the maximum number of rounds, and the longest conditioning."""
        return self.paces.seconds(self.work(self.conditioner.rounds[1], most=True)) / 60

    def work(self, conditioning_rounds: int, *, most: bool = False) -> dict[Kind, float]:
        """The usual times of all its work, with the fewest rounds of its groups or with the most."""
        seconds_by_kind = dict.fromkeys(KINDS, 0.0)
        for group in self.groups:
            for kind, seconds in self.group_work(group, most=most).items():
                seconds_by_kind[kind] += seconds
        for setup in self._expected.setups:
            for kind, seconds in self.setup_work(setup, conditioning_rounds).items():
                seconds_by_kind[kind] += seconds
        seconds_by_kind["fio"] += self.further_seconds
        if self.groups:
            seconds_by_kind |= {"program": PROGRAM_SECONDS, "lab": LAB_SECONDS}
        return seconds_by_kind

    @property
    def once_minutes(self) -> float:
        """The part of `minutes` that the plans of one run on a host have in common."""
        seconds_by_kind: dict[Kind, float] = {"program": PROGRAM_SECONDS, "lab": LAB_SECONDS}
        return self.paces.seconds(seconds_by_kind) / 60 if self.groups else 0.0

    def group_work(self, group: Group, *, most: bool = False) -> dict[Kind, float]:
        """The usual times of measuring the group: the fewest rounds or the most, and what follows them."""
        rounds = self.most_rounds_of(group) if most else self.rounds
        expected = next((each for each in self._expected.groups if each.id == group.id), None)
        if expected is None:
            return {}
        seconds_by_kind = expected.work(rounds, together=self.count_together(expected, self.rounds))
        seconds_by_kind["again"] = AGAIN_SHARE * sum(seconds_by_kind.values())
        seconds_by_kind["fio"] += sum(
            follow_up.most_seconds if most else min(follow_up.usual_seconds / FIO_SHARE, follow_up.most_seconds)
            for follow_up in self.follow_ups
            if follow_up.group == group.id
        )
        # The first boot belongs to the setup. Guests that take turns are booted for each of their timetables.
        boots = rounds - 1 if self.reboots(group) else 0
        seconds_by_kind["boot"] = max(boots, 0) * self._expected.setup_of(expected).boot_seconds
        return seconds_by_kind

    def setup_work(self, setup: Setup, conditioning_rounds: int) -> dict[Kind, float]:
        """The usual times to prepare the setup, and to take it down."""
        rounds = conditioning_rounds * self.conditioner.seconds * len(setup.bases) / FIO_SHARE
        size = self.conditioner.fills * self.span * setup.filled_regions
        return {
            "build": setup.build_seconds,
            "condition": FILL_SECONDS + self.paces.fill_seconds(size, self.write_rate) + rounds,
            "boot": setup.boot_seconds,
            "end": setup.end_seconds,
        }

    def reboots(self, group: Group) -> bool:
        """Whether the guest is booted anew for each round of the group.

        Guests of variants that run one after the other always are. A round is then a sample.
        """
        return self.reboot or any(cell.mode.alternating for cell in group.cells)

    def most_rounds_of(self, group: Group) -> int:
        """`most_rounds`, or as many rounds as fit into `time_limit`. Never fewer than `rounds`."""
        if self.time_limit is None:
            return self.most_rounds
        fitting = int(self.limit_of(group) * FIO_SHARE / group.round_seconds)
        return min(self.most_rounds, max(self.rounds, fitting))

    def count_together(self, group: Group, rounds: int) -> int:
        """How many of so many rounds of the group share their timetables, because nothing is decided between them.

        They take as long as a timetable may. Rounds with a boot of their own, rounds of one block and rounds of which
        each must keep a limit of the bytes written are measured one after the other.
        """
        if self.limits or self.reboots(group) or group.blocks == 1:
            return 1
        return max(min(rounds, int(MOST_SECONDS / group.round_seconds)), 1)

    def limit_of(self, group: Group) -> float:
        """The group's part of `time_limit` in seconds, by the length of its rounds; infinite without a limit."""
        if self.time_limit is None:
            return math.inf
        return self.time_limit * group.round_seconds / self._round_seconds

    def fill_bytes(self, span: int) -> int:
        """The bytes that fill the regions of all setups before measuring. Each region has `span` bytes.

        The bare device has a region, and so has each mode with a layout on it. All groups of a setup share the regions.
        """
        return round(self.conditioner.fills * span * sum(setup.filled_regions for setup in self.setups))

    @property
    def write_bytes(self) -> float:
        """The bytes written at most: conditioning, every writing job at the disk's full write rate, and follow-ups.

        Jobs that are measured again, because of carry-over or overlapping slices, keep to what the others leave of it.
        """
        bases = sum(len(setup.bases) for setup in self.setups)
        rounds = self.conditioner.rounds[1] * self.conditioner.seconds * bases * self.write_rate
        following = sum(follow_up.bytes_written(self.write_rate) for follow_up in self.follow_ups)
        return self.fill_bytes(self.span) + rounds + sum(map(self.bytes_of, self.groups)) + following

    def bytes_of(self, group: Group) -> float:
        """The part of `write_bytes` for measuring the group, without conditioning."""
        return self.most_rounds_of(group) * group.writing_seconds * self.write_rate

    def _disks_of(self, groups: Iterable[Group]) -> tuple[str, ...]:
        places = places_of(cell for group in groups for cell in group.cells)
        return tuple(self.disks[place] for place in places)

    @cached_property
    def _round_seconds(self) -> float:
        """fio seconds of one round of all groups."""
        return sum(group.round_seconds for group in self.groups)

    @property
    def conditioner(self) -> Conditioner:
        """How the regions of its setups are prepared."""
        return find_conditioner(self.conditioning)


def _others(cells: Iterable[Cell], gone: Collection[str]) -> tuple[Cell, ...]:
    return tuple(cell for cell in cells if cell.id not in gone)


def fio_rate(write_rate: int, layout: Layout | None, job: Job) -> float:
    """The bytes per second that fio may write to this layout, so that none of its disks gets more than `write_rate`.

    None is the bare disk.
    """
    return write_rate * (len(layout.base.places) if layout else 1) / max(count_written(layout, job), 1.0)


def count_written(layout: Layout | None, job: Job) -> float:
    """The bytes that all disks of the layout together write at most for each byte of the job."""
    return amplification(layout, job).most_written if layout is not None else 1.0


def plan_for(scenario: Scenario, profile_name: str, selected: Iterable[Cell] | None = None) -> Plan:
    """The plan for the `selected` cells of this scenario, or for all its cells."""
    profile = find_profile(scenario.profiles, profile_name)
    cells = expand(scenario, profile_name) if selected is None else selected
    groups = group_cells(cells, profile.round_limit, blocks=profile.blocks)
    return Plan(
        scenario.disk,
        tuple(groups),
        profile.rounds,
        profile.span,
        scenario.write_rate,
        most_rounds=profile.most_rounds,
        target=profile.target,
        time_limit=profile.time_limit,
        conditioning=profile.conditioning,
        reboot=profile.reboot,
        disks=scenario.disks,
        follow_ups=tuple(
            follow_up
            for group in groups
            for feature in features()
            if is_asked(feature, scenario)
            for follow_up in feature.follow_ups(scenario, group)
        ),
    )


def expand(scenario: Scenario, profile_name: str) -> list[Cell]:
    """All cells, sorted by setup, workload, iodepth and mode. So the modes of one job are next to each other.

    The cells of a group also follow each other, so pytest's progress shows the progress of the campaign.
    """
    profile = find_profile(scenario.profiles, profile_name)
    return [
        Cell(scenario.name, scenario.disk, mode, last_whole_intervals(job, interval), scenario.reference)
        for together in setups(scenario.modes)
        for job, mode, interval in sorted(_make_pairs(scenario, profile, together), key=lambda pair: bool(pair[2]))
    ]


def _make_pairs(scenario: Scenario, profile: Profile, together: Sequence[Mode]) -> Iterator[tuple[Job, Mode, float]]:
    """The jobs of a setup with its modes, and the interval of each."""
    for job in _make_jobs(scenario.workloads, profile, together):
        for mode in together:
            yield job, mode, _find_interval_of(job, mode, together)


def _find_interval_of(job: Job, mode: Mode, together: Sequence[Mode]) -> float:
    """The interval of the mode's layout. The baseline has that of the others if all have one: it is among them then."""
    others = [mode] if mode.attach is not None else [other for other in together if other.attach is not None]
    return min((find_interval(job, [other]) for other in others), default=0.0)


def _make_jobs(workloads: Sequence[Workload], profile: Profile, together: Sequence[Mode]) -> Iterator[Job]:
    """The jobs of a setup with these modes. Arms that take turns have one long slice instead of several."""
    slices = profile.blocks if takes_turns(together) else 1
    for workload in workloads:
        seconds = (profile.own_times and workload.seconds_each) or profile.runtime
        for iodepth in workload.depths(profile.iodepth):
            yield workload.job(iodepth, ramp=profile.ramp, seconds=seconds * slices)


def group_cells(cells: Iterable[Cell], max_round_seconds: float, *, blocks: int = 1) -> list[Group]:
    """Splits the cells into groups. The modes of a group are in one setup.

    A round of a group takes at most `max_round_seconds` of fio. A group with only one job may take longer. Jobs stay in
    the order of the cells. The ids are `SCENARIO-batch1`, `SCENARIO-batch2`, ... Groups of one setup follow each other.
    """
    by_scenario: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        by_scenario.setdefault((cell.scenario, cell.disk), []).append(cell)
    return [
        Group(f"{scenario}-batch{number}", disk, scenario, tuple(batch), _count_blocks(batch, blocks), setup)
        for (scenario, disk), own in by_scenario.items()
        for number, (setup, batch) in enumerate(_split_into_batches(own, max_round_seconds, blocks), start=1)
    ]


def _split_into_batches(
    cells: Sequence[Cell], max_round_seconds: float, blocks: int
) -> Iterator[tuple[int, list[Cell]]]:
    """The cells of each group of one scenario, with the number of its setup."""
    for number, together in enumerate(setups(cell.mode for cell in cells), start=1):
        by_job: dict[Job, list[Cell]] = {}
        for cell in cells:
            if cell.mode in together:
                by_job.setdefault(cell.job, []).append(cell)
        # A job of the same name has longer slices on some layouts, so these cells have blocks of their own.
        for longer in (False, True):
            of_length = [cells for cells in by_job.values() if _has_intervals(cells) is longer]
            for batch in _fit_into_rounds(of_length, max_round_seconds, blocks):
                yield number, batch


def _has_intervals(cells: Sequence[Cell]) -> bool:
    return any(find_interval(cell.job, [cell.mode]) for cell in cells)


def _fit_into_rounds(cells_by_job: Sequence[list[Cell]], max_round_seconds: float, blocks: int) -> list[list[Cell]]:
    batches: list[list[Cell]] = []
    room = 0.0
    for cells in cells_by_job:
        arms = {arm for cell in cells for arm in cell.arms}
        cost = len(arms) * _count_blocks(cells, blocks) * cells[0].job.wall
        if not batches or cost > room:
            batches.append([])
            room = max_round_seconds
        batches[-1] += cells
        room -= cost
    return batches


def _count_blocks(cells: Sequence[Cell], blocks: int) -> int:
    return 1 if takes_turns(cell.mode for cell in cells) or _has_intervals(cells) else blocks


def describe_plan(plan: Plan) -> str:
    """For example `40 cells in 1 group, 8 arms, 3 rounds: about 5 min, at most 192 GiB written to optane`.

    If the number of rounds varies: `3 to 12 rounds: about 40 min, at most 2 h 10 min, at most ...`. With more than one
    setup: `in 5 groups and 4 setups`. With searches, for example: `3 rounds, 1 x highest load: ...`.
    """
    arms = len({arm for group in plan.groups for arm in group.arms})
    number = len(plan.setups)
    groups = _count(len(plan.groups), "group") + (f" and {number} setups" if number > 1 else "")
    disks = max((setup.disks for setup in plan.setups), key=len, default=(plan.disk,))
    several = plan.most_rounds > plan.rounds
    rounds = f"{plan.rounds} to {plan.most_rounds} rounds" if several else _count(plan.rounds, "round")
    about, most = _write_hours(plan.minutes), _write_hours(plan.most_minutes)
    counts = Counter(follow_up.title for follow_up in plan.follow_ups)
    following = "".join(f", {number} x {title}" for title, number in counts.items())
    return (
        f"{_count(len(plan.cells), 'cell')} in {groups}, {_count(arms, 'arm')}, "
        f"{rounds}{following}: about {about}, {f'at most {most}, ' if most != about else ''}"
        f"at most {format_size(_limit_written(plan, disks))} written to {disks_in_words(disks)}"
    )


def describe_plans(plans: Sequence[Plan]) -> str:
    """The plans of one run on a host together, for example `68 cells in 3 scenarios: about 31 min`."""
    cells, scenarios = sum(len(plan.cells) for plan in plans), _count(len(plans), "scenario")
    once = max((plan.once_minutes for plan in plans), default=0.0)
    about = _write_hours(once + sum(plan.minutes - plan.once_minutes for plan in plans))
    most = _write_hours(once + sum(plan.most_minutes - plan.once_minutes for plan in plans))
    return f"{_count(cells, 'cell')} in {scenarios}: about {about}{f', at most {most}' if most != about else ''}"


def _limit_written(plan: Plan, disks: Iterable[str]) -> float:
    """The bytes written at most, within the limits of the disks."""
    return min(plan.write_bytes, sum(plan.limits.get(disk, math.inf) for disk in disks))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _write_hours(minutes: float) -> str:
    whole = max(1, round(minutes))
    return f"{whole} min" if whole < 120 else f"{whole // 60} h {whole % 60} min"
