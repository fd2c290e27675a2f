"""Commands about the command line itself: completion for shells, and the manual page. Both are made from the parser."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from typing import Any

from harness.errors import ConfigError

SHELLS = ("bash", "zsh", "tcsh")
_DISTRIBUTION = "virt-overhead"


def add_completion(commands: Any) -> None:
    """Add the verb `completion` to the subparsers."""
    completion = commands.add_parser("completion", help="print the completion for a shell")
    completion.add_argument("shell", choices=SHELLS, help="the shell to write it for")
    completion.set_defaults(run=_completion)


def add_man(commands: Any) -> None:
    """Add the verb `man` to the subparsers."""
    commands.add_parser("man", help="print the manual page, for: man -l -").set_defaults(run=_man)


def _completion(options: argparse.Namespace) -> int:
    try:
        import shtab  # noqa: PLC0415 - only this command needs it
    except ImportError as error:
        raise _missing(error) from error

    print(shtab.complete(options.parser, options.shell))
    return 0


def _man(options: argparse.Namespace) -> int:
    try:
        from argparse_manpage.manpage import Manpage  # noqa: PLC0415 - only this command needs it
    except ImportError as error:
        raise _missing(error) from error

    data = {"project_name": _DISTRIBUTION, "version": version(_DISTRIBUTION), "manual_title": "virt-overhead"}
    data["description"] = "measure how much disk performance a virtual machine loses"
    print(Manpage(options.parser, _data=data, format="single-commands-section"))
    return 0


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(f"this command needs the Python package {error.name}", hint=f"pip install {error.name}")
