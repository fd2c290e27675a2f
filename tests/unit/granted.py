"""The guard's permission for files and devices that a test has made itself."""

from __future__ import annotations

from harness.lab.guard.writable import Writable, issue
from harness.lab.pin import BlockPin, read_pins
from harness.lab.transport.base import Runner
from tests.unit.loop_disks import RUNNER


def granted(path: str, runner: Runner = RUNNER) -> Writable:
    """The permission to write to a device or file that is there."""
    (pin,) = read_pins(runner, [path])
    return issue(runner, pin, [])


def pretended(path: str, runner: Runner = RUNNER) -> Writable:
    """The permission for a device that nobody will open: what is done with it is only looked at."""
    return issue(runner, BlockPin(path, "259:0", "1", 1 << 30, "PHM1"), ["PHM1"])
