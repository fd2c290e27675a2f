"""Limits of tests. They end a test that hangs, and never one that is slow: other work may take most of the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

USUAL_BOOT_SECONDS = 20.0
"""The boot of the embedded lab on an idle machine with two CPUs, without hardware virtualisation."""
GENEROUS = 4.0
"""How many times longer than on an idle machine anything may take, on any machine."""
SLOWNESS = "VIRT_OVERHEAD_TEST_SLOWNESS"
"""How many times longer than usual the lab's boot took; for the processes that tests start as well."""


def patience(seconds: float) -> float:
    """A limit in seconds for what takes so long at most on an idle machine: longer where the lab's boot took longer."""
    return seconds * GENEROUS * max(float(os.environ.get(SLOWNESS, "1")), 1.0)


@contextmanager
def booting() -> Iterator[None]:
    """The lab boots in the block. Limits after it follow from the time that this takes."""
    started = time.monotonic()
    yield
    took = (time.monotonic() - started) / USUAL_BOOT_SECONDS
    os.environ[SLOWNESS] = str(max(took, float(os.environ.get(SLOWNESS, "1"))))
