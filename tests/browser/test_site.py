"""The documentation as a reader follows it, by clicking: from the front page to a page of each part, and back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

pytest.importorskip("sphinx")

ROOT = Path(__file__).parents[2]
PATHS = {
    "Tutorial": ("tutorial.md", "Tutorial: your first run"),
    "How-to guides": ("report.md", "Reading the report"),
    "Reference": ("keys of scenario and lab files", "Keys of scenario and lab files"),
    "Explanation": ("safety.md", "Safety"),
}
"""For each part of the documentation: a link of its table on the front page, and the heading of the page behind it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the front page."""
    target = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "docs.website", str(target)], cwd=ROOT, check=True, timeout=900)
    return (target / "index.html").as_uri()


@pytest.fixture
def page(chromium: Browser, site: str) -> Iterator[Page]:
    """The front page in a window of its own."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(site)
    yield page
    context.close()


def find_heading(page: Page) -> str:
    """The heading of the page, without the sign of its link."""
    text: str = page.locator("article h1").inner_text()
    return text.removesuffix("¶").strip()


@pytest.mark.parametrize("part", PATHS)
def test_a_reader_clicks_from_the_front_page_to_a_page_of_each_part_and_back(page: Page, part: str) -> None:
    link, heading = PATHS[part]
    section = page.locator("article section").filter(has=page.get_by_role("heading", name=part, level=2)).last
    section.get_by_role("link", name=link, exact=True).click()
    expect(page.locator("article h1")).to_contain_text(heading)
    assert len(page.locator("article p").first.inner_text()) > 30  # for whom the page is
    page.locator(".sidebar-brand:visible").click()
    assert find_heading(page) == "Documentation"


@pytest.mark.parametrize("part", PATHS)
def test_each_part_is_in_the_navigation_beside_every_page(page: Page, part: str) -> None:
    _, heading = PATHS[part]
    caption = page.locator(".sidebar-tree .caption", has_text=part)
    expect(caption).to_be_visible()
    entries = caption.locator("xpath=following-sibling::ul[1]").get_by_role("link")
    entries.filter(has_text=heading).first.click()
    expect(page.locator("article h1")).to_contain_text(heading)
    expect(page.locator(".sidebar-tree .current-page")).to_contain_text(heading)


def test_a_reader_gets_from_a_key_to_its_explanation(page: Page) -> None:
    page.get_by_role("link", name="scenarios.md", exact=True).first.click()
    page.get_by_role("link", name="options", exact=True).first.click()
    expect(page.locator("article h1")).to_contain_text("Options of modes, guests and profiles")
    page.locator("#attachment").get_by_role("link", name="qemu-storage-daemon").click()
    assert page.url.endswith("measuring.html#storage-daemons")
    expect(page.get_by_role("heading", name="Storage daemons")).to_be_in_viewport()
