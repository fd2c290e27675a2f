"""Tickets, CSRF tokens and API tokens: who a request is from."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
import uuid
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import unquote

from tests.pve_double.errors import PveError, unauthorized
from tests.pve_double.pace import TICKET_SECONDS, Pace
from tests.pve_double.permissions import Permissions


class Access:
    """Users with their passwords and tokens, and the tickets that were handed out."""

    def __init__(self, user: str, password: str, permissions: Permissions, pace: Pace) -> None:
        self.permissions = permissions
        self._pace = pace
        self._passwords = {user: password}
        self._tokens: dict[str, str] = {}
        self._key = secrets.token_bytes(32)
        self._valid_from = 0.0

    @property
    def users(self) -> list[str]:
        return sorted(self._passwords)

    def add_user(self, user: str, password: str | None) -> None:
        if user in self._passwords:
            raise PveError(f"create user failed: user '{user}' already exists")
        self._passwords[user] = password or secrets.token_urlsafe()

    def add_token(self, user: str, name: str, *, privsep: bool, value: str | None = None) -> dict[str, Any]:
        """A new API token; the answer is the only place where its value is told."""
        token = f"{user}!{name}"
        if user not in self._passwords:
            raise PveError(f"no such user ('{user}')")
        if token in self._tokens:
            raise PveError(f"Token already exists. ({token})", status=400)
        self._tokens[token] = value or str(uuid.uuid4())
        if privsep:
            self.permissions.separate(token)
        return {"full-tokenid": token, "value": self._tokens[token], "info": {"privsep": str(int(privsep))}}

    def remove_token(self, user: str, name: str) -> None:
        if self._tokens.pop(f"{user}!{name}", None) is None:
            raise PveError(f"no such token '{name}' for user '{user}'")

    def expire_tickets(self) -> None:
        """No ticket handed out so far is valid any more."""
        self._valid_from = time.time()
        self._key = secrets.token_bytes(32)

    def log_in(self, user: str, password: str) -> dict[str, Any]:
        """A ticket for a password, or for a ticket that is still valid. 401 for anything else."""
        known = self._passwords.get(user)
        by_password = known is not None and hmac.compare_digest(known.encode(), password.encode())
        if not by_password and not (password.startswith("PVE:") and self._owner(password) == user):
            raise unauthorized("authentication failure")
        issued = f"{int(time.time()):08X}"
        return {
            "username": user,
            "ticket": f"PVE:{user}:{issued}::{self._sign(f'PVE:{user}:{issued}')}",
            "CSRFPreventionToken": f"{issued}:{self._sign(f'CSRF:{user}:{issued}')}",
            "cap": {},
        }

    def identify(self, headers: Mapping[str, str], method: str) -> str:
        """The user or full token id a request is from. 401 as PVE words it where it is from nobody."""
        authorization = headers.get("Authorization", "")
        if authorization.startswith("PVEAPIToken="):
            return self._by_token(authorization.removeprefix("PVEAPIToken="))
        cookie = SimpleCookie(headers.get("Cookie", "")).get("PVEAuthCookie")
        if cookie is None:
            raise unauthorized("No ticket")
        user = self._owner(unquote(cookie.value))
        if user is None:
            raise unauthorized("permission denied - invalid PVE ticket")
        if method != "GET" and not self._csrf_fits(user, headers.get("CSRFPreventionToken", "")):
            raise unauthorized("Permission denied - invalid csrf token")
        return user

    def _by_token(self, text: str) -> str:
        token, _, value = text.partition("=")
        if token not in self._tokens:
            user, _, name = token.partition("!")
            raise unauthorized(f"no such token '{name}' for user '{user}'")
        if not hmac.compare_digest(self._tokens[token].encode(), value.encode()):
            raise unauthorized("invalid token value!")
        return token

    def _owner(self, ticket: str) -> str | None:
        signed, _, signature = ticket.partition("::")
        _, _, rest = signed.partition(":")
        user, _, issued = rest.rpartition(":")
        if not user or not hmac.compare_digest(self._sign(signed), signature):
            return None
        return user if self._fresh(issued) else None

    def _csrf_fits(self, user: str, token: str) -> bool:
        issued, _, signature = token.partition(":")
        return hmac.compare_digest(self._sign(f"CSRF:{user}:{issued}"), signature) and self._fresh(issued)

    def _fresh(self, issued: str) -> bool:
        age = time.time() - int(issued, 16)
        return age <= max(2.0, self._pace.real(TICKET_SECONDS)) and int(issued, 16) >= int(self._valid_from)

    def _sign(self, text: str) -> str:
        return base64.b64encode(hmac.digest(self._key, text.encode(), hashlib.sha256)).decode().rstrip("=")
