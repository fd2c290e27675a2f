"""Backups of a VM by Proxmox VE (vzdump), while the VM runs.

A backup has the run's token in its notes once it is complete. Proxmox VE removes the file of one that was stopped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from typing import Literal

from harness.errors import GuestError
from harness.features.proxmox import GuestRules, NodeBackups, OnNode
from harness.features.proxmox.client import Client, Expected, PveError
from harness.features.proxmox.disk_users import require_same_node
from harness.features.proxmox.layouts import FILE_STORAGES, require_room
from harness.features.proxmox.machine import VirtualMachine
from harness.features.proxmox.vm_config import parse_drive, read_token
from harness.lab.created import CreationLog, Entry, Removal, Thing
from harness.lab.storages import Allocation
from harness.lab.transport.base import Runner
from harness.model.attach import Attach
from harness.model.mode import Mode
from harness.signals import wait_until
from harness.units import format_duration
from harness.untrusted import count, reading


class CreatedBackups(Thing):
    """The backups of the VM `vmid` of a run on a storage. The token of the VM is in their notes."""

    kind: Literal["pve-backups"] = "pve-backups"
    node: str
    storage: str
    vmid: int
    token: str

    @property
    def words(self) -> str:
        return f"backups of VM {self.vmid} on storage {self.storage}"


VZDUMP = "vzdump"
BEGIN_SECONDS = 60.0
STOP_SECONDS = 90.0
_POLL_SECONDS = 0.1
_COPYING = "started backup task"
"""What the task prints when QEMU copies."""
_TRANSFERRED = re.compile(r"Transferred bytes: (\d+)")
_BACKUP, _SPACE = "VM.Backup", "Datastore.AllocateSpace"


def refuse_on_node(client: Client, rules: GuestRules, mode: Mode) -> str | None:
    """Why vzdump cannot back up the VM of a mode with this login, with the remedy; None if it can."""
    if isinstance(mode.attach, Attach) and mode.attach.iothread_vq_mapping:
        return "vzdump copies drives, and a disk with iothread_vq_mapping is an argument of QEMU: leave out one"
    key = f"host.{client.host}.guest.backup_storage"
    if rules.backup_storage is None:
        return f"the lab file names no storage for backups: name one as {key}"
    entry = client.storages(of_node=True).get(rules.backup_storage)
    if entry is None or "backup" not in str(entry.get("content", "")).split(","):
        what = "does not exist there" if entry is None else "does not accept backups"
        return f"storage {rules.backup_storage} {what}: name another one as {key}"
    if (kind := entry["type"]) not in FILE_STORAGES:
        return (
            f"storage {rules.backup_storage} is of type {kind}, on which the node does not show the free space: name "
            f"one of type {', '.join(FILE_STORAGES)} as {key}"
        )
    for path, privilege in (("/vms", _BACKUP), (f"/storage/{rules.backup_storage}", _SPACE)):
        if privilege not in client.privileges(path):
            return f"{client.spec.who} lacks {privilege} on {path}, which vzdump needs: docs/proxmox.md has the roles"
    return None


def require_room_on_node(client: Client, rules: GuestRules, runner: Runner, size_bytes: int) -> None:
    """Raises Unsupported if so many bytes of backups do not fit on their storage."""
    if rules.backup_storage is not None:
        require_room(client, runner, [Allocation(rules.backup_storage, size_bytes)])


@contextmanager
def open_on_node(
    log: CreationLog, machine: VirtualMachine, rules: GuestRules
) -> Iterator[Callable[[str, Sequence[str]], Vzdump] | None]:
    """Makes the backups of a VM: gets one of its drives, and all drives of the run. None without a storage for them.

    They are recorded before the first one is made, and removed at the end.
    """
    storage = rules.backup_storage
    token = read_token(str(machine.config().get("description", ""))) if storage is not None else None
    if storage is None or token is None:
        yield None
        return
    client = machine.client
    backups = CreatedBackups(node=client.spec.node, storage=storage, vmid=machine.vmid, token=token)
    with ExitStack() as stack:

        @cache
        def record() -> CreatedBackups:
            stack.enter_context(log.making(backups, partial(end_backups, client, backups)))
            return backups

        yield lambda key, keys: Vzdump(machine, key, keys, record())


class Vzdump:
    """A `Backup` of one drive of a VM. `keys` are all drives of the run: only this one is backed up."""

    def __init__(self, machine: VirtualMachine, key: str, keys: Sequence[str], backups: CreatedBackups) -> None:
        self._machine = machine
        self._client = machine.client
        self._key = key
        self._keys = keys
        self._backups = backups
        self._task: str | None = None

    def begin(self) -> None:
        self._choose_drive()
        settings = {
            "vmid": self._machine.vmid,
            "storage": self._backups.storage,
            "mode": "snapshot",
            "compress": "0",
            # Nothing of others is removed, and nobody gets a message about each copy.
            "remove": 0,
            "notification-mode": "legacy-sendmail",
            "notes-template": self._backups.token,
        }
        end = Expected(VZDUMP, str(self._machine.vmid))
        self._task = self._client.start_task("post", f"{self._client.node}/vzdump", settings, expected=end)
        if not wait_until(self._is_copying, deadline=BEGIN_SECONDS, every=_POLL_SECONDS):
            self.cancel()
            raise GuestError(
                f"{self._machine.words}: vzdump did not begin to copy within {format_duration(BEGIN_SECONDS)}",
                hint="another backup of the node may run: Proxmox VE makes one at a time",
            )

    def copied(self) -> int | None:
        if self._has_ended():
            return None
        printed = self._machine.ask_monitor("info backup")
        match = _TRANSFERRED.search(printed)
        return count(int(match[1])) if match else 0

    def cancel(self) -> None:
        if self._task is not None and not self._read_status().get("stopped"):
            stop_task(self._client, self._task)
        self._task = None
        remove_backups(self._client, self._backups)

    def _choose_drive(self) -> None:
        """Let the backup have this drive alone. That is an option of drives which a running VM can change."""
        config = self._machine.config()
        changed = {}
        for key in self._keys:
            options = parse_drive(str(config[key]))
            wanted = str(int(key == self._key))
            if options.get("backup", "1") != wanted:
                source = options.pop("file")
                others = (f"{name}={value}" for name, value in (options | {"backup": wanted}).items())
                changed[key] = ",".join([source, *others])
        if changed:
            self._machine.set(changed)

    def _is_copying(self) -> bool:
        if self._has_ended():
            return True
        return any(_COPYING in line for line in self._client.read_log(str(self._task)))

    def _has_ended(self) -> bool:
        """Whether the task has ended. Raises GuestError if it failed."""
        status = self._read_status()
        if not status.get("stopped"):
            return False
        end = status["stopped"]
        if end == "OK" or end.startswith("WARNINGS"):
            return True
        log = "\n     ".join(self._client.read_log(str(self._task))[-4:])
        raise GuestError(
            f"{self._machine.words}: the backup of {self._key} failed: {end}; its log ends with:\n     {log}",
            hint="see the task log of the node, and the free space of the storage for backups",
        )

    def _read_status(self) -> Mapping[str, str]:
        return read_status(self._client, str(self._task))


def read_status(client: Client, upid: str) -> Mapping[str, str]:
    """`stopped` with the exit status of a task that has ended; empty for one that runs."""
    status = client.get(f"{client.node}/tasks/{upid}/status")
    with reading(f"host {client.host}: the status of task {upid}", GuestError):
        return {"stopped": str(status.get("exitstatus", ""))} if status["status"] == "stopped" else {}


def stop_task(client: Client, upid: str) -> None:
    """Stop a task of the login, and wait until it has ended. Raises GuestError, PveError."""

    def has_ended() -> bool:
        return bool(read_status(client, upid))

    client.write("delete", f"{client.node}/tasks/{upid}", {}, is_done=has_ended)
    if not wait_until(has_ended, deadline=STOP_SECONDS, every=_POLL_SECONDS):
        raise GuestError(
            f"host {client.host}: task {upid} did not end after it was stopped",
            hint="see the task log of the node, then: virt-overhead reap",
        )


def remove_backups(client: Client, backups: CreatedBackups) -> Removal:
    """Remove the complete backups of the run's VM that have its token in their notes. Raises PveError."""
    path = f"{client.node}/storage/{backups.storage}/content"
    removed = False
    listed = client.get(path, {"content": "backup", "vmid": backups.vmid})
    with reading(f"host {client.host}: the backups on storage {backups.storage}", GuestError):
        ours = [str(entry["volid"]) for entry in listed if backups.token in str(entry.get("notes", ""))]
    for volid in ours:
        client.task(
            "delete",
            f"{path}/{volid}",
            {},
            is_done=partial(_is_gone, client, path, volid),
            expected=Expected("imgdel", f"{backups.vmid}@{backups.storage}"),
            deadline=STOP_SECONDS,
        )
        removed = True
    return Removal("removed" if removed else "absent")


