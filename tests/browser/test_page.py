"""The page of a report as a reader uses it, in Chromium: how it looks, reads, links, saves and prints."""

from __future__ import annotations

import csv
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import HOSTILE, Open

APPEARANCES = (("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390))


@pytest.mark.parametrize(("theme", "width"), APPEARANCES)
@pytest.mark.parametrize("name", ["stored", "smoke"])
def test_each_section_is_drawn_within_the_window_and_the_console_stays_empty(
    opened: Open, tmp_path: Path, name: str, theme: str, width: int
) -> None:
    """The pictures are in the directory VIRT_OVERHEAD_SCREENSHOTS, if it is set: look at them after a change."""
    report = opened(name, theme=theme, width=width)
    report.visit_all()
    pictures = Path(os.environ.get("VIRT_OVERHEAD_SCREENSHOTS", tmp_path))
    pictures.mkdir(parents=True, exist_ok=True)
    for number, section in enumerate(report.page.locator("header.page, main > section, .disk > *").all()):
        box = section.bounding_box()
        if box is None or box["height"] < 1:
            continue
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        section.screenshot(path=pictures / f"{name}-{theme}-{width}-{number:02}.png")
    assert report.page.evaluate("document.documentElement.scrollWidth") <= width
    undrawn = "[...document.querySelectorAll('.plot')].filter((node) => !node.querySelector('.main-svg')).map((node) => node.id)"
    assert report.page.evaluate(undrawn) == []
    assert report.said == []


@pytest.mark.parametrize(("theme", "width"), APPEARANCES)
@pytest.mark.parametrize("name", ["stored", "smoke", "large"])
def test_axe_has_no_serious_findings(opened: Open, name: str, theme: str, width: int) -> None:
    report = opened(name, theme=theme, width=width)
    report.visit_all()
    report.page.evaluate("document.querySelectorAll('details').forEach((each, at) => { each.open = at < 40; })")
    report.page.wait_for_timeout(100)
    found = Axe().run(report.page).response["violations"]
    grave = [
        (each["id"], node["html"][:200]) for each in found if each["impact"] in ("serious", "critical") for node in each["nodes"]
    ]
    assert grave == []


@pytest.mark.parametrize("name", ["smoke", "large"])
def test_a_link_to_a_cell_opens_its_evidence_in_view(opened: Open, name: str) -> None:
    report = opened(name, at="#cell=optane-raw-randread-4k-qd32")
    evidence = report.page.locator("#cell-optane-raw-randread-4k-qd32")
    expect(evidence).to_be_visible()
    expect(evidence.get_by_role("row", name="iops").first).to_be_in_viewport()
    expect(report.page.locator("details:has(> #cell-optane-raw-randread-4k-qd32) > summary")).to_be_focused()
    assert report.said == []


@pytest.mark.parametrize("name", ["smoke", "large"])
def test_a_link_to_no_cell_and_a_damaged_one_show_the_page(opened: Open, name: str) -> None:
    for at in ("#cell=no-such-cell", "#cell=%E0%A4%A"):
        report = opened(name, at=at)
        expect(report.page.locator("h1")).to_be_in_viewport()
        assert report.said == []


def test_hostile_names_are_text(opened: Open) -> None:
    report = opened("hostile")
    dialogs: list[str] = []
    report.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    report.visit_all()
    expect(report.page.locator("h1")).to_contain_text(HOSTILE)
    assert dialogs == []
    assert report.page.locator("img").count() == 0
    assert report.said == []


def test_a_chart_is_saved_as_svg_png_and_csv(opened: Open, tmp_path: Path) -> None:
    report = opened("smoke")
    chart = report.page.locator("figure.chart:has(#disk1-w3-throughput)")
    chart.scroll_into_view_if_needed()
    saved = {kind: _saved(report.page, chart.get_by_role("button", name=kind), tmp_path) for kind in ("SVG", "PNG", "CSV")}
    assert ET.fromstring(saved["SVG"]).tag == "{http://www.w3.org/2000/svg}svg"
    assert saved["PNG"].startswith(b"\x89PNG\r\n")
    rows = list(csv.reader(saved["CSV"].decode().splitlines()))
    assert rows[0] == ["series", "x", "y"]
    drawn = "document.getElementById('disk1-w3-throughput').data.filter((each) => each.name === 'host')[0].y"
    assert [float(y) for series, _, y in rows if series == "host"] == report.page.evaluate(drawn)
    assert report.said == []


def test_a_table_is_saved_as_csv_as_it_reads(opened: Open, tmp_path: Path) -> None:
    report = opened("smoke")
    table = report.page.locator("table.cells").first
    content = _saved(report.page, report.page.locator(".scroll:has(table.cells) + .save button").first, tmp_path)
    rows = list(csv.reader(content.decode().splitlines()))
    assert rows[0][:3] == ["iodepth", "mode", "host MB/s"]
    assert len(rows) == table.locator("tr").count()
    assert {row[1] for row in rows if row[12] == "baseline"} == {"host"}


def test_the_keyboard_reaches_the_arms_the_filter_and_wide_tables(opened: Open) -> None:
    report = opened("smoke", width=390)
    page = report.page
    box = page.get_by_role("checkbox", name="raw-cached").first
    page.locator("#disk1-w3-throughput").scroll_into_view_if_needed()
    page.locator("#disk1-w3-throughput .main-svg").first.wait_for()
    box.focus()
    page.keyboard.press("Space")
    hidden = "document.getElementById('disk1-w3-throughput').data.filter((each) => each.visible === false).map((each) => each.meta)"
    assert set(page.evaluate(hidden)) == {"twin:raw-cached", "guest:raw-cached", "budget:raw-cached"}
    for _ in range(8):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "search":
            break
    page.keyboard.type("lvm qd1")
    expect(page.locator("form.legend output").first).to_have_text("4 of 40 cells")
    wide = page.locator(".scroll:has(table.cells)").first
    wide.focus()
    page.keyboard.press("ArrowRight")
    expect(wide).to_have_attribute("tabindex", "0")
    scrolled = "box => new Promise((done) => box.scrollLeft ? done(true) : box.addEventListener('scroll', () => done(true)))"
    assert wide.evaluate(scrolled)


def _saved(page: Page, button: object, directory: Path) -> bytes:
    with page.expect_download() as download:
        button.click()  # type: ignore[attr-defined]
    path = directory / download.value.suggested_filename
    download.value.save_as(path)
    return path.read_bytes()
