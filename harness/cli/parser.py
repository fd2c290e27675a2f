"""The parser of commands: each has one example, `--debug`, and a suggestion for a word that it does not know."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from gettext import gettext
from typing import Any, NoReturn

from harness.config.names import choices, near


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
        told = (word + near(word.partition("=")[0], known) if word.startswith("-") else word for word in words)
        self.error(gettext("unrecognized arguments: %s") % " ".join(told))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            allowed = choices(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {allowed}")


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser and all its commands, each before its actions."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from commands(command)
