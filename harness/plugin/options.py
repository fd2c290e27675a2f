"""The plugin's command line options, read into one value."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

import pytest

from harness.lab.embedded.lab import inventory as embedded_inventory
from harness.lab.inventory import HostSpec, Inventory, load_lab
from harness.model.profile import PROFILES

LAB_FILE = "lab.toml"
LAB_VARIABLE = "VIRT_OVERHEAD_LAB"
EMBEDDED_LAB = "embedded"

LARGEST_SEED = 2**31 - 1
"""As large as those that a run chooses: fio is given it with a small number added."""

Inconclusive = Literal["fail", "skip"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for. `seed` is None where the run is to choose one.

    `inventory` has the hosts to measure on, `hosts` are all of the lab file.
    """

    inventory: Inventory
    hosts: tuple[HostSpec, ...]
    profile: str
    reports: Path
    seed: int | None
    rounds: int | None
    require_lab: bool
    resume: Path | None
    inconclusive: Inconclusive


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("virt-overhead", "overhead of virtual machines on disks")
    profiles = [profile.name for profile in PROFILES]
    group.addoption("--profile", choices=profiles, help="how thoroughly to measure (default: the lab's, else smoke)")
    group.addoption(
        "--lab",
        metavar="FILE",
        type=_path("--lab"),
        help=f"the lab file, or `{EMBEDDED_LAB}` for the embedded lab "
        f"(default: ${LAB_VARIABLE}, else {LAB_FILE} beside conftest.py, else the embedded lab)",
    )
    group.addoption("--host", metavar="NAME", help="measure on this host of the lab only")
    group.addoption(
        "--reports", metavar="DIR", type=_path("--reports"), help="where runs are stored (default: reports/)"
    )
    group.addoption(
        "--seed",
        metavar="N",
        type=_number("--seed", 0, LARGEST_SEED),
        help="seed of every random choice (default: a new one)",
    )
    group.addoption(
        "--rounds", metavar="N", type=_number("--rounds", 1), help="rounds to measure (default: the profile's)"
    )
    group.addoption(
        "--resume",
        metavar="RUN",
        type=_path("--resume"),
        help="go on with the run stored there: its whole rounds count",
    )
    group.addoption(
        "--require-lab",
        action="store_true",
        help="cells that the lab cannot measure (not reachable, or it lacks something) are errors, not skipped",
    )
    group.addoption(
        "--inconclusive",
        choices=get_args(Inconclusive),
        default="skip",
        help="what a cell that the rounds did not decide means to the exit status (default: skip, which is no failure)",
    )


def read_options(config: pytest.Config) -> Options:
    """The options in force. Raises ConfigError for a lab file that cannot be used."""
    inventory = _inventory(config)
    hosts = inventory.hosts
    if host := config.getoption("--host"):
        inventory = inventory.only(host)
    return Options(
        inventory=inventory,
        hosts=hosts,
        profile=config.getoption("--profile") or inventory.profile,
        reports=config.getoption("--reports") or config.rootpath / "reports",
        seed=config.getoption("--seed"),
        rounds=config.getoption("--rounds"),
        require_lab=config.getoption("--require-lab"),
        resume=config.getoption("--resume"),
        inconclusive=config.getoption("--inconclusive"),
    )


def _inventory(config: pytest.Config) -> Inventory:
    named = config.getoption("--lab") or os.environ.get(LAB_VARIABLE)
    if str(named) == EMBEDDED_LAB:
        return embedded_inventory()
    if named:
        return load_lab(Path(named))
    beside = config.rootpath / LAB_FILE
    return load_lab(beside) if beside.exists() else embedded_inventory()


def _number(option: str, least: int, most: int = sys.maxsize) -> Callable[[str], int]:
    allowed = f"from {least} on" if most == sys.maxsize else f"from {least} to {most}"

    def parse(text: str) -> int:
        # Python has numbers of thousands of digits refused, with a message of its own.
        if not re.fullmatch("[0-9]{1,19}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{option} takes a whole number {allowed}, not {text!r}")
        return int(text)

    return parse


def _path(option: str) -> Callable[[str], Path]:
    def parse(text: str) -> Path:
        if not text:  # As of a variable that is not set: for Path that is the current directory.
            raise argparse.ArgumentTypeError(f"{option} takes a path, and none is given")
        return Path(text)

    return parse
