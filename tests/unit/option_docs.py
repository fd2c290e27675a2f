"""The tables of options in the documentation, which follow from the rows of the option tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.model.option import Option, format_docs_row

DOCS = Path(__file__).parents[2] / "docs"


def check_rows(
    page: str, heading: str, prefix: str, options: object, rows: Mapping[str, Option[Any]], *, regenerate: bool
) -> None:
    """The first table below this heading has a line for each row, in their order."""
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    table = text.partition(f"\n{heading}\n")[2].partition("\n| key |")[2].partition("\n\n")[0]
    written, now = table.splitlines()[2:], [format_docs_row(prefix, options, name) for name in rows]
    if regenerate:
        path.write_text(text.replace("\n".join(written), "\n".join(now)), encoding="utf-8")
        written = now
    assert written == now, "if it is meant so, run these tests with --regenerate"
