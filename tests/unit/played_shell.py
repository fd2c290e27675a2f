"""A shell of a machine, played: a `Runner` whose commands print what a test says."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from harness.lab.transport.base import Completed, HeldCommand, failed


@dataclass
class PlayedShell:
    """A shell, played: what its commands print, by a word of theirs. It keeps what was asked of it."""

    prints: dict[str, str]
    name: str = "host node1"
    windows: bool = False
    fails: str = ""
    asked: list[str] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: float,
        stdin: str | bytes | None = None,
        check: bool = True,
    ) -> Completed:
        text = stdin.decode() if isinstance(stdin, bytes) else stdin or ""
        said = f"{' '.join(argv)}\n{text}"
        self.asked.append(said)
        done = self._answered(list(argv), said, text, deadline)
        if check and done.status != 0:
            raise failed(self.name, done)
        return done

    def _answered(self, argv: list[str], said: str, stdin: str, deadline: float) -> Completed:  # noqa: ARG002
        return self._failing(argv) or Completed(tuple(argv), 0, self._printed(said), "")

    def _failing(self, argv: Sequence[str]) -> Completed | None:
        """A command that is the one to fail, or a script that has it on its last line."""
        last = (argv[2] if argv[:2] == ["sh", "-c"] else "").strip().rpartition("\n")[2]
        if self.fails and (argv[0] == self.fails or self.fails in last):
            return Completed(tuple(argv), 1, "", f"{self.fails}: it failed")
        return None

    def _printed(self, said: str) -> str:
        return next((text for word, text in self.prints.items() if word in said), "")

    def put(self, source: Path, target: str, *, deadline: float) -> None:  # noqa: ARG002 - a Runner
        raise AssertionError("nothing is copied to the node: its ISO goes through the API")

    def hold(self, argv: Sequence[str], *, what: str, deadline: float) -> AbstractContextManager[HeldCommand]:
        raise AssertionError(f"{what} is not held in these tests: {argv} for {deadline} s")

    def close(self) -> None:
        """Nothing is open."""
