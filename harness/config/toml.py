"""Reads a TOML file, or reports the line that is not valid."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from harness.config.names import choices
from harness.errors import ConfigError


def read_toml(path: Path, *, what: str, hint: str) -> dict[str, Any]:
    """The tables of `path`. `what` is the kind of file. Raises ConfigError with file, line and `hint`."""
    return _parse(path, _read(path, what, hint), hint)


def _read(path: Path, what: str, hint: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # Some editors begin a file with a byte order mark.
    except FileNotFoundError as error:
        others = [other.name for other in sorted(path.parent.glob("*.toml"))]
        known = f"; {choices(path.name, others)}" if others else ""
        raise ConfigError(f"{path}: no such {what} file{known}", hint=hint) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line}: not valid UTF-8", hint="save the file as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", hint=hint) from error


def _parse(path: Path, text: str, hint: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        number = re.match(r"line (\d+)", where)
        line = text.splitlines()[int(number[1]) - 1].strip() if number else ""
        where = where.removesuffix(")") if number else "end of the file"
        raise ConfigError(
            f"{path}: {where}: invalid TOML: {what}" + (f": {line}" if line else ""), hint=hint
        ) from error
