"""`virt-overhead run`: pytest with the plugin and the shipped test body, from any directory."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness.shipped import shipped


def add_run(commands: Any) -> None:
    """Add the verb `run` to the subparsers."""
    run = commands.add_parser(
        "run",
        help="measure: pytest with all its options, from any directory (`run -- --help` lists them)",
        epilog="All further options go to pytest: -k optane, --collect-only, --profile=standard, --scenarios=DIR",
        example="virt-overhead run -k optane --profile=standard",
        takes_rest=True,
    )
    run.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> NoReturn:
    measure([word for word in options.rest if word != "--"])


def measure(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by pytest on the shipped test body. The user's project is the current directory."""
    command = [sys.executable, "-P", "-m", "pytest", *pytest_arguments(Path.cwd(), arguments)]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def pytest_arguments(project: Path, arguments: Sequence[str], cells: Sequence[str] = ()) -> list[str]:
    """What pytest gets to measure for the directory `project`; only the cells with these ids, if there are some.

    pytest's configuration files in that directory do not apply: they are for the user's own tests.
    """
    from harness.pytest_entry import PLUGIN

    bodies = shipped("scenarios")
    # With this rootdir, the ids of cells are the same here and in a checkout: scenarios/test_overhead.py::...
    root = bodies.parent
    body = str(bodies / "test_overhead.py")
    return [
        *("-p", PLUGIN),
        *("-c", os.devnull),
        f"--rootdir={root}",
        f"--confcutdir={root}",
        *("-o", f"cache_dir={project / '.pytest_cache'}"),
        "-rfEs",
        f"--project={project}",
        *([f"{body}::test_overhead[{cell}]" for cell in cells] or [body]),
        *arguments,
    ]
