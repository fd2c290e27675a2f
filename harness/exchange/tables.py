"""Writes the measurements of a run as a table: CSV or Parquet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import ConfigError
from harness.exchange.rows import COLUMNS, Column, Row, Value, as_columns
from harness.files import write_atomically
from harness.terminal import one_line

T = TypeVar("T")

# Programs skip blanks, and know the full-width forms of these characters.
_FORMULA = re.compile("\\s*[=+@\uff1d\uff0b\uff0d\uff20\u2212-]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write the rows with a header. A missing value is empty; truth values are `true` and `false`. Raises OSError."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.name for column in COLUMNS)
    for row in rows:
        values = (column.of(row) for column in COLUMNS)
        writer.writerow(map(_cell, values))
    write_atomically(path, text.getvalue())


def _cell(value: Value) -> Value:
    """A spreadsheet takes a text that begins with such a character for a formula. A text is one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write the rows with typed columns. Raises ConfigError without pyarrow, and OSError."""
    write_atomically(path, parquet_bytes(rows, COLUMNS, needed_for="--parquet", extra="parquet"))


def parquet_bytes(rows: Sequence[T], columns: Sequence[Column[T]], *, needed_for: str, extra: str) -> bytes:
    """The rows as a Parquet file with these typed columns.

    Raises ConfigError without pyarrow: `needed_for` is what the user requested, `extra` has the package.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an optional dependency
        from pyarrow import parquet  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigError(
            f"{needed_for} needs pyarrow, which is not installed", hint=f"run: pip install 'virt-overhead[{extra}]'"
        ) from None
    types: dict[type, Any] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    schema = pa.schema([(column.name, types[column.type]) for column in columns])
    file = io.BytesIO()
    parquet.write_table(pa.table(dict(as_columns(rows, columns)), schema=schema), file)
    return file.getvalue()
