"""Which executor the command line asks for."""

from __future__ import annotations

import argparse

from tests.pve_double.executor.base import Executor
from tests.pve_double.executor.memory import MemoryExecutor
from tests.pve_double.pace import Pace


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--executor", choices=["memory"], default="memory")


def chosen(options: argparse.Namespace, pace: Pace) -> Executor:
    del options
    return MemoryExecutor(pace.factor)
