"""Hosts whose LVM or ZFS is a program of the tests, with the state in a file: this machine's kernel has neither.

The scripts that the harness sends run for real, with that program in place of vgs, lvs, lvcreate, zfs and others.
"""

from __future__ import annotations

import marshal
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.config.names import RunId
from harness.lab import pin
from harness.lab.created import CreationLog, Entry, read_log
from harness.lab.transport.base import Completed, failed
from harness.layout import disks

GIB = 1 << 30
RUN = RunId("20260101-000000-abcd")


def _write_program(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)


class ProgramHost:
    """A host on which the commands `names` are the `program`, with its state in a file."""

    def __init__(self, directory: Path, program: str, names: Sequence[str], disks: Sequence[str]) -> None:
        self.name = "host node1"
        self.disks = list(disks)
        self.ran: list[str] = []
        self._directory = directory
        self._state = directory / "state"
        tools = directory / "tools"
        tools.mkdir()
        (directory / "created").mkdir()
        # A module has been compiled, unlike a file that Python runs; and with marshal it needs no other module.
        file = (Path(__file__).parent / program).resolve()
        read = "import sys; sys.path.append(sys.argv[1]); from {module} import main"
        start = f"{read.format(module=file.stem)}; main(*sys.argv[2:4], sys.argv[4:])"
        for name in names:
            words = shlex.join([sys.executable, "-S", "-c", start, str(file.parent), str(self._state), name])
            _write_program(tools / name, f'exec {words} "$@"')
        _write_program(tools / "udevadm", "exit 0")
        self._environment = {"PATH": f"{tools}:{os.environ['PATH']}"}

    @property
    def state(self) -> Any:
        return marshal.loads(self._state.read_bytes())

    @state.setter
    def state(self, value: Any) -> None:
        self._state.write_bytes(marshal.dumps(value))

    def change_all(self, **values: object) -> None:
        self.state = self.state | values

    def change(self, part: str, **values: object) -> None:
        state = self.state
        state[part] |= values
        self.state = state

    def device_of(self, path: str) -> str | None:
        """The kernel's path of the volume at `path`; None if there is none."""
        raise NotImplementedError

    @property
    def log(self) -> CreationLog:
        return CreationLog(self, RUN, str(self._directory / "created"))

    @property
    def logged(self) -> list[Entry]:
        return read_log(self, str(self._directory / "created"))

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        done = self._run(list(argv), deadline, stdin)
        if check and done.status != 0:
            raise failed(self.name, done)
        return done

    def _run(self, argv: list[str], deadline: float, stdin: str | bytes | None) -> Completed:
        if argv[2:] == [disks._HAS_UDEV]:
            # The rules would be those of this machine.
            return Completed(tuple(argv), 1, "", "")
        if stdin == pin._BELOW:
            return Completed(tuple(argv), 0, "\n".join(self.disks), "")
        if argv[:2] == ["sh", "-c"] and argv[2] == pin._PINS:
            devices = [device for path in argv[4:] if (device := self.device_of(path)) is not None]
            if len(devices) == len(argv[4:]):
                lines = [f"{device}\tblock\t252:7\t9\t1\tid\n" for device in devices]
                return Completed(tuple(argv), 0, "".join(lines), "")
        self.ran.append(" ".join(argv[4:] if argv[:2] == ["sh", "-c"] else argv))
        done = subprocess.run(
            argv,
            input=stdin.decode() if isinstance(stdin, bytes) else stdin,
            capture_output=True,
            text=True,
            timeout=deadline,
            check=False,
            env=self._environment,
        )
        return Completed(tuple(argv), done.returncode, done.stdout, done.stderr)

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


class LvmHost(ProgramHost):
    """A host with a volume group `pve` of `size` bytes, a thin pool `pve/data` and the volume of another guest."""

    def __init__(self, directory: Path, *, size: int = 100 * GIB) -> None:
        super().__init__(directory, "lvm_program.py", ("vgs", "lvs", "pvs", "lvcreate", "lvremove"), ["sda"])
        bystander = {"name": "vm-101-disk-0", "uuid": "uuid-of-101", "tags": "", "size": 10 * GIB, "kind": "thin"}
        pool = {"name": "data", "uuid": "uuid-of-pool", "tags": "", "size": 50 * GIB, "kind": "thin-pool"}
        self.state = {
            "group": {"name": "pve", "uuid": "uuid-of-pve", "size": size, "missing": 0, "permissions": "writeable"},
            "pool": {"chunk": 1 << 19, "used": 0.4, "metadata": GIB >> 4, "metadata_used": 0.1, "health": ""},
            "parts": {"/dev/sda3": size},
            "volumes": [pool, bystander],
        }

    @property
    def volumes(self) -> list[str]:
        return [str(each["name"]) for each in self.state["volumes"]]

    def device_of(self, path: str) -> str | None:
        name = path.rpartition("/")[2]
        return f"/dev/dm-{self.volumes.index(name)}" if name in self.volumes else None


class ZfsHost(ProgramHost):
    """A host with a ZFS pool `tank` of 100 GiB, and a dataset `tank/vms` with the volume of another guest."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "zfs_program.py", ("zfs", "zpool"), ["sda", "sdb"])
        own = {"readonly": "off", "type": "filesystem"}
        self.state = {
            "pool": {"size": 100 * GIB, "imported": True},
            "datasets": {
                "tank": {"guid": "1", **own},
                "tank/vms": {"guid": "2", **own},
                "tank/vms/vm-101-disk-0": {"guid": "3", "type": "volume", "size": 10 * GIB},
            },
        }

    @property
    def datasets(self) -> list[str]:
        return list(self.state["datasets"])

    def device_of(self, path: str) -> str | None:
        name = path.removeprefix("/dev/zvol/")
        return f"/dev/zd{16 * self.datasets.index(name)}" if name in self.datasets else None
