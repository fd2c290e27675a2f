"""Completion and manual page: both know every command and option, because they are made from the parser."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from harness.cli import main, make_parser


def verbs_and_options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, set[str]]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield name, {word for each in sub._actions for word in each.option_strings if word.startswith("--")}


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.fixture
def script(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> str:
    """What `virt-overhead completion SHELL` prints. The shell is the parameter."""
    pytest.importorskip("shtab")
    return printed(capsys, "completion", request.param)


def completed(script: str, line: str) -> list[str]:
    """What bash offers at the end of the line."""
    words = line.split(" ")
    quoted = " ".join(f'"{word}"' for word in words)
    shell = (
        f'{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMP_LINE="{line}"; COMP_POINT={len(line)}\n'
        f'function_of() {{ shift; while [ "$1" != -F ]; do shift; done; echo "$2"; }}\n'
        f'$(function_of $(complete -p virt-overhead)); printf "%s\\n" "${{COMPREPLY[@]}}"\n'
    )
    done = subprocess.run(["bash", "--norc", "-c", shell], capture_output=True, text=True, check=True, timeout=600)
    return done.stdout.split()


@pytest.mark.parametrize("script", ["bash"], indirect=True)
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("virt-overhead comp", ["compare", "completion"]),
        ("virt-overhead lab st", ["status"]),
        ("virt-overhead doctor --res", ["--restore"]),
        ("virt-overhead completion ba", ["bash"]),
    ],
)
def test_bash_offers_commands_and_options(script: str, line: str, offered: list[str]) -> None:
    assert completed(script, line) == offered


@pytest.mark.parametrize("script", ["bash", "zsh", "tcsh"], indirect=True)
def test_each_completion_has_every_command(script: str) -> None:
    for verb, _ in verbs_and_options(make_parser()):
        assert verb in script


def test_the_manual_page_has_every_command_and_option_and_man_accepts_it(capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, "man")
    plain = page.replace("\\-", "-")
    for verb, options in verbs_and_options(make_parser()):
        assert f".SS virt-overhead {verb}" in plain
        assert all(option in plain for option in options)
    if shutil.which("man"):
        environment = {"PATH": "/usr/bin:/bin", "MANPAGER": "cat", "MANWIDTH": "120"}
        shown = subprocess.run(
            ["man", "-l", "-"], input=page, capture_output=True, text=True, check=True, timeout=600, env=environment
        )
        assert "virt-overhead images" in shown.stdout
