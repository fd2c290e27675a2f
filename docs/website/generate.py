"""Write the generated pages of the reference: `python -m docs.website.generate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from docs.website.file_keys import file_keys_page
from docs.website.options import options_page
from docs.website.reference import command_page, schema_page
from docs.website.schema import text as schema_text
from docs.website.shipped import shipped_page
from harness.cli import make_parser
from harness.plugin.options import add_options

DOCS = Path(__file__).parents[1]


def _make_command_page() -> str:
    parser = pytest.Parser(_ispytest=True)
    add_options(parser)
    return command_page(make_parser(), parser.getgroup("virt-overhead").options)


PAGES: Mapping[str, Callable[[], str]] = {
    "results.schema.json": schema_text,
    "reference/commands.md": _make_command_page,
    "reference/file-keys.md": file_keys_page,
    "reference/options.md": lambda: options_page(schema_text()),
    "reference/shipped-scenarios.md": shipped_page,
    "reference/results-keys.md": lambda: schema_page(schema_text()),
}
"""The generated files in docs/, each with the function that makes its text."""


def write_pages() -> None:
    for name, make_text in PAGES.items():
        (DOCS / name).write_text(make_text(), encoding="utf-8")


if __name__ == "__main__":
    write_pages()
