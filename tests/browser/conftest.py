"""The pages of some runs, and how a test opens them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page

from harness.report.html import render_html
from harness.results import Run, RunStore
from tests.browser.chromium import started_chromium
from tests.build import real_shape, synthetic_run

STORED = Path(__file__).parents[1] / "unit" / "data" / "stored_run"
GALLERY = next((Path(__file__).parents[2] / "docs" / "gallery").glob("*/results.json")).parent
"""A real run of the embedded lab, with one iodepth."""
HOSTILE = '</script><img src=x onerror="alert(1)"><script>alert(1)</script>'
LARGE = ("randread-4k", "seqread-256k", "randwrite-4k", "seqwrite-256k", "randread-8k")


@dataclass(frozen=True, slots=True)
class Opened:
    """A page in the browser. `said` is everything that appeared on its console, errors of its script included."""

    page: Page
    said: list[str] = field(default_factory=list)

    def go(self, url: str) -> None:
        """Opens the address, and waits until the page's script has unpacked the charts."""
        self.page.goto(url)
        self.page.locator("html.scripted").wait_for()

    def visit_all(self) -> None:
        """Scrolls to the end and back, as a reader does, so that everything is inserted and drawn."""
        at = 0
        while at < self.page.evaluate("document.documentElement.scrollHeight"):
            self.page.evaluate("top => scrollTo({ top, behavior: 'instant' })", at)
            self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            at += 700
        self.page.evaluate("() => scrollTo({ top: 0, behavior: 'instant' })")


Theme = Literal["light", "dark"]
Open = Callable[..., Opened]


def published(run: Run) -> Run:
    """The run with the published figures of its disk."""
    return replace(run, run=replace(run.run, published={"optane": "local_disks.optane"}))


def runs() -> dict[str, Run]:
    """What the pages show: an older run from disk, two made-up ones, a real one, and one with hostile names."""
    return {
        "stored": RunStore(STORED).read_results(),
        "smoke": published(
            synthetic_run(
                void=["optane-lvm-randread-4k-qd32"],
                faster=["raw-cached"],
                ready="not steady",
                calibrated=True,
                shape=real_shape(),
            )
        ),
        "gallery": RunStore(GALLERY).read_results(),
        "large": synthetic_run(profile="standard", workloads=LARGE),
        "hostile": synthetic_run(disk=HOSTILE, modes=["host", "lvm"]),
    }


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The addresses of the pages by name."""
    directory = tmp_path_factory.mktemp("pages")
    found = {}
    for name, run in runs().items():
        path = directory / f"{name}.html"
        path.write_text(render_html(run))
        found[name] = path.as_uri()
    return found


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with started_chromium() as browser:
        yield browser


@pytest.fixture
def opened(chromium: Browser, pages: dict[str, str]) -> Iterator[Open]:
    """Opens a page in a window of its own, which is closed after the test."""
    contexts = []

    def open_page(name: str, *, theme: Theme = "light", width: int = 1280, at: str = "") -> Opened:
        context = chromium.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
        contexts.append(context)
        found = Opened(context.new_page())
        found.page.on("console", lambda message: found.said.append(message.text))
        found.page.on("pageerror", lambda error: found.said.append(str(error)))
        found.go(pages[name] + at)
        return found

    yield open_page
    for context in contexts:
        context.close()
