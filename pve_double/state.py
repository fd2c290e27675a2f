"""The node: everything that calls read and change, and the node that the recordings were made on."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pve_double.accounts import Accounts
from pve_double.auth import Access
from pve_double.errors import PveError
from pve_double.executor.base import Executor
from pve_double.faults import Faults
from pve_double.pace import LOCK_SECONDS, Pace
from pve_double.permissions import Permissions
from pve_double.pvestatd import Pvestatd
from pve_double.qemu.machine import Machine, VmBackup
from pve_double.storage.disks import Disk, Disks
from pve_double.storage.locks import StorageLocks
from pve_double.storage.store import Store
from pve_double.storage.volumes import Storage
from pve_double.tasks import TaskLog, Tasks

VERSION = {"release": "9.2", "repoid": "14a22df35955d97d", "version": "9.2.11"}
MANAGER = f"pve-manager/{VERSION['version']}/{VERSION['repoid']}"
KERNEL = "6.17.2-1-pve"
"""What the node says of itself, whatever runs the guests of a double."""
NODE = "pve"
FIRST_VMID = 100


@dataclass(frozen=True, slots=True)
class Settings:
    """What the node is like: its CPUs, whether it has KVM and ZFS, its bridges, and how fast its time goes."""

    cpus: int = 2
    kvm: bool = True
    zfs: bool = True
    bridges: tuple[str, ...] = ("vmbr0",)
    pace: Pace = field(default_factory=Pace)


@dataclass(slots=True)
class Container:
    """A container: its configuration, and those of its snapshots. Only a test makes snapshots."""

    config: dict[str, str] = field(default_factory=dict)
    snapshots: dict[str, dict[str, str]] = field(default_factory=dict)


class Node:
    """One Proxmox VE node. `account` is its first user and that one's password.

    It is alone in its cluster, or in that of the node `beside`: then they share accounts and the storage configuration.
    """

    def __init__(
        self,
        account: tuple[str, str],
        executor: Executor,
        settings: Settings,
        disks: Sequence[Disk],
        store: Store,
        *,
        beside: Node | None = None,
    ) -> None:
        self.name = store.node
        self.faults = store.locks.faults
        self.peers: dict[str, Node] = beside.peers if beside else {}
        self.peers[self.name] = self
        self.settings = settings
        self.pace = settings.pace
        self.executor = executor
        self.machines: dict[int, Machine] = {}
        self.pools: dict[str, dict[str, Any]] = beside.pools if beside else {}
        self.pool_of: dict[int, str] = beside.pool_of if beside else {}
        self.pool_storages: dict[str, set[str]] = beside.pool_storages if beside else {}
        self.accounts: Accounts = beside.accounts if beside else Accounts(*account)
        self.permissions: Permissions = beside.permissions if beside else Permissions(self.accounts, self.pool_of)
        self.access: Access = beside.access if beside else Access(self.accounts, self.pace)
        self.pci_mappings: dict[str, list[str]] = beside.pci_mappings if beside else {}
        """The entries of each resource mapping, as in mapping/pci.cfg."""
        self.files: dict[str, list[str]] = {}
        """Files that somebody has put below a directory, or logical volumes into a group, beside the volumes."""
        self.file_systems: dict[str, str] = {}
        """The device of the file system that a directory is on, where it is not that of the root."""
        self.thin_devices: dict[str, str] = {}
        """The thin pool, as VG/POOL, that a device is a volume of."""
        self.thin_usage: dict[str, tuple[str, str]] = {}
        """How full a thin pool's data and metadata are, in percent as LVM writes it."""
        self.containers: dict[int, Container] = {}
        self.backups: dict[int, VmBackup] = {}
        """The last backup of each VM, as its QEMU knows it."""
        self.backup_lock = threading.Lock()
        self.store = store
        self.disks = Disks(disks, store, executor, self.name)
        self.pvestatd = Pvestatd(self.disks, store)
        self.tasks = Tasks(self.name)
        self.started = time.monotonic()
        self._config_locks: dict[int, threading.Lock] = {}

    def machine(self, vmid: int) -> Machine:
        """The VM; 500 in PVE's words where there is none."""
        if vmid not in self.machines:
            raise PveError(f"Configuration file 'nodes/{self.name}/qemu-server/{vmid}.conf' does not exist")
        return self.machines[vmid]

    def running(self, vmid: int) -> bool:
        """Whether the VM runs; 500 where there is no such VM, as PVE looks for its configuration first."""
        if vmid not in self.machines:
            raise PveError(f"unable to find configuration file for VM {vmid} on node '{self.name}'")
        machine = self.machines[vmid]
        if machine.process is not None and not self.executor.alive(vmid):
            machine.process = None
        return machine.process is not None

    def next_vmid(self) -> int:
        return next(vmid for vmid in itertools.count(FIRST_VMID) if not self.has_in_cluster(vmid))

    def has_in_cluster(self, vmid: int) -> bool:
        return any(vmid in {*node.machines, *node.containers} for node in self.peers.values())

    @contextlib.contextmanager
    def config_lock(self, vmid: int, log: TaskLog | None = None, *, seconds: float = LOCK_SECONDS) -> Iterator[None]:
        """Hold a VM's configuration lock; PVE gives up after ten seconds, or one for a VM that is being created."""
        lock = self._config_locks.setdefault(vmid, threading.Lock())
        held_by_fault = self.faults.lock_is_held(vmid)
        if held_by_fault or not lock.acquire(blocking=False):
            if log is not None:
                log.line("trying to acquire lock...")
            if held_by_fault:
                self.pace.sleep(seconds)
            if held_by_fault or not lock.acquire(timeout=self.pace.real(seconds)):
                raise PveError(f"can't lock file '/var/lock/qemu-server/lock-{vmid}.conf' - got timeout")
        try:
            yield
        finally:
            lock.release()


