"""Tables with typed columns, and their form as a Parquet file."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from harness.errors import ConfigError

T = TypeVar("T")
Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class TypedColumn(Generic[T]):
    """One column of a table: its name, the type of its values, and how a row has it. A value may be None."""

    name: str
    type: type
    of: Callable[[T], Value]


def as_columns(rows: Sequence[T], columns: Sequence[TypedColumn[T]]) -> Mapping[str, list[Any]]:
    """The values by column."""
    return {column.name: [column.of(row) for row in rows] for column in columns}


def parquet_bytes(rows: Sequence[T], columns: Sequence[TypedColumn[T]], *, needed_for: str, extra: str) -> bytes:
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
