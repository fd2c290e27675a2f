"""Every method that the double serves, by HTTP method and path."""

from __future__ import annotations

from tests.pve_double.api import access, cluster, disks, qemu, storage
from tests.pve_double.api.call import Handler

_TASK = "/nodes/{node}/tasks/{upid}"

ROUTES: dict[tuple[str, str], Handler] = {
    ("POST", "/access/ticket"): access.create_ticket,
    ("GET", "/access/users"): access.list_users,
    ("POST", "/access/users"): access.create_user,
    ("POST", "/access/users/{userid}/token/{tokenid}"): access.create_token,
    ("DELETE", "/access/users/{userid}/token/{tokenid}"): access.delete_token,
    ("PUT", "/access/acl"): access.change_acl,
    ("GET", "/access/roles"): access.list_roles,
    ("POST", "/access/roles"): access.create_role,
    ("GET", "/access/permissions"): access.permissions,
    ("GET", "/version"): cluster.version,
    ("GET", "/cluster/nextid"): cluster.next_id,
    ("GET", "/cluster/resources"): cluster.resources,
    ("GET", "/cluster/status"): cluster.cluster_status,
    ("GET", "/cluster/tasks"): cluster.list_tasks,
    ("GET", "/nodes"): cluster.nodes,
    ("GET", "/nodes/{node}"): cluster.index("disks", "network", "qemu", "status", "storage", "tasks", "version"),
    ("GET", "/nodes/{node}/status"): cluster.node_status,
    ("GET", "/nodes/{node}/version"): cluster.version,
    ("GET", "/nodes/{node}/network"): cluster.network,
    ("GET", "/nodes/{node}/disks"): cluster.index("directory", "list", "lvm", "lvmthin", "wipedisk", "zfs"),
    ("GET", "/nodes/{node}/lxc"): cluster.containers,
    ("GET", "/nodes/{node}/tasks"): cluster.list_tasks,
    ("GET", f"{_TASK}/status"): cluster.task_status,
    ("GET", f"{_TASK}/log"): cluster.task_log,
    ("DELETE", _TASK): cluster.stop_task,
    ("GET", "/pools"): cluster.list_pools,
    ("POST", "/pools"): cluster.create_pool,
    ("GET", "/pools/{poolid}"): cluster.get_pool,
    ("PUT", "/pools/{poolid}"): cluster.update_pool,
    ("PUT", "/pools"): cluster.update_pool,
    ("DELETE", "/pools/{poolid}"): cluster.delete_pool,
    ("DELETE", "/pools"): cluster.delete_pool,
    **qemu.ROUTES,
    **storage.ROUTES,
    **disks.ROUTES,
}
