"""The generated reference of a command."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"


def read_command(name: str) -> str:
    """The part of the page about `virt-overhead NAME`."""
    return PAGE.read_text(encoding="utf-8").partition(f"\n## virt-overhead {name}\n")[2].partition("\n## ")[0]
