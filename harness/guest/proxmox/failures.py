"""What goes wrong with a request, told without the request: its headers and its body hold the secret."""

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
    """Why there was no answer of PVE's."""

    CANNOT_SEND = auto()
    OTHER_CERTIFICATE = auto()
    NOT_TRUSTED = auto()
    NOT_PROXMOX = auto()
    NEVER_SENT = auto()
    LOST = auto()


class Unanswered(Exception):
    """A request without an answer of PVE's."""

    def __init__(self, trouble: Trouble, why: str) -> None:
        super().__init__(why)
        self.trouble = trouble

    @property
    def never_sent(self) -> bool:
        """Whether nothing of the request was sent, so that nothing can have been done."""
        return self.trouble not in (Trouble.NOT_PROXMOX, Trouble.LOST)

    @property
    def final(self) -> bool:
        """Whether the far side is not whom it should be: waiting does not mend that."""
        return self.trouble not in (Trouble.NEVER_SENT, Trouble.LOST)


class Refused(Exception):
    """PVE answered with an error. `said` are its own words."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said}")
        self.status = status
        self.said = said


class LoginRefused(Exception):
    """PVE gives no ticket; in words, of whom."""


class NotProxmox(Exception):
    """An answer that is none of PVE's API."""


class Redirected(NotProxmox):
    """An answer that leads elsewhere."""

    def __init__(self, where: str) -> None:
        super().__init__(f"it redirects to {where}, which is not followed")


_MALFORMED = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.InvalidHeader,
    UnicodeError,
)
"""Raised before anything is sent, for the node's or a proxy's URL, or for what a header cannot hold."""
_DISTRUST = ("CERTIFICATE_VERIFY_FAILED", "doesn't match", "WRONG_VERSION")


def without_secret(error: Exception, secret: Secret) -> Exception:
    """The exception to raise in place of this one. Whoever answered may have quoted the request: that is masked too."""
    if isinstance(error, LoginRefused):
        return LoginRefused(str(error))
    if isinstance(error, HostError):
        return Unanswered(Trouble.NOT_PROXMOX, _shown(secret.hidden_in(error.message)))
    if isinstance(error, ResourceException):
        return Refused(error.status_code, secret.hidden_in(_said(error)))
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
    # requests looks for the file of a CA before it connects.
    return Trouble.CANNOT_SEND if isinstance(error, OSError) else Trouble.LOST


def _trouble_of_tls(said: str) -> Trouble:
    if "ingerprint" in said:
        return Trouble.OTHER_CERTIFICATE
    if any(words in said for words in _DISTRUST):
        return Trouble.NOT_TRUSTED
    # The file of a CA has none in it. Else the connection was cut.
    return Trouble.CANNOT_SEND if "X509" in said else Trouble.LOST


def _was_never_sent(error: requests.RequestException) -> bool:
    """Whether there was no connection to the node, or no tunnel of a proxy to it."""
    if isinstance(error, requests.ConnectTimeout) or "Tunnel connection failed" in str(error):
        return True
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(reason, NewConnectionError | ProxyError)


def _said(error: ResourceException) -> str:
    """PVE's own words: those on the whole, and those on single parameters."""
    words = [str(error.content).strip()]
    if isinstance(error.errors, Mapping):
        words += [f"{key}: {str(text).strip()}" for key, text in error.errors.items() if key != "errors"]
    return " ".join(word for word in words if word) or str(error.status_message)


def _words(error: Exception) -> str:
    if isinstance(error, NotProxmox):
        return str(error)
    if isinstance(error, requests.exceptions.InvalidHeader | UnicodeError):
        # They quote the header, in a form in which the secret might not be found.
        return type(error).__name__
    if isinstance(error, requests.RequestException | OSError):
        return _cause(error)
    return f"{type(error).__name__}: {error}"


def _cause(error: BaseException) -> str:
    """The last words of a chain: requests and urllib3 wrap what happened in sentences about themselves."""
    for inner in error.args:
        reason = getattr(inner, "reason", inner)
        if isinstance(reason, BaseException):
            return _cause(reason)
    return str(error) or type(error).__name__


def _shown(text: str) -> str:
    """Without the login of a proxy's URL."""
    return re.sub(r"//[^/\s]*@", f"//{MASK}@", text)
