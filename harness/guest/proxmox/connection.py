"""proxmoxer's session with one node: the login, the proof that it is the node in the lab file, limits for its answers.

Failures are reported without the request, because its headers and its body contain the secret.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from io import IOBase
from typing import Any, NoReturn, TypeVar

import requests
from proxmoxer.backends.https import JsonSerializer, ProxmoxHTTPAuth, ProxmoxHTTPAuthBase, ProxmoxHttpSession
from proxmoxer.core import ProxmoxResource, ResourceException
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies, select_proxy
from urllib3.exceptions import NewConnectionError, ProxyError

from harness.errors import HostError, LabUnavailable
from harness.guest.proxmox.secrets import MASK, Secret
from harness.lab.inventory import ApiSpec
from harness.lab.transport.base import Overdue, within
from harness.lab.transport.handshake import in_brackets
from harness.signals import interruptible
from harness.units import format_size
from harness.untrusted import parse_json, reading


class Trouble(Enum):
    """Why there was no answer from PVE."""

    CANNOT_SEND = auto()
    OTHER_CERTIFICATE = auto()
    NOT_TRUSTED = auto()
    NOT_PROXMOX = auto()
    NEVER_SENT = auto()
    LOST = auto()


class Unanswered(Exception):
    """A request without an answer from PVE."""

    def __init__(self, trouble: Trouble, why: str) -> None:
        super().__init__(why)
        self.trouble = trouble

    @property
    def never_sent(self) -> bool:
        """Whether the request was not sent, so PVE cannot have done anything."""
        return self.trouble not in (Trouble.NOT_PROXMOX, Trouble.LOST)

    @property
    def final(self) -> bool:
        """Whether another attempt cannot help, because the request is not valid or the server is not the right one."""
        return self.trouble not in (Trouble.NEVER_SENT, Trouble.LOST)


class Refused(Exception):
    """PVE answered with an error. `reason` is its own text."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason


class LoginRefused(Exception):
    """PVE gives no ticket. The text names the user."""


class NotProxmox(Exception):
    """An answer that does not come from PVE's API."""


class Redirected(NotProxmox):
    """An answer that redirects to another address."""

    def __init__(self, where: str) -> None:
        super().__init__(f"it redirects to {where}, and virt-overhead does not follow redirects")


_MALFORMED = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.InvalidHeader,
    UnicodeError,
)
"""Raised before anything is sent: the URL of the node or a proxy, or the value of a header, is not valid."""
_DISTRUST = ("CERTIFICATE_VERIFY_FAILED", "doesn't match", "WRONG_VERSION")


def without_secret(error: Exception, secret: Secret) -> Exception:
    """The exception to raise instead of this one. The answer may quote the request, so its text is masked as well."""
    if isinstance(error, LoginRefused):
        return LoginRefused(str(error))
    if isinstance(error, HostError):
        return Unanswered(Trouble.NOT_PROXMOX, _shown(secret.hidden_in(error.message)))
    if isinstance(error, ResourceException):
        return Refused(error.status_code, secret.hidden_in(_reason(error)))
    return Unanswered(_trouble(error), _shown(secret.hidden_in(_words(error))))


def _trouble(error: Exception) -> Trouble:
    if isinstance(error, NotProxmox):
        return Trouble.NOT_PROXMOX
    if isinstance(error, _MALFORMED):
        return Trouble.CANNOT_SEND
    if isinstance(error, requests.exceptions.SSLError):
        return _trouble_of_tls(str(error))
    if isinstance(error, requests.RequestException):
        return Trouble.NEVER_SENT if _was_never_sent(error) else Trouble.LOST
    # OSError: requests reads the CA file before it connects.
    return Trouble.CANNOT_SEND if isinstance(error, OSError) else Trouble.LOST


def _trouble_of_tls(reason: str) -> Trouble:
    if "ingerprint" in reason:
        return Trouble.OTHER_CERTIFICATE
    if any(words in reason for words in _DISTRUST):
        return Trouble.NOT_TRUSTED
    # "X509": the CA file contains no CA. Otherwise, the connection was lost.
    return Trouble.CANNOT_SEND if "X509" in reason else Trouble.LOST


def _was_never_sent(error: requests.RequestException) -> bool:
    """Whether there was no connection to the node, or no tunnel to it through a proxy."""
    if isinstance(error, requests.ConnectTimeout) or "Tunnel connection failed" in str(error):
        return True
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(reason, NewConnectionError | ProxyError)


