"""Where the time goes, as the page shows it, and jobs at a fixed rate, which are shown by their latency."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from harness.features.heat_map.report import heat_map_blocks, make_heat_map
from harness.features.io_costs import CPU_PARTS, CYCLE_COSTS
from harness.features.io_costs.report import PART_COLOURS
from harness.report.markdown import markdown_table
from harness.report.section import find_sections
from harness.results import CostRecord, Run
from tests.build import synthetic_run
from tests.replay import overhead_text
from tests.unit.pages import Page, page

MODES = ["host", "passthrough", "lvm"]
RATED = "randread-4k-i1000"


@pytest.fixture(scope="module")
def run() -> Run:
    return synthetic_run(modes=MODES, workloads=["randread-4k", RATED])


@pytest.fixture(scope="module")
def shown(run: Run) -> Page:
    return page(run)


# --- costs ---


def test_every_arm_has_a_bar_whose_parts_are_the_hosts_cpu_time(shown: Page) -> None:
    traces = shown.json("figures")["disk1-w1-costs"]["depths"]["32"]["data"]
    arms = ["host", "guest passthrough", "twin lvm", "guest lvm"]
    assert all(trace["y"] == arms for trace in traces)
    lengths = [sum(trace["x"][number] or 0 for trace in traces) for number in range(len(arms))]
    assert lengths == pytest.approx([5, 33, 5, 33])
    parts = {trace["name"]: trace["x"][1] for trace in traces if trace["x"][1]}
    assert parts == pytest.approx(
        {"guest's kernel": 11, "vCPU exits": 6, "iothread": 9, "QEMU main loop": 1, "host's kernel and the rest": 6}
    )


def test_the_table_has_the_same_figures_without_scripts(shown: Page) -> None:
    rows = {row[0]: row for row in shown.rows[shown.rows.index(heads(shown)[0]) :]}
    row, host = rows["32 guest lvm"], rows["32 host"]
    assert row[:3] == ["32 guest lvm", "3", "33.0"]
    assert row[-4:] == ["2.50", "1.00", "4.00", "3.00"]
    assert host[2] == "5.00"
    assert host[-4:] == ["\N{EN DASH}", "\N{EN DASH}", "2.00", "\N{EN DASH}"]


def test_a_run_without_counts_has_no_such_section(run: Run, shown: Page) -> None:
    assert "Where the time goes" in shown.text
    without = replace(run, cells=tuple(replace(cell, accounting={}) for cell in run.cells))
    assert "Where the time goes" not in page(without).text
    assert not [key for key in page(without).json("figures") if key.endswith("-costs")]


def test_what_a_void_cell_costs_is_not_shown() -> None:
    found = page(synthetic_run(modes=MODES, workloads=["randread-4k"], void=["optane-lvm-randread-4k-qd32"]))
    traces = found.json("figures")["disk1-w1-costs"]["depths"]["32"]["data"]
    assert traces[0]["y"] == ["host", "guest passthrough"]


def test_every_part_has_its_own_colour() -> None:
    assert set(PART_COLOURS) == {part.name for part in CPU_PARTS}
    assert len(set(PART_COLOURS.values())) == len(PART_COLOURS)


# --- cycles ---


def with_cycles(run: Run) -> Run:
    """Of the first workload's cells: 5000 of an I/O on the host, 21 000 of one in the guest, 9000 there by the host."""

    def cost(host: float, guest: float) -> CostRecord:
        return CostRecord("1/IO", (host,) * 3 if host else (), (), (guest,) * 3, None)

    costs = {
        "cycles": cost(5_000, 21_000),
        "cycles_guest_kernel": cost(0, 8_000),
        "cycles_host_user": cost(0, 4_000),
        "cycles_host_kernel": cost(5_000, 9_000),
        "cycles_fio": cost(2_000, 3_000),
    }
    cells = tuple(
        replace(cell, accounting=cell.accounting | costs) if cell.job.rate is None else cell for cell in run.cells
    )
    return replace(run, cells=cells, provenance=run.provenance | {"cycles": {"counted": True, "why": "perf 6.1"}})


def heads(found: Page) -> list[list[str]]:
    return [row for row in found.rows if row[:3] == ["iodepth, arm", "n", "CPU time, us"]]


def test_cycles_are_next_to_the_time_of_each_arm(run: Run) -> None:
    found = page(with_cycles(run))
    counted, not_counted = heads(found)
    first = counted.index("cycles")
    assert counted[first : first + len(CYCLE_COSTS)] == [cost.title for cost in CYCLE_COSTS]
    assert "cycles" not in not_counted
    (guest,) = [row for row in found.rows[found.rows.index(counted) :] if row[0] == "32 guest lvm"][:1]
    assert [cell.replace("\N{NARROW NO-BREAK SPACE}", "") for cell in guest[first : first + 5]] == [
        "21000",
        "8000",
        "4000",
        "9000",
        "3000",
    ]
    (host,) = [row for row in found.rows[found.rows.index(counted) :] if row[0] == "32 host"][:1]
    assert host[first + 1 : first + 3] == ["\N{EN DASH}"] * 2
    assert "Cycles: not counted" not in found.text


def test_the_page_says_why_a_host_could_not_count_cycles(run: Run) -> None:
    why = "the host's CPUs show no cycle counter (PMU)"
    found = page(replace(run, provenance=run.provenance | {"cycles": {"counted": False, "why": why}}))
    assert f"Cycles: not counted: {why}." in found.text
    assert not [head for head in heads(found) if "cycles" in head]


def test_an_old_run_without_cycles_does_not_mention_them(shown: Page) -> None:
    assert "Cycles" not in shown.text


# --- a fixed rate ---


def test_a_job_at_a_fixed_rate_is_shown_by_its_latency(run: Run) -> None:
    cell = run.cell("optane-lvm-randread-4k-qd1-i1000")
    assert cell.metrics["iops"].host == cell.metrics["iops"].guest == (1000.0,) * 3
    overhead = cell.metrics["clat_mean"].overhead
    assert overhead is not None
    (row,) = [line for line in overhead_text(run, width=120).splitlines() if line.startswith(cell.id)]
    assert f" us  {overhead.point * 100:.0f} [" in re.sub(" {2,}", "  ", row)
    (row,) = [line for line in markdown_table(run).splitlines() if cell.id in line]
    assert " | us | " in row


def test_such_a_job_is_left_out_of_the_throughput_that_a_mode_loses(run: Run) -> None:
    alone = synthetic_run(modes=MODES, workloads=["randread-4k"])
    (section,), (other,) = find_sections(run), find_sections(alone)
    assert section.comparison.jobs == other.comparison.jobs == 2
    assert {workload for workload, _ in make_heat_map(section).columns} == {"randread-4k"}
    only_rated = find_sections(synthetic_run(modes=MODES, workloads=[RATED]))[0]
    assert list(heat_map_blocks(only_rated)) == []
    assert only_rated.comparison.modes == ()


def test_its_charts_are_latency_and_costs(shown: Page) -> None:
    figures = shown.json("figures")
    assert "disk1-w2-throughput" not in figures
    assert {"disk1-w2-latency", "disk1-w2-split", "disk1-w2-costs"} <= figures.keys()
    assert all(identifier in {each.get("id") for _, each in shown.tags} for identifier in figures)
