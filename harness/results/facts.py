"""A fact of the provenance in the form in which two runs, or two boots of a machine, can be compared. Pure."""

from __future__ import annotations

from pydantic import JsonValue

from harness.units import format_size


def comparable_fact(name: str, value: JsonValue) -> JsonValue:
    """The fact with sizes as they are shown: the same machine has some KiB more or less of memory after each boot."""
    if name.endswith("_bytes") and isinstance(value, str) and value.isdecimal():
        return format_size(int(value))
    return value
