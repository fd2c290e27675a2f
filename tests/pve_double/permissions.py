"""Roles, access control lists, and whether a user may do something somewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.pve_double.errors import PveError, bad_parameters, forbidden

ROOT = "root@pam"
PRIVILEGES = frozenset(
    f"{group}.{name}"
    for group, names in {
        "Datastore": "Allocate AllocateSpace AllocateTemplate Audit",
        "Group": "Allocate",
        "Mapping": "Audit Modify Use",
        "Permissions": "Modify",
        "Pool": "Allocate Audit",
        "Realm": "Allocate AllocateUser",
        "SDN": "Allocate Audit Use",
        "Sys": "AccessNetwork Audit Console Incoming Modify PowerMgmt Syslog",
        "User": "Modify",
        "VM": "Allocate Audit Backup Clone Config.CDROM Config.CPU Config.Cloudinit Config.Disk Config.HWType "
        "Config.Memory Config.Network Config.Options Console GuestAgent.Audit GuestAgent.FileRead "
        "GuestAgent.FileSystemMgmt GuestAgent.FileWrite GuestAgent.Unrestricted Migrate PowerMgmt Replicate Snapshot "
        "Snapshot.Rollback",
    }.items()
    for name in names.split()
)
_ADMINISTRATORS_ALONE = {
    "Permissions.Modify", "Realm.Allocate", "Sys.Modify", "Sys.PowerMgmt", "Sys.Incoming", "Sys.AccessNetwork",
}  # fmt: skip


def _roles() -> dict[str, frozenset[str]]:
    machines = frozenset(each for each in PRIVILEGES if each.startswith("VM."))
    return {
        "Administrator": PRIVILEGES,
        "NoAccess": frozenset(),
        "PVEAdmin": PRIVILEGES - _ADMINISTRATORS_ALONE,
        "PVEAuditor": frozenset(each for each in PRIVILEGES if each.endswith(".Audit")),
        "PVEVMAdmin": machines,
        "PVEVMUser": frozenset(f"VM.{name}" for name in ("Audit", "Backup", "Config.CDROM", "Console", "PowerMgmt")),
        "PVEDatastoreAdmin": frozenset(each for each in PRIVILEGES if each.startswith("Datastore.")),
        "PVEDatastoreUser": frozenset({"Datastore.AllocateSpace", "Datastore.Audit"}),
        "PVESDNUser": frozenset({"SDN.Use", "SDN.Audit"}),
    }


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of an access control list: `who` is a user or a full token id."""

    path: str
    who: str
    role: str
    propagate: bool = True


class Permissions:
    """Who may do what. `pools` says which pool a VM is in, as a path of a VM inherits from its pool's."""

    def __init__(self, pool_of: Mapping[int, str]) -> None:
        self.roles = _roles()
        self._entries: list[Entry] = []
        self._separated: set[str] = set()
        self._pool_of = pool_of

    def separate(self, token: str) -> None:
        """`token` has privileges of its own (privsep=1), and never more than its user."""
        self._separated.add(token)

    def change(self, entries: Iterable[Entry], *, delete: bool) -> None:
        for entry in entries:
            if entry.role not in self.roles:
                raise bad_parameters({"roles": f"role '{entry.role}' does not exist"})
            self._entries = [each for each in self._entries if each != entry]
            if not delete:
                self._entries.append(entry)

    def add_role(self, name: str, privileges: Iterable[str]) -> None:
        if name in self.roles:
            raise PveError(f"create role failed: role '{name}' already exists")
        if unknown := sorted(set(privileges) - PRIVILEGES):
            raise PveError(f"create role failed: invalid privilege '{unknown[0]}'")
        self.roles[name] = frozenset(privileges)

    def at(self, who: str, path: str) -> frozenset[str]:
        """All privileges of a user or token at a path."""
        user, _, token = who.partition("!")
        own = PRIVILEGES if user == ROOT else self._granted(user, path)
        return own & self._granted(who, path) if token and who in self._separated else own

    def _granted(self, who: str, path: str) -> frozenset[str]:
        granted = self._along(who, path)
        kind, _, vmid = path.strip("/").partition("/")
        if kind == "vms" and vmid.isdigit() and int(vmid) in self._pool_of:
            granted |= self._along(who, f"/pool/{self._pool_of[int(vmid)]}")
        return granted

    def _along(self, who: str, path: str) -> frozenset[str]:
        # An entry nearer to the path replaces what was granted above it.
        granted: frozenset[str] = frozenset()
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1):
            here = "/" + "/".join(parts[:depth])
            roles = [
                each.role
                for each in self._entries
                if each.who == who and each.path == here and (each.propagate or depth == len(parts))
            ]
            if roles:
                granted = frozenset().union(*(self.roles[role] for role in roles))
        return granted

    def has(self, who: str, path: str, privileges: Sequence[str], *, any_of: bool = False) -> bool:
        held = self.at(who, path)
        return any(each in held for each in privileges) if any_of else set(privileges) <= held

    def require(self, who: str, path: str, privileges: Sequence[str], *, any_of: bool = False) -> None:
        """403 as PVE words it, unless `who` holds all (or one) of the privileges at `path`."""
        if self.has(who, path, privileges, any_of=any_of):
            return
        if any_of:
            raise forbidden(f"{path}, {'|'.join(privileges)}")
        held = self.at(who, path)
        raise forbidden(f"{path}, {next(each for each in privileges if each not in held)}")

    def require_rule(self, who: str, rule: Mapping[str, Any] | None, values: Mapping[str, object]) -> None:
        """Check an API method's own rule; a method without one is for root alone."""
        if rule is None:
            if who.partition("!")[0] != ROOT:
                raise forbidden("user != root@pam")
        elif "check" in rule:
            self._require_check(who, rule["check"], values)

    def _require_check(self, who: str, check: Sequence[Any], values: Mapping[str, object]) -> None:
        kind = check[0]
        if kind == "perm":
            path = "".join(
                str(values.get(part[1:-1], "")) if part.startswith("{") else part for part in _parts(check[1])
            )
            self.require(who, path, check[2], any_of="any" in check[3:])
        elif kind == "and":
            for each in check[1:]:
                self._require_check(who, each, values)
        elif kind == "or":
            self._require_one(who, check[1:], values)

    def _require_one(self, who: str, checks: Sequence[Any], values: Mapping[str, object]) -> None:
        refused = None
        for each in checks:
            if "require_param" in each and each[each.index("require_param") + 1] not in values:
                continue
            try:
                self._require_check(who, each, values)
            except PveError as error:
                refused = refused or error
            else:
                return
        raise refused or forbidden("no rule applies")


def _parts(path: str) -> list[str]:
    """`/vms/{vmid}` as `["/vms/", "{vmid}"]`."""
    return path.replace("{", "\0{").replace("}", "}\0").split("\0")
