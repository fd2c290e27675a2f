"""A storage daemon for a disk: its start and end, and what it really serves."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

from harness.errors import GuestError
from harness.features.storage_daemon import PROGRAM
from harness.guest.protocol import GuestDisk
from harness.guest.qemu_process import InspectedProcess, look_at_process, parse_inspected
from harness.lab.created import CreationLog, Processes, RandomName, fenced
from harness.lab.guard import require_leading_to
from harness.lab.transport.base import Runner
from harness.model.attach import CACHES, Attach
from harness.model.option import Effective
from harness.model.values import NO_LIMIT
from harness.untrusted import parse_json, reading

_STARTS_SECONDS = 30.0

# $1: a new directory, $2: the variable for the daemon's environment; then the daemon's command.
# The guest's QEMU may run as another user. The name of the directory is known to nobody else.
_START_DAEMON = 'umask 0; mkdir -m 0711 "$1" && mark=$2 && shift 2 && exec env "$mark" "$@"'

# $2: the directory. Removes what the daemon itself made in it.
_REMOVE_DIRECTORY = r"""
[ ! -d "$2" ] || { rm -f "$2/socket" "$2/pid"; rmdir "$2" 2>/dev/null; } || echo "foreign: $2 has files of others"
"""

# The guest's driver asks the device for its cache, and the daemon does not tell it before it was set once.
_WRITE_BACK = 'echo "write back" >"/sys/block/${1##*/}/cache_type"'


class DaemonProcess(Processes):
    """A storage daemon with `mark` in its environment, and the `directory` of its socket."""

    kind: Literal["storage-daemon"] = "storage-daemon"  # type: ignore[assignment] # a kind of its own
    directory: RandomName

    removal: ClassVar[str] = Processes.removal + _REMOVE_DIRECTORY

    @property
    def words(self) -> str:
        return "a storage daemon"


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running storage daemon, as a `ServedDisk`."""

    directory: str
    attach: Attach

    @property
    def socket(self) -> str:
        return f"{self.directory}/socket"

    @property
    def pid_file(self) -> str:
        return f"{self.directory}/pid"

    def set_up(self, guest: Runner, device: str) -> None:
        """Let the guest flush the disk, as it does with a write cache in QEMU. Raises HostError."""
        if CACHES[self.attach.cache].write_cache:
            guest.run(["sh", "-c", _WRITE_BACK, "sh", device], deadline=30)

    def read_effective(self, runner: Runner) -> Effective:
        """How it serves its disk, from the arguments and the rings of its process."""
        printed = look_at_process(runner, self.pid_file).stdout
        with reading(f"{runner.name}: the command line of {PROGRAM} ({self.pid_file})", GuestError):
            return parse_served(parse_inspected(printed))


@contextmanager
def serve_disk(log: CreationLog, disk: GuestDisk, queues: int) -> Iterator[Daemon]:
    """A daemon that serves the disk with at most so many queues. It is ended at the end. Raises HostError."""
    assert isinstance(disk.attach, Attach)
    name = uuid.uuid4()
    daemon = Daemon(f"/run/voh-{name}", disk.attach)
    mark = f"VIRT_OVERHEAD_DISK={name}"
    with log.making_here(
        DaemonProcess(disks=disk.source.writable.disks, mark=mark, directory=daemon.directory)
    ) as entry:
        command = [PROGRAM, "--daemonize", "--pidfile", daemon.pid_file]
        options = make_options(disk, disk.attach, daemon.socket, queues)
        words = [word for option, value in options for word in (f"--{option}", json.dumps(value))]
        start = ["sh", "-c", _START_DAEMON, "sh", daemon.directory, mark, *command, *words]
        require_leading_to({disk.source.path: disk.source.writable})
        disk.source.writable.run(fenced(entry, start), deadline=_STARTS_SECONDS)
        yield daemon


def make_options(disk: GuestDisk, attach: Attach, socket: str, queues: int) -> list[tuple[str, dict[str, Any]]]:
    """The daemon's options with their values: the same block devices as in QEMU, an iothread, and the export. Pure."""
    cache = CACHES[attach.cache]
    common = {"cache": {"direct": cache.direct, "no-flush": cache.no_flush}, "discard": attach.discard}
    driver = "host_device" if disk.source.kind == "block" else "file"
    storage = {"driver": driver, "node-name": "storage", "filename": disk.source.path, "aio": attach.aio} | common
    node = {"driver": disk.source.format, "node-name": "disk", "file": "storage"} | common
    export = {
        "type": "vhost-user-blk",
        "id": "export",
        "node-name": "disk",
        "addr": {"type": "unix", "path": socket},
        "writable": True,
        "writethrough": not cache.write_cache,
        "num-queues": attach.queues or queues,
    }
    options = [("blockdev", storage), ("blockdev", node | {"detect-zeroes": attach.detect_zeroes})]
    if attach.iothread:
        thread: dict[str, Any] = {"qom-type": "iothread", "id": "thread"}
        if attach.poll_max_ns is not None:
            thread["poll-max-ns"] = attach.poll_max_ns
        options.insert(0, ("object", thread))
        export["iothread"] = "thread"
    return [*options, ("export", export)]


def parse_served(process: InspectedProcess) -> Effective:
    """How a daemon serves its disk, from its process. Raises ValueError or KeyError for other arguments. Pure."""
    options: dict[str, dict[str, Any]] = {}
    for option, value in pairwise(process.arguments):
        if option in ("--blockdev", "--export", "--object") and value.startswith("{"):
            given = parse_json(value, option, GuestError)
            options[given.get("node-name") if option == "--blockdev" else given["id"]] = given
    export, node, storage = options["export"], options["disk"], options["storage"]
    thread: Mapping[str, Any] = options.get(export.get("iothread", ""), {})
    return Effective(
        qemu_block_driver=node["driver"],
        qemu_aio=process.engines.in_effect(storage["aio"], node["driver"]),
        qemu_cache_direct=storage["cache"]["direct"],
        qemu_cache_no_flush=storage["cache"]["no-flush"],
        qemu_write_cache=not export["writethrough"],
        qemu_discard="unmap" if all(layer["discard"] == "unmap" for layer in (node, storage)) else "ignore",
        qemu_detect_zeroes=node["detect-zeroes"],
        qemu_read_only=not export["writable"],
        qemu_iothread=bool(thread),
        qemu_poll_max_ns=thread.get("poll-max-ns"),
        # It has no throttle filter: it serves the node `disk` itself.
        qemu_iops_limit=NO_LIMIT if export["node-name"] == "disk" else None,
        qemu_bw_limit=NO_LIMIT if export["node-name"] == "disk" else None,
    )
