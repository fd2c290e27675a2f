"""The executor of unit tests: nothing runs, and the guest is a few answers."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pve_double.errors import PveError
from pve_double.executor.base import GuestFailed, GuestHungUp, QemuFailed
from pve_double.executor.guest import READ_BYTES, UNANSWERED
from pve_double.qemu import devices, network
from pve_double.qemu.drives import Drive
from pve_double.qemu.machine import Config, agent_enabled, cpus
from pve_double.storage.disks import Disk
from pve_double.storage.volumes import Storage

AGENT_VERSION = "7.2.22"
_PROGRAMS = {"sh", "cat", "echo", "sleep", "lsblk", "true", "false", "ls", "head", "kill", "ip", "fio", "poweroff"}
_NO_STATISTICS = ("rd_bytes", "wr_bytes", "rd_operations", "wr_operations", "flush_operations")
COMMANDS = (
    "guest-get-cpustats", "guest-get-diskstats", "guest-ssh-remove-authorized-keys", "guest-ssh-add-authorized-keys",
    "guest-ssh-get-authorized-keys", "guest-get-devices", "guest-get-osinfo", "guest-get-timezone", "guest-get-users",
    "guest-get-host-name", "guest-exec", "guest-exec-status", "guest-get-memory-block-info",
    "guest-set-memory-blocks", "guest-get-memory-blocks", "guest-set-user-password", "guest-get-fsinfo",
    "guest-get-disks", "guest-set-vcpus", "guest-get-vcpus", "guest-network-get-interfaces", "guest-suspend-hybrid",
    "guest-suspend-ram", "guest-suspend-disk", "guest-fstrim", "guest-fsfreeze-thaw", "guest-fsfreeze-freeze-list",
    "guest-fsfreeze-freeze", "guest-fsfreeze-status", "guest-file-flush", "guest-file-seek", "guest-file-write",
    "guest-file-read", "guest-file-close", "guest-file-open", "guest-shutdown", "guest-info", "guest-set-time",
    "guest-get-time", "guest-ping", "guest-sync", "guest-sync-delimited",
)  # fmt: skip
"""What the recorded guest's agent has, in its order."""
_OFF = {"guest-get-devices"}
_FOLDERS = ("/dev", "/etc", "/run", "/tmp", "/var")


@dataclass(slots=True)
class Ran:
    """A program that the guest was told to run, and when (time.monotonic()) it ends."""

    ends: float
    exitcode: int = 0
    out: str = ""
    err: str = ""


@dataclass(slots=True)
class Guest:
    """What there is of a guest. `answers` are outputs by the last word of a command, set by a test."""

    config: Config
    pids: itertools.count[int] = field(default_factory=lambda: itertools.count(291, 2))
    ran: dict[int, Ran] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Ran] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)
    """The commands that the agent was told to run."""


