"""A call whose parameters are checked, as its handler gets it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pve_double.qemu.machine import Config
from pve_double.schema import Value
from pve_double.state import Node


@dataclass(frozen=True, slots=True)
class Call:
    """`user` is who calls: a user, or a full token id. `file` is an upload's content."""

    node: Node
    user: str
    params: dict[str, Value] = field(default_factory=dict)
    file: Path | None = None

    def text(self, name: str, default: str = "") -> str:
        value = self.params.get(name, default)
        return value if isinstance(value, str) else ",".join(value)

    def flag(self, name: str) -> bool:
        return self.params.get(name) == "1"

    def number(self, name: str, default: int) -> int:
        return int(self.text(name, str(default)))

    def words(self, name: str) -> list[str]:
        """A parameter that is an array; PVE makes one of a single text."""
        value = self.params.get(name, [])
        return [value] if isinstance(value, str) else list(value)

    @property
    def texts(self) -> Config:
        return {name: self.text(name) for name in self.params}

    @property
    def vmid(self) -> int:
        return int(self.text("vmid"))


Handler = Callable[[Call], Any]
