"""Gauges as text for Prometheus, in what OpenMetrics and the textfile collector of node_exporter both read. Pure.

The collector refuses timestamps of samples, and types that only OpenMetrics has (info, stateset). So everything is a
gauge, and times are values. Sources: the OpenMetrics specification 1.0, and node_exporter's textfile collector.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

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
