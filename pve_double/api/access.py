"""Tickets, users, tokens, roles, access control lists."""

from __future__ import annotations

import re
from typing import Any

from pve_double.accounts import shown_token
from pve_double.api.call import Call, Handler
from pve_double.errors import PveError, bad_parameters
from pve_double.permissions import ROOT, Entry
from pve_double.privileges import SPECIAL_ROLES
from pve_double.schema import split_list

_USER = "/access/users/{userid}"
_ROLE = "/access/roles/{roleid}"
_ID = r"[A-Za-z0-9._-]+"
_ACL_PATH = re.compile(
    rf"/|/(access|nodes|pool|sdn|storage|vms|mapping)|/access/(groups|realm)(/{_ID})?|/nodes/{_ID}|/pool(/{_ID}){{1,3}}"
    rf"|/sdn/(controllers|dns|ipams|zones|fabrics)(/{_ID}){{0,3}}|/storage/{_ID}|/vms/[1-9][0-9]{{2,}}"
    rf"|/mapping/(cpu|dir|hwrng|pci|usb)(/{_ID})?"
)
"""What PVE::AccessControl::check_path knows."""


def create_ticket(call: Call) -> dict[str, Any]:
    user = call.text("username")
    if "@" not in user:
        user = f"{user}@{call.text('realm', 'pam')}"
    return call.node.access.log_in(user, call.text("password"))


# Users and tokens


def list_users(call: Call) -> list[dict[str, Any]]:
    accounts, may = call.node.accounts, call.node.permissions
    every = may.has(call.user, "/access/groups", ["User.Modify", "Sys.Audit"], any_of=True)
    found = [name for name in sorted(accounts.users) if every or name == call.user]
    if "enabled" in call.params:
        found = [name for name in found if accounts.users[name].enabled == call.flag("enabled")]
    return [accounts.listing(name, full=call.flag("full")) for name in found]


def create_user(call: Call) -> None:
    call.node.accounts.add_user(call.text("userid"), call.texts)


def get_user(call: Call) -> dict[str, Any]:
    return call.node.accounts.details(call.text("userid"))


def change_user(call: Call) -> None:
    call.node.accounts.change_user(call.text("userid"), call.texts)


def delete_user(call: Call) -> None:
    call.node.accounts.users.pop(call.text("userid"), None)
    call.node.permissions.forget(call.text("userid"))


def list_tokens(call: Call) -> list[dict[str, Any]]:
    tokens = call.node.accounts.user(call.text("userid")).tokens
    return [{"tokenid": name, **shown_token(token)} for name, token in tokens.items()]


def create_token(call: Call) -> dict[str, Any]:
    """The answer is the only place where the token's value is told."""
    user, name = call.text("userid"), call.text("tokenid")
    token = call.node.accounts.add_token(user, name, call.texts)
    info: dict[str, Any] = {"privsep": 1} | {key: token.settings[key] for key in token.settings if key in call.params}
    return {"full-tokenid": f"{user}!{name}", "value": token.value, "info": info}


def change_token(call: Call) -> dict[str, Any]:
    return shown_token(call.node.accounts.change_token(call.text("userid"), call.text("tokenid"), call.texts))


def delete_token(call: Call) -> None:
    call.node.accounts.remove_token(call.text("userid"), call.text("tokenid"))


# Access control lists


def list_acl(call: Call) -> list[dict[str, Any]]:
    may = call.node.permissions
    audits = may.has(call.user, "/access", ["Sys.Audit"])
    return [
        {
            "path": entry.path,
            "type": "token" if "!" in entry.who else "user",
            "ugid": entry.who,
            "roleid": entry.role,
            "propagate": int(entry.propagate),
        }
        for entry in sorted(may.entries, key=lambda each: each.path)
        if audits or may.has(call.user, entry.path, ["Permissions.Modify"])
    ]


def change_acl(call: Call) -> None:
    path = _acl_path(call)
    _require_known(call)
    who = split_list(call.text("users")) + split_list(call.text("tokens"))
    propagate = call.text("propagate", "1") == "1"
    entries = [Entry(path, each, role, propagate) for each in who for role in split_list(call.text("roles"))]
    call.node.permissions.change(entries, delete=call.flag("delete"))