def _is_gone(client: Client, path: str, volid: str) -> bool:
    return all(entry["volid"] != volid for entry in client.get(path))


def end_backups(client: Client, backups: CreatedBackups) -> Removal:
    """Stop the backups of the run's VM that still run, and remove all of them. Raises GuestError, PveError."""
    client.require_node(backups.node)
    machine = VirtualMachine(client, backups.vmid)
    with suppress(PveError):
        # Without the VM, nothing of it is backed up.
        if backups.token not in str(machine.config().get("description", "")):
            return Removal("foreign", f"VM {backups.vmid} is not the VM of this run")
    running = client.get(f"{client.node}/tasks", {"source": "active", "vmid": backups.vmid, "typefilter": VZDUMP})
    with reading(f"host {client.host}: its running tasks", GuestError):
        tasks = [str(task["upid"]) for task in running]
    for upid in tasks:
        stop_task(client, upid)
    removal = remove_backups(client, backups)
    return Removal("removed") if tasks else removal


def remove_from_node(client: Client, runner: Runner, entry: Entry) -> Removal | None:
    """Remove the backups that a killed run left; None for other entries. Raises GuestError, PveError, SafetyError."""
    if (backups := entry.parsed((CreatedBackups,))) is None:
        return None
    require_same_node(client, runner)
    return end_backups(client, backups)


ON_NODE = OnNode(
    things=(CreatedBackups,),
    remove=remove_from_node,
    backups=NodeBackups(refuse=refuse_on_node, require_room=require_room_on_node, open=open_on_node),
)
