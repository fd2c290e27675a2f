"""Texts of hosts, guests and files control neither a terminal nor a CI system."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from rich.table import Table
from rich.text import Text

import harness
from harness.cli import main
from harness.console import CleanConsole
from harness.errors import HostError
from harness.events import Note, Progress, StandardOutput
from harness.features.compare import commands
from harness.terminal import CleanStream, clean, clean_json, cleaned_output, one_line, quoted, unfiltered

HOSTILE = "\x1b]0;title\x07 \x9b2J \x7f a\rb \u202etxt.exe\u2066 \u2028 \u200b \ud800 \x00"


@pytest.mark.parametrize(
    "code",
    [*range(9), *range(11, 32), *range(127, 160), *range(0x200B, 0x2010), 0x202E, 0x2066, 0x2028, 0xFEFF, 0xDCFF],
)
def test_no_control_character_is_printed(code: int) -> None:
    shown = clean(f"a{chr(code)}b")
    assert chr(code) not in shown
    assert shown.encode()
    assert f"{code:x}" in shown


def test_text_of_all_languages_tabs_and_lines_stay() -> None:
    text = "\tüber µs — 測定 \N{NO-BREAK SPACE}∞ [1, 2] a::b c: :d ## x\n::1 is loopback, time 12::30\r\n"
    assert clean(text) == text.replace("\r\n", "\n")
    assert clean(clean(HOSTILE)) == clean(HOSTILE)


@pytest.mark.parametrize(
    "command",
    [
        "::error file=x::y",
        "   ::stop-commands::z",
        "\t\N{NO-BREAK SPACE}\u3000::add-mask::secret",
        "a\n::set-output name=v::1",
        "a\r::warning::w",
        "a\r\n ::notice::n",
        "\u2028::error::e",
        "\ufeff::error::e",
        "::\x1b[0merror::e",
    ],
)
def test_no_line_is_a_command_of_github(command: str) -> None:
    for text in (command, f"{command}\n{command}"):
        assert not any(line.strip().startswith("::") for line in clean(text).splitlines())


@pytest.mark.parametrize("mark", ["##[error]", "x ##[add-mask]", "##vso[task.setvariable]", "##TeamCity[x]", "###[x"])
def test_no_line_has_a_command_of_other_systems(mark: str) -> None:
    assert "##[" not in clean(mark)
    assert "##v" not in clean(mark)
    assert "##T" not in clean(mark)


def test_lines_of_gitlab_are_not_folded() -> None:
    assert "section_start:" not in clean("section_start:1700000000:x[collapsed=true]\r\x1b[0Khidden")


def test_a_command_in_pieces_is_found() -> None:
    out = io.StringIO()
    stream = CleanStream(out)
    for piece in ("  ", ":", ":error::", "x\n", "::", "error::", "x\n", "#", "#", "[error]\n", "a", "::b\n"):
        stream.write(piece)
    assert not any(line.strip().startswith("::") for line in out.getvalue().splitlines())
    assert "##[" not in out.getvalue()
    assert "a::b\n" in out.getvalue()


def test_pytests_colours_pass_and_nothing_else() -> None:
    out = io.StringIO()
    CleanStream(out, styles=True).write("\x1b[31mE   bad \x1b]52;c;x\x07\x1b[2J\x1b[0m\n")
    assert out.getvalue() == "\x1b[31mE   bad \\x1b]52;c;x\\x07\\x1b[2J\x1b[0m\n"


def test_a_line_can_be_written_again_only_where_that_is_wanted() -> None:
    for rewrites, shown in ((True, "\r  done"), (False, "\\x0d  done")):
        out = io.StringIO()
        CleanStream(out, rewrites=rewrites).write("\r  done")
        assert out.getvalue() == shown


def test_a_json_document_stays_the_same_value() -> None:
    value = {HOSTILE + "##[error]": [HOSTILE, "##[x", "section_end:1:x", "\U000e0041", "::error::"]}
    document = clean_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(document) == value
    assert clean(document) == document


def test_a_value_in_a_table_is_one_line() -> None:
    assert one_line("a\r\n\tb\nc\x1b") == "a b c\\x1b"


def test_progress_and_tables_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(StandardOutput())(Note(f"a\n::error::b{HOSTILE}"))
    console = CleanConsole(width=20)
    table = Table("host")
    table.add_row(Text(f"{'x' * 16}::error::{HOSTILE}"))
    console.print(table)
    console.print(Text(f"::error::{HOSTILE}"))
    printed = capsys.readouterr().out
    assert not any(line.strip().startswith("::") for line in printed.splitlines())
    assert not set(printed) & set(HOSTILE) - set(" abtxe.\n]0;titlJ2")


def test_every_command_prints_clean_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def prints(_options: object) -> int:
        sys.stdout.write(f"::error::{HOSTILE}\n")
        sys.stderr.write(f" ::error::{HOSTILE}\n")
        raise HostError(f"host x: boom\n::error::{HOSTILE}", hint=HOSTILE)

    monkeypatch.setattr(commands, "_list_baselines", prints)
    monkeypatch.chdir(tmp_path)
    assert main(["baseline", "list"]) == 1
    with pytest.raises(SystemExit):
        main(["baseline", f"\n::error::{HOSTILE}"])
    out, err = capsys.readouterr()
    for line in (out + err).splitlines():
        assert not line.strip().startswith("::")
    assert "\x1b" not in out + err
    assert "\u202e" not in out + err


def test_what_the_report_writes_for_ci_is_not_changed() -> None:
    out = io.StringIO()
    before, sys.stdout = sys.stdout, cast("Any", out)
    try:
        with cleaned_output():
            unfiltered(sys.stdout).write("::error title=x::y\n")
    finally:
        sys.stdout = before
    assert out.getvalue() == "::error title=x::y\n"


def test_only_the_clean_console_is_used() -> None:
    """A console of rich writes below the stream that cleans, so it has to clean by itself."""
    for path, node in _nodes_of_modules_with(r"\b(Console|Live)\("):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Console", "Live"):
            assert node.func.id == "Live", path
            assert any(keyword.arg == "console" for keyword in node.keywords), path


def _nodes_of_modules_with(pattern: str) -> Iterator[tuple[Path, ast.AST]]:
    """The syntax of the modules whose text has the pattern. Reading a text takes a hundredth of the time of that."""
    for path in Path(harness.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(pattern, text):
            yield from ((path, node) for node in ast.walk(ast.parse(text)))


def test_quoted_text_is_one_line_of_limited_length_as_it_was_written() -> None:
    assert quoted("it's") == '"it\'s"'
    assert quoted("a\nb\x1b[2J") == '"a b\\x1b[2J"'
    assert quoted("9" * 5000) == f'"{"9" * 80} ..."'


def test_no_message_quotes_text_as_python_does() -> None:
    """`!r` would show `'it\\'s'`. A number in OpenMetrics is written as Python writes floats."""
    assert [
        f"{path.name}:{node.lineno}"
        for path, node in _nodes_of_modules_with(r"!r|= *\}")
        if isinstance(node, ast.FormattedValue) and node.conversion == ord("r") and path.name != "export_formats.py"
    ] == []
