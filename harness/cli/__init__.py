"""The command line: all actions outside a pytest run. A module for each group of commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from harness.cli import history, hosts, labs, measuring, runs, shell
from harness.cli.common import FAILED, USAGE
from harness.errors import ConfigError, HarnessError
from harness.signals import ended_like_ctrl_c


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. A HarnessError is printed as a message, never as a traceback."""
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not getattr(options, "takes_rest", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    options.parser = parser
    options.words = sys.argv[1:] if arguments is None else arguments
    try:
        with ended_like_ctrl_c():
            status: int = options.run(options)
            sys.stdout.flush()
    except ConfigError as error:
        sys.stderr.write(f"virt-overhead: {error}\n")
        return USAGE
    except HarnessError as error:
        sys.stderr.write(f"virt-overhead: {error}\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("virt-overhead: interrupted\n")
        return 130
    except OSError as error:
        # This includes errors of the output itself: a full disk, or a reader (`| head`) that has ended.
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"virt-overhead: {error}\n")
        _drop_output()
        return FAILED
    return status


def _drop_output() -> None:
    """Discard what is not printed yet. Otherwise Python tries again when it exits, and fails with a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Version(argparse.Action):
    """Prints the installed version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_arguments: object) -> None:
        print(parser.prog, version(parser.prog))
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="virt-overhead",
        description="Measure how much disk performance a virtual machine loses in each attach mode, and why.",
        epilog="To measure: virt-overhead run -k optane; in a checkout also: pytest -k optane",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        labs.add_quickstart,
        measuring.add_run,
        labs.add_init,
        labs.add_images,
        labs.add_lab,
        hosts.add_doctor,
        runs.add_report,
        runs.add_compare,
        runs.add_baseline,
        history.add_history,
        runs.add_import,
        runs.add_export,
        hosts.add_calibrate,
        hosts.add_reap,
        shell.add_completion,
        shell.add_man,
    ):
        add(commands)
    return parser
