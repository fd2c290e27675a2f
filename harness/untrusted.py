"""Reads the output of other machines and programs, with limits on size and nesting. A defect in it is a HarnessError.

A host, a guest, QEMU, or a file that another program changed can contain anything. It must not fill the memory, and it
must not end the run with a traceback.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness.errors import HarnessError, HostError
from harness.files import read_regular
from harness.terminal import quoted
from harness.units import format_size

CLOCKS_DIFFER_SECONDS = 86400.0
"""By so much, the clocks of two machines may differ: what began later than that is of a wrong clock."""
JSON_BYTES = 16 << 20
"""More than any machine needs: fio's JSON+ has at most 2 MiB for the jobs of one process."""
LARGEST = 1e30
"""More than any figure of a machine: a disk's bytes, nanoseconds, or a ratio of them."""
JSON_DEPTH = 64
"""fio's output has 6 levels, QEMU's and Proxmox VE's about 10."""


def count(value: object) -> int:
    """A count from a document. Anything else raises ValueError, for example a negative or a very large number."""
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{quoted(str(value))} is not a count")
    return value


def finite(text: str) -> float:
    """The number in `text`. Anything else raises ValueError, including "nan" and "inf"."""
    number = float(text)
    return number if math.isfinite(number) else _refuse_infinite(text)


def _refuse_infinite(text: str) -> float:
    raise ValueError(f"{text[:40]} is not a finite number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_infinite, parse_float=finite)


@contextmanager
def reading(source: str, error: type[HarnessError] = HostError, *, hint: str | None = None) -> Iterator[None]:
    """Raise `error`, which names `source`, if reading it fails: a missing key, a wrong type, a bad number."""
    try:
        yield
    except HarnessError:
        raise
    except (
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        ArithmeticError,
        RecursionError,
        StopIteration,
        SyntaxError,  # XML that is not well-formed
    ) as cause:
        raise error(f"{source} cannot be read: {_explain(cause)}", hint=hint) from cause


def parse_json(
    text: str | bytes,
    source: str,
    error: type[HarnessError] = HostError,
    *,
    hint: str | None = None,
    after_notes: bool = False,
    most_bytes: int = JSON_BYTES,
) -> Any:
    """The JSON document in `text`. Raises `error`, which names `source`, if it is too large, too deep or not JSON.

    NaN and infinite numbers are not JSON. With `after_notes`, the document is the first object in the text, because
    some programs print notes before it.
    """
    _check_size(text, source, error, hint, most_bytes)
    with reading(source, error, hint=hint):
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        if after_notes:
            return parse_first_json(
                decoded, max(decoded.find("{"), 0), source, error, hint=hint, most_bytes=most_bytes
            )[0]
        return _check_depth(_DECODER.decode(decoded))


def parse_first_json(
    text: str,
    start: int,
    source: str,
    error: type[HarnessError] = HostError,
    *,
    hint: str | None = None,
    most_bytes: int = JSON_BYTES,
) -> tuple[Any, int]:
    """The JSON document that begins at `start`, and where it ends. Anything may follow. Errors as `parse_json`."""
    _check_size(text, source, error, hint, most_bytes)
    with reading(source, error, hint=hint):
        document, end = _DECODER.raw_decode(text, start)
        return _check_depth(document), end


def _check_size(text: str | bytes, source: str, error: type[HarnessError], hint: str | None, most_bytes: int) -> None:
    if len(text) > most_bytes:
        raise error(f"{source} has {format_size(len(text))}; the limit is {format_size(most_bytes)}", hint=hint)


def _check_depth(document: Any) -> Any:
    if not _nests_within(document, JSON_DEPTH):
        raise ValueError(f"it is nested more than {JSON_DEPTH} levels deep")
    return document


@cache
def adapt(kind: Any) -> TypeAdapter[Any]:
    """Reads and writes documents of this type."""
    return TypeAdapter(kind)


def read_stored(path: Path, kind: Any) -> Any:
    """The document of this type in a file of a cache or state directory; None if there is none that can be read."""
    try:
        return adapt(kind).validate_json(read_regular(path))
    except (OSError, ValidationError):
        return None


def require_as_many(what: str, number: int, **several: Sized) -> None:
    """ValueError unless each of these has as many values as there are `what`, or none."""
    for name, values in several.items():
        if len(values) not in (0, number):
            raise ValueError(f"{name} has {len(values)} values for {number} {what}")


def find_impossible_number(document: object, key: str = "") -> str | None:
    """The first number of a document that no machine has, as `KEY = VALUE: what is wrong`; None if there is none."""
    if isinstance(document, dict | list):
        inner = document.items() if isinstance(document, dict) else enumerate(document)
        return next(filter(None, (find_impossible_number(value, f"{key}.{name}") for name, value in inner)), None)
    most = 1e300 if isinstance(document, float) else (1 << 63) - 1
    if not isinstance(document, int | float) or -most <= document <= most:
        return None
    return f"{key.removeprefix('.')} = {str(document)[:60]}: the number is too large, or not finite"


def first_problem(error: ValidationError) -> str:
    """The first problem that pydantic found, in one line: `KEY = VALUE: what is wrong`. Only plain values are shown."""
    first = error.errors(include_url=False)[0]
    key, value = ".".join(map(str, first["loc"])) or "document", first["input"]
    shown = f" = {json.dumps(value, ensure_ascii=False)[:60]}" if isinstance(value, str | int | float) else ""
    return f"{key}{shown}: {first['msg'].removeprefix('Value error, ')}"


def _nests_within(document: object, depth: int) -> bool:
    level = [document]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return True
    return False


def _explain(cause: Exception) -> str:
    if isinstance(cause, RecursionError):
        return f"it is nested more than {JSON_DEPTH} levels deep"
    if isinstance(cause, ValidationError):
        return first_problem(cause)[:300]
    if isinstance(cause, KeyError):
        return f"there is no {quoted(str(cause.args[0]) if cause.args else '')}"
    return (str(cause) or type(cause).__name__)[:300]
