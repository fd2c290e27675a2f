"""Verdicts as terminal and page show them: what exceeds comes first, and void or too good cells never win."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis import Verdict
from harness.features.heat_map.report import make_heat_map
from harness.model.mode import Budget
from harness.report.contents import headline_of
from harness.report.markdown import markdown_table
from harness.report.section import find_sections
from harness.report.terminal import summary_lines
from harness.report.verdicts import describe_finding, find_verdicts, format_limit, format_p_value, samples_to_decide
from harness.results import BudgetRecord, MetricRecord, Run
from harness.results.cells import CostRecord
from tests.build import synthetic_run
from tests.replay import overhead_text
from tests.unit.pages import Page, page

LVM = "optane-lvm-randread-4k-qd32"
LATENCY = Budget("clat_mean", share=0.3, absolute=50e-6, both="looser")


@pytest.fixture(scope="module")
def several() -> Run:
    return synthetic_run(budgets=[LATENCY, Budget("clat_p99", share=5.0)], rounds=8)


@pytest.fixture(scope="module")
def cached() -> Run:
    return synthetic_run(cached=["raw-cached"])


@pytest.fixture(scope="module")
def cached_page(cached: Run) -> Page:
    return page(cached)


@pytest.fixture(scope="module")
def faster() -> Run:
    return synthetic_run(faster=["raw"])


@pytest.fixture(scope="module")
def faster_page(faster: Run) -> Page:
    return page(faster)


# --- the terminal ---


def test_what_exceeds_is_listed_with_metric_overhead_budget_and_p() -> None:
    lines = summary_lines(synthetic_run(modes=["host", "raw-cached"], representative=True, rounds=5))
    start = lines.index("exceeds (4):")
    assert lines[start + 1].startswith(
        "  optane-raw-cached-randread-4k-qd1: iops overhead 86.9 % [86.7, 87.0], budget 80 %, p < "
    )
    assert "cells: 4 within, 4 exceeds, 8 baseline" in lines


def test_a_cell_with_several_budgets_says_how_many_have_its_verdict(several: Run) -> None:
    rows = {line.split()[0]: line for line in overhead_text(several, width=120).splitlines()}
    by_metric = {budget.metric: budget.verdict for budget in several.cell(LVM).budget}
    assert by_metric == {"iops": "inconclusive", "clat_mean": "exceeds", "clat_p99": "within"}
    assert rows[LVM].endswith("exceeds 1/3")


@pytest.mark.parametrize("width", [80, 120])
def test_verdicts_of_several_budgets_are_whole_within_the_width(several: Run, width: int) -> None:
    lines = overhead_text(several, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.endswith("inconclusive 1/3") for line in lines) > 0


def test_a_long_list_is_cut_and_says_so() -> None:
    lines = summary_lines(synthetic_run(budget=0.01))
    start = next(number for number, line in enumerate(lines) if line.startswith("exceeds ("))
    assert lines[start + 11].strip().startswith("and ")
    assert lines[start + 11].endswith("more: see the report")


def test_void_cells_of_a_mode_say_why_in_one_line(cached: Run) -> None:
    lines = summary_lines(cached)
    start = lines.index("void, left out of all comparisons (8):")
    assert lines[start + 1].startswith("  `raw-cached`, 8 cells: bytes failed, for example seqread-256k-qd1: ")
    assert "did not come from the disk" in lines[start + 1]
    assert not lines[start + 2].startswith("  ")


def test_markdown_lists_what_exceeds_and_what_is_void(cached: Run) -> None:
    text = markdown_table(cached)
    assert "**void, left out of all comparisons (8)**" in text
    assert "| **void** |" in text


# --- what cannot win ---


def test_a_cached_mode_is_void_by_its_bytes_and_never_loses_least(cached: Run) -> None:
    assert {cell.verdict for cell in cached.cells if cell.mode == "raw-cached"} == {Verdict.VOID}
    (section,) = find_sections(cached)
    assert [mode.mode for mode in section.comparison.modes] == ["passthrough", "lvm", "raw"]
    assert headline_of(section).sentence.startswith("optane: `passthrough` loses least")
    assert any("`raw-cached` is void in 8 jobs" in detail for detail in headline_of(section).details)


def test_a_guest_faster_than_its_host_is_shown_with_a_mark_and_not_dropped(faster: Run) -> None:
    assert Verdict.VOID not in {cell.verdict for cell in faster.cells}
    (section,) = find_sections(faster)
    assert "raw" in [mode.mode for mode in section.comparison.modes]
    assert any(
        "`raw` is faster than its host by more than 5 % in 8 jobs: this needs an explanation" in text
        for text in headline_of(section).details
    )
    lines = summary_lines(faster)
    assert "faster than the host by more than 5 %, which needs an explanation (8):" in lines
    rows = {line.split()[0]: line for line in overhead_text(faster, width=120).splitlines()}
    assert rows["optane-raw-randread-4k-qd32"].endswith("within?")


def test_the_list_of_guests_that_are_faster_says_whether_their_requests_explain_it(faster: Run) -> None:
    raw = "optane-raw-randread-4k-qd32"
    merged = CostRecord("1/IO", host=(1.0, 1.0), twin=(1.0, 1.0), guest=(0.5, 0.46), added=None)
    cells = [replace(each, accounting={"disk_requests": merged}) if each.id == raw else each for each in faster.cells]
    said = find_verdicts(replace(faster, cells=tuple(cells)).cells).faster_sentences
    assert len(said) == 8
    for each in said:
        explained = "the disk got 0.48 requests for each I/O of the guest and 1 for the host's, larger ones"
        assert each.endswith(f" %; {explained if each.startswith(raw) else 'no check explains it: find out why'}")


def test_a_run_whose_every_guest_is_void_has_no_headline_figure() -> None:
    run = synthetic_run(modes=["host", "raw-cached"], cached=["raw-cached"])
    assert headline_of(find_sections(run)[0]).sentence == "optane: no attach mode has a figure that can be trusted"


def test_void_figures_have_a_word_and_no_colour_in_the_heat_map_and_faster_ones_have_both(
    cached: Run, faster: Run
) -> None:
    for run, mode, word, has_value in ((cached, "raw-cached", "void", False), (faster, "raw", "faster", True)):
        heat_map = make_heat_map(find_sections(run)[0])
        row = heat_map.modes.index(mode)
        assert {value is not None for value in heat_map.values[row]} == {has_value}
        assert set(heat_map.words[row]) == {word}


def test_doubtful_bars_are_hatched_and_labelled(cached_page: Page, faster_page: Page) -> None:
    for found, label, clean in ((cached_page, "raw-cached (void)", "raw"), (faster_page, "raw (faster)", "lvm")):
        for bar in found.json("figures")["disk1-w3-split"]["depths"]["32"]["data"]:
            pattern = dict(zip(bar["y"], bar["marker"]["pattern"]["shape"], strict=True))
            assert pattern[label] == "/"
            assert pattern[clean] == ""


def test_points_faster_than_the_host_are_drawn_open(faster_page: Page) -> None:
    traces = faster_page.json("figures")["disk1-w3-throughput"]["data"]
    (raw,) = (trace for trace in traces if trace.get("meta") == "guest:raw" and "markers" in trace["mode"])
    assert all(symbol.endswith("-open") for symbol in raw["marker"]["symbol"])
    assert "faster than its host: find out why" in raw["customdata"][0]


# --- the page ---


def test_the_page_begins_with_what_exceeds_what_is_void_and_what_would_decide(several: Run) -> None:
    text = page(several).text
    exceeds, undecided = text.index("Exceeds its budget: "), text.index("Inconclusive, and what would decide it: ")
    assert text.index("Verdicts") < exceeds < undecided < text.index("Throughput lost by mode")
    assert "blocks, if they scatter like these 8" in text
    assert "30 % or +50 us" in text


def test_latency_and_throughput_have_separate_scales(several: Run) -> None:
    heads = [row[4] for row in page(several).rows if row[:2] == ["cell", "metric"]]
    throughput, latency = heads[:2]
    assert throughput == "drawing020406080100"
    assert latency == "drawing0200400600"


def test_the_page_lists_void_cells_with_their_reason_before_any_figure(cached_page: Page) -> None:
    text = cached_page.text
    said = text.index("Void: 8 cells")
    assert said < text.index("bytes guest:raw-cached: round") < text.index("Throughput lost by mode")


def test_checks_are_in_the_evidence_of_each_cell(cached_page: Page) -> None:
    assert ["engine", "ok", "fio 3.36, libaio on both sides"] in cached_page.rows
    assert [row for row in cached_page.rows if row[:2] == ["bytes guest:raw-cached", "failed"]]


def test_notes_on_single_cells_are_next_to_their_figures(cached_page: Page) -> None:
    said = [row[1] for row in cached_page.rows if len(row) == 2 and row[0] == ""]
    assert any("guest:lvm: the guest's CPUs were 99% busy" in text for text in said)


def test_budgets_are_lines_in_the_charts(several: Run) -> None:
    figures = page(several).json("figures")
    (line,) = (trace for trace in figures["disk1-w3-throughput"]["data"] if trace.get("meta") == "budget:lvm")
    host = next(trace for trace in figures["disk1-w3-throughput"]["data"] if trace.get("name") == "host")
    assert line["y"] == pytest.approx([value * 0.2 for value in host["y"]])
    assert "budget:lvm" in {trace.get("meta") for trace in figures["disk1-w3-latency"]["data"]}


def test_without_a_budget_the_page_says_what_is_proven() -> None:
    run = synthetic_run(budget=None, modes=["host", "lvm"])
    overhead = run.cell(LVM).metrics["iops"].overhead
    assert overhead is not None
    assert overhead.high is not None
    text = page(run).text
    assert "No budget applies to a cell of this run in this lab, so nothing is judged." in text
    assert f"unjudged proven below {overhead.high * 100:.1f}" in text


# --- words and figures ---


def test_limits_read_as_the_scenario_writes_them() -> None:
    def budget(share: float | None, absolute: float | None, both: str | None = None) -> str:
        assert both in (None, "looser", "stricter")
        return format_limit(BudgetRecord("clat_mean", share, absolute, both, Verdict.WITHIN, None))  # type: ignore[arg-type]

    assert budget(0.3, None) == "30 %"
    assert budget(None, 50e-6) == "+50 us"
    assert budget(0.125, 0.0015, "looser") == "12.5 % or +1500 us"
    assert budget(0.3, 50e-6, "stricter") == "30 % and +50 us"
    assert [budget(share, None) for share in (0.1225, 9.999, 10.0)] == ["12.25 %", "999.9 %", "1000 %"]


def test_small_p_values_are_not_written_out() -> None:
    shown = [format_p_value(0.00001), format_p_value(0.0123), format_p_value(None)]
    assert shown == ["p < 0.0001", "p = 0.012", "no p value"]


def metric(*guest: float) -> MetricRecord:
    values = tuple(guest)
    return MetricRecord("IO/s", "higher", (1000.0,) * len(values), (), values, None, None, None, None)


def judged(share: float) -> BudgetRecord:
    return BudgetRecord("iops", share, None, None, Verdict.INCONCLUSIVE, 0.3)


def test_a_budget_nearer_to_the_overhead_needs_more_blocks() -> None:
    blocks = metric(700.0, 800.0, 750.0)
    far, near = (samples_to_decide(blocks, judged(share), 0.95) for share in (0.40, 0.28))
    assert far is not None
    assert near is not None
    assert 3 < far < near


def test_no_number_of_blocks_decides_an_overhead_at_its_budget() -> None:
    assert samples_to_decide(metric(700.0, 700.0 / 0.9, 630.0), judged(0.3), 0.95) is None


def test_an_excess_that_the_correction_revokes_says_so() -> None:
    taken_back = [each.decides for each in find_verdicts(synthetic_run().cells).inconclusive]
    assert any(text.startswith("beyond its budget alone, not as one of 32 judged: about ") for text in taken_back)


def test_one_block_and_a_missing_metric_are_named_as_what_is_lacking() -> None:
    (once, *_) = find_verdicts(synthetic_run(rounds=1, modes=["host", "lvm"]).cells).inconclusive
    assert once.decides == "one block has no interval: measure at least ten"
    lacking = synthetic_run(
        modes=["host", "lvm"], budget=None, budgets=[Budget("clat_p999", share=1.0)], workloads=["randread-4k-i1000"]
    )
    (missing, *_) = find_verdicts(lacking.cells).inconclusive
    assert describe_finding(missing.cell, missing.budget) == "no sample: too few I/Os in 3 blocks"
    assert missing.decides == "an interval takes about 10 rounds like these 3; or use longer slices"


def test_either_limit_of_a_looser_budget_is_enough_to_keep_it() -> None:
    latency = MetricRecord("s", "lower", (100e-6,) * 3, (), (140e-6, 150e-6, 145e-6), None, None, None, None)
    looser = BudgetRecord("clat_mean", 0.46, 100e-6, "looser", Verdict.INCONCLUSIVE, 0.3)
    stricter = BudgetRecord("clat_mean", 0.46, 100e-6, "stricter", Verdict.INCONCLUSIVE, 0.3)
    soon, late = (samples_to_decide(latency, budget, 0.95) for budget in (looser, stricter))
    assert soon == 4
    assert late is None or late > 4
