"""How many bytes a run may write to a disk: the limit of the user, and what it means for a disk. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import ConfigError
from harness.units import parse_share, parse_size

OPTION = "--max-writes"


@dataclass(frozen=True, slots=True)
class MaxWrites:
    """The most that a run may write to each disk: in bytes, or as a share of the disk's rated endurance."""

    size: int | None = None
    share: float | None = None
    text: str = ""
    """As the user wrote it."""

    @classmethod
    def parse(cls, text: str) -> MaxWrites:
        """The limit in `text`: "2TiB", "500 GiB" or "1%". Raises ValueError."""
        if text.strip().endswith("%"):
            share = parse_share(text)
            if not 0 < share <= 1:
                raise ValueError(f"{text!r} is not a share of an endurance. Use more than 0 % and at most 100 %")
            return cls(share=share, text=text.strip())
        size = parse_size(text)
        if size == 0:
            raise ValueError(f"{text!r} allows no write at all. Use for example 500GiB, 2TiB or 1%")
        return cls(size=size, text=text.strip())

    def of_disk(self, name: str, endurance: int | None) -> int:
        """The bytes that may be written to this disk. Raises ConfigError for a share of an unknown endurance."""
        if self.size is not None:
            return self.size
        if endurance is None:
            raise ConfigError(
                f"{OPTION}={self.text}: the rated endurance of disk {name} is not known",
                hint=f"add it to the table of disk {name} in the lab file, from its data sheet, for example "
                f'endurance = "600 TBW", or give a size, for example {OPTION}=2TiB',
            )
        return int(endurance * (self.share or 0.0))