class MemoryExecutor:
    """Keeps which VMs run. `factor` is how many real seconds a second of the guest's takes."""

    real = False
    saves_state = False
    group_device = "/dev/vda3"

    def __init__(self, factor: float = 1.0) -> None:
        self._factor = factor
        self._pids = itertools.count(30_000)
        self.guests: dict[int, Guest] = {}
        self.snapshots: set[str] = set()
        """What its storages have, as VOLUME@NAME."""
        self.mapped: dict[str, str] = {}
        """The devices of images of Ceph, by POOL[/NAMESPACE]/IMAGE."""
        self.held: set[str] = set()
        """Devices that something has open, set by a test."""
        self.activated: Counter[str] = Counter()
        """How often a logical volume has become a device, by its path."""
        self.inactive: set[str] = set()
        """The paths of logical volumes that are not active."""
        self.disabled: dict[str, set[str]] = {}
        """Features of images that are off, by image."""
        self.containers: set[int] = set()
        """Those that run."""
        self.missing: set[str] = set()
        """Devices that the node does not have, set by a test."""
        self.backup_rate = 256 << 20
        """Bytes per second of a backup, set by a test."""
        self._backups: dict[int, tuple[float, int]] = {}
        self.pci: dict[str, str] = {}
        """The driver of each PCI device, set by a test."""

    def pci_devices(self) -> list[str]:
        return list(self.pci)

    def start(self, vmid: int, config: Config, command: list[str]) -> int:
        if said := devices.problem(command):
            raise QemuFailed(said)
        # PVE takes them from their drivers, and returns none.
        self.pci |= dict.fromkeys(devices.passed_through(command), "vfio-pci")
        self.guests[vmid] = Guest(config)
        return next(self._pids)

    def alive(self, vmid: int) -> bool:
        return vmid in self.guests

    def kill(self, vmid: int) -> None:
        self.guests.pop(vmid, None)

    def power_down(self, vmid: int, config: Config) -> None:
        """The guest listens to its agent, and has nothing that hears an ACPI button."""
        if agent_enabled(config):
            self.kill(vmid)

    def reset(self, vmid: int) -> None:
        self.guests[vmid] = Guest(self.guests[vmid].config)

    def pause(self, vmid: int, *, resume: bool) -> None: ...

    def plug(self, vmid: int, drive: Drive, arguments: list[str]) -> None: ...

    def unplug(self, vmid: int, drive: Drive) -> None: ...

    def fill_container(self, vmid: int, root: str, archive: str) -> None:
        """Nothing is unpacked."""

    def start_container(self, vmid: int, config: Config, root: str) -> None:  # noqa: ARG002 - nothing runs
        self.containers.add(vmid)

    def container_runs(self, vmid: int) -> bool:
        return vmid in self.containers

    def stop_container(self, vmid: int) -> None:
        self.containers.discard(vmid)

    def has_device(self, path: str) -> bool:
        return path not in self.missing

    def begin_backup(self, vmid: int, keys: list[str], path: str, total: int) -> None:
        del keys, path
        self._backups[vmid] = time.monotonic(), total

    def backed_up(self, vmid: int) -> int | None:
        if vmid not in self._backups:
            return None
        began, total = self._backups[vmid]
        copied = int((time.monotonic() - began) * self.backup_rate)
        if copied >= total:
            del self._backups[vmid]
            return None
        return copied

    def cancel_backup(self, vmid: int) -> None:
        self._backups.pop(vmid, None)

    def monitor(self, vmid: int, command: str) -> str | None:
        del vmid, command
        return None

    def block_statistics(self, vmid: int) -> Mapping[str, Mapping[str, Any]] | None:
        del vmid
        return None

    # Volumes and disks: that they exist is all there is of them.

    def create(self, storage: Storage, volname: str, size_bytes: int) -> None:  # noqa: ARG002 - a Backing
        if storage.vgname:
            self.activated[storage.path_of(volname)] += 1

    def remove(self, storage: Storage, volname: str) -> None:
        if storage.vgname:
            if (path := storage.path_of(volname)) in self.held:
                raise PveError(f"lvremove '{path[5:]}' error:   Logical volume {path[5:]} in use.")
            self.inactive.discard(path)

    def copy(self, source: tuple[Storage, str], target: tuple[Storage, str]) -> None: ...

    def rename(self, storage: Storage, volname: str, new: str) -> None: ...

    def resize(self, storage: Storage, volname: str, size_bytes: int) -> None: ...

    def take_snapshot(self, storage: Storage, volname: str, name: str) -> None:
        self.snapshots.add(f"{storage.id}:{volname}@{name}")

    def drop_snapshot(self, storage: Storage, volname: str, name: str) -> None:
        self.snapshots.discard(f"{storage.id}:{volname}@{name}")

    def activate(self, storage: Storage, volname: str) -> None:
        if storage.kind == "rbd":
            self.map_image(storage.image_of(volname))
        elif (path := storage.path_of(volname)) in self.inactive:
            self.inactive.remove(path)
            self.activated[path] += 1

    def map_image(self, image: str) -> str:
        """The device of an image, which is mapped if it is not yet."""
        taken = set(self.mapped.values())
        free = next(path for path in (f"/dev/rbd{number}" for number in itertools.count()) if path not in taken)
        return self.mapped.setdefault(image, free)

    def deactivate(self, storage: Storage, volname: str) -> None:
        """Raises PveError where something has it open."""
        if storage.kind == "rbd":
            if (device := self.mapped.get(storage.image_of(volname))) is not None:
                self.unmap_device(device)
            return
        if (path := storage.path_of(volname)) in self.held:
            raise PveError(f"can't deactivate LV '{path}':   Logical volume {path[5:]} in use.")
        self.inactive.add(path)

    def unmap_device(self, device: str) -> None:
        """Raises PveError where something has it open, as RBDPlugin::unmap_volume."""
        if device in self.held:
            raise PveError(f"can't unmap rbd device {device}: rbd: sysfs write failed")
        self.mapped = {image: path for image, path in self.mapped.items() if path != device}

    def put(self, file: Path, storage: Storage, volname: str) -> None: ...

    def make(self, kind: str, name: str, disk: Disk, *, filesystem: str) -> None: ...

    def unmake(self, kind: str, name: str, disk: Disk | None, *, wipe: bool) -> None: ...

    def wipe(self, disk: Disk) -> None: ...

    def probe(self, path: str) -> Disk | None:
        del path
        return None

    def agent(self, vmid: int, command: str, arguments: Mapping[str, Any]) -> Any:
        guest = self.guests[vmid]
        match command:
            case "guest-exec":
                return {"pid": self._exec(guest, [str(arguments["path"]), *arguments.get("arg", [])], arguments)}
            case "guest-exec-status":
                return _status(guest, int(arguments["pid"]))
            case "guest-file-write":
                return _write(guest, str(arguments["file"]), str(arguments["content"]))
            case "guest-file-read":
                return _read(guest, arguments)
            case "guest-shutdown":
                del self.guests[vmid]
                return None
        return _answer(guest, command)

    def _exec(self, guest: Guest, words: list[str], arguments: Mapping[str, Any]) -> int:
        guest.asked.append(words)
        program = words[0].rpartition("/")[2]
        answer = guest.answers.get(words[-1])
        if answer is None and program not in _PROGRAMS:
            # Its answer would be a sentence with a line break in it, over which the API's worker stumbles.
            raise GuestHungUp
        pid = next(guest.pids)
        now = time.monotonic()
        if answer is not None:
            guest.ran[pid] = Ran(now, answer.exitcode, answer.out, answer.err)
        else:
            seconds = float(words[1]) if program == "sleep" else 0.0
            guest.ran[pid] = Ran(now + seconds * self._factor, out=str(arguments.get("input-data", "")))
        return pid


