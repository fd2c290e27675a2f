"""The documentation as a site: its pages, their links, and the pages that are made from the code. Sphinx is in tox."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from docs.website.generate import DOCS, PAGES
from docs.website.pages import in_site, navigation, write_source
from docs.website.reference import schema_page
from harness.cli import commands, make_parser
from harness.results import RunStore

ROOT = Path(__file__).parents[2]
SCHEMA = (ROOT / "docs" / "results.schema.json").read_text(encoding="utf-8")
REPORT = "20261123-044004-d594/index.html"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("site")
    write_source(ROOT, source)
    return source


def test_every_page_is_in_the_navigation_once(site: Path) -> None:
    index = (site / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^[a-z0-9-]+$", "\n".join(re.findall(r"```\{toctree\}\n(.*?)```", index, re.S)), re.M)
    assert sorted(listed) == sorted(path.stem for path in site.glob("*.md") if path.name != "index.md")


def test_the_gallery_has_the_report_of_a_real_run(site: Path) -> None:
    run = RunStore.open(site / "gallery" / Path(REPORT).parent).read_results()
    assert (run.run.status, run.lab.kind, len(run.cells)) == ("complete", "embedded", 20)
    page = (site / "gallery" / REPORT).read_text(encoding="utf-8")
    assert [cell.id for cell in run.cells if cell.id not in page] == []


def test_links_lead_to_pages_of_the_site(site: Path) -> None:
    missing = [
        f"{page.name}: {link}"
        for page in site.glob("*.md")
        for link in re.findall(r"(?:\]\(|href=\")(?!https?:|mailto:)([^)#\"\s]+)", page.read_text(encoding="utf-8"))
        if not (site / link).exists()
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("docs/ci.md", "[a](../README.md#start)", "[a](start.md#start)"),
        ("docs/ci.md", "[a](README.md)", "[a](index.md)"),
        ("README.md", "[a](docs/lab.md#keys)", "[a](lab.md#keys)"),
        ("README.md", "![a](docs/img/overhead.svg)", "![a](img/overhead.svg)"),
        ("pve_double/README.md", "[a](../docs/lab.md)", "[a](lab.md)"),
        ("README.md", "[a](tox.ini)", "a (`tox.ini`)"),
        ("docs/lab.md", "[a](gallery/README.md)", "[a](gallery.md)"),
        ("docs/gallery/README.md", f"[a]({REPORT})", f'<a href="gallery/{REPORT}">a</a>'),
        ("README.md", "[a](https://example.org/x.md) [b](#start)", "[a](https://example.org/x.md) [b](#start)"),
    ],
)
def test_a_link_of_the_repository_is_one_of_the_site(name: str, text: str, shown: str) -> None:
    assert in_site(text, name, ROOT) == shown


def test_a_link_that_leads_nowhere_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"docs/ci.md: the link to absent.md leads nowhere"):
        in_site("[a](absent.md)", "docs/ci.md", ROOT)


def test_a_page_is_listed_under_its_first_heading_alone() -> None:
    tree = navigation("## How-to guides\n| [a](lab.md) |\n## Reference\n| [b](lab.md) |\n| [c](ci.md) |\n")
    assert tree.count("\nlab\n") == 1
    assert tree.index("\nlab\n") < tree.index(":caption: Reference") < tree.index("\nci\n")


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_says(name: str, regenerate: bool) -> None:
    text = PAGES[name]()
    if regenerate:
        (DOCS / name).write_text(text, encoding="utf-8")
    assert (DOCS / name).read_text(encoding="utf-8") == text, "python -m docs.website.generate writes it anew"


def test_every_key_of_a_file_is_explained() -> None:
    rows = [line.split(" | ") for line in PAGES["reference/file-keys.md"]().splitlines() if line.startswith("| `")]
    assert [key for key, *_, words in rows if words.strip(" |") == ""] == [], "write a docstring below each field"
    assert len(rows) > 100


@pytest.mark.parametrize("page", [*DOCS.glob("*.md"), *DOCS.glob("reference/*.md")], ids=lambda page: page.stem)
def test_a_page_says_in_its_first_line_for_whom_it_is(page: Path) -> None:
    _, *lines = page.read_text(encoding="utf-8").splitlines()
    first = next(line for line in lines if line)
    assert first.startswith("For ") or page.name == "README.md"


def test_links_in_pages_lead_to_headings() -> None:
    """The anchors of GitHub. Sphinx also checks them, but only in `tox -e docs`."""
    missing = []
    for page in PAGES_WITH_LINKS:
        text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        base = ROOT if page.parent.name == "changelog.d" else page.parent
        for path, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)#([^)\s]+)\)", text):
            target = page if not path else (base / path).resolve()
            if target.suffix == ".md" and anchor not in list_anchors(target):
                missing.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert missing == []


PAGES_WITH_LINKS = [
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("changelog.d/*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "images/README.md")),
]


@cache
def list_anchors(page: Path) -> set[str]:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    words = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in words}


def test_the_page_of_commands_has_each_with_its_options_and_example() -> None:
    page = PAGES["reference/commands.md"]()
    for command in commands(make_parser()):
        own = page.partition(f"\n## {command.prog}\n")[2].partition("\n## ")[0]
        assert [option for option in command._option_string_actions if f"`{option}" not in own] in (
            [],
            ["-h", "--help"],
        )
        assert getattr(command, "example", None) in own.splitlines()


def test_the_page_of_keys_has_each_object_with_its_keys() -> None:
    page = schema_page(SCHEMA)
    definitions = json.loads(SCHEMA)["$defs"]
    for name, definition in definitions.items():
        of_object = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `(.+?)` \|", of_object, re.M) == list(definition.get("properties", ()))
    anchors = {name.lower() for name in definitions}
    assert set(re.findall(r"\]\(#(.+?)\)", page)) <= anchors
