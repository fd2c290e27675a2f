"""The scatter of a measured cell: between its blocks, and between the boots of its guest."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from harness.features.calibrate.detectable import measure_scatter
from harness.results import CellRecord
from tests.build import synthetic_run

RUN = synthetic_run(modes=["host", "lvm"], workloads=["randread-4k"])
CELL = "optane-lvm-randread-4k-qd32"


def cell(ratios: list[float], boots: list[int]) -> CellRecord:
    """A cell whose guest has these log ratios to the host, in blocks of these boots."""
    record = RUN.cell(CELL)
    values = replace(
        record.metrics["iops"],
        host=(1000.0,) * len(ratios),
        guest=tuple(1000 * math.exp(ratio) for ratio in ratios),
    )
    return replace(record, metrics={"iops": values}, boots=tuple(boots))


def test_one_boot_shows_the_scatter_of_blocks() -> None:
    chance = random.Random(1)
    ratios = [chance.gauss(-0.3, 0.05) for _ in range(200)]
    found = measure_scatter(cell(ratios, [1] * 200), "iops")
    assert found is not None
    assert found.sd == pytest.approx(0.05, rel=0.15)
    assert found.sd_of_boots is None


def test_several_boots_show_both_levels() -> None:
    chance = random.Random(2)
    ratios, boots = [], []
    for boot in range(100):
        own = chance.gauss(0, 0.04)
        ratios += [own + chance.gauss(0, 0.02) for _ in range(4)]
        boots += [boot] * 4
    found = measure_scatter(cell(ratios, boots), "iops")
    assert found is not None
    assert found.sd == pytest.approx(0.02, rel=0.1)
    assert found.sd_of_boots == pytest.approx(0.04, rel=0.2)


@pytest.mark.parametrize(
    ("ratios", "boots"),
    [([0.1, 0.2], [1, 1]), ([0.1, 0.2, 0.3], [1, 2, 2]), ([0.1, 0.2, 0.3], [1, 2, 3])],
    ids=["two blocks", "one boot with two blocks", "a boot for each block"],
)
def test_too_few_blocks_show_no_scatter(ratios: list[float], boots: list[int]) -> None:
    assert measure_scatter(cell(ratios, boots), "iops") is None


def test_a_metric_that_was_not_measured_has_no_scatter() -> None:
    assert measure_scatter(cell([0.1, 0.2, 0.3], [1, 1, 1]), "bw") is None
    assert measure_scatter(RUN.cell("optane-host-randread-4k-qd32"), "iops") is None
