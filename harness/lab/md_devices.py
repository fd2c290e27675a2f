"""The md devices of an array: the array itself, the arrays that it is a stripe of, and the kernel's thread of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.lab.transport.base import Runner
from harness.shipped import read_script
from harness.untrusted import reading

_FIND = read_script("harness.lab", "find_md_threads.sh")


@dataclass(frozen=True, slots=True)
class MdDevice:
    """One md device. `thread` is the process id of the kernel's thread that handles its writes; None without one."""

    name: str
    thread: int | None = None


def md_devices(runner: Runner, arrays: Sequence[str]) -> dict[str, tuple[MdDevice, ...]]:
    """The md devices of these arrays by the kernel's name of the array, itself first. Raises HostError."""
    if not arrays:
        return {}
    printed = runner.run(["sh", "-s", "--", *arrays], stdin=_FIND, deadline=60).stdout
    with reading(f"{runner.name}: the threads of arrays"):
        return parse_devices(printed.splitlines())


def parse_devices(lines: Iterable[str]) -> dict[str, tuple[MdDevice, ...]]:
    """The devices in lines `ARRAY DEVICE THREAD`."""
    found: dict[str, tuple[MdDevice, ...]] = {}
    for line in lines:
        array, device, thread = line.split()
        own = MdDevice(device, None if thread == "-" else int(thread))
        found[array] = (*found.get(array, ()), own)
    return found
