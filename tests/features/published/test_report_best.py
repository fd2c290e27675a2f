"""The tests of CrystalDiskMark in the reports: the best slice beside the mean, and never in its place."""

from __future__ import annotations

from collections.abc import Collection
from statistics import fmean

from harness.features.published.report import best_blocks
from harness.report.blocks import Row, Table
from harness.report.markdown import markdown_table
from harness.report.numbers import significant
from harness.report.section import find_sections
from harness.report.terminal import summary_lines
from harness.results import Run
from tests.build import synthetic_run
from tests.unit.pages import page

TEST = "cdm8-rnd4k-q1t1-read"


def a_run(workload: str = TEST, void: Collection[str] = ()) -> Run:
    return synthetic_run(workloads=[workload], modes=["host", "lvm"], void=void)


def rows(run: Run) -> list[Row]:
    (section,) = find_sections(run)
    return [row for block in best_blocks(section) if isinstance(block, Table) for row in block.rows]


def test_mean_and_best_are_of_the_slices_in_megabytes_of_10_to_the_6() -> None:
    run = a_run()
    (row,) = (row for row in rows(run) if row.cells[1] == "lvm")
    (cell,) = (cell for cell in run.cells if cell.mode == "lvm")
    of_host, of_guest = (
        [value / 1e6 for value in values] for values in (cell.metrics["bw"].host, cell.metrics["bw"].guest)
    )
    figures = (fmean(of_host), max(of_host), fmean(of_guest), max(of_guest))
    assert row.cells == (TEST, "lvm", str(len(of_host)), *map(significant, figures))
    assert max(of_host) > fmean(of_host)


def test_page_terminal_and_markdown_show_the_mean_first_and_that_overheads_are_of_means() -> None:
    run = a_run()
    (sentence,) = (row.sentence.strip() for row in rows(run) if row.cells[1] == "lvm")
    assert f"{TEST}, lvm: host " in sentence
    assert sentence.index("host") < sentence.index("best")
    text = "\n".join(summary_lines(run))
    assert sentence in text
    assert "Overheads are of means" in text
    assert sentence in markdown_table(run)
    assert "shows the best of its passes" in page(run).text


def test_other_workloads_and_void_cells_have_no_best_slice() -> None:
    assert rows(a_run("randread-4k")) == []
    assert [row.cells[1] for row in rows(a_run(void=[f"optane-lvm-{TEST}"]))] == ["host"]
