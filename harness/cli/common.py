"""What several groups of commands share: exit statuses, the hosts that options name, progress on the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from harness.events import Events
from harness.lab.embedded import lab as embedded
from harness.lab.inventory import Inventory, load_lab
from harness.lab.withdrawn import withdraw_secrets
from harness.progress import Progress, StandardOutput

FAILED = 1
USAGE = 2


def terminal_events() -> Events:
    """Progress as lines on standard output."""
    return Events(Progress(StandardOutput()))


def chosen_inventory(options: argparse.Namespace) -> Inventory:
    """The hosts of `--lab` (else of the embedded lab), or only the one of `--host`."""
    inventory = load_lab(options.lab) if options.lab else embedded.inventory()
    withdraw_secrets(inventory.hosts)
    return inventory.only(options.host) if options.host else inventory


def number_from(least: int) -> Callable[[str], int]:
    """A type of argparse: a whole number that is not below `least`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: allowed: a whole number from {least}")
        return int(text)

    return parse