def recorded_storages() -> list[Storage]:
    """`local` and `local-lvm` as on the node of the recordings."""
    files = frozenset({"import", "snippets", "iso", "images", "backup", "vztmpl"})
    return [
        Storage("local", "dir", files, 270_553_174_016, path="/var/lib/vz"),
        Storage(
            "local-lvm", "lvmthin", frozenset({"images", "rootdir"}), 214_748_364_800, vgname="pve", thinpool="data"
        ),
    ]


RECORDED_FILES: Mapping[str, int] = {
    "iso/mini.iso": 358_400,
    "import/mini-guest.qcow2": 24_969_216,
    "import/mini.qcow2": 196_616,
}
"""The files on `local` when the recordings began, with their sizes in bytes."""

IMPORTED_BYTES = 64 * 1024**2
"""The virtual size of the recorded images, which their files do not show."""

SYSTEM_DISK = Disk("/dev/vda", 274_877_906_944, vendor="0x1af4", kind="unknown", used="mounted", mounted=True)
RECORDED_DISK = Disk(
    "/dev/sdb", 2 * 1024**3, serial="PVETEST_disk1", by_id="/dev/disk/by-id/scsi-PVETEST_disk1", model="PVETEST"
)


def make_node(
    user: str,
    password: str,
    executor: Executor,
    settings: Settings,
    *,
    disks: Sequence[Disk] = (RECORDED_DISK,),
    files: Mapping[str, int] = RECORDED_FILES,
    name: str = NODE,
    beside: Node | None = None,
) -> Node:
    """A node with `local` and `local-lvm`, its system disk, `disks` to pass through, and `files` on `local`.

    With `beside` it joins that node's cluster.
    """
    storages = beside.store.storages if beside else {each.id: each for each in recorded_storages()}
    store = Store(storages, executor, name, StorageLocks(Faults(), settings.pace))
    for path, size_bytes in files.items():
        content, _, file = path.partition("/")
        store.add_file("local", content, file, size_bytes)
    own = [replace(each) for each in (SYSTEM_DISK, *disks)]
    return Node((user, password), executor, settings, own, store, beside=beside)
