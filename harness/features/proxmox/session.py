"""proxmoxer's session with one node: its secret, the login, the proof that it is the node in the lab file.

Failures are reported without the request, because its headers and its body contain the secret. pytest can print the
variables of every frame of an exception (`--showlocals`), so no function here has the text of a secret in a variable
when it raises, and all other code has only a `Secret`.
"""

from __future__ import annotations

import importlib
import os
import re
import ssl
import stat
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from io import IOBase
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote, quote_plus

import requests
from proxmoxer.backends.https import JsonSerializer, ProxmoxHTTPAuth, ProxmoxHTTPAuthBase, ProxmoxHttpSession
from proxmoxer.core import ProxmoxResource, ResourceException
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies, select_proxy
from urllib3.exceptions import NewConnectionError, ProxyError

from harness.errors import ConfigError, HostError, LabUnavailable
from harness.features.proxmox import ApiSpec, SecretSource
from harness.files import open_regular
from harness.lab.inventory import withdraw_variable
from harness.lab.transport.base import Overdue, within
from harness.lab.transport.handshake import in_brackets
from harness.signals import interruptible
from harness.units import format_size
from harness.untrusted import parse_json, reading

MASK = "***"
_SHORT = 8
"""Characters. Proxmox VE requires this number in a new password; a token's value is longer."""
_BREAKS = ("Cc", "Zl", "Zp")
"""Unicode's categories of control characters and line breaks."""


