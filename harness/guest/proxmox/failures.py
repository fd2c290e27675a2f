"""Failures of a request, reported without the request, because its headers and its body contain the secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto

import requests
from proxmoxer.core import ResourceException
from urllib3.exceptions import NewConnectionError, ProxyError

from harness.errors import HostError
from harness.guest.proxmox.secrets import MASK, Secret


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
