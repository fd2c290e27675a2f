"""The one exception by which a call or a task of the double fails, as PVE's own do."""

from __future__ import annotations

from collections.abc import Mapping

PARAMETERS = "Parameter verification failed."


class PveError(Exception):
    """A call that ends with `status` and `message`, or a task that ends with `str(error)`."""

    def __init__(self, message: str, *, status: int = 500, errors: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.errors = dict(errors) if errors else None

    def __str__(self) -> str:
        if self.errors is None:
            return self.message
        details = " ".join(f"{name}: {text}".strip() for name, text in sorted(self.errors.items()))
        return f"{self.status} {self.message} {details}"


class ConnectionCut(Exception):
    """The connection is to end without an answer."""


def bad_parameters(errors: Mapping[str, str]) -> PveError:
    """400 with PVE's text and one message per parameter."""
    return PveError(PARAMETERS, status=400, errors=errors)


def forbidden(text: str) -> PveError:
    """403 as PVE words it: `text` is path and privileges."""
    return PveError(f"Permission check failed ({text})", status=403)


def unauthorized(text: str) -> PveError:
    return PveError(text, status=401)
