"""The locks of storages: the cluster's one of storage.cfg, and the node's one of each storage."""

from __future__ import annotations

from pve_double.errors import PveError
from pve_double.faults import Faults
from pve_double.pace import LOCK_SECONDS, Pace


class StorageLocks:
    """Nobody but a fault holds them. PVE gives up after ten seconds."""

    def __init__(self, faults: Faults, pace: Pace) -> None:
        self.faults = faults
        self._pace = pace

    def take_config(self, change: str) -> None:
        """PVE::Storage::lock_storage_config, for a change that is `create`, `update` or `delete`."""
        if self.faults.take("storage-config-locked", change):
            self._pace.sleep(LOCK_SECONDS)
            raise PveError(f"{change} storage failed: cfs-lock 'file-storage_cfg' error: got lock request timeout")

    def take(self, storage_id: str) -> None:
        """PVE::Storage::Plugin::cluster_lock_storage, for a storage that is not shared."""
        if self.faults.take("storage-locked", storage_id):
            self._pace.sleep(LOCK_SECONDS)
            raise PveError(f"can't lock file '/var/lock/pve-manager/pve-storage-{storage_id}' - got timeout")
