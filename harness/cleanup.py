"""Takes back what was made, last thing first, and tells what could not be taken back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType

from harness.errors import HarnessError, HostError


class Cleanup:
    """A `with` block that ends by removing what was made in it, also where making it failed half-way.

    A removal is named before the thing is made, so it has to find for itself whether there is anything to remove. All
    are tried, whichever fails. What failed is added to the error that ended the block, which stays the one that is
    raised; where the block ended well, a HostError names all that is left on `host`, and the `remedy`.
    """

    def __init__(self, host: str, remedy: str) -> None:
        self._host = host
        self._remedy = remedy
        self._steps = ExitStack()
        self._left: list[str] = []

    def by(self, what: str, remove: Callable[[], object]) -> None:
        """Call `remove` at the end; `what` names the thing."""
        self._steps.callback(self._try, what, remove)

    def __enter__(self) -> Cleanup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._steps.close()
        if not self._left:
            return
        left = "; ".join(self._left)
        if error is None:
            raise HostError(f"{self._host}: left behind: {left}", hint=self._remedy)
        if isinstance(error, HarnessError):
            # People are shown message and hint of such an error; a note would show in a traceback alone.
            error.message += f"\n  left behind: {left}"
            if self._remedy not in (error.hint or ""):
                error.hint = f"{error.hint}; {self._remedy}" if error.hint else self._remedy
        else:
            error.add_note(f"{self._host}: left behind: {left}; {self._remedy}")

    def _try(self, what: str, remove: Callable[[], object]) -> None:
        try:
            remove()
        except HarnessError as error:
            self._left.append(f"{what} ({error.message})")
