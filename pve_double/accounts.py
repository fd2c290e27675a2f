"""Users and their API tokens: what PVE keeps in user.cfg, without groups."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pve_double.errors import PveError, bad_parameters

REALMS = {"pam": "pam", "pve": "pve"}
"""The realms of a node that nobody added one to, with their types."""
_OF_USERS = ("enable", "expire", "firstname", "lastname", "email", "comment", "keys")
_OF_TOKENS = ("privsep", "expire", "comment")


@dataclass(slots=True)
class Token:
    """An API token. With `privsep` it has privileges of its own, and never more than its user."""

    value: str
    settings: dict[str, str]

    @property
    def privsep(self) -> bool:
        return self.settings.get("privsep", "1") == "1"


@dataclass(slots=True)
class User:
    password: str
    settings: dict[str, str]
    tokens: dict[str, Token] = field(default_factory=dict)

    @property
    def enabled(self) -> bool:
        return self.settings.get("enable", "1") == "1"


class Accounts:
    """Every user by `NAME@REALM`. Messages are those of PVE::AccessControl and PVE::API2::User."""

    def __init__(self, user: str, password: str) -> None:
        self.users = {user: User(password, {"enable": "1"})}

    def user(self, name: str) -> User:
        if name not in self.users:
            raise PveError(f"no such user ('{name}')")
        return self.users[name]

    def token(self, user: str, name: str) -> Token:
        tokens = self.user(user).tokens
        if name not in tokens:
            raise PveError(f"no such token '{name}' for user '{user}'")
        return tokens[name]

    def add_user(self, name: str, settings: Mapping[str, str]) -> None:
        if name in self.users:
            raise PveError(f"create user failed: user '{name}' already exists")
        realm = name.rpartition("@")[2]
        if "password" in settings and realm not in REALMS:
            raise PveError(f"create user failed: auth domain '{realm}' does not exist")
        _refuse_groups(settings, "create")
        kept = {key: settings[key] for key in _OF_USERS if key in settings}
        self.users[name] = User(settings.get("password", secrets.token_urlsafe()), {"enable": "1"} | kept)

    def change_user(self, name: str, settings: Mapping[str, str]) -> None:
        if name not in self.users:
            raise PveError(f"update user failed: no such user ('{name}')")
        _refuse_groups(settings, "update")
        self.users[name].settings |= {key: settings[key] for key in _OF_USERS if key in settings}

    def add_token(self, user: str, name: str, settings: Mapping[str, str], value: str | None = None) -> Token:
        if name in self.user(user).tokens:
            raise bad_parameters({"tokenid": "Token already exists."})
        kept = {"privsep": "1"} | {key: settings[key] for key in _OF_TOKENS if key in settings}
        token = self.users[user].tokens[name] = Token(value or str(uuid.uuid4()), kept)
        return token

    def change_token(self, user: str, name: str, settings: Mapping[str, str]) -> Token:
        token = self.token(user, name)
        token.settings |= {key: settings[key] for key in _OF_TOKENS if key in settings}
        return token

    def remove_token(self, user: str, name: str) -> None:
        self.token(user, name)
        del self.users[user].tokens[name]

    def is_separated(self, who: str) -> bool:
        """Whether `who` is a token with privileges of its own."""
        user, mark, name = who.partition("!")
        known = self.users.get(user)
        return bool(mark) and known is not None and name in known.tokens and known.tokens[name].privsep

    def listing(self, name: str, *, full: bool) -> dict[str, Any]:
        """As access/users lists a user; `full` with the tokens."""
        user = self.users[name]
        realm = name.rpartition("@")[2]
        entry: dict[str, Any] = {"userid": name, **_shown(user.settings)}
        entry |= {"realm-type": REALMS[realm]} if realm in REALMS else {}
        if full and user.tokens:
            entry["tokens"] = [{"tokenid": each, **_shown(user.tokens[each].settings)} for each in sorted(user.tokens)]
        return entry

    def details(self, name: str) -> dict[str, Any]:
        """As access/users/{userid} has it."""
        user = self.user(name)
        tokens = {each: _shown(token.settings) for each, token in user.tokens.items()}
        return _shown(user.settings) | {"groups": []} | ({"tokens": tokens} if tokens else {})


def shown_token(token: Token) -> dict[str, Any]:
    return _shown(token.settings)


def _shown(settings: Mapping[str, str]) -> dict[str, Any]:
    return {key: int(value) if key in {"enable", "expire", "privsep"} else value for key, value in settings.items()}


def _refuse_groups(settings: Mapping[str, str], verb: str) -> None:
    # The double has no groups, so none of those named exists.
    if group := settings.get("groups"):
        raise PveError(f"{verb} user failed: no such group '{group.split(',')[0]}'")
