"""Tickets, CSRF tokens and API tokens: who a request is from."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import unquote

from pve_double.accounts import Accounts
from pve_double.errors import PveError, unauthorized
from pve_double.pace import TICKET_SECONDS, Pace

FAILED = "Authentication failed!"
"""What PVE says of each ticket and token that it does not accept."""
_TOKEN_ID = re.compile(r"[^\s:/]+@[A-Za-z][A-Za-z0-9._-]+![A-Za-z][A-Za-z0-9._-]+")


class Access:
    """The tickets that were handed out, and who a request is from."""

    def __init__(self, accounts: Accounts, pace: Pace) -> None:
        self.accounts = accounts
        self._pace = pace
        self._key = secrets.token_bytes(32)
        self._valid_from = 0.0

    def add_token(self, user: str, name: str, *, privsep: bool, value: str) -> None:
        """An API token with a value that is known beforehand, as no real node gives one."""
        self.accounts.add_token(user, name, {"privsep": str(int(privsep))}, value)

    def expire_tickets(self) -> None:
        """No ticket handed out so far is valid any more."""
        self._valid_from = time.time()
        self._key = secrets.token_bytes(32)

    def log_in(self, user: str, password: str) -> dict[str, Any]:
        """A ticket for a password, or for a ticket that is still valid. 401 for anything else."""
        known = self.accounts.users.get(user)
        by_password = known is not None and hmac.compare_digest(known.password.encode(), password.encode())
        by_ticket = password.startswith("PVE:") and self._owner(password) == user
        if known is None or not known.enabled or not (by_password or by_ticket):
            raise unauthorized("authentication failure")
        issued = f"{int(time.time()):08X}"
        return {
            "username": user,
            "ticket": f"PVE:{user}:{issued}::{self._sign(f'PVE:{user}:{issued}')}",
            "CSRFPreventionToken": f"{issued}:{self._sign(f'CSRF:{user}:{issued}')}",
            "cap": {},
        }

    def identify(self, headers: Mapping[str, str], method: str) -> str:
        """The user or full token id a request is from. 401 as PVE words it where it is from nobody.

        PVE::HTTPServer: why a ticket or a token is refused is in the node's log only. A ticket counts before a token.
        """
        cookie = SimpleCookie(headers.get("Cookie", "")).get("PVEAuthCookie")
        if cookie is None or not cookie.value:
            authorization = headers.get("Authorization", "")
            if not authorization.startswith("PVEAPIToken="):
                raise unauthorized("No ticket")
            name = self._by_token(authorization.removeprefix("PVEAPIToken="))
            if name is None:
                raise unauthorized(FAILED)
            return name
        user = self._owner(unquote(cookie.value))
        if user is None:
            raise unauthorized(FAILED)
        if method != "GET" and not self._csrf_fits(user, headers.get("CSRFPreventionToken", "")):
            raise unauthorized("Permission denied - invalid csrf token")
        return user

    def _by_token(self, text: str) -> str | None:
        """The full id of the token; None if PVE does not accept it, for any reason."""
        name, _, value = text.rpartition("=")
        if not _TOKEN_ID.fullmatch(name):
            return None
        user, _, token = name.partition("!")
        try:
            enabled, known = self.accounts.user(user).enabled, self.accounts.token(user, token)
        except PveError:
            return None
        return name if enabled and hmac.compare_digest(known.value.encode(), value.encode()) else None

    def _owner(self, ticket: str) -> str | None:
        signed, _, signature = ticket.partition("::")
        _, _, rest = signed.partition(":")
        user, _, issued = rest.rpartition(":")
        if not user or not hmac.compare_digest(self._sign(signed).encode(), signature.encode()):
            return None
        known = self.accounts.users.get(user)
        return user if self._fresh(issued) and known is not None and known.enabled else None

    def _csrf_fits(self, user: str, token: str) -> bool:
        issued, _, signature = token.partition(":")
        return hmac.compare_digest(self._sign(f"CSRF:{user}:{issued}").encode(), signature.encode()) and self._fresh(
            issued
        )

    def _fresh(self, issued: str) -> bool:
        since = int(issued, 16)
        return time.time() - since <= max(2.0, self._pace.real(TICKET_SECONDS)) and since >= int(self._valid_from)

    def _sign(self, text: str) -> str:
        return base64.b64encode(hmac.digest(self._key, text.encode(), hashlib.sha256)).decode().rstrip("=")
