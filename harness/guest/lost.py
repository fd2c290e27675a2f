"""A guest that is lost during a measurement: the error reports its state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.errors import GuestError, HostError
from harness.guest.protocol import Guest


@contextmanager
def explained(guest: Guest | None) -> Iterator[None]:
    """Adds the state of the guest to an error in the block, if the guest no longer answers."""
    try:
        yield
    except (HostError, GuestError) as error:
        state = guest.post_mortem() if guest else None
        if state is None:
            raise
        raise GuestError(f"{error.message}; {state}") from error
