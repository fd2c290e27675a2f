"""What a failed assertion and JUnit say about a cell."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import geometric_mean

import pytest

from harness.model.mode import Budget, Place
from harness.plugin.engine import cell_properties, explain
from harness.results import Run
from tests.build import synthetic_run

LVM = "optane-lvm-randread-4k-qd32"


@pytest.fixture(scope="module")
def run() -> Run:
    budgets = [Budget("clat_p99", share=5.0), Budget("clat_mean", absolute=100e-6)]
    return synthetic_run(budgets=budgets, modes=["host", "lvm"], most_rounds=12, rounds=8)


def test_a_failed_assertion_names_the_worst_budget_first(run: Run) -> None:
    text = explain(run.cell(LVM))
    assert text.startswith(f"{LVM}: exceeds: clat_mean adds 609 us [")
    assert ", budget +100 us, p < " in text or ", budget +100 us, p = " in text
    assert text.index("exceeds:") < text.index("inconclusive: iops overhead 79.7 % [") < text.index("within: clat_p99")
    assert text.endswith("; n = 8 blocks, intervals hold with 95 % over all looks")


def test_a_void_cell_says_which_check_failed() -> None:
    run = synthetic_run(modes=["host", "raw-cached"], cached=["raw-cached"])
    text = explain(run.cell("optane-raw-cached-randread-4k-qd32"))
    assert text.startswith("optane-raw-cached-randread-4k-qd32 is void: bytes guest:raw-cached: ")
    assert "the host's page cache" in text


def test_a_cell_without_a_budget_says_its_overhead() -> None:
    text = explain(synthetic_run(modes=["host", "lvm"], budget=None).cell(LVM))
    assert text == (
        f"{LVM}: unjudged: iops overhead 79.4 % [77.5, 81.2], no budget; n = 3 blocks, intervals hold with 95 %"
    )


def test_junit_has_every_budget_with_its_limit_verdict_and_p(run: Run) -> None:
    properties = dict(cell_properties(run.cell(LVM)))
    assert properties["verdict"] == "exceeds"
    assert properties["clat_mean.budget"] == "+100 us"
    assert properties["clat_mean.verdict"] == "exceeds"
    assert properties["clat_p99.verdict"] == "within"
    assert 0 <= float(str(properties["clat_mean.p"])) < 0.025
    assert float(str(properties["confidence"])) > 0.95


def test_the_figures_in_junit_are_those_of_the_table_also_if_a_block_stalled(run: Run) -> None:
    """A block that stalled contributes a multiple of any latency to a percentile of all blocks together."""
    cell = run.cell(LVM)
    metric = cell.metrics["clat_p99"]
    stalled = tuple(value * math.exp(70 if place == 3 else -10) for place, value in enumerate(metric.samples("guest")))
    changed = replace(metric, guest=(), adjusted={**metric.adjusted, Place.GUEST: stalled})
    properties = dict(cell_properties(replace(cell, metrics={**cell.metrics, "clat_p99": changed})))
    assert properties["clat_p99.guest"] == pytest.approx(geometric_mean(metric.samples("guest")))
