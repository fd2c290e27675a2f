"""Writes a page to a file that the user named."""

from __future__ import annotations

from pathlib import Path

from harness.errors import ConfigError
from harness.files import write_atomically


def write_page(path: Path, page: str) -> None:
    """Write the page for `--html`. Raises ConfigError if the file cannot be written."""
    try:
        write_atomically(path, page)
    except OSError as error:
        raise ConfigError(
            f"--html {path} cannot be written: {error.strerror or error}",
            hint=f"check that {path.parent} exists and has space, and that this user may write there",
        ) from error
