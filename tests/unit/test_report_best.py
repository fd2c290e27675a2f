"""The tests of CrystalDiskMark in the reports: the best slice beside the mean, and never in its place."""

from __future__ import annotations

from collections.abc import Collection
from statistics import fmean

import pytest

from harness.report import markdown_table, summary_lines
from harness.report.best import BestRow
from harness.report.model import report_view
from harness.results import Run
from tests.unit.pages import page
from tests.unit.runs import synthetic_run

TEST = "cdm8-rnd4k-q1t1-read"


def a_run(workload: str = TEST, void: Collection[str] = ()) -> Run:
    return synthetic_run(workloads=[workload], modes=["host", "lvm"], void=void)


def rows(run: Run) -> tuple[BestRow, ...]:
    (section,) = report_view(run).sections
    return section.best


def test_mean_and_best_are_of_the_slices_in_megabytes_of_10_to_the_6() -> None:
    run = a_run()
    (row,) = (each for each in rows(run) if each.mode == "lvm")
    (cell,) = (each for each in run.cells if each.mode == "lvm")
    of_host, of_guest = cell.metrics["bw"].host, cell.metrics["bw"].guest
    assert (row.test, row.slices) == (TEST, len(of_host))
    assert row.guest is not None
    assert (row.host.mean, row.host.best) == pytest.approx((fmean(of_host) / 1e6, max(of_host) / 1e6))
    assert (row.guest.mean, row.guest.best) == pytest.approx((fmean(of_guest) / 1e6, max(of_guest) / 1e6))
    assert row.host.best > row.host.mean


def test_page_terminal_and_markdown_show_the_mean_first_and_that_overheads_are_of_means() -> None:
    run = a_run()
    (sentence,) = (each.sentence for each in rows(run) if each.mode == "lvm")
    assert f"{TEST}, lvm: host " in sentence
    assert sentence.index("host") < sentence.index("best")
    text = "\n".join(summary_lines(run))
    assert sentence in text
    assert "Overheads are of means" in text
    assert sentence in markdown_table(run)
    assert "shows the best of its passes" in page(run).text


def test_other_workloads_and_void_cells_have_no_best_slice() -> None:
    assert rows(a_run("randread-4k")) == ()
    assert [each.mode for each in rows(a_run(void=[f"optane-lvm-{TEST}"]))] == ["host"]
