"""results.json as a document: the values of a run, with the records of features among them."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, make_dataclass
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from harness.feature import feature_records
from harness.model.values import STORED, STRICT
from harness.results.records import Run

_NOT_STORED = ("of_features", "unknown")
_PLACES = {"writes": 9, "judged": 10, "disks": 12}
"""The place of a key in the document, if records of features stand before it."""


def to_stored(run: Run) -> Any:
    """The run as it is dumped: with the records of features beside the other values."""
    values = {key: getattr(run, key) for key in list_kernel_keys()}
    return _make_stored_form()(
        **values, **{added.key: run.of_features.get(added.key, ()) for added in feature_records()}
    )


def parse_run(document: Any, text: bytes) -> Run:
    """The run of this `text`, which is `document` as JSON. Keys that no feature reads are only named.

    Raises pydantic's ValidationError.
    """
    known = {field.name for field in fields(_make_stored_form())}
    unknown = tuple(key for key in document if key not in known) if isinstance(document, dict) else ()
    if unknown:
        text = json.dumps({key: value for key, value in document.items() if key in known}).encode()
    stored = make_stored_adapter().validate_json(text, context=STORED)
    of_features = {added.key: records for added in feature_records() if (records := getattr(stored, added.key))}
    return Run(**{key: getattr(stored, key) for key in list_kernel_keys()}, of_features=of_features, unknown=unknown)


@cache
def make_stored_adapter() -> TypeAdapter[Any]:
    """The form of results.json, for `to_stored`."""
    return TypeAdapter(_make_stored_form())


@cache
def _make_stored_form() -> type[Any]:
    hints = get_type_hints(Run, include_extras=True)
    placed: list[tuple[int, tuple[str, Any] | tuple[str, Any, Any]]] = []
    for number, field in enumerate(field for field in fields(Run) if field.name not in _NOT_STORED):
        place = _PLACES.get(field.name, number)
        required = field.default is MISSING
        placed.append((place, (field.name, hints[field.name]) + (() if required else (field.default,))))
    placed += [(added.place, (added.key, tuple[added.record, ...], ())) for added in feature_records()]  # type: ignore[name-defined]
    in_order = [field for _, field in sorted(placed, key=lambda at: at[0])]
    return make_dataclass(Run.__name__, in_order, frozen=True, namespace={"__pydantic_config__": STRICT})


@cache
def list_kernel_keys() -> tuple[str, ...]:
    """The keys of results.json that are no records of features."""
    return tuple(field.name for field in fields(Run) if field.name not in _NOT_STORED)
