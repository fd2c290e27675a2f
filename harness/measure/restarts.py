"""The failures of a simulated lab and what was done, as sentences for the notes of cells. Pure."""

from __future__ import annotations

from collections.abc import Sequence

STARTED_AGAIN = "the lab host was started again"
KEPT_RUNNING = "the lab host kept running; its layouts and guest were created again"


class Restarts:
    """The failures of a simulated lab. Whether its host was restarted is known only when the host is open again."""

    def __init__(self) -> None:
        self._sentences: list[str] = []
        self._failed: str | None = None
        self._boot: str | None = None

    @property
    def sentences(self) -> Sequence[str]:
        """One sentence for each failure: what failed, and what was done, if already known."""
        return [*self._sentences, *([self._failed] if self._failed else [])]

    def failed(self, what: str) -> None:
        """Record that the lab was taken down because of `what`."""
        self._failed = what

    def opened(self, boot: str) -> str | None:
        """Record that the host is open, with this boot id. Returns what was done after a failure, else None."""
        done = KEPT_RUNNING if boot == self._boot else STARTED_AGAIN
        self._boot = boot
        if self._failed is None:
            return None
        self._sentences.append(f"{self._failed}; {done}")
        self._failed = None
        return done
