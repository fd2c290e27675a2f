"""The command line: all actions outside a pytest run. A module for each group of commands.

Here is the parser. Each command has one example, `--debug`, and a suggestion for a word that it does not know.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from gettext import gettext
from importlib.metadata import version
from typing import Any, NoReturn

from harness.cli import runs
from harness.cli.common import FAILED, USAGE, add_json
from harness.config.names import choices, near
from harness.errors import ConfigError, HarnessError
from harness.feature import load_verbs
from harness.signals import ended_like_ctrl_c
from harness.terminal import cleaned_output, quoted, write_error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. A failure is printed as one message; `--debug` adds the traceback."""
    with cleaned_output():
        return _run(sys.argv[1:] if arguments is None else arguments)


def _run(arguments: Sequence[str]) -> int:
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not getattr(options, "takes_rest", False):
        parser.unknown(rest)
    options.rest = rest
    options.parser = parser
    options.words = arguments
    try:
        with ended_like_ctrl_c():
            status: int = options.run(options)
            sys.stdout.flush()
    except KeyboardInterrupt:
        write_error("virt-overhead: interrupted")
        return 130
    except Exception as error:
        if getattr(options, "debug", False):
            write_error(traceback.format_exc().rstrip())
        return _failed(error)
    return status


def _failed(error: Exception) -> int:
    """Print the message of a failure, and return the exit status."""
    # Errors of the output itself are among these: a full disk, or a reader (`| head`) that has ended.
    if not isinstance(error, HarnessError | OSError):
        name = type(error).__name__
        error = HarnessError(f"internal error: {name}: {error}", hint="report it with the output of --debug")
    if not isinstance(error, BrokenPipeError):
        about = (error.filename, error.strerror) if isinstance(error, OSError) and error.strerror else (error,)
        write_error(": ".join(str(part) for part in ("virt-overhead", *about) if part))
    if isinstance(error, OSError):
        _drop_output()
    return USAGE if isinstance(error, ConfigError) else FAILED


def _drop_output() -> None:
    """Discard what is not printed yet. Otherwise Python tries again when it exits, and fails with a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Version(argparse.Action):
    """Prints the installed version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_arguments: object) -> None:
        print(parser.prog, version(parser.prog))
        parser.exit()


def make_parser() -> Command:
    """The parser of all commands."""
    parser = Command(
        prog="virt-overhead",
        description="Measure how much disk performance a virtual machine loses in each attach mode, and why. "
        "Without a command: what to do next on this machine.",
        epilog="To measure: virt-overhead run -k optane; in a checkout also: pytest -k optane",
        example="virt-overhead quickstart",
    )
    add_json(parser, "what to do next (without a command)")
    parser.set_defaults(run=lambda _options: parser.error("a command is missing"))
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(metavar="COMMAND")
    for add in (runs.add_run, runs.add_images, runs.add_report):
        add(commands)
    for of_feature in load_verbs():
        of_feature.add_commands(commands)
        if hasattr(of_feature, "show_overview"):
            parser.set_defaults(run=of_feature.show_overview)
    return parser


class Command(argparse.ArgumentParser):
    """A command, or a group of them. `example` is a command line that its help shows; it must be valid.

    `takes_rest`: unknown words go to another program. Then `--debug` is that program's, too.
    """

    def __init__(self, *arguments: Any, example: str = "", takes_rest: bool = False, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.example = example
        if takes_rest:
            self.set_defaults(takes_rest=True)
        else:
            self.add_argument(
                "--debug",
                action="store_true",
                default=argparse.SUPPRESS,
                help="after a failure, print Python's traceback, too",
            )

    def format_help(self) -> str:
        """The help, and below it the example."""
        shown = super().format_help()
        return f"{shown}\nexample:\n  {self.example}\n" if self.example else shown

    def error(self, message: str) -> NoReturn:
        """Print one message with the remedy and exit. Python prints the whole usage before it."""
        self.exit(2, f"{self.prog}: {message}\n  -> {self.prog} --help\n")

    def unknown(self, words: Sequence[str]) -> NoReturn:
        """Refuse words that no command takes."""
        known = [option for command in commands(self) for option in command._option_string_actions]
        told = (word + near("--lab" if word.endswith(".toml") else word.partition("=")[0], known) for word in words)
        self.error(gettext("unrecognized arguments: %s") % " ".join(told))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            allowed = choices(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"invalid choice: {quoted(str(value))}; {allowed}")


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser and all its commands, each before its actions."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from commands(command)
