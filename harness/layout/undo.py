"""Takes back what a layer made on a host, last thing first, and tells what could not be taken back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

from harness.errors import HarnessError, HostError
from harness.lab.transport.base import Runner

REMEDY = "find out what uses it there (lsof, fuser, lsblk), end that, and: virt-overhead reap"


class Undo:
    """A `with` block that ends by undoing what was made in it, also where making it failed half-way.

    A step is named before the thing is made, so it has to find for itself whether there is anything to undo. All steps
    are tried, whichever fails. What failed is added to the error that ended the block, which stays the one that is
    raised; where the block ended well, a HostError names all that is left.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._steps = ExitStack()
        self._left: list[str] = []

    def by(self, what: str, argv: Sequence[str], *, deadline: float, stdin: str | None = None) -> None:
        """Remove `what` at the end with this command, in at most `deadline` seconds."""
        self._steps.callback(self._undo, what, list(argv), deadline, stdin)

    def __enter__(self) -> Undo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._steps.close()
        if not self._left:
            return
        left = "; ".join(self._left)
        if error is None:
            raise HostError(f"{self._runner.name}: left behind: {left}", hint=REMEDY)
        if isinstance(error, HarnessError):
            # People are shown message and hint of such an error; a note would show in a traceback alone.
            error.message += f"\n  left behind: {left}"
            if REMEDY not in (error.hint or ""):
                error.hint = f"{error.hint}; {REMEDY}" if error.hint else REMEDY
        else:
            error.add_note(f"{self._runner.name}: left behind: {left}; {REMEDY}")

    def _undo(self, what: str, argv: list[str], deadline: float, stdin: str | None) -> None:
        try:
            self._runner.run(argv, deadline=deadline, stdin=stdin)
        except HostError as error:
            self._left.append(f"{what} ({error.message})")
