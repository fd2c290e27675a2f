"""Limits of a disk's I/O: what is requested, and what QEMU then lets through. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

LimitKind = Literal["iops", "bps"]
"""What is limited, by QEMU's name: I/Os per second, or bytes per second."""
NO_LIMIT = "none"
_AT_ONCE = 0.1
"""QEMU lets through the I/O of a tenth of a second at once. Source: throttle_compute_wait in QEMU's util/throttle.c."""
_WAYS = {"": "total", "_rd": "read", "_wr": "write"}
_BURSTS = {"": "", "_max": "-max", "_max_length": "-max-length"}


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `rate` per second on average. For `seconds`, it may be up to `burst` per second, if that is not None."""

    rate: int
    burst: int | None = None
    seconds: int = 1

    def settings(self, kind: LimitKind) -> dict[str, int]:
        """The limit by QEMU's names for the properties of a throttle group."""
        properties = {f"{kind}-total": self.rate}
        if self.burst is not None:
            properties |= {f"{kind}-total-max": self.burst, f"{kind}-total-max-length": self.seconds}
        return properties

    def at_once(self) -> float:
        """How much QEMU lets through at any speed after a pause, before it limits the I/O to `rate`."""
        return self.rate * _AT_ONCE if self.burst is None else float(self.burst * self.seconds)

    def allowed(self, seconds: float) -> float:
        """The most that QEMU lets through in so many seconds after a pause."""
        most = self.rate * seconds + self.at_once()
        if self.burst is not None and self.seconds > 1:
            most = min(most, self.burst * (seconds + _AT_ONCE))
        return most


def format_limits(settings: Mapping[str, int], kind: LimitKind) -> str:
    """The limits of one kind by QEMU's names, in one text: `iops-total=1000`. `none` without a limit."""
    names = (f"{kind}-{way}{burst}" for way, burst in product(_WAYS.values(), _BURSTS.values()))
    given = [(name, settings.get(name, 0)) for name in names]
    # A burst takes one second by default, also if there is none.
    shown = (f"{name}={value}" for name, value in given if value and not (name.endswith("-length") and value == 1))
    return " ".join(shown) or NO_LIMIT


def read_block_device_limits(inserted: Mapping[str, int]) -> dict[str, int]:
    """The limits that QEMU's `query-block` reports of a block device, by the names of a throttle group."""
    return {
        f"{kind}-{way}{burst}": inserted.get(f"{kind}{short}{suffix}", 0)
        for kind in ("iops", "bps")
        for (short, way), (suffix, burst) in product(_WAYS.items(), _BURSTS.items())
    }
