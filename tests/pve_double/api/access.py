"""Tickets, users, tokens, roles, access control lists."""

from __future__ import annotations

from typing import Any

from tests.pve_double.api.call import Call
from tests.pve_double.permissions import ROOT, Entry
from tests.pve_double.schema import split_list


def create_ticket(call: Call) -> dict[str, Any]:
    user = call.text("username")
    if "@" not in user:
        user = f"{user}@{call.text('realm', 'pam')}"
    return call.node.access.log_in(user, call.text("password"))


def list_users(call: Call) -> list[dict[str, Any]]:
    return [{"userid": user, "enable": 1} for user in call.node.access.users]


def create_user(call: Call) -> None:
    call.node.access.add_user(call.text("userid"), call.text("password") or None)


def create_token(call: Call) -> dict[str, Any]:
    privsep = call.text("privsep", "1") == "1"
    return call.node.access.add_token(call.text("userid"), call.text("tokenid"), privsep=privsep)


def delete_token(call: Call) -> None:
    call.node.access.remove_token(call.text("userid"), call.text("tokenid"))


def change_acl(call: Call) -> None:
    who = split_list(call.text("users")) + split_list(call.text("tokens"))
    propagate = call.text("propagate", "1") == "1"
    entries = [
        Entry(call.text("path"), each, role, propagate) for each in who for role in split_list(call.text("roles"))
    ]
    call.node.permissions.change(entries, delete=call.flag("delete"))


def list_roles(call: Call) -> list[dict[str, Any]]:
    roles = call.node.permissions.roles
    return [{"roleid": name, "privs": ",".join(sorted(roles[name]))} for name in sorted(roles)]


def create_role(call: Call) -> None:
    call.node.permissions.add_role(call.text("roleid"), split_list(call.text("privs")))


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
