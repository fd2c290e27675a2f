"""`virt-overhead doctor`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness.cli import add_json
from harness.errors import ConfigError


def add_commands(commands: Any) -> None:
    """Add the verb `doctor` to the subparsers."""
    parser = commands.add_parser(
        "doctor",
        help="check whether the lab's hosts or this machine are fit for measuring",
        example="virt-overhead doctor --lab lab.toml",
    )
    parser.add_argument("--lab", type=Path, metavar="FILE", help="the lab file (default: this machine)")
    parser.add_argument("--host", metavar="NAME", help="only this host (`lab`: the embedded lab's)")
    add_json(parser, "the findings")
    parser.add_argument(
        "--sync",
        action="append",
        default=[],
        metavar="DIRECTORY",
        help="also measure how long a small write takes there until it is safe (in a file of its own, 2 s, 1 MiB)",
    )
    change = parser.add_mutually_exclusive_group()
    change.add_argument("--tune", action="store_true", help="hold better settings until Ctrl-C or the end of COMMAND")
    change.add_argument("--restore", action="store_true", help="restore the settings that a killed --tune changed")
    parser.add_argument("command", nargs="*", metavar="-- COMMAND", help="with --tune: the command to run meanwhile")
    parser.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from harness.features.doctor.command import DoctorRequest, choose_hosts, doctor

    if options.command and options.command[0].endswith(".toml"):
        raise ConfigError(f"{options.command[0]}: a lab file is an option", hint=f"--lab={options.command[0]}")
    if options.command and not options.tune:
        raise ConfigError("a COMMAND needs --tune", hint="run: virt-overhead doctor --tune -- COMMAND")
    if relative := [directory for directory in options.sync if not directory.startswith("/")]:
        raise ConfigError(f"--sync {relative[0]}: not an absolute path", hint="name a directory of the host")
    request = DoctorRequest(
        options.tune, options.restore, options.json, tuple(options.command), tuple(dict.fromkeys(options.sync))
    )
    return doctor(choose_hosts(options.lab, options.host), request)
