"""What was done each time that a simulated lab failed, in sentences for the notes of cells. Pure."""

from __future__ import annotations

from collections.abc import Sequence

STARTED_AGAIN = "the lab host was started again"
KEPT_RUNNING = "the lab host kept running; its layouts and guest were made again"


class Restarts:
    """The failures of a simulated lab. Whether its host was started again is known when it is open again."""

    def __init__(self) -> None:
        self._sentences: list[str] = []
        self._failed: str | None = None
        self._boot: str | None = None

    @property
    def sentences(self) -> Sequence[str]:
        """One sentence for each failure: what failed, and what was done where that is known yet."""
        return [*self._sentences, *([self._failed] if self._failed else [])]

    def failed(self, what: str) -> None:
        """The lab was taken down, because `what` happened."""
        self._failed = what

    def opened(self, boot: str) -> str | None:
        """The host is open, in the boot with this id. After a failure, what was done."""
        done = KEPT_RUNNING if boot == self._boot else STARTED_AGAIN
        self._boot = boot
        if self._failed is None:
            return None
        self._sentences.append(f"{self._failed}; {done}")
        self._failed = None
        return done
