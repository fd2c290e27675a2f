"""proxmoxer's session with one node: who we are, and that it is the node that the lab file means."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import requests
from proxmoxer.backends.https import (
    JsonSerializer,
    ProxmoxHTTPApiTokenAuth,
    ProxmoxHTTPAuth,
    ProxmoxHttpSession,
)
from proxmoxer.core import ProxmoxResource
from requests.adapters import HTTPAdapter
from urllib3.exceptions import NewConnectionError

from harness.errors import LabUnavailable
from harness.guest.proxmox.secrets import Secret
from harness.lab.proxmox import ApiSpec

TIMEOUT_SECONDS = 90.0
"""Of one request: PVE's own proxy gives up after 30 s, an upload may take longer."""
_UNAUTHORIZED = 401


class _Pinned(HTTPAdapter):
    """Takes the one certificate whose fingerprint is known, whoever signed it and whatever name it bears."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, assert_fingerprint=self._fingerprint, **options)


class _Ticket(ProxmoxHTTPAuth):  # type: ignore[misc] # proxmoxer has no types
    """A login by password. proxmoxer asks for tickets outside of its session, where no certificate is pinned."""

    def __init__(self, http: requests.Session, base_url: str, user: str, secret: Secret, verify: bool | str) -> None:
        self._http = http
        self._secret = secret
        super().__init__(user, None, base_url=base_url, verify_ssl=verify, timeout=TIMEOUT_SECONDS)

    def _get_new_tokens(self, **_old: object) -> None:
        # Always by the password, not by the old ticket: that one may have expired while a long job ran.
        answer = self._http.post(
            f"{self.base_url}/access/ticket",
            data={"username": self.username, "password": self._secret.reveal()},
            verify=self.verify_ssl,
            timeout=self.timeout,
            auth=_nobody,
        )
        if answer.status_code == _UNAUTHORIZED:
            raise PermissionError(self.username)
        answer.raise_for_status()
        given = answer.json()["data"]
        if given.get("NeedTFA"):
            raise PermissionError(f"{self.username} has a second factor")
        self.birth_time = time.monotonic()
        self.pve_auth_ticket = given["ticket"]
        self.csrf_prevention_token = given["CSRFPreventionToken"]


def _nobody(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Without an `auth`, requests would look for a password in ~/.netrc."""
    return request


@dataclass(frozen=True, slots=True)
class Login:
    """proxmoxer's root resource, logged in, and the connections under it."""

    api: Any
    sessions: tuple[requests.Session, ...]

    def close(self) -> None:
        for session in self.sessions:
            session.close()


def log_in(spec: ApiSpec, secret: Secret, host: str) -> Login:
    """Log in to the API. Raises LabUnavailable naming `host`, with the remedy."""
    http = requests.Session()
    session = ProxmoxHttpSession()
    verify: bool | str = str(spec.ca_file) if spec.ca_file else True
    if spec.fingerprint:
        # The fingerprint is compared in place of the chain of signatures and the name.
        verify = False
        for each in (http, session):
            each.mount("https://", _Pinned(spec.fingerprint))
    base_url = f"https://{_bracketed(spec.host)}:{spec.port}/api2/json"
    try:
        session.auth = (
            ProxmoxHTTPApiTokenAuth(spec.user, spec.token, secret.reveal(), verify_ssl=verify, timeout=TIMEOUT_SECONDS)
            if spec.token
            else _Ticket(http, base_url, spec.user, secret, verify)
        )
        session.headers["accept"] = JsonSerializer().get_accept_types()
        api = ProxmoxResource(base_url=base_url, session=session, serializer=JsonSerializer())
    except PermissionError as error:
        # `from None`, here and below: the values of the frames underneath hold the password.
        raise LabUnavailable(
            f"host {host}: Proxmox VE refuses the login of {error}",
            hint=f"check user and secret under host.{host}.api; for a user with a second factor use a token",
        ) from None
    except (requests.RequestException, OSError, ValueError, KeyError) as error:
        raise unreachable(spec, host, error) from None
    return Login(api, (http, session))


def unreachable(spec: ApiSpec, host: str, error: Exception) -> LabUnavailable:
    """The error for an API that does not answer, or not as the one that the lab file means."""
    where = f"https://{_bracketed(spec.host)}:{spec.port}"
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, requests.RequestException) and spec.ca_file:
        return LabUnavailable(f"host {host}: {spec.ca_file} cannot be used: {error}", hint=f"correct host.{host}.api")
    if "fingerprint" in text.lower():
        return LabUnavailable(
            f"host {host}: {where} shows another certificate than the pinned one",
            hint=f"pvenode cert info on the node shows its fingerprints; correct host.{host}.api.fingerprint",
        )
    if isinstance(error, requests.exceptions.SSLError):
        return LabUnavailable(
            f"host {host}: the certificate of {where} is not trusted: {_cause(error)}",
            hint=f"copy /etc/pve/pve-root-ca.pem from the node and name it as host.{host}.api.ca_file, "
            "or pin the fingerprint that `pvenode cert info` shows there",
        )
    return LabUnavailable(
        f"host {host}: the API of Proxmox VE at {where} cannot be reached: {_cause(error)}",
        hint=f"check host.{host}.api.url, and that pveproxy runs there: systemctl status pveproxy",
    )


def is_distrust(error: Exception) -> bool:
    """Whether the far side is not whom it should be: waiting does not mend that."""
    # A connection that is cut may be an SSLError, too.
    said = str(error)
    return isinstance(error, requests.exceptions.SSLError) and any(
        word in said for word in ("CERTIFICATE_VERIFY_FAILED", "ingerprint", "doesn't match", "WRONG_VERSION")
    )


def was_never_sent(error: Exception) -> bool:
    """Whether no connection was made, so that nothing can have been done."""
    if isinstance(error, requests.ConnectTimeout):
        return True
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(reason, NewConnectionError)


def _cause(error: BaseException) -> str:
    """The last words of a chain: requests and urllib3 wrap what happened in sentences about themselves."""
    for inner in error.args:
        reason = getattr(inner, "reason", inner)
        if isinstance(reason, BaseException):
            return _cause(reason)
    return str(error) or type(error).__name__


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
