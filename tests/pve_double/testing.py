"""What tests of the double, and tests that use it, start from."""

from __future__ import annotations

from typing import Any

from tests.pve_double.executor.memory import MemoryExecutor
from tests.pve_double.pace import Pace
from tests.pve_double.permissions import ROOT
from tests.pve_double.state import Node, Settings, make_node

PASSWORD = "a password of the double"
FAST = Pace(factor=0.01, boot_seconds=2.0)
"""A hundred times a real node's pace."""


def memory_node(pace: Pace = FAST, **settings: Any) -> Node:
    """A node as the recordings', with nothing behind it."""
    return make_node(ROOT, PASSWORD, MemoryExecutor(pace.factor), Settings(pace=pace, **settings))
