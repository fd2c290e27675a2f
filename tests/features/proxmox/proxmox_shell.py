"""The shell of a node: what the harness runs there over SSH, answered from the state of the double behind its API.

Scripts that decide about data run for real in a shell, with the node's tools (LVM, ZFS, blkid, pvesm) asking the
double. What looks at real block devices is played.
"""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from harness.config.names import RunId
from harness.features.proxmox import creation, removal
from harness.features.rbd import images
from harness.lab import created, pin, storages
from harness.lab.created import CreationLog, Entry, read_log
from harness.lab.guard import writable as probes
from harness.lab.guard.writable import PROBES
from harness.lab.inventory import DiskById
from harness.lab.transport import base
from harness.lab.transport.base import Completed, HeldCommand, holding
from harness.layout import regions
from pve_double import nodeshell
from pve_double.executor.memory import MemoryExecutor
from pve_double.server import Serving
from pve_double.state import Node
from pve_double.storage.disks import Disk
from tests.unit.played_shell import PlayedShell

MIB = 1024**2
SECTOR = 512
LINK = "/dev/disk/by-id/scsi-PVETEST_disk1"
DISK = DiskById("optane", LINK, "PVETEST_disk1", destroy=True)
_SCRIPTS = (
    created._WRITE,
    created._FENCED,
    created._CLOSE,
    created._FORGET,
    created._READ,
    removal._IDENTITY,
    removal._FREE,
    removal.LOOK,
    removal.MOUNT_POINT,
    removal.REMOVE_MOUNT_POINT,
    storages._LOOK,
    storages._INSPECT,
    images._MAP_VOLUME,
    'release_volume_rbd "$@"\n',
)
"""They run for real: nothing in them is a command that this machine has and that changes a disk."""


class _HeldVolumes:
    """The command that holds volumes open on the node, as the Stream behind it."""

    def __init__(self, node: Node, executor: MemoryExecutor) -> None:
        self._node = node
        self._executor = executor
        self._open: list[str] = []
        self.ended = False
        self._printed: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._printed.put(b"0\n")

    def read(self) -> bytes:
        return self._printed.get()

    def write(self, data: bytes) -> None:
        if self.ended:
            raise BrokenPipeError
        if path := data.decode().strip():
            if path.startswith("/dev/rbd-pve/"):
                (path,) = nodeshell.run(self._node, ["readlink", "-e", path]).text.split()
            if path in self._executor.inactive:
                self._printed.put(f"sh: cannot open {path}: No such file\n".encode())
                return
            self._open.append(path)
            self._executor.held.add(path)
        else:
            self._executor.held.discard(self._open.pop())
        self._printed.put(f"{len(self._open)}\n".encode())

    def end_input(self) -> None:
        if not self.ended:
            self.ended = True
            self._executor.held.difference_update(self._open)
            self._printed.put(b"")

    def end(self) -> None:
        """It has ended with its input."""


