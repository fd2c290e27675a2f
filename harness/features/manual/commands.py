"""`virt-overhead completion` and `virt-overhead man`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from harness.errors import ConfigError
from harness.terminal import unfiltered

SHELLS = ("bash", "zsh", "tcsh")


def add_commands(commands: Any) -> None:
    """Add the verbs `completion` and `man` to the subparsers."""
    completion = commands.add_parser(
        "completion", help="print the completion for a shell", example="virt-overhead completion bash"
    )
    completion.add_argument("shell", choices=SHELLS, help="the shell to write it for")
    completion.set_defaults(run=_completion)
    man = commands.add_parser("man", help="print the manual page, for: man -l -", example="virt-overhead man")
    man.set_defaults(run=_man)


def _completion(options: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise ConfigError("this command needs the Python package shtab", hint="pip install shtab") from error

    # `${NAME##[...]}` of a shell looks like a command to a CI system.
    unfiltered(sys.stdout).write(f"{shtab.complete(options.parser, options.shell)}\n")
    return 0


def _man(options: argparse.Namespace) -> int:
    print("\n".join(man_page(options.parser, version(options.parser.prog))))
    return 0


def man_page(parser: argparse.ArgumentParser, release: str) -> Iterator[str]:
    """The lines of the manual page, in the macros of man(7). The library for this has no wheel on PyPI."""
    yield f'.TH {_text(parser.prog.upper())} 1 "" "{_text(parser.prog)} {_text(release)}" "User Commands"'
    yield from (".SH NAME", f"{_text(parser.prog)} \\- measure how much disk performance a virtual machine loses")
    yield from (".SH SYNOPSIS", f".B {_text(parser.prog)}", "COMMAND [OPTION...]")
    yield from (".SH DESCRIPTION", _text(parser.description or ""), ".PP", _text(parser.epilog or ""))
    yield ".SH COMMANDS"
    yield from _commands(parser)
    yield from (
        ".SH EXIT STATUS",
        "0: done. 1: failed. 2: usage error, or a file that cannot be used. 130: interrupted.",
    )


def _commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        words = {choices_action.dest: choices_action.help or "" for choices_action in action._choices_actions}
        for name, command in action.choices.items():
            yield from (f".SS {_text(command.prog)}", _text(words.get(name, "")))
            for option in command._actions:
                if not isinstance(option, argparse._HelpAction | argparse._SubParsersAction):
                    yield from (".TP", _names(option), _text((option.help or "") % _values(option)))
            if command.epilog:
                yield from (".PP", _text(command.epilog))
            if example := getattr(command, "example", ""):
                yield from (".PP", f"Example: {_text(example)}")
            yield from _commands(command)


def _names(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    value = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else metavar
    names = ", ".join(rf"\fB{_text(name)}\fR" for name in action.option_strings)
    parts = (names, rf"\fI{_text(value)}\fR" if action.nargs != 0 else "")
    return " ".join(filter(None, parts))


def _values(action: argparse.Action) -> dict[str, object]:
    """What `%(default)s` and the like in a help text stand for."""
    return {**vars(action), "type": getattr(action.type, "__name__", "")}


def _text(text: str) -> str:
    r"""For roff: `\` begins a request, `-` would become a hyphen, and `.` or `'` begins a line with a macro."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
