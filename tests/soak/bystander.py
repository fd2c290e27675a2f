"""A guest of somebody else on a storage in use: it writes, and checks what it has written, all the time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from harness.config.names import RunId
from harness.guest.protocol import GuestDisk, Hypervisor
from harness.lab.created import CreationLog
from harness.lab.guard.writable import issue
from harness.lab.pin import BlockPin, read_pins
from harness.lab.transport.base import Runner
from harness.layout import BlockSource
from harness.model.attach import Attach
from tests.patience import patience

LOG = "/var/lib/bystander"
"""Where its guest is recorded. A run does not look there, so to a run the guest is somebody else's."""
_NAME = "bystander"
_AT_ONCE = "--ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1"
# The first part is written once. It must stay as it is.
_STILL = f"--name=still {_AT_ONCE} --iodepth=4 --rw=write --bs=64k --size=24m --randrepeat=1"
# The second part is written at random, and read back 64 writes later. One pass takes longer than the tests.
_LIVE = (
    f"--name=live {_AT_ONCE} --rw=randwrite --bs=4k --offset=32m --size=96m --verify_backlog=64 "
    "--time_based --runtime=36000 --output-format=json --output=/run/live.json"
)
# $1: the disk, $2: writes per second. Runs until it is ended, or until it reads something else than it wrote.
_BEGIN = f"""
fio {_STILL} --filename="$1" --do_verify=0 >/run/still.out 2>&1 || {{ cat /run/still.out; exit 1; }}
(
    fio {_LIVE} --filename="$1" --rate_iops="$2" >/run/live.out 2>&1 & echo $! >/run/live.pid
    wait $!; echo $? >/run/live.status
) </dev/null >/dev/null 2>&1 &
"""
# $1: the disk. Prints the reads and writes that it has done so far.
_CHECK = f"""
if [ -e /run/live.status ]; then
    echo "its fio has ended with status $(cat /run/live.status):" >&2; tail -n 5 /run/live.out >&2; exit 1
fi
fio {_STILL} --filename="$1" --verify_only >/run/still.out 2>&1 || {{ tail -n 5 /run/still.out >&2; exit 1; }}
read -r reads _ _ _ writes _ <"/sys/class/block/${{1##*/}}/stat" && echo "$reads $writes"
"""
_END = """
[ -e /run/live.status ] || kill -INT "$(cat /run/live.pid)"
for try in $(seq 60); do [ ! -e /run/live.status ] || break; sleep 1; done
cat /run/live.out >&2; cat /run/live.json
"""


class Bystander:
    """The running guest. A check raises HostError if its data is not intact, AssertionError if it does no I/O."""

    def __init__(self, runner: Runner, disk: str, iops: int = 30) -> None:
        """`runner` runs commands in the guest, and `disk` is the device there."""
        self._runner = runner
        self._words = (disk, str(iops))
        self._run(_BEGIN)
        self._done = (-1, -1)
        self.check()

    def check(self) -> None:
        """What was written before anything was measured is unchanged, and it reads and writes."""
        reads, writes = map(int, self._run(_CHECK).split())
        assert reads > self._done[0]
        assert writes > self._done[1]
        self._done = (reads, writes)

    def end(self) -> None:
        """It has never read anything else than it wrote."""
        printed = self._run(_END)
        (job,) = json.loads(printed[printed.index("{") :])["jobs"]
        assert job["error"] == 0, printed
        # What was read back to check it counts as read.
        assert job["read"]["total_ios"] > 0
        assert job["write"]["total_ios"] > 0

    def _run(self, script: str) -> str:
        return self._runner.run(["sh", "-c", script, "sh", *self._words], deadline=patience(180)).stdout


@contextmanager
def bystander(hypervisor: Hypervisor, host: Runner, path: str, size: int, *, iops: int = 30) -> Iterator[Bystander]:
    """A running guest whose disk is the volume or file at `path` of the host, of `size` bytes."""
    (pin,) = read_pins(host, [path])
    kind: Literal["block", "file"] = "block" if isinstance(pin, BlockPin) else "file"
    source = BlockSource(path, kind, 0, size, grant=issue(host, pin, []))
    log = CreationLog(host, RunId.new(), LOG)
    with hypervisor.guest(log, [GuestDisk(_NAME, source, Attach())]) as guest:
        found = Bystander(guest.runner, guest.device(_NAME), iops)
        yield found
        found.end()