def _reason(error: ResourceException) -> str:
    """PVE's own text: about the whole request, and about single parameters."""
    words = [str(error.content).strip()]
    if isinstance(error.errors, Mapping):
        words += [f"{key}: {str(text).strip()}" for key, text in error.errors.items() if key != "errors"]
    return " ".join(word for word in words if word) or str(error.status_message)


def _words(error: Exception) -> str:
    if isinstance(error, NotProxmox):
        return str(error)
    if isinstance(error, requests.exceptions.InvalidHeader | UnicodeError):
        # They quote the header in a form in which the secret may not be recognised.
        return type(error).__name__
    if isinstance(error, requests.RequestException | OSError):
        return _cause(error)
    return f"{type(error).__name__}: {error}"


def _cause(error: BaseException) -> str:
    """The innermost message of a chain: requests and urllib3 wrap the cause in messages of their own."""
    for inner in error.args:
        reason = getattr(inner, "reason", inner)
        if isinstance(reason, BaseException):
            return _cause(reason)
    return str(error) or type(error).__name__


def _shown(text: str) -> str:
    """The text without the login in a proxy's URL."""
    return re.sub(r"//[^/\s]*@", f"//{MASK}@", text)


ANSWER_BYTES = 16 << 20
"""The longest answer is the log of a task, with at most 100,000 lines."""
_CHUNK_BYTES = 64 << 10
_HINT = "check host.NAME.api.url: it must lead to Proxmox VE itself"


def limit_answers(session: requests.Session) -> None:
    """Make the session raise HostError for an answer that is too large, or successful but not a JSON object."""

    def check(response: requests.Response, *_args: object, **_options: object) -> None:
        # Called before requests reads the body, which it does without a limit.
        source = f"the answer to {response.request.method} {response.request.path_url.partition('?')[0]}"
        body = bytearray()
        # A compressed answer of a few KB can have GiB, which older versions of urllib3 unpack at once.
        if (encoding := response.headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
            response.close()
            raise HostError(f"{source} is compressed ({encoding[:40]}), which was not requested", hint=_HINT)
        for chunk in response.iter_content(_CHUNK_BYTES):
            body += chunk
            if len(body) > ANSWER_BYTES:
                response.close()
                raise HostError(f"{source} has more than {format_size(ANSWER_BYTES)}", hint=_HINT)
        response._content = bytes(body)
        if response.ok:
            with reading(source, hint="check that host.NAME.api.url leads to Proxmox VE"):
                parse_json(response.content, source)["data"]

    session.headers["accept-encoding"] = "identity"
    session.hooks["response"].append(check)


_LISTS = re.compile(
    r"(.*/)?(storage|network|content|snapshot|pending|tasks|log|qemu|lxc|cluster/resources|cluster/mapping/pci"
    r"|disks/(list|lvmthin|zfs|directory))"
)
_TABLES = re.compile(r"(.*/)?(config|status|status/current|version|access/permissions|disks/lvm|disks/zfs/[^/]+)")
_NUMBERS = ("vmid", "size", "avail", "total")
_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]+)?")


class Table(dict[str, Any]):
    """A table of an answer. A key that is missing is an error of the node, and not one of the harness."""

    def __init__(self, source: str, values: dict[str, Any]) -> None:
        super().__init__(values)
        self._source = source

    def __missing__(self, key: str) -> NoReturn:
        raise _unusable(self._source, f"there is no {key!r}")


def checked(source: str, path: str, data: Any) -> Any:
    """The data of an answer for this path of the API. HostError, which names `source`, if it has another shape.

    What a guest's agent reports is not checked here.
    """
    if "/agent/" in path:
        return data
    if _LISTS.fullmatch(path) and not (isinstance(data, list) and all(isinstance(entry, dict) for entry in data)):
        raise _unusable(source, "it is not a list of tables")
    if _TABLES.fullmatch(path) and not isinstance(data, dict):
        raise _unusable(source, "it is not a table")
    return _with_errors(source, data)


