"""proxmoxer's session with one node: who we are, and that it is the node that the lab file means."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from io import IOBase
from typing import Any, TypeVar

import requests
from proxmoxer.backends.https import JsonSerializer, ProxmoxHTTPAuth, ProxmoxHTTPAuthBase, ProxmoxHttpSession
from proxmoxer.core import ProxmoxResource
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies, select_proxy

from harness.errors import LabUnavailable
from harness.guest.proxmox.answers import limit_answers
from harness.guest.proxmox.failures import LoginRefused, NotProxmox, Redirected, Trouble, Unanswered, without_secret
from harness.guest.proxmox.secrets import MASK, Secret
from harness.lab.proxmox import ApiSpec
from harness.lab.transport.bounded import Overdue, within

TIMEOUT_SECONDS = 90.0
"""Of one request: PVE's own proxy gives up after 30 s, an upload may take longer."""
_UNAUTHORIZED = 401

T = TypeVar("T")


class _NodeAlone(HTTPAdapter):
    """Sends requests to the node of the lab file and to no other, also through a proxy.

    With a fingerprint that is whoever shows this certificate, whoever signed it and whatever name it bears. urllib3
    compares it at the end of the TLS handshake with the node, before it sends anything of the request. A proxy only
    passes the encrypted bytes on (CONNECT).
    """

    def __init__(self, fingerprint: str | None) -> None:
        self._fingerprint = fingerprint
        super().__init__()

    def cert_verify(self, conn: Any, *args: Any, **options: Any) -> None:
        # requests prepares every pool of connections here: those to the node, and those through any kind of proxy.
        super().cert_verify(conn, *args, **options)
        conn.assert_fingerprint = self._fingerprint

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        if proxy.lower().startswith("https:"):
            # `ca_file` and the fingerprint are the node's: a proxy's own certificate is checked with the system's CAs.
            options = {"proxy_ssl_context": ssl.create_default_context(), **options}
        return super().proxy_manager_for(proxy, **options)

    def send(self, *args: Any, **options: Any) -> requests.Response:
        answer = super().send(*args, **options)
        if answer.is_redirect:
            # PVE never redirects. requests would send the password or the ticket along to another host.
            where = str(answer.headers["location"])
            answer.close()
            raise Redirected(re.sub(r"[?#].*", "", where))
        return answer


class _Json(JsonSerializer):  # type: ignore[misc] # proxmoxer has no types
    """proxmoxer takes an answer that is not JSON for data."""

    def loads(self, response: requests.Response) -> Any:
        return _data(response)


def _data(answer: requests.Response) -> Any:
    try:
        return answer.json()["data"]
    except (ValueError, KeyError, TypeError):
        raise NotProxmox(f"HTTP {answer.status_code} without JSON of PVE's") from None


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
            raise LoginRefused(self.username)
        answer.raise_for_status()
        given = _data(answer)
        if not isinstance(given, dict) or not isinstance(given.get("ticket"), str):
            raise NotProxmox("the login was answered without a ticket")
        if given.get("NeedTFA"):
            raise LoginRefused(f"{self.username} has a second factor")
        self.birth_time = time.monotonic()
        self.pve_auth_ticket = given["ticket"]
        self.csrf_prevention_token = str(given.get("CSRFPreventionToken", ""))


class _Token(ProxmoxHTTPAuthBase):  # type: ignore[misc] # proxmoxer has no types
    """An API token in the header of each request. proxmoxer's own has the value as plain text."""

    def __init__(self, who: str, secret: Secret, verify: bool | str) -> None:
        self._who = who
        self._secret = secret
        super().__init__(verify_ssl=verify, timeout=TIMEOUT_SECONDS)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"PVEAPIToken={self._who}={self._secret.reveal()}"
        return request


