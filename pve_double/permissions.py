"""Roles, access control lists, and whether a user may do something somewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pve_double.accounts import Accounts
from pve_double.errors import PveError, forbidden
from pve_double.privileges import PRIVILEGES, SPECIAL_ROLES

ROOT = "root@pam"
_OWNERS = {"/storage/": "Datastore.Allocate", "/vms/": "VM.Allocate", "/pool/": "Pool.Allocate"}
"""Who owns a thing may also give it to others: the privilege by where it is."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of an access control list: `who` is a user or a full token id."""

    path: str
    who: str
    role: str
    propagate: bool = True

    def is_about_the_same_as(self, other: Entry) -> bool:
        return (self.path, self.who, self.role) == (other.path, other.who, other.role)


class Permissions:
    """Who may do what. `pool_of` says which pool a VM is in, as a path of a VM inherits from its pool's."""

    def __init__(self, accounts: Accounts, pool_of: Mapping[int, str]) -> None:
        self.roles = dict(SPECIAL_ROLES)
        self.entries: list[Entry] = []
        self._accounts = accounts
        self._pool_of = pool_of

    def change(self, entries: Iterable[Entry], *, delete: bool) -> None:
        """Add (or take away) entries; one for the same path, person and role is replaced."""
        for entry in entries:
            self.entries = [each for each in self.entries if not each.is_about_the_same_as(entry)]
            if not delete:
                self.entries.append(entry)

    def forget(self, who: str) -> None:
        """Drop every entry of a user that is gone."""
        self.entries = [each for each in self.entries if each.who != who]

    def forget_path(self, path: str) -> None:
        """Drop every entry of a thing that is gone."""
        self.entries = [each for each in self.entries if each.path != path]

    def at(self, who: str, path: str) -> frozenset[str]:
        """All privileges of a user or token at a path."""
        user, _, token = who.partition("!")
        own = PRIVILEGES if user == ROOT else self._granted(user, path)
        return own & self._granted(who, path) if token and self._accounts.is_separated(who) else own

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
                for each in self.entries
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
        """Check an API method's own rule; a method without one is for root's ticket alone, not for its tokens."""
        if rule is None:
            if who != ROOT:
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
        elif kind == "perm-modify":
            self.require_to_modify(who, str(values["path"]))
        elif kind == "userid-param":
            self._require_user(who, check[1], str(values["userid"]))
        elif kind == "userid-group":
            self.require(who, "/access/groups", check[1], any_of=True)
        elif kind == "and":
            for each in check[1:]:
                self._require_check(who, each, values)
        elif kind == "or":
            self._require_one(who, check[1:], values)

    def require_to_modify(self, who: str, path: str) -> None:
        """The right to change who may do what at a path, as RPCEnvironment's check_perm_modify has it."""
        owner = next((each for start, each in _OWNERS.items() if path.startswith(start) and path != start), None)
        self.require(who, path, ["Permissions.Modify", *([owner] if owner else [])], any_of=True)

    def _require_user(self, who: str, what: str, userid: str) -> None:
        if what == "self":
            if who != userid:
                raise PveError("Permission check failed", status=403)
            return
        self.require(who, f"/access/realm/{userid.rpartition('@')[2]}", [what])

    def _require_one(self, who: str, checks: Sequence[Any], values: Mapping[str, object]) -> None:
        """403 without a reason, as PVE::RPCEnvironment gives none where several rights would have done."""
        for each in checks:
            if "require_param" in each and each[each.index("require_param") + 1] not in values:
                continue
            try:
                self._require_check(who, each, values)
            except PveError:
                continue
            return
        raise PveError("Permission check failed", status=403)


def _parts(path: str) -> list[str]:
    """`/vms/{vmid}` as `["/vms/", "{vmid}"]`."""
    return path.replace("{", "\0{").replace("}", "}\0").split("\0")
