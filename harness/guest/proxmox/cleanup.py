"""Takes back what was made through the API, last thing first, and tells what could not be taken back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType

from harness.errors import HarnessError, HostError


class Cleanup:
    """A `with` block that ends by removing what was made in it, also where making it failed half-way.

    Each removal finds for itself whether there is anything to remove. All are tried; what fails is added to the error
    that ended the block, which stays the one that is raised, or is a HostError of its own.
    """

    def __init__(self, host: str) -> None:
        self._host = host
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
        left, remedy = "; ".join(self._left), f"virt-overhead reap --host {self._host}"
        if isinstance(error, HarnessError):
            error.message += f"\n  left behind: {left}; {remedy}"
        elif error is None:
            raise HostError(f"host {self._host}: left behind: {left}", hint=remedy)
        else:
            error.add_note(f"host {self._host}: left behind: {left}; {remedy}")

    def _try(self, what: str, remove: Callable[[], object]) -> None:
        try:
            remove()
        except HarnessError as error:
            self._left.append(f"{what} ({error.message})")
