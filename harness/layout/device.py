"""The disk under test as a block device: a link to a real one, or a loop device on a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from harness.errors import SafetyError
from harness.lab.inventory import DiskByFile, DiskSpec
from harness.lab.transport.base import Runner
from harness.layout.undo import Undo

# $1: the file behind the loop device. Where somebody else has that open, udev or lsblk for a moment, it goes when they
# close it, and `losetup -d` does not wait for that.
_DETACH = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
devices=$(losetup --list --noheadings --output NAME --associated "$1") || exit
for device in $devices; do losetup -d "$device" || exit; done
for try in 1 2 3 4 5 6 7 8 9 10; do
    devices=$(losetup --list --noheadings --output NAME --associated "$1") || exit
    [ -n "$devices" ] || exit 0
    sleep 0.5
done
echo "somebody has" $devices open >&2
exit 1
"""
# $1: the file. It stays where the loop device does: without it, `reap` would not find that one.
_REMOVE = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
devices=$(losetup --list --noheadings --output NAME --associated "$1") || exit
[ -z "$devices" ] || { echo "it is in use by" $devices >&2; exit 1; }
rm -f "$1"
"""


@contextmanager
def block_device(runner: Runner, disk: DiskSpec) -> Iterator[str]:
    """The path of the disk's block device on the host, there for as long as this lasts."""
    if isinstance(disk, DiskByFile):
        with _loop_device(runner, disk) as device:
            yield device
    else:
        yield disk.id


@contextmanager
def _loop_device(runner: Runner, disk: DiskByFile) -> Iterator[str]:
    if not disk.destroy:
        raise SafetyError(
            f"{runner.name}: disk {disk.name}, {disk.identity}, will not be written to: its owner did not write "
            "`destroy = true` in the lab file",
            hint=f"add it under disk.{disk.name} if nothing in that file is needed",
        )
    file = str(disk.file)
    if attached := loop_devices(runner, file):
        raise SafetyError(
            f"{runner.name}: {file} is already the backing file of {', '.join(attached)}",
            hint="if a killed run left it so: virt-overhead reap; else: losetup -d",
        )
    with Undo(runner) as undo:
        if runner.run(["test", "-e", file], deadline=20, check=False).status != 0:
            undo.by(f"the file {file}", ["sh", "-s", "--", file], stdin=_REMOVE, deadline=30)
            runner.run(["truncate", "-s", str(disk.size), file], deadline=20)
        undo.by(f"the loop device on {file}", ["sh", "-s", "--", file], stdin=_DETACH, deadline=30)
        attach = ["losetup", "--find", "--show", "--partscan", "--direct-io=on", file]
        yield runner.run(attach, deadline=30).stdout.strip()


def loop_devices(runner: Runner, file: str) -> list[str]:
    """The loop devices that have `file` behind them."""
    # Without --list, losetup answers -j in a format of its own, whatever else it is asked.
    listed = runner.run(["losetup", "--list", "--json", "--output", "NAME", "-j", file], deadline=30).stdout
    return [each["name"] for each in json.loads(listed or "{}").get("loopdevices", ())]
