"""Calls that may block without end, cut off by a deadline: the caller always gets control back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Overdue(Exception):
    """The call was still blocked when its time was up; it goes on in its thread."""


class _Call(threading.Thread, Generic[T]):
    def __init__(self, action: Callable[[], T]) -> None:
        # A daemon: a call that never comes back must not keep the interpreter from exiting.
        super().__init__(daemon=True)
        self._action = action
        self.result: T
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._action()
        except BaseException as error:
            self.error = error


def within(seconds: float, action: Callable[[], T]) -> T:
    """What `action()` returns or raises, or Overdue after `seconds`."""
    call = _Call(action)
    call.start()
    call.join(max(seconds, 0.0))
    if call.is_alive():
        raise Overdue
    if call.error is not None:
        raise call.error
    return call.result
