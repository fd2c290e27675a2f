"""The md devices of an array: the array itself, the arrays that it is a stripe of, and the kernel's thread of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.lab.transport.base import Runner
from harness.untrusted import reading

# $@: the kernel's names of arrays. Prints "ARRAY DEVICE THREAD" for the array and each one below it; - without thread.
# The kernel names the thread of an array after both: md127_raid5. RAID 0 has none. Source: md_register_thread in md.c.
_FIND = r"""
legs() {
    for below in "/sys/class/block/$1/slaves"/md*; do
        [ ! -e "$below" ] || { echo "${below##*/}"; legs "${below##*/}"; }
    done
}
thread_of() {
    for process in /proc/[0-9]*; do
        read -r name 2>/dev/null <"$process/comm" || continue
        case $name in "$1"_raid*) echo "${process#/proc/}"; return;; esac
    done
    echo -
}
for array; do
    for device in "$array" $(legs "$array"); do echo "$array $device $(thread_of "$device")"; done
done
"""


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
