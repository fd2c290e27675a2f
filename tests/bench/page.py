"""Sizes and times of the page of a large run, as Chromium measures them.

    python -m tests.bench.page 1000 10000

Needs what tests/browser needs: `.tox/browser/bin/python`. Each page is opened some times in a new window, and the
median is printed: until the first paint, until the script has unpacked the charts, until the evidence of a cell that a
link names is in view, from a key in the filter to its result, and the longest time without an answer while a reader
goes through the first screens and then jumps to others until the end. It exits with 1 if a page is over one of LIMITS,
or over LIMIT_SIZE.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from playwright.sync_api import Browser, Page

from harness.report.html import render_html
from harness.results import Run
from tests.bench.scale.matrix import PROFILE, workloads
from tests.browser.chromium import started_chromium
from tests.build import real_shape, synthetic_run

OPENED = 3
MEGABYTE = 10**6
SCREEN = 900
"""The height of the window, in pixels."""


@dataclass(frozen=True, slots=True)
class Times:
    """Of one opened page, in seconds."""

    first_paint: float
    scripted: float
    link: float
    filtered: float
    longest_pause: float


LIMITS = Times(first_paint=2.0, scripted=10.0, link=10.0, filtered=0.5, longest_pause=2.0)
"""The limits of 10,000 cells, and of fewer."""
LIMIT_SIZE = 6 * MEGABYTE
"""The size of the page of 1,000 cells."""

# The pauses are those of 50 ms and more, as the browser counts long tasks.
_OBSERVED = """
window.pauses = [];
new PerformanceObserver((list) => window.pauses.push(...list.getEntries().map((entry) => entry.duration)))
    .observe({ type: "longtask" });
new MutationObserver((_, observer) => {
    if (!document.documentElement.classList.contains("scripted")) return;
    window.scriptedAt = performance.now();
    observer.disconnect();
}).observe(document, { attributes: true, subtree: true, attributeFilter: ["class"] });
"""
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_SCROLL = """async (step) => {
    window.pauses.length = 0;
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    const height = () => document.documentElement.scrollHeight;
    for (let at = 0, number = 0; at < height(); at += number++ < 20 ? step : Math.max(step, height() / 20)) {
        scrollTo({ top: at, behavior: "instant" });
        await frame();
    }
    await frame();
    return Math.max(0, ...window.pauses);
}"""
_FILTER = """async (words) => {
    const box = document.querySelector("form.legend [type=search]");
    const begun = performance.now();
    box.value = words;
    box.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - begun;
}"""
_IN_VIEW = """(id) => {
    const place = document.getElementById(id)?.getBoundingClientRect();
    return place && place.height && place.top >= 0 && place.top < innerHeight ? performance.now() : false;
}"""


def measured(browser: Browser, address: str, cell: str) -> Times:
    """The times of a page that is opened anew, and of it by a link to a cell."""
    page = _new_page(browser)
    page.goto(address)
    page.wait_for_function("() => window.scriptedAt")
    painted, scripted = page.evaluate(_PAINTED), page.evaluate("window.scriptedAt")
    longest = page.evaluate(_SCROLL, SCREEN)
    filtered = page.evaluate(_FILTER, "lvm qd4")
    page.context.close()
    linked = _new_page(browser)
    linked.goto(f"{address}#cell={cell}")
    link = linked.wait_for_function(_IN_VIEW, arg=f"cell-{cell}").json_value()
    linked.context.close()
    return Times(*(each / 1000 for each in (painted, scripted, link, filtered, longest)))


def _new_page(browser: Browser) -> Page:
    page = browser.new_context(viewport={"width": 1280, "height": SCREEN}).new_page()
    page.set_default_timeout(120_000)
    page.add_init_script(_OBSERVED)
    return page


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.page", description="Sizes and times of a large page.")
    parser.add_argument("cells", type=int, nargs="+", help="numbers of cells")
    within = True
    with tempfile.TemporaryDirectory() as directory, started_chromium() as browser:
        for number in parser.parse_args(arguments).cells:
            run = synthetic_run(profile=PROFILE, workloads=workloads(number), shape=real_shape())
            path = Path(directory) / f"{number}.html"
            path.write_text(render_html(run))
            times = _median([measured(browser, path.as_uri(), _last_cell(run)) for _ in range(OPENED)])
            size = path.stat().st_size
            shown = ", ".join(f"{each.name} {getattr(times, each.name):.2f}" for each in fields(Times))
            print(f"{len(run.cells):7} cells {size / MEGABYTE:6.1f} MB, in s: {shown}", flush=True)
            within &= all(getattr(times, each.name) <= getattr(LIMITS, each.name) for each in fields(Times))
            within &= size <= LIMIT_SIZE * max(1, len(run.cells) / 1000)
    return 0 if within else 1


def _last_cell(run: Run) -> str:
    """The one whose evidence is last on the page."""
    return run.cells[-1].id


def _median(found: Sequence[Times]) -> Times:
    return Times(*(statistics.median(getattr(each, field.name) for each in found) for field in fields(Times)))


if __name__ == "__main__":
    sys.exit(main())
