"""The command line: all actions outside a pytest run. A module for each group of commands."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from harness.cli import labs, runs, shell
from harness.cli.common import FAILED, USAGE, add_json
from harness.cli.shell import Command
from harness.errors import ConfigError, HarnessError
from harness.feature import load_verbs
from harness.signals import ended_like_ctrl_c
from harness.terminal import cleaned_output, write_error


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
        write_error(f"virt-overhead: {error}")
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
    parser.set_defaults(run=runs.show)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(metavar="COMMAND")
    for add in (
        labs.add_quickstart,
        labs.add_run,
        labs.add_images,
        labs.add_lab,
        runs.add_watch,
        runs.add_report,
        labs.add_reap,
        *load_verbs(),
        shell.add_completion,
        shell.add_man,
    ):
        add(commands)
    return parser