def _with_errors(source: str, data: Any) -> Any:
    if isinstance(data, list):
        return [_with_errors(source, entry) for entry in data]
    if not isinstance(data, dict):
        return data
    for key in _NUMBERS:
        value = data.get(key)
        if value is not None and (isinstance(value, bool) or not _NUMBER.fullmatch(str(value))):
            raise _unusable(source, f"{key} = {str(value)[:40]!r} is not a number")
    return Table(source, {key: _with_errors(source, value) for key, value in data.items()})


def _unusable(source: str, why: str) -> HostError:
    return HostError(f"{source} cannot be read: {why}", hint="check that host.NAME.api.url leads to Proxmox VE")


TIMEOUT_SECONDS = 90.0
"""For one request. PVE's own proxy gives up after 30 s, but an upload may take longer."""
_UNAUTHORIZED = 401

T = TypeVar("T")


class _OnlyThisNode(HTTPAdapter):
    """Sends requests only to the node in the lab file, also through a proxy.

    With a fingerprint, the node must show this certificate; its signature and its name do not matter. urllib3 compares
    the fingerprint at the end of the TLS handshake with the node, before it sends any part of the request. A proxy only
    forwards the encrypted bytes (CONNECT).
    """

    def __init__(self, fingerprint: str | None) -> None:
        self._fingerprint = fingerprint
        super().__init__()

    def cert_verify(self, conn: Any, *args: Any, **options: Any) -> None:
        # requests prepares every connection pool here: direct ones, and those through any kind of proxy.
        super().cert_verify(conn, *args, **options)
        conn.assert_fingerprint = self._fingerprint

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        if proxy.lower().startswith("https:"):
            # `ca_file` and the fingerprint are the node's. A proxy's own certificate is checked with the system's CAs.
            options = {"proxy_ssl_context": ssl.create_default_context(), **options}
        return super().proxy_manager_for(proxy, **options)

    def send(self, *args: Any, **options: Any) -> requests.Response:
        answer = super().send(*args, **options)
        if answer.is_redirect:
            # PVE never redirects. requests would send the password or the ticket to another host.
            where = str(answer.headers["location"])
            answer.close()
            raise Redirected(re.sub(r"[?#].*", "", where))
        return answer


class _Json(JsonSerializer):  # type: ignore[misc] # proxmoxer has no types
    """proxmoxer's own serializer treats an answer that is not JSON as data."""

    def loads(self, response: requests.Response) -> Any:
        return _data(response)


def _data(answer: requests.Response) -> Any:
    try:
        return answer.json()["data"]
    except (ValueError, KeyError, TypeError):
        raise NotProxmox(f"HTTP {answer.status_code} without PVE's JSON") from None


class _Ticket(ProxmoxHTTPAuth):  # type: ignore[misc] # proxmoxer has no types
    """A login by password. proxmoxer itself requests tickets outside of its session, without the pinned certificate."""

    def __init__(self, http: requests.Session, base_url: str, user: str, secret: Secret, verify: bool | str) -> None:
        self._http = http
        self._secret = secret
        super().__init__(user, None, base_url=base_url, verify_ssl=verify, timeout=TIMEOUT_SECONDS)

    def _get_new_tokens(self, **_old: object) -> None:
        # Always with the password, because the old ticket may have expired during a long job.
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
            raise LoginRefused(f"{self.username}, who has a second factor")
        self.birth_time = time.monotonic()
        self.pve_auth_ticket = given["ticket"]
        self.csrf_prevention_token = str(given.get("CSRFPreventionToken", ""))


class _Token(ProxmoxHTTPAuthBase):  # type: ignore[misc] # proxmoxer has no types
    """An API token in the header of each request. proxmoxer's own class has the value as plain text."""

    def __init__(self, who: str, secret: Secret, verify: bool | str) -> None:
        self._who = who
        self._secret = secret
        super().__init__(verify_ssl=verify, timeout=TIMEOUT_SECONDS)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"PVEAPIToken={self._who}={self._secret.reveal()}"
        return request


