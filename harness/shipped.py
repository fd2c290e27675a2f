"""Where the scenarios and the recipes of images are that come with the project: in a checkout, or in the package."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parent


def shipped(name: Literal["scenarios", "images"]) -> Path:
    """The directory `name` of the project. A wheel has it as harness/data/NAME (`force-include` in pyproject.toml)."""
    installed = _PACKAGE / "data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name
