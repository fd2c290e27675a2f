"""Limits calls that may block forever by a deadline. The caller always gets control back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

T = TypeVar("T")


class Overdue(Exception):
    """The call was still blocked at its deadline. It continues in its thread, until `ended` is true."""

    def __init__(self, thread: threading.Thread | None = None) -> None:
        super().__init__()
        self._thread = thread

    @property
    def ended(self) -> bool:
        return self._thread is None or not self._thread.is_alive()


class _Call(threading.Thread, Generic[T]):
    def __init__(self, action: Callable[[], T]) -> None:
        # A daemon thread, because a call that never returns must not stop the interpreter from exiting.
        super().__init__(daemon=True)
        self._action = action
        self.result: T
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._action()
        except BaseException as error:
            self.error = error


def within(seconds: float, action: Callable[[], T], *, waiting: AbstractContextManager[None] | None = None) -> T:
    """Return the result of `action()` or raise its exception. Raises Overdue after `seconds`.

    The call continues if a signal interrupts the waiting. `waiting` says when it may: by default, where signals may.
    """
    call = _Call(action)
    call.start()
    with waiting or nullcontext():
        call.join(max(seconds, 0.0))
    if call.is_alive():
        raise Overdue(call)
    if call.error is not None:
        raise call.error
    return call.result
