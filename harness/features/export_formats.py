"""Formats that other programs read: Parquet, and gauges as text for Prometheus. Pure.

OpenMetrics and the textfile collector of node_exporter both read the gauges. The collector refuses timestamps of
samples, and types that only OpenMetrics has (info, stateset). So everything is a gauge, and times are values. Sources:
the OpenMetrics specification 1.0, and node_exporter's textfile collector.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from harness.errors import ConfigError
from harness.terminal import one_line

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_UNITS = ("seconds", "ratio")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class GaugeSample:
    """One value with its labels."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Gauge:
    """A metric. Its name ends with its unit, if it has one: `seconds` or `ratio`. `about` is one sentence."""

    name: str
    about: str
    samples: tuple[GaugeSample, ...]

    @property
    def unit(self) -> str:
        return next((unit for unit in _UNITS if self.name.endswith(f"_{unit}")), "")


def format_openmetrics(gauges: Iterable[Gauge]) -> str:
    """The document. Gauges without a sample are left out, and so are values that are not finite.

    Raises ValueError for a name or label that Prometheus does not accept.
    """
    return "\n".join([*(line for gauge in gauges for line in _list_lines(gauge)), "# EOF", ""])


def _list_lines(gauge: Gauge) -> Iterator[str]:
    samples = [sample for sample in gauge.samples if math.isfinite(sample.value)]
    for name in (gauge.name, *(name for sample in samples for name in sample.labels)):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name}: not a name that Prometheus accepts")
    if not samples:
        return
    yield f"# TYPE {gauge.name} gauge"
    if gauge.unit:
        yield f"# UNIT {gauge.name} {gauge.unit}"
    yield f"# HELP {gauge.name} {gauge.about.translate(_ESCAPES)}"
    for sample in samples:
        labels = ",".join(f'{name}="{one_line(text).translate(_ESCAPES)}"' for name, text in sample.labels.items())
        yield f"{gauge.name}{{{labels}}} {sample.value!r}"


T = TypeVar("T")
Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class TypedColumn(Generic[T]):
    """One column of a table: its name, the type of its values, and how a row has it. A value may be None."""

    name: str
    type: type
    of: Callable[[T], Value]


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
    values = {column.name: [column.of(row) for row in rows] for column in columns}
    parquet.write_table(pa.table(values, schema=schema), file)
    return file.getvalue()
