"""Files that come with the project: its scenarios, the recipes of images, and the scripts that it runs on hosts."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parent
_COMMENTS = re.compile(r"^[ \t]*#( .*)?\n", re.MULTILINE)


def shipped(name: Literal["scenarios", "images"]) -> Path:
    """The directory `name` of the project. A wheel has it as harness/data/NAME (`force-include` in pyproject.toml)."""
    installed = _PACKAGE / "data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def read_script(package: str, name: str, **values: object) -> str:
    """The script `name` for hosts or guests in the directory of `package`, without its lines of comment.

    Each of `values` replaces its name, a word in capitals, in the script.
    """
    text = _COMMENTS.sub("", files(package).joinpath(name).read_text(encoding="utf-8"))
    for word, value in values.items():
        text = text.replace(word, str(value))
    return text
