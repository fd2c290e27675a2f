"""A machine on which one command fails: what every step of a layout is tried with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path

from harness.errors import HostError, SafetyError
from harness.lab.transport.base import Completed, Runner, failed


class FailingAt:
    """The real machine behind `runner`, on which the `n`-th command is not run and fails."""

    def __init__(self, runner: Runner, n: int) -> None:
        self.name = runner.name
        self.asked = 0
        self._runner = runner
        self._n = n

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        self.asked += 1
        if self.asked != self._n:
            return self._runner.run(argv, deadline=deadline, stdin=stdin, check=check)
        done = Completed(tuple(argv), 1, "", f"command {self._n} was made to fail")
        if check:
            raise failed(self.name, done)
        return done

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        self._runner.put(source, target, deadline=deadline)

    def close(self) -> None:
        self._runner.close()


def outcomes(
    runner: Runner,
    layouts: Callable[[Runner], AbstractContextManager[object]],
    check: Callable[[str], None],
    *,
    step: int = 1,
) -> list[str]:
    """What comes of it when the first command fails, then the one `step` after it, and so on; the last time none does.

    Each is `built`, `clean` after an error, or `left` where the error tells of something left behind; `check` is called
    with it.
    """
    found: list[str] = []
    for n in count(1, step):
        failing = FailingAt(runner, n)
        found.append(_outcome(layouts(failing)))
        check(found[-1])
        if failing.asked < n:
            break
    return found


def _outcome(layouts: AbstractContextManager[object]) -> str:
    try:
        with layouts:
            pass
    except (HostError, SafetyError) as error:
        return "left" if "left behind" in str(error) else "clean"
    return "built"