def _acl_path(call: Call) -> str:
    kinds = ("users", "groups", "tokens")
    if not any(call.text(kind) for kind in kinds):
        raise bad_parameters(dict.fromkeys(kinds, "either 'users', 'groups' or 'tokens' is required."))
    given = call.text("path")
    path = "/" + re.sub("/+", "/", given).strip("/")
    if not re.fullmatch("[A-Za-z0-9._/-]+", path) or not (call.flag("delete") or _ACL_PATH.fullmatch(path)):
        raise bad_parameters({"path": f"invalid ACL path '{given}'"})
    return path


def _require_known(call: Call) -> None:
    accounts, failed = call.node.accounts, "ACL update failed"
    for role in split_list(call.text("roles")):
        if role not in call.node.permissions.roles:
            raise PveError(f"{failed}: role '{role}' does not exist")
    for group in split_list(call.text("groups")):
        raise PveError(f"{failed}: group '{group}' does not exist")
    for user in split_list(call.text("users")):
        if user not in accounts.users:
            raise PveError(f"{failed}: user '{user}' does not exist")
    for full in split_list(call.text("tokens")):
        user, _, token = full.partition("!")
        try:
            accounts.token(user, token)
        except PveError as missing:
            raise PveError(f"{failed}: {missing}") from None


def permissions(call: Call) -> dict[str, dict[str, int]]:
    """The privileges of the caller, or of `userid`, at a path or at all paths that have some."""
    who = call.text("userid") or call.user
    if call.user not in {who, ROOT}:
        call.node.permissions.require(call.user, "/access", ["Sys.Audit"])
    paths = (
        [call.text("path")]
        if "path" in call.params
        else ["/", "/access", "/nodes", "/pool", "/sdn", "/storage", "/vms"]
    )
    found = {path: dict.fromkeys(sorted(call.node.permissions.at(who, path)), 1) for path in paths}
    return {path: privileges for path, privileges in found.items() if privileges or "path" in call.params}


# Roles


def list_roles(call: Call) -> list[dict[str, Any]]:
    roles = call.node.permissions.roles
    return [
        {"roleid": name, "privs": ",".join(sorted(roles[name])), "special": int(name in SPECIAL_ROLES)}
        for name in sorted(roles)
    ]


def get_role(call: Call) -> dict[str, int]:
    return dict.fromkeys(sorted(_role(call, "")), 1)


def create_role(call: Call) -> None:
    name, roles = call.text("roleid"), call.node.permissions.roles
    if name.upper().startswith("PVE"):
        text = "cannot use role ID starting with the (case-insensitive) 'PVE' namespace"
        raise bad_parameters({"roleid": text})
    if name in roles:
        raise PveError(f"create role failed: role '{name}' already exists")
    roles[name] = frozenset(split_list(call.text("privs")))


def change_role(call: Call) -> None:
    kept = _role(call, "update role failed: ", changed="modified")
    privileges = frozenset(split_list(call.text("privs")))
    call.node.permissions.roles[call.text("roleid")] = privileges | (kept if call.flag("append") else frozenset())


def delete_role(call: Call) -> None:
    _role(call, "delete role failed: ", changed="deleted")
    del call.node.permissions.roles[call.text("roleid")]


def _role(call: Call, failed: str, *, changed: str = "") -> frozenset[str]:
    name, roles = call.text("roleid"), call.node.permissions.roles
    if changed and name in SPECIAL_ROLES:
        raise PveError(f"auto-generated role '{name}' cannot be {changed}")
    if name not in roles:
        raise PveError(f"{failed}role '{name}' does not exist")
    return roles[name]


ROUTES: dict[tuple[str, str], Handler] = {
    ("POST", "/access/ticket"): create_ticket,
    ("GET", "/access/users"): list_users,
    ("POST", "/access/users"): create_user,
    ("GET", _USER): get_user,
    ("PUT", _USER): change_user,
    ("DELETE", _USER): delete_user,
    ("GET", f"{_USER}/token"): list_tokens,
    ("POST", f"{_USER}/token/{{tokenid}}"): create_token,
    ("PUT", f"{_USER}/token/{{tokenid}}"): change_token,
    ("DELETE", f"{_USER}/token/{{tokenid}}"): delete_token,
    ("GET", "/access/acl"): list_acl,
    ("PUT", "/access/acl"): change_acl,
    ("GET", "/access/permissions"): permissions,
    ("GET", "/access/roles"): list_roles,
    ("POST", "/access/roles"): create_role,
    ("GET", _ROLE): get_role,
    ("PUT", _ROLE): change_role,
    ("DELETE", _ROLE): delete_role,
}
