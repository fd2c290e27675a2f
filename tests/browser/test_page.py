"""The page of a report as a reader uses it, in Chromium: how it looks, reads, links, filters, saves and prints."""

from __future__ import annotations

import csv
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Dialog, Locator, Page, expect

from tests.browser.conftest import HOSTILE, Open, Theme

APPEARANCES: tuple[tuple[Theme, int], ...] = (("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390))
SECTIONS = "header.page, main > section, .disk > *, section.workload"
LEAST_HEIGHT = 40
"""In pixels. What is smaller, as a heading, is in the picture of its section."""
# The legend stays in view while a reader scrolls. In a picture, it would cover what is below.
IN_PICTURES = ".legend { position: static !important }"
UNDRAWN = """() => [...document.querySelectorAll(".plot")]
    .filter((plot) => plot.offsetParent && !plot.querySelector(".main-svg")).map((plot) => plot.id)"""
A4 = 703
"""The width of the paper without margins, in pixels: 186 mm at 96 dpi."""
CHART = "disk1-w3-throughput"


@pytest.mark.parametrize(("theme", "width"), APPEARANCES)
@pytest.mark.parametrize("name", ["stored", "smoke", "gallery"])
def test_each_section_is_drawn_within_the_window_and_the_console_stays_empty(
    opened: Open, tmp_path: Path, name: str, theme: Theme, width: int
) -> None:
    """The pictures are in the directory VIRT_OVERHEAD_SCREENSHOTS, if it is set: look at them after a change."""
    report = opened(name, theme=theme, width=width)
    report.page.evaluate("document.querySelectorAll('details.more').forEach((each) => { each.open = true; })")
    report.visit_all()
    assert report.page.evaluate("document.documentElement.scrollWidth") <= width
    assert report.page.evaluate(UNDRAWN) == []
    pictures = Path(os.environ.get("VIRT_OVERHEAD_SCREENSHOTS", tmp_path))
    pictures.mkdir(parents=True, exist_ok=True)
    for number, section in enumerate(report.page.locator(SECTIONS).all()):
        box = section.bounding_box()
        if box is None or box["height"] < LEAST_HEIGHT:
            continue
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        section.screenshot(path=pictures / f"{name}-{theme}-{width}-{number:02}.png", style=IN_PICTURES)
    assert report.said == []


@pytest.mark.parametrize(("theme", "width"), APPEARANCES)
@pytest.mark.parametrize("name", ["stored", "smoke", "large"])
def test_axe_has_no_serious_findings(opened: Open, name: str, theme: Theme, width: int) -> None:
    report = opened(name, theme=theme, width=width)
    report.visit_all()
    report.page.evaluate("document.querySelectorAll('details').forEach((each, at) => { each.open = at < 40; })")
    report.page.wait_for_timeout(100)
    grave = [
        (finding["id"], node["html"][:200])
        for finding in Axe().run(report.page).response["violations"]
        if finding["impact"] in ("serious", "critical")
        for node in finding["nodes"]
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


@pytest.mark.parametrize("at", ["#cell=no-such-cell", "#cell=%E0%A4%A"])
@pytest.mark.parametrize("name", ["smoke", "large"])
def test_a_link_to_no_cell_and_a_damaged_one_show_the_page(opened: Open, name: str, at: str) -> None:
    report = opened(name, at=at)
    expect(report.page.locator("h1")).to_be_in_viewport()
    assert report.said == []


@pytest.mark.parametrize(("name", "found"), [("smoke", "2 of 40 cells"), ("large", "9 of 225 cells")])
def test_the_filter_leaves_the_cells_with_every_word_and_is_a_link(opened: Open, name: str, found: str) -> None:
    report = opened(name)
    page = report.page
    page.get_by_role("searchbox").fill("optane-lvm randread-4k")
    expect(page.locator("form.legend output")).to_have_text(found)
    expect(page.locator(".workload:visible h4")).to_have_text(["randread-4k"])
    modes = page.locator(".workload [data-cell] .mode:visible")
    modes.first.scroll_into_view_if_needed()
    assert set(modes.all_inner_texts()) == {"lvm"}
    assert page.url.endswith("#filter=optane-lvm%20randread-4k")
    again = opened(name, at="#filter=optane-lvm%20randread-4k")
    expect(again.page.locator("form.legend output")).to_have_text(found)
    again.page.get_by_role("searchbox").fill("")
    expect(again.page.locator(".workload").last).to_be_visible()
    assert report.said + again.said == []


def test_a_workload_far_from_the_window_is_taken_away_and_comes_back(opened: Open) -> None:
    report = opened("large")
    workload = report.page.locator(".workload").first
    workload.scroll_into_view_if_needed()
    rows = workload.locator("[data-cell]")
    expect(rows).to_have_count(45)
    height = workload.evaluate("node => node.offsetHeight")
    report.page.evaluate("scrollTo({ top: document.documentElement.scrollHeight, behavior: 'instant' })")
    expect(rows).to_have_count(0)
    assert abs(workload.evaluate("node => node.offsetHeight") - height) < 2
    workload.scroll_into_view_if_needed()
    expect(rows).to_have_count(45)
    expect(workload.locator(".main-svg").first).to_be_visible()
    assert report.said == []


def test_hostile_names_are_text(opened: Open) -> None:
    report = opened("hostile")
    dialogs: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    report.page.on("dialog", dismiss)
    report.visit_all()
    expect(report.page.locator("h1")).to_contain_text(HOSTILE)
    report.page.get_by_role("searchbox").fill(HOSTILE)
    assert dialogs == []
    assert report.page.locator("img").count() == 0
    assert report.said == []


def test_a_chart_is_saved_as_svg_png_and_csv(opened: Open, tmp_path: Path) -> None:
    report = opened("smoke")
    chart = report.page.locator(f"figure.chart:has(#{CHART})")
    chart.scroll_into_view_if_needed()
    svg, png, values = (
        _saved(report.page, chart.get_by_role("button", name=kind), tmp_path) for kind in ("SVG", "PNG", "CSV")
    )
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert png.startswith(b"\x89PNG\r\n")
    rows = list(csv.reader(values.decode().splitlines()))
    assert rows[0] == ["series", "x", "y"]
    drawn = f"document.getElementById('{CHART}').data.filter((each) => each.name === 'host')[0].y"
    assert [float(y) for series, _, y in rows if series == "host"] == report.page.evaluate(drawn)
    assert report.said == []


def test_a_histogram_is_saved_with_its_figures_and_hides_arms(opened: Open, tmp_path: Path) -> None:
    report = opened("gallery")
    chart = report.page.locator("figure.chart:has(#disk1-w3-histogram-ios)")
    chart.scroll_into_view_if_needed()
    expect(chart.locator(".main-svg").first).to_be_visible()
    content = _saved(report.page, chart.get_by_role("button", name="CSV"), tmp_path).decode()
    rows = list(csv.reader(content.splitlines()))
    host = [(float(x), float(y)) for series, x, y in rows[1:] if series == "host"]
    assert 10 < len(host) < 100
    assert [x for x, _ in host] == sorted(x for x, _ in host)
    assert max(y for _, y in host) <= 100
    report.page.get_by_role("checkbox", name="host", exact=True).uncheck()
    shown = "document.getElementById('disk1-w3-histogram-ios').data.filter((each) => each.visible !== false)"
    assert {trace["name"] for trace in report.page.evaluate(shown)} == {
        "guest passthrough",
        "twin lvm",
        "guest lvm",
        "twin raw",
        "guest raw",
    }
    assert report.said == []


def test_the_axes_of_charts_are_linear_or_logarithmic_as_chosen(opened: Open) -> None:
    report = opened("smoke")
    page = report.page
    page.locator(f"#{CHART}").scroll_into_view_if_needed()
    page.locator(f"#{CHART} .main-svg").first.wait_for()
    axis = f"(({{ type, range }}) => [type, range[0]])(document.getElementById('{CHART}').layout.yaxis)"
    assert page.evaluate(axis) == ["linear", 0]
    page.get_by_role("combobox", name="axes").select_option("logarithmic")
    kind, low = page.evaluate(axis)
    assert (kind, low > 1) == ("log", True)
    page.get_by_role("combobox", name="axes").select_option("as suits each chart")
    assert page.evaluate(axis) == ["linear", 0]
    assert report.said == []


def test_the_blocks_of_a_workload_are_drawn_when_they_are_unfolded(opened: Open) -> None:
    report = opened("gallery")
    page = report.page
    plot = page.locator("#disk1-w3-order")
    expect(plot.locator(".main-svg")).to_have_count(0)
    page.get_by_text("randread-4k: block by block").click()
    expect(plot.locator(".main-svg").first).to_be_visible()
    expect(plot.locator(".scatterlayer .trace")).to_have_count(6)
    assert report.said == []


def test_a_table_is_saved_as_csv_as_it_reads(opened: Open, tmp_path: Path) -> None:
    report = opened("smoke")
    workload = report.page.locator(".workload").first
    content = _saved(report.page, workload.locator(".scroll:has(.cells) + .save button"), tmp_path)
    rows = list(csv.reader(content.decode().splitlines()))
    assert rows[0][:3] == ["iodepth", "mode", "host MB/s"]
    assert len(rows) == workload.locator(".cells tr").count()
    assert {row[1] for row in rows if row[12] == "baseline"} == {"host"}


def test_the_keyboard_reaches_the_arms_the_filter_and_wide_tables(opened: Open) -> None:
    report = opened("smoke", width=390)
    page = report.page
    box = page.get_by_role("checkbox", name="raw-cached")
    page.locator(f"#{CHART}").scroll_into_view_if_needed()
    page.locator(f"#{CHART} .main-svg").first.wait_for()
    box.focus()
    page.keyboard.press("Space")
    hidden = f"document.getElementById('{CHART}').data.filter(({{ visible }}) => visible === false)"
    assert {trace["meta"] for trace in page.evaluate(hidden)} == {
        "twin:raw-cached",
        "guest:raw-cached",
        "budget:raw-cached",
    }
    for _ in range(8):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "search":
            break
    page.keyboard.type("lvm qd1")
    expect(page.locator("form.legend output").first).to_have_text("4 of 40 cells")
    wide = page.locator(".workload .scroll:has(table.cells)").first
    expect(wide).to_have_attribute("tabindex", "0")
    wide.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("box => box.scrollLeft > 0", arg=wide.element_handle())


@pytest.mark.parametrize("name", ["smoke", "large"])
def test_a_print_has_every_chart_and_table_on_white(opened: Open, name: str) -> None:
    report = opened(name, theme="dark")
    page = report.page
    page.evaluate(
        f"""addEventListener("beforeprint", () => {{ window.atPrint = {{
            undrawn: ({UNDRAWN})(),
            missing: document.querySelectorAll("[data-part]").length,
            widest: Math.max(...[...document.querySelectorAll(".main-svg")].map((svg) => svg.width.baseVal.value)),
            folded: document.querySelectorAll("#verdicts details:not([open])").length,
        }}; }})"""
    )
    assert page.pdf().startswith(b"%PDF")
    printed = page.evaluate("window.atPrint")
    assert printed["widest"] <= A4
    assert (printed["undrawn"], printed["missing"], printed["folded"]) == ([], 0, 0)
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.set_viewport_size({"width": A4, "height": 1000})
    widths = (
        "Object.fromEntries([...document.querySelectorAll('table')].map((each) => [each.innerText, each.offsetWidth]))"
    )
    assert [text[:200] for text, width in page.evaluate(widths).items() if width > A4] == []
    assert report.said == []


def _saved(page: Page, button: Locator, directory: Path) -> bytes:
    with page.expect_download() as download:
        button.click()
    path: Path = directory / download.value.suggested_filename
    download.value.save_as(path)
    return path.read_bytes()