class NodeShell(PlayedShell):
    """The shell of the node that `serving` is. Its creation log is a directory of this machine."""

    def __init__(self, serving: Serving, directory: Path, node: str = "pve") -> None:
        super().__init__(
            {
                "at=/sys/block/$name/device": "",
                "/dev/mapper/*": f"/dev/sdb\n{LINK}\n",
                "--inverse": "sda\n",
                "/etc/pve/local": f"nodes/{node}\n",
            }
        )
        self.node = serving.node.peers[node]
        self.directory = directory / f"created-{node}"
        tools = directory / f"tools-{node}"
        tools.mkdir(exist_ok=True)
        script = Path(nodeshell.__file__).parent / "node" / "qm"
        for name in nodeshell.TOOLS:
            (tools / name).symlink_to(script)
        url = f"http://127.0.0.1:{serving.node_port}"
        self._partitions: list[dict[str, object]] = []
        self._sessions: list[_HeldVolumes] = []
        self._environment = {"PATH": f"{tools}:{os.environ['PATH']}", "PVE_DOUBLE_NODE": url, "PVE_DOUBLE_NAME": node}

    def log(self, run_id: RunId) -> CreationLog:
        return CreationLog(self, run_id, str(self.directory))

    def hold(self, argv: Sequence[str], *, what: str, deadline: float) -> AbstractContextManager[HeldCommand]:
        """Only volumes are held open, which are not on this machine."""
        if argv[2] != creation._HOLD:
            return super().hold(argv, what=what, deadline=deadline)
        self._sessions.append(_HeldVolumes(self.node, self._executor))
        return holding(self.name, what, self._sessions[-1], deadline=deadline)

    @property
    def sessions(self) -> int:
        """How many commands hold volumes open."""
        return sum(not session.ended for session in self._sessions)

    def lose_connection(self) -> None:
        """As when the run is killed: what it holds open is closed."""
        for session in self._sessions:
            session.end_input()

    @property
    def logged(self) -> list[Entry]:
        return read_log(self, str(self.directory))

    def _answered(self, argv: list[str], said: str, stdin: str, deadline: float) -> Completed:
        script = argv[2] if argv[:2] == ["sh", "-c"] else ""
        if script == pin._PINNED:
            after = 6 + 2 * int(argv[5])
            return self._changed(argv[6:after]) or self._answered(argv[after:], said, stdin, deadline)
        if script == base._WHOLE:
            return self._answered(argv[6:], said, stdin, deadline)
        if (failing := self._failing(argv)) is not None:
            return failing
        # Shell functions of a storage may be before them.
        if script.endswith(_SCRIPTS):
            # The log is on this machine, not on the double.
            env = None if script == created._READ else self._environment
            done = subprocess.run(
                argv, input=stdin, capture_output=True, text=True, timeout=deadline, check=False, env=env
            )
            return Completed(tuple(argv), done.returncode, done.stdout, done.stderr)
        if argv[0] in ("qm", "pvesm", "stat"):
            told = nodeshell.run(self.node, argv)
            return Completed(tuple(argv), told.status, told.text, "")
        return Completed(tuple(argv), 0, self._played(argv, script, said, stdin), "")

    def _played(self, argv: list[str], script: str, said: str, stdin: str) -> str:
        if script in (pin._PINS, pin._PARTITION):
            return "".join(self._facts(path, partuuid=script == pin._PARTITION) for path in argv[4:])
        if script == probes.INSPECT:
            return self._disk()
        if argv[0] == "blockdev":
            return f"{SECTOR}\n" if argv[1] == "--getss" else ""
        if "NAME,PATH,TYPE,START,SIZE" in script:
            return json.dumps({"blockdevices": [{"children": self._partitions}]})
        if script == regions._WRITE_TABLE or "forget_partitions" in script:
            self.divide(stdin)
            return "removed\n"
        return self._printed(said)

    def _facts(self, path: str, *, partuuid: bool) -> str:
        if path == LINK:
            return f"{path}\tblock\t8:16\t5\t{(2 << 30) // SECTOR}\tPVETEST_disk1\n"
        number = self._numbered(path) or "252:7"
        facts = f"{path}\tblock\t{number}\t{self._sequence(path)}\t{128 * MIB // SECTOR}\tof {path}\n"
        found = [each.partuuid for each in self.node.disks.disks if each.device == path] if partuuid else []
        return facts + "".join(f"{each}\n" for each in found)

    def _changed(self, pins: list[str]) -> Completed | None:
        """How the command ends if one of these paths and facts is not the same any more."""
        for path, expected in zip(pins[::2], pins[1::2], strict=True):
            if (now := self._numbered(path)) is not None and not expected.startswith(f"{now} "):
                return Completed(("sh",), pin.CHANGED, "", f"{path} was ({expected}) and is ({now}) now")
            if path in self._executor.inactive:
                return Completed(("sh",), pin.CHANGED, "", f"{path} is gone")
            if self._executor.activated[path] and expected.split()[1] != self._sequence(path):
                return Completed(("sh",), pin.CHANGED, "", f"{path} was ({expected}), with another diskseq now")
        return None

    def _sequence(self, path: str) -> str:
        """The diskseq of a device. Each time that a logical volume is activated, it is a new one."""
        return str(9 + self._executor.activated[path])

    @property
    def _executor(self) -> MemoryExecutor:
        assert isinstance(self.node.executor, MemoryExecutor)
        return self.node.executor

    def _numbered(self, path: str) -> str | None:
        """The number of an NVMe partition, which the kernel may change; None for any other device."""
        minor = next((each.minor for each in self.node.disks.disks if each.device == path), 0)
        return f"259:{minor}" if minor else None

    def _disk(self) -> str:
        whole = {"path": "/dev/sdb", "kname": "sdb", "name": "sdb", "type": "disk", "size": 2 << 30, "ro": False}
        facts = f"8:16%095%09{(2 << 30) // SECTOR}%09PVETEST_disk1"
        said = dict.fromkeys(("backing", *PROBES), "")
        said |= {"device": "/dev/sdb", "facts": facts, "serials": "PVETEST_disk1", "contents": "0 0", "left": "none"}
        said["block"] = json.dumps({"blockdevices": [whole | {"maj:min": "8:16"}]})
        return "".join(f"{key}\t0\t{value}\n" for key, value in said.items())

    def divide(self, table: str) -> None:
        """What the kernel and PVE know of the disk's partitions, from what sfdisk was given."""
        disks = self.node.disks
        disks.disks = [each for each in disks.disks if not re.fullmatch(r"/dev/sdb\d+", each.device)]
        self._partitions = []
        for number, (start, size, uuid) in enumerate(re.findall(r"start=(\d+), size=(\d+), uuid=(\S+),", table), 1):
            device, size_bytes = f"/dev/sdb{number}", int(size) * SECTOR
            disks.disks.append(Disk(device, size_bytes, partuuid=uuid))
            self._partitions.append({"path": device, "type": "part", "start": int(start), "size": size_bytes})