class Secret:
    """Text that no representation shows: no log, message, traceback with values, or pickle.

    Blanks around it are removed, because a file or a variable often ends with a newline.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text.strip()

    def reveal(self) -> str:
        """The text, for sending it. Do not store it, not even in a variable of a function that may raise."""
        return self._text

    def hidden_in(self, text: str) -> str:
        """`text` without the secret in any form: plain, encoded for a URL or a form, or as Python prints it.

        A short secret is masked only if it is a separate word. Otherwise, "x" would be masked in "exists".
        """
        written = (quote(self._text, safe="", errors="replace"), quote_plus(self._text, errors="replace"))
        for form in sorted({self._text, repr(self._text)[1:-1], *written} - {""}, key=len, reverse=True):
            pattern = re.escape(form)
            if len(form) < _SHORT:
                pattern = rf"(?<![^\W_]){pattern}(?![^\W_])"
            text = re.sub(pattern, MASK, text)
        return text

    @property
    def is_empty(self) -> bool:
        return not self._text

    def unfit(self, *, for_header: bool) -> str | None:
        """Why it cannot be sent, as text; None if it can. A password is sent in a form, a token in a header."""
        if any(unicodedata.category(character) in _BREAKS for character in self._text):
            return "contains a line break or another control character"
        try:
            self._text.encode("ascii" if for_header else "utf-8")
        except UnicodeEncodeError:
            return f"contains a character that is not {'ASCII' if for_header else 'UTF-8'}"
        return None

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    __str__ = __repr__

    def __format__(self, _spec: str) -> str:
        return repr(self)

    def __reduce__(self) -> str:
        raise TypeError("a secret cannot be pickled")


def read_secret(source: SecretSource, *, user: str, where: str, for_header: bool = False) -> Secret:
    """The secret of `user`. Raises ConfigError, which begins with `where` (`host.NAME.api.secret`), if it is unusable.

    `for_header`: it is a token's value, which is sent in an HTTP header.
    """
    secret = {"env": _read_variable, "file": _read_secret_file, "keyring": _read_keyring}[source.kind](
        source.name, user, where
    )
    if secret.is_empty:
        raise ConfigError(f"{where}: {source.kind} {source.name} is empty", hint="store the secret there, on one line")
    if why := secret.unfit(for_header=for_header):
        what = "token's value" if for_header else "password"
        raise ConfigError(
            f"{where}: the {what} in {source.kind} {source.name} {why}", hint=f"store only the {what}, on one line"
        )
    return secret


def _read_variable(name: str, _user: str, where: str) -> Secret:
    secret = _make_secret(withdraw_variable(name))
    if secret is None:
        plain = name.strip("${}")
        hint = f"read -rs {name}; export {name}" if plain == name else f'name it without `$`: env = "{plain}"'
        raise ConfigError(f"{where}: the environment has no variable {name}", hint=hint)
    return secret


def _read_secret_file(name: str, _user: str, where: str) -> Secret:
    try:
        path = Path(name).expanduser()
        with open_regular(path) as file:
            if (mode := stat.S_IMODE(os.fstat(file.fileno()).st_mode)) & 0o077:
                raise ConfigError(f"{where}: others may read {path} (mode {mode:04o})", hint=f"chmod 600 {path}")
            secret = _read_line(file)
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{where}: {name} cannot be read: {why}", hint="name a file that has the secret") from None
    if secret is None:
        raise ConfigError(f"{where}: the first line of {path} is not text in UTF-8")
    return secret


def _read_line(file: IO[bytes]) -> Secret | None:
    """None if it is not text. There is no variable for the bytes: see the top of this module."""
    try:
        return Secret(file.readline(1 << 16).decode("utf-8-sig"))
    except UnicodeDecodeError:
        return None


def _read_keyring(service: str, user: str, where: str) -> Secret:
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        raise ConfigError(
            f"{where}: the keyring needs Python's keyring package, which is not installed",
            hint="pip install keyring (virt-overhead's extra with this name), or use env or file",
        ) from None
    try:
        secret = _make_secret(keyring.get_password(service, user))
    except Exception as error:
        # Backends raise the errors of their own libraries, D-Bus for example.
        raise ConfigError(f"{where}: the keyring does not answer: {error}") from None
    if secret is None:
        raise ConfigError(
            f"{where}: the keyring has no entry for service {service} and user {user}",
            hint=f"keyring set {service} {user}",
        )
    return secret


def _make_secret(text: str | None) -> Secret | None:
    return None if text is None else Secret(str(text))


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


class ApiRefusal(Exception):
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
_OF_LIBRARIES = re.compile(r"^(<[^>]*>|\w+\([^)]*\)): |\[[\w :-]*\] | \(_ssl\.c:\d+\)")
_DISTRUST = ("CERTIFICATE_VERIFY_FAILED", "doesn't match", "WRONG_VERSION")


def hide_secret(error: Exception, secret: Secret) -> Exception:
    """The exception to raise instead of this one. The answer may quote the request, so its text is masked as well."""
    if isinstance(error, LoginRefused):
        return LoginRefused(str(error))
    if isinstance(error, HostError):
        return Unanswered(Trouble.NOT_PROXMOX, _mask_login(secret.hidden_in(error.message)))
    if isinstance(error, ResourceException):
        return ApiRefusal(error.status_code, secret.hidden_in(_read_reason(error)))
    return Unanswered(_classify_error(error), _mask_login(secret.hidden_in(_describe_error(error))))


def _classify_error(error: Exception) -> Trouble:
    if isinstance(error, NotProxmox):
        return Trouble.NOT_PROXMOX
    if isinstance(error, _MALFORMED):
        return Trouble.CANNOT_SEND
    if isinstance(error, requests.exceptions.SSLError):
        return _classify_tls(str(error))
    if isinstance(error, requests.RequestException):
        return Trouble.NEVER_SENT if _is_never_sent(error) else Trouble.LOST
    return Trouble.CANNOT_SEND if isinstance(error, OSError) else Trouble.LOST  # requests reads the CA file first


def _classify_tls(reason: str) -> Trouble:
    if "ingerprint" in reason:
        return Trouble.OTHER_CERTIFICATE
    if any(words in reason for words in _DISTRUST):
        return Trouble.NOT_TRUSTED
    return Trouble.CANNOT_SEND if "X509" in reason else Trouble.LOST  # "X509": the CA file contains no CA


def _is_never_sent(error: requests.RequestException) -> bool:
    """Whether there was no connection to the node, or no tunnel to it through a proxy."""
    if isinstance(error, requests.ConnectTimeout) or "Tunnel connection failed" in str(error):
        return True
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(reason, NewConnectionError | ProxyError)


def _read_reason(error: ResourceException) -> str:
    """PVE's own text: about the whole request, and about single parameters."""
    words = [str(error.content).strip()]
    if isinstance(error.errors, Mapping):
        words += [f"{key}: {str(text).strip()}" for key, text in error.errors.items() if key != "errors"]
    return " ".join(word for word in words if word) or str(error.status_message)


