"""Removes what was created, in reverse order, and reports what could not be removed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType

from harness.errors import HarnessError, HostError
from harness.signals import cleaning_up, held_back

_REAP = "virt-overhead reap"


def remedy_of(error: HarnessError, otherwise: str) -> str:
    """What to do about a removal that failed: the error's own hint if it is complete, else `otherwise`."""
    return error.hint if error.hint and _REAP in error.hint else otherwise


class Cleanup:
    """A `with` block that removes at its end what was created in it, even if the creation failed half-way.

    A removal is registered before the thing is created. So the removal must check whether there is anything to remove.
    All removals are tried, even if some fail. If an error ended the block, that error is raised, and the failed
    removals are added to it. If the block ended well, a HostError names all that is left on `host`, and what to do: as
    the failed removals say, or the `remedy`.
    Within the block, a signal interrupts waiting only; it does not interrupt the removals.
    """

    def __init__(self, host: str, remedy: str) -> None:
        self._host = host
        self._remedy = remedy
        self._steps = ExitStack()
        self._left: list[str] = []
        self._hints: list[str] = []
        self._held = held_back()

    def by(self, what: str, remove: Callable[[], object]) -> None:
        """Call `remove` at the end; `what` names the thing."""
        self._steps.callback(self._try, what, remove)

    def __enter__(self) -> Cleanup:
        self._held.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with cleaning_up():
                self._steps.close()
            self._report(error)
        finally:
            self._held.__exit__(kind, error, trace)

    def _report(self, error: BaseException | None) -> None:
        if not self._left:
            return
        left = "; ".join(self._left)
        remedy = "; ".join(dict.fromkeys(self._hints)) or self._remedy
        if error is None:
            raise HostError(f"{self._host}: left behind: {left}", hint=remedy)
        if isinstance(error, HarnessError):
            # Users see only the message and the hint of such an error. A note appears only in a traceback.
            error.message += f"\n  left behind: {left}"
            if remedy not in (error.hint or ""):
                error.hint = f"{error.hint}; {remedy}" if error.hint else remedy
        else:
            error.add_note(f"{self._host}: left behind: {left}; {remedy}")

    def _try(self, what: str, remove: Callable[[], object]) -> None:
        try:
            remove()
        except HarnessError as error:
            self._left.append(f"{what} ({error.message})")
            self._hints.append(remedy_of(error, self._remedy))
        except Exception as error:
            self._left.append(f"{what} ({type(error).__name__}: {error})")
            self._hints.append(self._remedy)
