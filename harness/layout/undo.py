"""Takes back by commands what a layer made on a host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType

from harness.cleanup import Cleanup
from harness.lab.transport.base import Runner

REMEDY = "find out what uses it there (lsof, fuser, lsblk), end that, and: virt-overhead reap"


class Undo:
    """A `with` block that ends by undoing what was made in it: see `Cleanup`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._cleanup = Cleanup(runner.name, REMEDY)

    def by(self, what: str, argv: Sequence[str], *, deadline: float, stdin: str | None = None) -> None:
        """Remove `what` at the end with this command, in at most `deadline` seconds."""
        self._cleanup.by(what, partial(self._runner.run, list(argv), deadline=deadline, stdin=stdin))

    def __enter__(self) -> Undo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.__exit__(kind, error, trace)