def _nobody(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Without an `auth`, requests would look for a password in ~/.netrc."""
    return request


@dataclass(frozen=True, slots=True)
class Login:
    """proxmoxer's root resource, logged in, and the connections under it."""

    api: Any
    sessions: tuple[requests.Session, ...]
    secret: Secret

    def ask(self, seconds: float, method: str, path: str, params: Mapping[str, object]) -> Any:
        """PVE's answer. Raises Refused, Unanswered (also after `seconds`) and, for a new ticket, LoginRefused."""
        return _safely(seconds, self.secret, partial(_send, self.api, method, path, params))

    def close(self) -> None:
        for session in self.sessions:
            session.close()


def log_in(spec: ApiSpec, secret: Secret, host: str) -> Login:
    """Log in to the API. Raises LabUnavailable naming `host`, with the remedy."""
    http, session = requests.Session(), ProxmoxHttpSession()
    for each in (http, session):
        each.adapters.clear()
        each.mount("https://", _NodeAlone(spec.fingerprint))
        limit_answers(each)
    # The fingerprint is compared in place of the chain of signatures and the name.
    verify: bool | str = False if spec.fingerprint else str(spec.ca_file) if spec.ca_file else True
    base_url = f"{_address(spec)}/api2/json"
    try:
        session.auth = (
            _Token(spec.who, secret, verify)
            if spec.token
            else _safely(TIMEOUT_SECONDS, secret, partial(_Ticket, http, base_url, spec.user, secret, verify))
        )
    except LoginRefused as error:
        http.close()
        raise LabUnavailable(
            f"host {host}: Proxmox VE refuses the login of {error}",
            hint=f"check user and secret under host.{host}.api; for a user with a second factor use a token",
        ) from None
    except Unanswered as error:
        http.close()
        raise unreachable(spec, host, error) from None
    session.headers["accept"] = JsonSerializer().get_accept_types()
    return Login(ProxmoxResource(base_url=base_url, session=session, serializer=_Json()), (http, session), secret)


def _safely(seconds: float, secret: Secret, action: Callable[[], T]) -> T:
    """What `action()` returns. For what it raises, an exception of ours is raised, which does not contain the secret.

    The frames of the original one have the secret in their variables, and its request has it too. It ends here: it is
    no `__context__` of the new one, and the frames of the action's thread are in no traceback, also at Ctrl-C.
    """
    failure: Exception
    try:
        return within(seconds, action)
    except Overdue:
        failure = Unanswered(Trouble.LOST, f"no answer within {seconds:.0f} s")
    except Exception as error:
        failure = without_secret(error, secret)
    raise failure


def _send(api: Any, method: str, path: str, params: Mapping[str, object]) -> Any:
    return getattr(api(path), method)(**{key: _value(value) for key, value in params.items()})


def _value(value: object) -> object:
    if isinstance(value, IOBase):
        # A file may have been read before, by a request that came to nothing.
        value.seek(0)
    return int(value) if isinstance(value, bool) else value


def unreachable(spec: ApiSpec, host: str, error: Unanswered) -> LabUnavailable:
    """The error for an API that does not answer, or not as the one that the lab file means."""
    where, proxy = _address(spec), proxy_of(spec)
    by = f" (through the proxy {proxy})" if proxy else ""
    past = f", or set NO_PROXY={spec.host} to go past the proxy {proxy}" if proxy else ""
    match error.trouble:
        case Trouble.CANNOT_SEND:
            return LabUnavailable(
                f"host {host}: no request can be sent to {where}{by}: {error}",
                hint=f"correct url or ca_file under host.{host}.api, or the environment's HTTPS_PROXY",
            )
        case Trouble.OTHER_CERTIFICATE:
            return LabUnavailable(
                f"host {host}: {where}{by} shows another certificate than the pinned one",
                hint=f"pvenode cert info on the node shows its fingerprints; correct host.{host}.api.fingerprint{past}",
            )
        case Trouble.NOT_TRUSTED:
            return LabUnavailable(
                f"host {host}: the certificate of {where}{by} is not trusted: {error}",
                hint=f"copy /etc/pve/pve-root-ca.pem from the node and name it as host.{host}.api.ca_file, "
                f"or pin the fingerprint that `pvenode cert info` shows there{past}",
            )
        case Trouble.NOT_PROXMOX:
            return LabUnavailable(
                f"host {host}: {where}{by} does not answer as Proxmox VE does: {error}",
                hint=f"check host.{host}.api.url: it must lead to the node itself{past}",
            )
        case Trouble.LOST | Trouble.NEVER_SENT:
            return LabUnavailable(
                f"host {host}: the API of Proxmox VE at {where} cannot be reached{by}: {error}",
                hint=f"check host.{host}.api.url, and that pveproxy runs there: systemctl status pveproxy{past}",
            )


def proxy_of(spec: ApiSpec) -> str | None:
    """The proxy that the environment (HTTPS_PROXY, ALL_PROXY, NO_PROXY) puts before the node, without its login."""
    url = _address(spec)
    proxy = select_proxy(url, get_environ_proxies(url))
    return re.sub(r"//[^/]*@", f"//{MASK}@", proxy) if proxy else None


def _address(spec: ApiSpec) -> str:
    return f"https://{f'[{spec.host}]' if ':' in spec.host else spec.host}:{spec.port}"
