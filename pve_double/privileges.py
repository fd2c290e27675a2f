"""PVE's privileges and the roles that it makes of them, as PVE::AccessControl groups them."""

from __future__ import annotations

from collections.abc import Mapping

_GROUPS: Mapping[str, Mapping[str, str]] = {
    "VM": {
        "admin": "VM.Allocate VM.Clone VM.Config.CPU VM.Config.Disk VM.Config.HWType VM.Config.Memory "
        "VM.Config.Network VM.Config.Options VM.GuestAgent.FileRead VM.GuestAgent.FileSystemMgmt "
        "VM.GuestAgent.FileWrite VM.GuestAgent.Unrestricted VM.Migrate VM.Replicate VM.Snapshot VM.Snapshot.Rollback",
        "user": "VM.Backup VM.Config.CDROM VM.Config.Cloudinit VM.Console VM.PowerMgmt",
        "audit": "VM.Audit VM.GuestAgent.Audit",
    },
    "Sys": {
        "root": "Permissions.Modify Sys.AccessNetwork Sys.Incoming Sys.Modify Sys.PowerMgmt",
        "admin": "Sys.Console Sys.Syslog",
        "audit": "Sys.Audit",
    },
    "Datastore": {
        "admin": "Datastore.Allocate Datastore.AllocateTemplate",
        "user": "Datastore.AllocateSpace",
        "audit": "Datastore.Audit",
    },
    "SDN": {"admin": "SDN.Allocate", "user": "SDN.Use", "audit": "SDN.Audit"},
    "User": {"root": "Realm.Allocate", "admin": "Group.Allocate Realm.AllocateUser User.Modify"},
    "Pool": {"admin": "Pool.Allocate", "user": "Pool.Audit", "audit": "Pool.Audit"},
    "Mapping": {"admin": "Mapping.Modify", "user": "Mapping.Use", "audit": "Mapping.Audit"},
}
"""By what they are about and whom they are for; what is for root alone is in no role but Administrator."""


def _held(group: Mapping[str, str], *levels: str) -> frozenset[str]:
    return frozenset(name for level in levels for name in group.get(level, "").split())


def _in_all(*levels: str) -> frozenset[str]:
    return frozenset().union(*(_held(group, *levels) for group in _GROUPS.values()))


PRIVILEGES = _in_all("root", "admin", "user", "audit")

SPECIAL_ROLES: Mapping[str, frozenset[str]] = {
    "Administrator": PRIVILEGES,
    "NoAccess": frozenset(),
    "PVEAdmin": _in_all("admin", "user", "audit"),
    "PVEAuditor": _in_all("audit"),
    "PVETemplateUser": frozenset({"VM.Audit", "VM.Clone"}),
    **{f"PVE{name}Admin": _held(group, "admin", "user", "audit") for name, group in _GROUPS.items()},
    **{f"PVE{name}User": _held(group, "user", "audit") for name, group in _GROUPS.items() if "user" in group},
}
"""The roles of every node, which nobody can change."""