def _nobody(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Adds no login. Without an `auth`, requests would look for a password in ~/.netrc."""
    return request


@dataclass(frozen=True, slots=True)
class Login:
    """proxmoxer's root resource after the login, and its connections."""

    api: Any
    sessions: tuple[requests.Session, ...]
    secret: Secret

    def ask(self, seconds: float, method: str, path: str, params: Mapping[str, object]) -> Any:
        """PVE's answer. Raises Refused, Unanswered (also after `seconds`) or, for a new ticket, LoginRefused.

        A signal interrupts a request that only reads. What another one does has to be known before it is removed.
        """
        action = partial(_send, self.api, method, path, params)
        return _safely(seconds, self.secret, action, reads=method == "get")

    def close(self) -> None:
        for session in self.sessions:
            session.close()


def log_in(spec: ApiSpec, secret: Secret, host: str) -> Login:
    """Log in to the API. Raises LabUnavailable, which names `host` and the remedy."""
    http, session = requests.Session(), ProxmoxHttpSession()
    for connection in (http, session):
        connection.adapters.clear()
        connection.mount("https://", _OnlyThisNode(spec.fingerprint))
        limit_answers(connection)
    # The fingerprint is checked instead of the chain of signatures and the name.
    verify: bool | str = False if spec.fingerprint else str(spec.ca_file) if spec.ca_file else True
    base_url = f"{_address(spec)}/api2/json"
    try:
        session.auth = (
            _Token(spec.who, secret, verify)
            if spec.token
            else _safely(
                TIMEOUT_SECONDS, secret, partial(_Ticket, http, base_url, spec.user, secret, verify), reads=True
            )
        )
    except LoginRefused as error:
        http.close()
        raise LabUnavailable(
            f"host {host}: Proxmox VE refuses the login of {error}",
            hint=f"check user and secret under host.{host}.api; a user with a second factor needs a token",
        ) from None
    except Unanswered as error:
        http.close()
        raise unreachable(spec, host, error) from None
    session.headers["accept"] = JsonSerializer().get_accept_types()
    return Login(ProxmoxResource(base_url=base_url, session=session, serializer=_Json()), (http, session), secret)


def _safely(seconds: float, secret: Secret, action: Callable[[], T], *, reads: bool) -> T:
    """What `action()` returns. Replaces each of its exceptions by one that does not contain the secret.

    The frames of the original exception have the secret in their variables, and its request contains the secret. So the
    original is not the `__context__` of the new one, and no traceback has frames of the action's thread, not even at
    Ctrl-C.
    """
    failure: Exception
    try:
        return within(seconds, action, waiting=interruptible() if reads else None)
    except Overdue:
        failure = Unanswered(Trouble.LOST, f"no answer within {seconds:.0f} s")
    except Exception as error:
        failure = without_secret(error, secret)
    raise failure


def _send(api: Any, method: str, path: str, params: Mapping[str, object]) -> Any:
    return getattr(api(path), method)(**{key: _value(value) for key, value in params.items()})


def _value(value: object) -> object:
    if isinstance(value, IOBase):
        # An earlier request that failed may have read the file.
        value.seek(0)
    return int(value) if isinstance(value, bool) else value


def unreachable(spec: ApiSpec, host: str, error: Unanswered) -> LabUnavailable:
    """The error for an API that does not answer, or that is not the API in the lab file."""
    where, proxy = _address(spec), proxy_of(spec)
    by = f" (through the proxy {proxy})" if proxy else ""
    past = f", or set NO_PROXY={spec.host} to bypass the proxy {proxy}" if proxy else ""
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
                hint=f"copy /etc/pve/pve-root-ca.pem from the node and set host.{host}.api.ca_file to the copy, "
                f"or pin the fingerprint that `pvenode cert info` shows there{past}",
            )
        case Trouble.NOT_PROXMOX:
            return LabUnavailable(
                f"host {host}: {where}{by} does not answer like Proxmox VE: {error}",
                hint=f"check host.{host}.api.url: it must lead to the node itself{past}",
            )
        case Trouble.LOST | Trouble.NEVER_SENT:
            return LabUnavailable(
                f"host {host}: the API of Proxmox VE at {where} cannot be reached{by}: {error}",
                hint=f"check host.{host}.api.url, and that pveproxy runs there: systemctl status pveproxy{past}",
            )


def proxy_of(spec: ApiSpec) -> str | None:
    """The proxy for the node in the environment (HTTPS_PROXY, ALL_PROXY, NO_PROXY), without its login."""
    url = _address(spec)
    proxy = select_proxy(url, get_environ_proxies(url))
    return re.sub(r"//[^/]*@", f"//{MASK}@", proxy) if proxy else None


def _address(spec: ApiSpec) -> str:
    return f"https://{in_brackets(spec.host)}:{spec.port}"
