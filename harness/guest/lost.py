"""A guest that is lost while something is measured: the error says what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.errors import GuestError, HostError
from harness.guest.protocol import Guest


@contextmanager
def explained(guest: Guest | None) -> Iterator[None]:
    """Have a failure by which the guest was lost, or that came of its loss, tell what became of it."""
    try:
        yield
    except (HostError, GuestError) as error:
        became = guest.post_mortem() if guest else None
        if became is None:
            raise
        raise GuestError(f"{error.message}; {became}") from error
