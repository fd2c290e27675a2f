"""The source of the site: the pages of docs/, and the project's other Markdown files."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

OUTSIDE = {
    "README.md": "start.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "pve_double/README.md": "pve-double.md",
    "docs/gallery/README.md": "gallery.md",
    "docs/adr/README.md": "decisions.md",
    "docs/reference/commands.md": "commands.md",
    "docs/reference/coverage.md": "coverage.md",
    "docs/reference/file-keys.md": "file-keys.md",
    "docs/reference/options.md": "options.md",
    "docs/reference/results-keys.md": "results-keys.md",
    "docs/reference/safety-tables.md": "safety-tables.md",
    "docs/reference/shipped-scenarios.md": "shipped-scenarios.md",
}
"""Files elsewhere than in docs/ itself that are pages, and their names in the site."""

INDEX = "README.md"
"""The page in docs/ whose tables are the navigation."""

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_FURTHER = {
    "Tutorial": ("start", "gallery"),
    "For maintainers": ("contributing", "decisions", "security", "changelog", "pve-double"),
}
"""Pages of the navigation that the index cannot link to, because they exist only in the site."""


def write_source(root: Path, target: Path) -> None:
    """Write all pages of the repository at `root` into the empty directory `target`."""
    docs = root / "docs"
    for path in docs.iterdir():
        if path.is_dir() and path.name not in ("website", "reference", "__pycache__"):
            shutil.copytree(path, target / path.name, ignore=shutil.ignore_patterns(INDEX))
        elif path.suffix == ".json":
            shutil.copy(path, target)
    for path in docs.glob("*.md"):
        text = in_site(path.read_text(encoding="utf-8"), f"docs/{path.name}", root)
        name = "index.md" if path.name == INDEX else path.name
        (target / name).write_text(text + navigation(text) if path.name == INDEX else text, encoding="utf-8")
    for name, page in OUTSIDE.items():
        (target / page).write_text(in_site((root / name).read_text(encoding="utf-8"), name, root), encoding="utf-8")
    decisions = target / OUTSIDE["docs/adr/README.md"]
    pages = sorted(f"adr/{path.stem}" for path in (docs / "adr").glob("0*.md"))
    decisions.write_text(decisions.read_text(encoding="utf-8") + _toctree(pages), encoding="utf-8")


def in_site(text: str, name: str, root: Path) -> str:
    """The Markdown of the file `name` of the repository, with links as they are in the site.

    A link to a file outside the site becomes the name of that file. Raises FileNotFoundError if there is no such file.
    """

    def link(found: re.Match[str]) -> str:
        path = _in_repository(name, found[2])
        if not (root / path).exists():
            raise FileNotFoundError(f"{name}: the link to {found[2]} leads nowhere")
        page = _page(path)
        if page is not None and page.endswith(".html"):  # Sphinx would make it a download
            return f'<a href="{page}">{found[1]}</a>'
        return f"{found[1]} (`{path}`)" if page is None else f"[{found[1]}]({page}{found[3] or ''})"

    def image(found: re.Match[str]) -> str:
        return f"![{found[1]}]({_in_repository(name, found[2]).removeprefix('docs/')})"

    return _LINK.sub(link, _IMAGE.sub(image, text))


def _in_repository(name: str, link: str) -> str:
    return os.path.normpath(PurePosixPath(name).parent / link)


def _page(path: str) -> str | None:
    """The page of a file of the repository; None if it has none."""
    if path == f"docs/{INDEX}":
        return "index.md"
    return OUTSIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)


def navigation(index: str) -> str:
    """The tables of contents for Sphinx: one for each heading of the index, with the pages that its table links to."""
    return "".join(_toctrees(index))


def _toctrees(index: str) -> Iterator[str]:
    listed: set[str] = set()
    for part in re.split(r"^## ", index, flags=re.M)[1:]:
        title = part.partition("\n")[0]
        linked = re.findall(r"^\| \[[^\]]*\]\(([a-z0-9-]+)\.md\)", part, re.M)
        pages = [each for each in dict.fromkeys((*linked, *_FURTHER.get(title, ()))) if each not in listed]
        listed.update(pages)
        yield _toctree(pages, f":caption: {title}")


def _toctree(pages: Iterable[str], *options: str) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", *options, "", *pages, "```", ""])
