"""Every method that the double serves, by HTTP method and path."""

from __future__ import annotations

from pve_double.api import access, cluster, disks, lxc, pools, qemu, snapshots, storage, storage_config, tasks
from pve_double.api.call import Handler

ROUTES: dict[tuple[str, str], Handler] = {
    **access.ROUTES,
    **cluster.ROUTES,
    **pools.ROUTES,
    **tasks.ROUTES,
    **qemu.ROUTES,
    **snapshots.ROUTES,
    **lxc.ROUTES,
    **storage.ROUTES,
    **storage_config.ROUTES,
    **disks.ROUTES,
}
