"""How fast the double's time goes, so that tests need not wait as long as a client of a real node."""

from __future__ import annotations

import time
from dataclasses import dataclass

LOCK_SECONDS = 10.0
"""How long PVE waits for a configuration's lock."""
PROXY_SECONDS = 30.0
"""After how long the proxy in front of the API gives up on it."""
TICKET_SECONDS = 7200.0


@dataclass(frozen=True, slots=True)
class Pace:
    """`factor` real seconds pass for one second of the double: 1 is a real node's pace.

    `boot_seconds` (of the double) is from starting a guest to its agent's first answer.
    """

    factor: float = 1.0
    boot_seconds: float = 8.0

    def real(self, seconds: float) -> float:
        """Real seconds for seconds of the double."""
        return seconds * self.factor

    def sleep(self, seconds: float) -> None:
        time.sleep(self.real(seconds))

    def passed(self, since: float) -> float:
        """Seconds of the double since `since`, a value of time.monotonic()."""
        return (time.monotonic() - since) / self.factor
