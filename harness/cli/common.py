"""What several groups of commands share: exit statuses, the hosts that options name, progress on the terminal."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.events import Events
from harness.terminal import clean_json, quoted

if TYPE_CHECKING:
    from harness.lab.inventory import Inventory

REPORTS = Path("reports")
"""The directory of runs, unless an option names another."""

FAILED = 1
USAGE = 2


def terminal_events(options: argparse.Namespace) -> Events:
    """Progress as lines on standard output, or on standard error if that one is for JSON."""
    from harness.events import Progress, StandardOutput

    return Events(Progress(StandardOutput(errors=wants_json(options))))


def wants_json(options: argparse.Namespace) -> bool:
    """Whether the command prints JSON for programs instead of text."""
    return bool(getattr(options, "json", False))


def print_json(value: object) -> None:
    """Print what the command found as one JSON document."""
    print(clean_json(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False, default=str)))


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument RUN as `path`: the run that the command reads, by default the newest one."""
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        default=Path("latest"),
        metavar="RUN",
        help="a run: reports/RUN-ID, or `latest` for the newest (%(default)s)",
    )


def add_json(parser: Any, what: str) -> None:
    """Add `--json`, which prints `what` as JSON, to a parser or to a group of options."""
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON")


def chosen_inventory(options: argparse.Namespace) -> Inventory:
    """The hosts of `--lab`, else those that a run measures in this directory; or only the one of `--host`."""
    from harness.lab.inventory import withdraw_secrets
    from harness.lab.lab_file import choose_inventory

    inventory = choose_inventory(options.lab, Path.cwd())
    withdraw_secrets(inventory.hosts)
    return inventory.only(options.host) if options.host else inventory


def number_from(least: int, most: int = 10_000) -> Callable[[str], int]:
    """A type of argparse: a whole number from `least` to `most`."""

    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{quoted(text)}: allowed: a whole number from {least} to {most}")
        return int(text)

    return parse