def _status(guest: Guest, pid: int) -> dict[str, Any]:
    if pid not in guest.ran:
        raise GuestFailed("Invalid parameter 'pid'")
    ran = guest.ran[pid]
    if time.monotonic() < ran.ends:
        return {"exited": 0}
    del guest.ran[pid]
    status: dict[str, Any] = {"exited": 1, "exitcode": ran.exitcode}
    for name, text in (("out", ran.out), ("err", ran.err)):
        status |= {f"{name}-data": text, f"{name}-truncated": 0} if text else {}
    return status


def _read(guest: Guest, arguments: Mapping[str, Any]) -> dict[str, Any]:
    path, begin = str(arguments["file"]), int(arguments.get("offset", 0))
    if path not in guest.files:
        raise GuestFailed(f"failed to open file '{path}' (mode: 'r'): No such file or directory")
    content, end = guest.files[path], begin + int(arguments.get("count", READ_BYTES))
    read = content[begin:end]
    return {"content": read, "bytes-read": len(read)} | ({"truncated": 1} if len(content) >= end else {})


def _write(guest: Guest, path: str, content: str) -> None:
    if path.rpartition("/")[0] not in _FOLDERS:
        raise GuestFailed(f"failed to open file '{path}' (mode: 'wb'): No such file or directory")
    guest.files[path] = content


def _answer(guest: Guest, command: str) -> Any:
    answers: dict[str, Any] = {
        "guest-ping": {},
        "guest-info": {
            "version": AGENT_VERSION,
            "supported_commands": [
                {"enabled": name not in _OFF, "name": name, "success-response": name not in UNANSWERED}
                for name in COMMANDS
            ],
        },
        "guest-network-get-interfaces": _interfaces(guest),
        "guest-get-osinfo": {"id": "mini", "pretty-name": "mini", "version-id": "1", "machine": "x86_64"},
        "guest-get-host-name": {"host-name": guest.config.get("name", "guest")},
        "guest-get-vcpus": [
            {"logical-id": number, "online": True, "can-offline": number > 0} for number in range(cpus(guest.config))
        ],
        "guest-fsfreeze-status": "thawed",
        "guest-fsfreeze-freeze": 0,
        "guest-fsfreeze-thaw": 0,
        **dict.fromkeys(UNANSWERED),
    }
    return answers.get(command, [])


def _interfaces(guest: Guest) -> list[dict[str, Any]]:
    found = [_interface("lo", "00:00:00:00:00:00", "127.0.0.1", 8)]
    for number, card in enumerate(network.cards(guest.config)):
        found.append(_interface(f"eth{number}", card.address.lower(), network.guest_address(card), 16))
    return found


def _interface(name: str, mac: str, address: str, prefix: int) -> dict[str, Any]:
    return {
        "name": name,
        "hardware-address": mac,
        "ip-addresses": [{"ip-address": address, "ip-address-type": "ipv4", "prefix": prefix}],
        "statistics": {f"{way}-{what}": 0 for way in ("rx", "tx") for what in ("bytes", "packets", "errs", "dropped")},
    }
