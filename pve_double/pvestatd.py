"""The status daemon of the node, which asks every storage for its space all the time.

It lists all volume groups, whichever storage it asks: PVE::Storage::LVMPlugin::lvm_vgs. LVM reads labels and metadata
in blocks of 128 KiB, with each of its commands again.
"""

from __future__ import annotations

from pve_double.storage.disks import Disks
from pve_double.storage.store import Store

INTERVAL_SECONDS = 10.0
READS = (128 * 1024, 512 * 1024, 256 * 1024)
"""What a poll read on the second recorded node, from a disk with a volume group."""
_LVM = frozenset({"lvm", "lvmthin"})


class Pvestatd:
    """Where nothing is behind the node, a test says how much time has passed, and this counts what was read."""

    def __init__(self, disks: Disks, store: Store) -> None:
        self._disks = disks
        self._store = store
        self._seconds = 0.0
        self._polls = 0

    def pass_time(self, seconds: float) -> None:
        before, self._seconds = self._seconds, self._seconds + seconds
        for _ in range(int(self._seconds // INTERVAL_SECONDS) - int(before // INTERVAL_SECONDS)):
            self.poll()

    def poll(self) -> None:
        """One poll: without a storage on LVM, nobody asks LVM."""
        if any(each.kind in _LVM and not each.disabled for each in self._store.storages.values()):
            for pool in self._disks.pools:
                pool.disk.read_bytes += READS[self._polls % len(READS)] if pool.kind in _LVM else 0
        self._polls += 1
