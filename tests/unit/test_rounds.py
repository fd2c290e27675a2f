"""Rounds: their timetables follow each other with the pauses that were learned so far, and each block counts once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from harness.errors import GuestError, HostError
from harness.events import BlockStarted, Event, Events
from harness.measure.phases import Pauses
from harness.measure.rounds import add_fio_seconds
from harness.measure.series import Round, RoundSegment, SeriesEngine
from harness.model.attach import Attach
from harness.model.job import Job
from harness.model.layout import RawFile
from harness.model.mode import Arm, Cell, Mode, Place
from harness.results import Measurement
from harness.scenario.plan import Plan
from harness.scenario.setups import Group
from harness.scenario.timetable import ScheduledArm, Slice, Timetable, timetables
from tests.bench.designs.measuring import OneRound
from tests.build import A_SLICE, StandIn, as_planned

MIB = 1024**2
CACHED = Mode("raw-cached", RawFile(), Attach(cache="writeback"))
RAW = Mode("raw", RawFile(), Attach())
TURNS = [
    ScheduledArm(Arm(Place.HOST)),
    *(ScheduledArm(Arm(place, mode)) for mode in (RAW, CACHED) for place in (Place.TWIN, Place.GUEST)),
]
READ, WRITE = (Job(rw, 4096, iodepth=32, ramp=0, seconds=1) for rw in ("randread", "randwrite"))
GROUP = Group(
    "g", "disk", "s", tuple(Cell("s", "disk", mode, job) for mode in (RAW, CACHED) for job in (READ, WRITE)), blocks=4
)
PLAN = Plan("disk", (GROUP,), 3, 64 * MIB, write_rate=0)


@dataclass
class Exact(StandIn):
    """Each slice starts at its planned time."""

    restarts: Sequence[str] = ()
    tables: list[Timetable] = field(default_factory=list)

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        self.tables.append(segment.table)
        for number, each in enumerate(segment.table.slices):
            if number == 0 or segment.table.slices[number - 1].of_block != each.of_block:
                began(each)
        return [as_planned(group, segment, each, {"iops": 1000.0}) for each in segment.table.slices]

    def start_again(self, error: HostError | GuestError, what: str) -> None:
        raise AssertionError(what) from error


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def measured(events: list[Event]) -> list[Timetable]:
    """The timetables of a first round as they were measured."""
    measurer, pauses = Exact(), Pauses()

    def pause(job: Job, arm: Arm) -> float:
        return pauses.after(job, in_guest=arm.in_guest, rotational=False)

    tables = timetables({READ: TURNS, WRITE: TURNS}, 16, chance=random.Random(5), pause=pause, short_first=True)
    this = Round(PLAN, GROUP, 1, 1, tables, pause, pauses.learn, lambda: 60.0)
    engine = SeriesEngine(measurer, Events(events.append))
    engine.run_series(OneRound(lambda: this), engine.prepare(PLAN, GROUP))
    return measurer.tables


def shortest_pause(table: Timetable) -> float:
    return min(after.start - before.end for before, after in pairwise(table.slices))


def test_the_first_timetable_of_a_group_shortens_the_pauses_of_the_following_ones(measured: list[Timetable]) -> None:
    first, second, *_ = measured
    assert (first.blocks, second.blocks) == (14, 18)
    assert shortest_pause(second) < shortest_pause(first) / 4


def test_a_block_that_has_slices_in_several_timetables_counts_once(
    measured: list[Timetable], events: list[Event]
) -> None:
    assert sum(table.blocks for table in measured) > 32
    blocks = [each.what for each in events if isinstance(each, BlockStarted)]
    assert blocks[0].startswith("block 1 of 32: ")
    assert blocks[-1].startswith("block 32 of 32: ")


def test_the_time_that_is_left_is_that_of_the_timetables_and_of_everything_after_the_round(
    measured: list[Timetable], events: list[Event]
) -> None:
    left = [each.left_s for each in events if isinstance(each, BlockStarted)]
    assert all(after < before + 0.1 for before, after in pairwise(left)), "it never grows"
    assert left[0] > sum(table.seconds for table in measured) + 60
    assert 60 + measured[-1].seconds < left[-1] < left[0] / 1.2


def test_the_time_of_slices_that_overlap_counts_once_as_time_of_fio() -> None:
    times = ((0.3, 2.0, "host"), (0.0, 14.0, "host"), (0.5, 14.5, "host"), (20.0, 1.0, None))
    slices = [
        replace(A_SLICE, job=READ.id, started=started, seconds=seconds, overlap=overlap)
        for started, seconds, overlap in times
    ]
    assert add_fio_seconds(GROUP, slices) == 15.0 + 1.0
    assert add_fio_seconds(GROUP, [replace(slice_, overlap=None) for slice_ in slices[2:]]) == 14.5 + 1.0


def test_rounds_that_are_measured_together_have_numbers_and_blocks_of_their_own() -> None:
    heard: list[Event] = []
    recorded: list[Measurement] = []
    tables = timetables({READ: TURNS}, 3 * GROUP.blocks, chance=random.Random(5), pause=lambda _job, _arm: 0.1)
    this = Round(PLAN, GROUP, 4, 1, tables, lambda _job, _arm: 0.1, recorded.extend, rounds=3)
    engine = SeriesEngine(Exact(), Events(heard.append))
    engine.run_series(OneRound(lambda: this), engine.prepare(PLAN, GROUP))
    assert Counter((of_round.round, of_round.block) for of_round in recorded) == dict.fromkeys(
        [(number, block) for number in (4, 5, 6) for block in range(1, GROUP.blocks + 1)], len(TURNS)
    )
    begun = [(event.round, event.what.partition(":")[0]) for event in heard if isinstance(event, BlockStarted)]
    assert begun[0] == (1, f"block 1 of {GROUP.blocks}")
    assert begun[-1] == (3, f"block {GROUP.blocks} of {GROUP.blocks}")


def test_rounds_that_surely_follow_count_as_long_as_this_one() -> None:
    def first_left(further: int | None) -> float:
        heard: list[Event] = []
        tables = timetables({READ: TURNS}, 4, chance=random.Random(5), pause=lambda _job, _arm: 0.1)
        engine = SeriesEngine(Exact(), Events(heard.append))
        this = Round(PLAN, GROUP, 1, 1, tables, lambda _job, _arm: 0.1, lambda _measured: None, lambda: 60.0, further)
        engine.run_series(OneRound(lambda: this), engine.prepare(PLAN, GROUP))
        return next(each.left_s for each in heard if isinstance(each, BlockStarted))

    assert first_left(2) - 60 == pytest.approx(3 * (first_left(0) - 60), rel=0.02)
    assert first_left(None) == pytest.approx(first_left(0), rel=0.02)
