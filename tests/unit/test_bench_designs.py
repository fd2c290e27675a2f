"""The benchmark of the designs: which slices a unit has, which groups they form, and what the table says of them."""

from __future__ import annotations

import gzip
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean

import pytest

from harness.analysis import estimate_overhead
from harness.config.names import RunId
from harness.errors import GuestError, HostError, ResultsError
from harness.events import Events
from harness.measure.phases import FEW_JITTER, UNKNOWN_JITTER
from harness.measure.series import RoundSegment, SeriesEngine
from harness.results import Measurement
from harness.scenario.setups import Group as PlannedGroup
from harness.scenario.timetable import Slice, Timetable
from tests.bench.designs.__main__ import main
from tests.bench.designs.assess import judged, rows, table
from tests.bench.designs.blocks import Block, units
from tests.bench.designs.comparisons import COMPARISONS, WORKLOADS, Comparison, Design, Seen, Sizes
from tests.bench.designs.measuring import Series, units_for
from tests.bench.lines import append, read
from tests.build import StandIn, as_planned

SIZES = Sizes(blocks=6)
SESSION = RunId("20260101-000000-abcd")
HOST, GUEST, DELAY = COMPARISONS


def tables(design: Design, seed: int = 1) -> list[Timetable]:
    return SIZES.tables(design, Seen(), random.Random(seed))


def slices(design: Design, seed: int = 1) -> list[Slice]:
    return [each for table in tables(design, seed) for each in table.slices]


def apart(design: Design, comparison: Comparison) -> float:
    """The mean time between the slices of a pair."""
    starts: dict[tuple[int, str], list[float]] = {}
    for seed in range(20):
        for each in slices(design, seed):
            if each.turn in comparison.turns:
                starts.setdefault((each.block + 100 * seed, each.job.id), []).append(each.start)
    return mean(abs(a - b) for a, b in starts.values())


@pytest.mark.parametrize("sizes", [SIZES, Sizes(slice_s=1.0), Sizes(slice_s=1.0, blocks=9)])
def test_both_designs_take_the_same_wall_time(sizes: Sizes) -> None:
    for seen in (Seen(), Seen(0.03, {"randread-4k-qd32": 0.2})):
        assert sizes.seconds(Design.OLD, seen) == pytest.approx(sizes.seconds(Design.SLICES, seen), abs=0.1)


@pytest.mark.parametrize("design", Design)
def test_a_unit_has_one_group_of_each_comparison_and_job(design: Design) -> None:
    pairs = Counter((each.turn.name, each.job.workload.name) for each in slices(design))
    turns = [turn.name for comparison in COMPARISONS for turn in comparison.turns]
    assert pairs == {(turn, workload.name): SIZES.samples(design) for turn in turns for workload in WORKLOADS}


@pytest.mark.parametrize("design", Design)
def test_slices_of_a_unit_do_not_overlap(design: Design) -> None:
    assert all(a.end < b.start for a, b in pairwise(slices(design)))


def test_in_the_old_design_an_arm_runs_all_of_its_jobs_before_the_next_arm_begins() -> None:
    found = slices(Design.OLD)
    jobs = len(WORKLOADS)
    runs = [found[at : at + jobs] for at in range(0, len(found), jobs)]
    assert all(len({each.turn for each in run}) == 1 for run in runs)
    assert all(len({each.job for each in run}) == jobs for run in runs)


def test_with_slices_the_arms_of_a_block_alternate_and_its_job_is_not_the_one_before() -> None:
    blocks = list(dict.fromkeys((each.block, each.job) for each in slices(Design.SLICES)))
    assert len(blocks) == SIZES.blocks * 2 * len(WORKLOADS)
    assert all(a[1] != b[1] for a, b in pairwise(blocks))


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda each: each.name)
def test_the_pairs_of_the_old_design_are_further_apart(comparison: Comparison) -> None:
    assert apart(Design.OLD, comparison) > 5 * apart(Design.SLICES, comparison)


