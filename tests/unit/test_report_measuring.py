"""How it was measured, as the report shows it: conditioning, order, looks, drift, percentiles, calibration."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from pydantic import JsonValue

from harness.analysis import METRICS
from harness.features.calibrate.noise import smallest_detectable
from harness.report.background import course_sentence, find_conditionings, orders_of
from harness.report.contents import find_banners, lab_sentences
from harness.report.markdown import markdown_table
from harness.report.terminal import summary_lines
from harness.results import Run
from tests.build import CALIBRATION, synthetic_run
from tests.replay import overhead_text
from tests.unit.pages import Page, page

MODES = ["host", "lvm"]

BOOTS = cast(dict[str, JsonValue], CALIBRATION["boots"])


@pytest.fixture(scope="module")
def looked_at() -> Run:
    return synthetic_run(modes=MODES, most_rounds=12, ready="not steady", calibrated=True)


@pytest.fixture(scope="module")
def looked_at_page(looked_at: Run) -> Page:
    return page(looked_at)


# --- order and looks ---


def test_each_group_says_its_looks_and_why_it_ended(looked_at_page: Page) -> None:
    assert "3 rounds, with looks at 3 rounds (planned: 3, 5, 8, 12). Ended by: budget decided." in looked_at_page.text


def test_a_group_that_was_interrupted_says_so(looked_at: Run) -> None:
    whole = looked_at.groups[0]
    cut = replace(whole, orders=whole.orders[:2], rounds=whole.rounds[:2], stopped=None)
    assert course_sentence(cut) == (
        "2 rounds, without an interim look (planned: 3, 5, 8, 12). The group was not finished."
    )


def test_an_abandoned_round_is_named_and_leaves_a_gap_in_the_numbers(looked_at: Run) -> None:
    group = replace(looked_at.groups[0], rounds=(1, 2, 5), abandoned=(3, 4))
    assert "Abandoned and not counted: rounds 3 and 4. Ended by:" in course_sentence(group)
    assert [number for number, _ in orders_of(group)] == [1, 2, 5]


def test_the_orders_of_a_run_without_numbers_are_numbered_in_their_order(looked_at: Run) -> None:
    assert [number for number, _ in orders_of(replace(looked_at.groups[0], rounds=()))] == [1, 2, 3]


def test_the_order_of_arms_of_every_round_is_shown(looked_at: Run, looked_at_page: Page) -> None:
    for number, order in enumerate(looked_at.groups[0].orders, start=1):
        assert [str(number), ", ".join(order)] in looked_at_page.rows


def test_intervals_say_that_they_hold_over_all_looks(looked_at: Run, looked_at_page: Page) -> None:
    assert looked_at.cells[1].confidence > 0.95
    assert "[95 %, all looks]" in overhead_text(looked_at, width=80)
    assert "| overhead % [95 % over all looks] |" in markdown_table(looked_at)
    assert "interval, 95 % over all looks" in looked_at_page.text
    assert "interval, 95 % over all looks" not in page(synthetic_run(modes=MODES)).text


# --- conditioning ---


def test_a_disk_that_was_not_steady_is_announced_with_its_regions(looked_at: Run, looked_at_page: Page) -> None:
    said = "Not steady: optane did not reach a steady state before it was measured (raw)."
    assert said in looked_at_page.text
    assert "optane A fast disk: host, passthrough, LVM and RAW; not steady" in looked_at_page.text
    assert looked_at_page.text.index(said) < looked_at_page.text.index("Verdicts")
    assert any(line.startswith(said) for line in summary_lines(looked_at))


def test_a_steady_disk_raises_no_warning() -> None:
    run = synthetic_run(modes=MODES, ready="steady")
    assert "steady" not in {banner.kind for banner in find_banners(run)}
    assert "2 of 2 regions reached a steady state" in page(run).text


def test_the_page_says_that_a_disk_was_only_filled() -> None:
    assert "Every region was written once only" in page(synthetic_run(modes=MODES)).text


def test_the_table_of_conditioning_has_range_and_excursion_with_their_limits(looked_at_page: Page) -> None:
    rows = {row[0]: row for row in looked_at_page.rows if row and row[0] in ("device", "raw") and len(row) == 7}
    assert rows["device"][1:3] == ["steady", "8"]
    assert rows["raw"][1:3] == ["not steady", "25"]
    assert rows["device"][4] == "20"
    assert float(rows["raw"][3]) > 20


def test_the_plot_of_conditioning_has_all_rounds_and_the_window_that_is_judged(looked_at_page: Page) -> None:
    band, mean, fitted, values = looked_at_page.json("figures")["conditioning1-region1"]["data"]
    assert len(values["x"]) == 8
    assert mean["x"] == fitted["x"] == [4, 8]
    assert mean["y"] == pytest.approx([200_200, 200_200])
    assert [max(band["y"]), min(band["y"])] == pytest.approx([220_220, 180_180])
    assert fitted["y"][0] > fitted["y"][1]


def test_groups_that_share_a_conditioning_show_it_once(looked_at: Run) -> None:
    second = replace(looked_at.groups[0], id="optane-batch2")
    shared = find_conditionings(replace(looked_at, groups=(*looked_at.groups, second)))
    assert [groups for _, _, groups in shared] == [["optane-batch1", "optane-batch2"]]


# --- drift ---


def test_a_host_that_drifts_too_much_is_marked_and_voids_the_cells_whose_arms_do_not_alternate() -> None:
    run = synthetic_run(modes=(*MODES, "raw-cached"), rounds=6, drift=0.6)
    rows = [row for row in page(run).rows if len(row) == 4 and row[3].startswith("too much: ")]
    assert rows
    assert rows[0][1].startswith("\N{MINUS SIGN}")
    void = {cell.id for cell in run.cells if any(check.check == "drift" for check in cell.validity)}
    assert void == {cell.id for cell in run.cells if cell.mode == "raw-cached" and cell.job.writes}
    noted = [cell for cell in run.cells if any("the bare host changed by -" in note for note in cell.notes)]
    assert {row[0] for row in rows} == {cell.job.id for cell in noted}
    assert any("drift failed" in line and "the bare host changed by -" in line for line in summary_lines(run))


def test_small_drift_is_shown_with_its_interval(looked_at: Run, looked_at_page: Page) -> None:
    rows = [row for row in looked_at_page.rows if len(row) == 4 and row[3] == "ok"]
    assert len(rows) == len(looked_at.groups[0].drift)
    assert all("[" in row[1] and row[2] == "3" for row in rows)


# --- percentiles ---


def test_percentiles_of_all_ios_are_next_to_the_overhead_of_the_rounds(looked_at: Run, looked_at_page: Page) -> None:
    pooled = looked_at.cell("optane-lvm-randread-4k-qd1").metrics["clat_p99"].pooled["guest"]
    rows = [row for row in looked_at_page.rows if row[:1] == ["clat_p99"] and len(row) == 7]
    ios = f"{pooled.ios:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    (row,) = (row for row in rows if row[1] == ios)
    assert row[4].startswith(f"{pooled.value * 1e6:.0f} [")
    assert "[" in row[5]
    assert row[6] == "3 blocks"
    assert "of all blocks' I/Os together" in looked_at_page.text


def test_the_page_explains_the_name_of_a_metric(looked_at_page: Page) -> None:
    titles = {attributes.get("title") for tag, attributes in looked_at_page.tags if tag == "th"}
    assert {METRICS["clat_mean"].label, METRICS["clat_p99"].label} <= titles


# --- calibration ---


def test_a_calibrated_lab_says_the_smallest_overhead_that_these_blocks_can_show(looked_at: Run) -> None:
    for text in ("\n".join(summary_lines(looked_at)), page(looked_at).text):
        assert "Smallest overhead that 3 blocks can show here: 6.6 %." in text
        assert "1 false alarm in 40 groups of a device against itself" in text
        assert "An added delay of 1" in text


def test_a_lab_that_was_never_calibrated_says_how_to() -> None:
    run = synthetic_run(modes=MODES)
    for text in ("\n".join(summary_lines(run)), page(run).text, markdown_table(run)):
        assert "This lab was never calibrated" in text
        assert "virt-overhead calibrate" in text


def test_the_calibrations_noise_gives_the_figure_for_any_number_of_blocks() -> None:
    said = lab_sentences(synthetic_run(modes=MODES, rounds=4, calibrated=True))
    assert said[0] == "Smallest overhead that 4 blocks can show here: 4.4 %."


def test_a_run_with_one_block_shows_what_the_calibration_has() -> None:
    said = lab_sentences(synthetic_run(modes=MODES, rounds=1, calibrated=True))
    assert said[0] == "Smallest overhead that 3 blocks can show here: 6.6 %, 5 blocks can show here: 3.5 %."


def test_the_samples_of_a_run_with_several_boots_are_the_boots() -> None:
    run = synthetic_run(modes=MODES, rounds=4)
    run = replace(run, cells=tuple(replace(cell, boots=(1, 1, 3, 3)) for cell in run.cells))
    quoted = replace(run, provenance={"calibration": {**CALIBRATION, "boots": {**BOOTS, "sd": 0.03}}})
    share = smallest_detectable(0.021, 2, boots=2, sd_of_boots=0.03)
    expected = f"Smallest overhead that 2 boots of 2 blocks can show here: {share * 100:.2g} %."
    assert lab_sentences(quoted)[0] == expected


@pytest.mark.parametrize(
    "damage",
    [{"groups": "many"}, {"noise_sd": -0.021}, {"boots": {**BOOTS, "sd": -0.03}}],
    ids=["groups", "noise", "boots"],
)
def test_a_calibration_that_cannot_be_read_is_reported(looked_at: Run, damage: dict[str, JsonValue]) -> None:
    damaged = replace(looked_at, provenance={"calibration": {**CALIBRATION, **damage}})
    assert lab_sentences(damaged) == (
        "The calibration stored with this run cannot be read. virt-overhead calibrate writes a new one.",
    )
