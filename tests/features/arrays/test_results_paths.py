"""The limit of a controller, from measured cells: found within a tenth of the planted one, and only where it is."""

from __future__ import annotations

import pytest

from harness.features.arrays.records import Bottleneck
from harness.features.embedded.disks import CONTROLLERS, DISK_LIMIT
from tests.unit.path_runs import ARRAYS, measured

SEQUENTIAL, RANDOM = "seqread-1m", "randread-4k"
FIRST, SECOND = CONTROLLERS


@pytest.mark.parametrize("late", [False, True], ids=["all counted", "some counted"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", ARRAYS)
def test_the_planted_limit_of_a_controller_is_found_within_a_tenth(mode: str, seed: int, *, late: bool) -> None:
    found = measured([SEQUENTIAL, RANDOM], seed=seed, late=late)
    sequential, random = found.of(mode, f"{SEQUENTIAL}-qd32"), found.of(mode, f"{RANDOM}-qd32")
    for record in (sequential, random):
        assert record.bottleneck is Bottleneck.PATH
        assert record.path_limit is not None
        assert record.path_limit.path == FIRST.pci
        assert (record.path_limit.fewer, record.path_limit.more, record.path_limit.paths) == (8, 16, 2)
    assert sequential.path_limit is not None
    assert sequential.path_limit.bw.point == pytest.approx(FIRST.limit.bytes_per_s, rel=0.1)
    assert random.path_limit is not None
    assert random.path_limit.iops is not None
    assert random.path_limit.iops.point == pytest.approx(FIRST.limit.iops, rel=0.1)


def test_the_evidence_is_the_plateau_and_what_a_second_path_adds() -> None:
    found = measured([SEQUENTIAL]).of("raid0-16", f"{SEQUENTIAL}-qd32")
    assert found.evidence.startswith(f"16 disks on {FIRST.pci} do 1.0")
    assert " times as much as 8; with 2 paths, the array does " in found.evidence
    assert found.metrics["bw"].efficiency.point == pytest.approx(4 / 16, rel=0.05)


def test_each_member_has_its_path() -> None:
    found = measured([SEQUENTIAL]).of("raid0-16-paths", f"{SEQUENTIAL}-qd32")
    paths = [member.path for member in found.members]
    assert (paths.count(FIRST.pci), paths.count(SECOND.pci)) == (8, 8)


def test_controllers_without_a_limit_are_not_named() -> None:
    found = measured([SEQUENTIAL, RANDOM], shared=False)
    assert {each.bottleneck for each in found.scalings} == {Bottleneck.NONE}
    assert {each.path_limit for each in found.scalings} == {None}


def test_a_limit_above_all_paths_is_not_taken_for_one_of_a_path() -> None:
    found = measured([SEQUENTIAL, RANDOM], shared=False, host_limit=DISK_LIMIT.times(5))
    assert Bottleneck.PATH not in {each.bottleneck for each in found.scalings}
    assert {each.path_limit for each in found.scalings} == {None}


def test_disks_whose_path_the_host_does_not_show_have_no_limit_of_a_path() -> None:
    found = measured([SEQUENTIAL, RANDOM], known=False)
    assert Bottleneck.PATH not in {each.bottleneck for each in found.scalings}
    assert {member.path for each in found.scalings for member in each.members} == {None}


@pytest.mark.parametrize("void", ARRAYS)
def test_figures_that_are_no_result_prove_no_limit(void: str) -> None:
    found = measured([SEQUENTIAL], void=void)
    assert Bottleneck.PATH not in {each.bottleneck for each in found.scalings}
    assert [each.doubt for each in found.scalings].count("") == 2