def test_the_order_of_a_unit_is_random_and_follows_from_the_seed() -> None:
    for design in Design:
        assert tables(design, 1) == tables(design, 1)
        assert tables(design, 1) != tables(design, 2)


# --- measuring ---


@dataclass
class Plays(StandIn):
    """A measurer whose n-th slice reaches n IOPS. In the calls `fails`, the guest is lost; `overlaps` names slices."""

    fails: frozenset[int] = frozenset()
    overlaps: frozenset[int] = frozenset()
    late: float = 0.0
    """How much longer than requested each slice takes, in seconds."""
    starts: list[float] = field(default_factory=list)
    calls: int = 0
    taken: int = 0
    restarts: list[str] = field(default_factory=list)

    def measure(self, group: PlannedGroup, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        self.calls += 1
        if self.calls in self.fails:
            raise GuestError("the guest was lost")
        found = []
        for each in segment.table.slices:
            began(each)
            self.taken += 1
            self.starts.append(each.start)
            found.append(
                replace(
                    as_planned(group, segment, each, {"iops": float(self.taken), "lat_mean": 1 / self.taken}),
                    seconds=each.job.seconds + self.late,
                    overlap="host" if self.taken in self.overlaps else None,
                )
            )
        return found

    def start_again(self, error: HostError | GuestError, what: str) -> None:  # noqa: ARG002
        self.restarts.append(what)


def measured(path: Path, plays: Plays, count: int = 1) -> list[Block]:
    series = Series(path, SIZES, SeriesEngine(plays, Events()), session=SESSION, disk="optane", seed=7)
    for _ in range(count):
        series.measure_unit(0.0)
    return read(path, Block)


def test_every_value_of_a_unit_is_in_exactly_one_group(tmp_path: Path) -> None:
    blocks = measured(tmp_path / "blocks", Plays(), 2)
    groups = [group for unit in units(blocks) for group in unit]
    values = [value for group in groups for metric in (group.first("iops"), group.second("iops")) for value in metric]
    assert sorted(values) == list(range(1, 2 * (54 + 108) + 1))
    assert Counter((group.head.comparison, group.head.design) for group in groups) == {
        (comparison.name, design): 2 * len(WORKLOADS) for comparison in COMPARISONS for design in Design
    }


def test_a_pair_has_the_values_of_one_block_of_the_two_turns(tmp_path: Path) -> None:
    for each in measured(tmp_path / "blocks", Plays()):
        distance = abs(each.first["iops"] - each.second["iops"])
        assert distance <= (3 if each.design is Design.SLICES else 17)
        step = SIZES.slice_s + UNKNOWN_JITTER + 0.013
        assert each.apart == pytest.approx(distance * (2 if each.design is Design.OLD else 1) * step, rel=0.05)


def test_a_unit_in_which_the_guest_is_lost_is_measured_again(tmp_path: Path) -> None:
    plays = Plays(fails=frozenset({1}))
    blocks = measured(tmp_path / "blocks", plays)
    assert len(plays.restarts) == 1
    assert len({(each.unit, each.design) for each in blocks}) == 2
    assert len([group for unit in units(blocks) for group in unit]) == 2 * 9


def test_the_pause_after_a_slice_is_as_long_as_the_unit_before_needed_it(tmp_path: Path) -> None:
    plays = Plays(late=0.2)
    measured(tmp_path / "blocks", plays, 2)
    steps = [[b - a for a, b in pairwise(plays.starts[at : at + 162]) if b > a] for at in (0, 162)]
    assert min(steps[0]) == pytest.approx(SIZES.slice_s + UNKNOWN_JITTER + 1 / 2500)
    # Every slice starts when it is planned.
    assert 0 < min(steps[1]) - SIZES.slice_s - 0.2 <= FEW_JITTER + 1e-9


def counted(blocks: list[Block]) -> dict[tuple[Design, int], int]:
    """How many groups of each design have so many blocks."""
    return Counter((group.head.design, len(group.blocks)) for unit in units(blocks) for group in unit)


@pytest.mark.parametrize("design", Design)
def test_a_block_with_an_overlapping_slice_does_not_count(design: Design, tmp_path: Path) -> None:
    blocks = measured(tmp_path / "blocks", Plays())
    overlapped = next(each for each in blocks if each.design is design)
    expected = {(Design.OLD, 3): 9, (Design.SLICES, 6): 9}
    assert counted(blocks) == expected
    expected |= {(design, overlapped.of): 8} | ({(design, 5): 1} if design is Design.SLICES else {})
    assert counted([replace(each, overlap=each == overlapped) for each in blocks]) == expected


def test_a_slice_that_overlaps_makes_its_pair_overlap(tmp_path: Path) -> None:
    assert sum(each.overlap for each in measured(tmp_path / "blocks", Plays(overlaps=frozenset({5})))) == 1


def test_a_group_with_less_than_two_thirds_of_its_blocks_is_left_out() -> None:
    blocks = unit_of(1, HOST, Design.SLICES, 0.03)
    assert counted([each for each in blocks if each.number <= 4]) == {(Design.SLICES, 4): 3}
    assert counted([each for each in blocks if each.number <= 3]) == {}


def test_groups_of_different_sizes_are_not_pooled(tmp_path: Path) -> None:
    blocks = measured(tmp_path / "blocks", Plays())
    with pytest.raises(
        ResultsError, match=r"some groups have 6 blocks with slices of 0.2 s, others have 6 blocks with slices of 1 s"
    ):
        units([*blocks, *(replace(each, unit=9, slice_s=1.0) for each in blocks if each.design is Design.SLICES)])


def test_three_jobs_count_as_groups_of_one_comparison() -> None:
    assert [units_for(groups) for groups in (1, 3, 4, 200)] == [1, 1, 2, 67]


# --- the table ---


def unit_of(
    number: int, comparison: Comparison, design: Design, noise: float, *, overhead: float = 0.0, added_s: float = 0.0
) -> list[Block]:
    """A unit with one group of this comparison and each job, whose log ratios have this standard deviation."""
    chance = random.Random(f"{number} {design} {comparison.name}")
    blocks = []
    for workload in WORKLOADS:
        job = workload.job(comparison.iodepth, ramp=0, seconds=0.5)
        for at in range(1, SIZES.samples(design) + 1):
            factor = math.exp(chance.gauss(0, noise))
            blocks.append(
                Block(
                    session=SESSION,
                    unit=number,
                    design=design,
                    comparison=comparison.name,
                    job=job.id,
                    number=at,
                    of=SIZES.samples(design),
                    slice_s=SIZES.slice_s,
                    boot=1,
                    started=100.0 * number + at,
                    apart=0.5,
                    wall=2.0,
                    overlap=False,
                    first={"iops": 1000.0, "lat_mean": 8e-3},
                    second={"iops": 1000 * (1 - overhead) * factor, "lat_mean": 8e-3 + added_s + 8e-3 * (factor - 1)},
                )
            )
    return blocks


def units_of(
    count: int, comparison: Comparison, noise: float, *, overhead: float = 0.0, added_s: float = 0.0
) -> Iterator[Block]:
    for number in range(count):
        for design in Design:
            yield from unit_of(number, comparison, design, noise, overhead=overhead, added_s=added_s)


def test_intervals_of_independent_values_cover_the_truth_as_often_as_stated() -> None:
    for row in rows(units(units_of(40, GUEST, 0.03))):
        if row.job == "all":
            assert (row.groups, row.intervals) == (120, 120)
            assert 0.9 <= row.covered / row.intervals <= 0.99
            assert row.false_alarms == row.intervals - row.covered
            assert abs(row.error) < 0.005


def test_six_blocks_find_a_loss_more_often_than_three_rounds_of_the_same_noise() -> None:
    old, slices = (row for row in rows(units(units_of(25, HOST, 0.03))) if row.job == "all")
    assert (old.design, slices.design) == (Design.OLD, Design.SLICES)
    assert slices.half_width < old.half_width / 1.3
    assert slices.detected / slices.groups > old.detected / old.groups + 0.1


def test_quiet_groups_find_a_loss_of_five_percent_and_loud_ones_do_not() -> None:
    assert all(row.detected == row.groups for row in rows(units(units_of(5, HOST, 0.001))))
    assert all(row.detected < row.groups / 2 for row in rows(units(units_of(20, HOST, 0.5))))


def test_a_difference_that_does_not_exist_is_a_false_alarm() -> None:
    found = rows(units(units_of(4, GUEST, 0.001, overhead=0.02)))
    assert all(row.false_alarms == row.groups and row.covered == 0 for row in found)
    assert all(row.error == pytest.approx(0.02, abs=0.002) for row in found)


def test_the_truth_of_a_delay_is_what_was_set_on_the_disk() -> None:
    right = rows(units(units_of(20, DELAY, 0.005, added_s=1e-3)))
    assert all(row.covered > 0.85 * row.groups and row.false_alarms is None for row in right)
    assert all(row.detected == row.groups for row in right if row.design is Design.SLICES)
    wrong = rows(units(units_of(20, DELAY, 0.001, added_s=0.5e-3)))
    assert all(row.covered == 0 and row.error == pytest.approx(-0.5e-3, rel=0.1) for row in wrong)


def test_the_old_design_has_the_intervals_of_independent_rounds() -> None:
    (unit,) = units(unit_of(1, HOST, Design.OLD, 0.03))
    for each in judged(unit):
        group = each.group
        assert each.found == estimate_overhead(group.first("iops"), group.second("iops"), higher_is_better=True)


def test_the_report_prints_a_row_for_each_comparison_job_and_design(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    append(first, unit_of(1, HOST, Design.OLD, 0.03), Block)
    append(second, [*unit_of(2, HOST, Design.OLD, 0.03), *unit_of(2, DELAY, Design.SLICES, 0.01, added_s=1e-3)], Block)
    assert main(["--report", str(first), str(second)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line[:41].split() for line in printed[1:-1:4]] == [
        ["host", "against", "host", "all"],
        ["delay", "in", "the", "guest", "all"],
    ]
    assert printed[1].split()[4:6] == ["old", "6"]
    assert printed[-1] == "36 of 36 blocks are in groups that count; 0 blocks had an overlapping slice"


def test_a_file_with_enough_groups_is_only_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured(tmp_path / "blocks", Plays())
    before = (tmp_path / "blocks").read_bytes()
    assert main([str(tmp_path / "blocks"), "--groups=3"]) == 0
    assert (tmp_path / "blocks").read_bytes() == before
    assert "162 blocks" not in (printed := capsys.readouterr().out)
    assert "81 of 81 blocks are in groups that count" in printed


def test_a_table_without_groups_has_only_a_header() -> None:
    assert len(table(rows([]))) == 1


# --- the file ---


def test_a_later_call_continues_a_file_whose_last_line_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    first, second = unit_of(1, HOST, Design.OLD, 0.03), unit_of(2, HOST, Design.OLD, 0.03)
    append(path, first, Block)
    path.write_bytes(path.read_bytes()[:-20])
    assert read(path, Block) == first[:-1]
    append(path, second, Block)
    assert read(path, Block) == [*first[:-1], *second]


def test_a_compressed_file_is_only_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, packed = tmp_path / "blocks", tmp_path / "blocks.gz"
    append(plain, unit_of(1, HOST, Design.OLD, 0.03), Block)
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(packed, Block) == read(plain, Block)
    with pytest.raises(SystemExit):
        main([str(packed)])
    assert "only --report reads a compressed file" in capsys.readouterr().err
    packed.write_bytes(packed.read_bytes()[:-30])
    assert main(["--report", str(packed)]) == 1
    assert f"{packed} cannot be read" in capsys.readouterr().err


def test_a_line_that_is_not_a_block_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "blocks"
    append(path, unit_of(1, HOST, Design.OLD, 0.03), Block)
    path.write_bytes(path.read_bytes() + b'{"session": "x"}\n')
    assert main(["--report", str(path)]) == 1
    assert f"{path}: line 10 is not a Block: unit: Field required" in capsys.readouterr().err
