"""The doctor's findings about the storages in use of a host with libvirt. Changes nothing."""

from __future__ import annotations

from harness.errors import HarnessError
from harness.guest.libvirt.pools import in_definition
from harness.lab.findings import Finding, Level
from harness.lab.guard.room import free_bytes
from harness.lab.space import reserve_bytes
from harness.lab.storage import DiskByStorage
from harness.lab.storage_look import FoundStorage, look_at
from harness.lab.transport.base import Runner
from harness.units import format_size

_WHY = "a run creates its own volumes on a storage in use, and keeps enough of it free for others"


def storage_finding(runner: Runner, storage: DiskByStorage) -> Finding:
    """Whether the storage can be used, which layouts it offers, and how much space a run may use."""
    check = f"{storage.name}: storage"
    try:
        found = _found(runner, storage)
        free, total = free_bytes(runner, found)
    except HarnessError as error:
        return Finding(check, error.message, Level.PROBLEM, _WHY, error.hint or "correct the lab file")
    usable = max(free - reserve_bytes(total), 0)
    value = f"{found.words} offers {', '.join(found.layouts)}; {format_size(usable)} for volumes of a run"
    if usable:
        return Finding(check, value, Level.OK, _WHY)
    return Finding(check, value, Level.PROBLEM, _WHY, "free space there, or name another storage")


def _found(runner: Runner, storage: DiskByStorage) -> FoundStorage:
    if storage.key == "pool":
        dump = ["virsh", "--connect", "qemu:///system", "pool-dumpxml", storage.at]
        text = runner.run(dump, deadline=60).stdout
        return look_at(runner, *in_definition(text, f"{runner.name}: {storage.identity}"))
    assert storage.key != "storage", "the lab file allows it only on a node of Proxmox VE"
    return look_at(runner, storage.key, storage.at)
