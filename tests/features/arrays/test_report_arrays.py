"""The summary of a disk with arrays is about scaling, and not about a loss against the single disk."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from harness.features.arrays.report import array_cells, array_headline
from harness.features.embedded.disks import CONTROLLERS
from harness.report.modes import Headline, compare_modes
from tests.unit.path_runs import Measured, measured

JOBS = ["seqread-1m", "randread-4k"]


def headline(run: Measured) -> Headline:
    return array_headline("raid_a_1", array_cells(run.scalings, run.records), compare_modes(run.records))


@pytest.fixture(scope="module")
def found() -> Headline:
    return headline(measured(JOBS))


def test_the_sentence_says_how_far_each_array_scales(found: Headline) -> None:
    first, *others = found.sentence.removeprefix("raid_a_1: ").split("; ")
    assert first.startswith("`raid0-16-paths` delivers ")
    assert first.endswith("50 % of 16 disks")
    assert {each.split("`")[1]: each.rpartition(", ")[2] for each in others} == {
        "raid0-8": "50 % of 8 disks",
        "raid0-16": "25 % of 16 disks",
    }
    assert "loses" not in found.sentence


def test_the_details_name_the_path_with_its_limit_and_what_a_guest_loses(found: Headline) -> None:
    basis, path, limits, guests = found.details
    assert basis == "Geometric mean over 2 jobs in 6 blocks, with its interval (95 %)."
    assert path.startswith(f"Path {CONTROLLERS[0].pci} limits `raid0-8`, `raid0-16`, `raid0-16-paths` in 6 cells: ")
    assert "MB/s [" in path
    assert "IOPS [" in path
    assert limits == "What limits the arrays: path in 6 cells."
    assert guests.startswith("A guest loses, of the throughput of its array on the host: ")
    loss = re.search(r"`raid0-8` (\S+) %", guests)
    assert loss is not None
    assert float(loss[1]) == pytest.approx(30, abs=5)


def test_an_array_whose_figures_are_no_result_is_left_out() -> None:
    run = measured(JOBS)
    doubtful = tuple(replace(each, doubt="bytes twin:raid0-8") for each in run.scalings if "raid0-8-" in each.cell)
    others = tuple(each for each in run.scalings if "raid0-8-" not in each.cell)
    shown = headline(replace(run, scalings=(*others, *doubtful)))
    assert "`raid0-8`" not in shown.sentence
    assert shown.details[-1] == "A check failed in 2 cells: these figures are left out."
    nothing = headline(replace(run, scalings=doubtful))
    assert nothing.sentence == "raid_a_1: no array has a figure that can be trusted"


def test_without_a_path_as_the_limit_none_is_named() -> None:
    details = headline(measured(JOBS, shared=False)).details
    assert not [detail for detail in details if detail.startswith("Path ")]
    assert "What limits the arrays: none in 6 cells." in details