def _describe_error(error: Exception) -> str:
    if isinstance(error, NotProxmox):
        return str(error)
    if isinstance(error, requests.exceptions.InvalidHeader | UnicodeError):
        # They quote the header in a form in which the secret may not be recognised.
        return type(error).__name__
    if isinstance(error, requests.RequestException | OSError):
        return _find_cause(error)
    return f"{type(error).__name__}: {error}"


def _find_cause(error: BaseException) -> str:
    """The innermost message of a chain: requests and urllib3 wrap the cause in messages of their own."""
    for inner in error.args:
        reason = getattr(inner, "reason", inner)
        if isinstance(reason, BaseException):
            return _find_cause(reason)
    text = _OF_LIBRARIES.sub("", str(error)) or type(error).__name__
    return "the CA file has no certificate" if text == "PEM lib" else text


def _mask_login(text: str) -> str:
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
        return response.json()["data"]


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
        given = answer.json()["data"]
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
        """PVE's answer. Raises ApiRefusal, Unanswered (also after `seconds`) or, for a new ticket, LoginRefused.

        A signal interrupts a request that only reads. What another one does has to be known before it is removed.
        """
        action = partial(_send, self.api, method, path, params)
        return _call_safely(seconds, self.secret, action, reads=method == "get")

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
    base_url = f"{_format_address(spec)}/api2/json"
    try:
        session.auth = (
            _Token(spec.who, secret, verify)
            if spec.token
            else _call_safely(
                TIMEOUT_SECONDS, secret, partial(_Ticket, http, base_url, spec.user, secret, verify), reads=True
            )
        )
    except LoginRefused as error:
        http.close()
        raise LabUnavailable(
            f"host {host}: Proxmox VE refuses the login of {error}",
            hint=f"check host.{host}.api.user and host.{host}.api.secret; a user with a second factor needs a token",
        ) from None
    except Unanswered as error:
        http.close()
        raise explain_unreachable(spec, host, error) from None
    session.headers["accept"] = JsonSerializer().get_accept_types()
    return Login(ProxmoxResource(base_url=base_url, session=session, serializer=_Json()), (http, session), secret)


def _call_safely(seconds: float, secret: Secret, action: Callable[[], T], *, reads: bool) -> T:
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
        failure = hide_secret(error, secret)
    raise failure


def _send(api: Any, method: str, path: str, params: Mapping[str, object]) -> Any:
    return getattr(api(path), method)(**{key: _convert_value(value) for key, value in params.items()})


def _convert_value(value: object) -> object:
    if isinstance(value, IOBase):
        # An earlier request that failed may have read the file.
        value.seek(0)
    return int(value) if isinstance(value, bool) else value


def explain_unreachable(spec: ApiSpec, host: str, error: Unanswered) -> LabUnavailable:
    """The error for an API that does not answer, or that is not the API in the lab file."""
    where, proxy = _format_address(spec), find_proxy(spec)
    by = f" (through the proxy {proxy})" if proxy else ""
    past = f", or set NO_PROXY={spec.host} to bypass the proxy {proxy}" if proxy else ""
    match error.trouble:
        case Trouble.CANNOT_SEND:
            return LabUnavailable(
                f"host {host}: no request can be sent to {where}{by}: {error}",
                hint=f"correct host.{host}.api.url or host.{host}.api.ca_file, or the environment's HTTPS_PROXY",
            )
        case Trouble.OTHER_CERTIFICATE:
            return LabUnavailable(
                f"host {host}: {where}{by} shows another certificate than the pinned one",
                hint=f"pvenode cert info on the node shows its fingerprints; correct host.{host}.api.fingerprint{past}",
            )
        case Trouble.NOT_TRUSTED:
            return LabUnavailable(
                f"host {host}: the certificate of {where}{by} is not trusted: {error}",
                hint=f"copy /etc/pve/pve-root-ca.pem from the node and name the copy as host.{host}.api.ca_file, "
                f"or pin the fingerprint of `pvenode cert info`; to renew one there: pvecm updatecerts -f{past}",
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


def find_proxy(spec: ApiSpec) -> str | None:
    """The proxy for the node in the environment (HTTPS_PROXY, ALL_PROXY, NO_PROXY), without its login."""
    url = _format_address(spec)
    proxy = select_proxy(url, get_environ_proxies(url))
    return re.sub(r"//[^/]*@", f"//{MASK}@", proxy) if proxy else None


def _format_address(spec: ApiSpec) -> str:
    return f"https://{in_brackets(spec.host)}:{spec.port}"
