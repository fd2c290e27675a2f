"""Checks values against the API's schema, with the wording of PVE::JSONSchema."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Schema = Mapping[str, Any]
Value = str | list[str]
Errors = dict[str, str]

DATA = Path(__file__).parent / "data"
NOT_DEFINED = "property is not defined in schema and the schema does not allow additional properties"
COUNTS = {
    "ide": 4, "scsi": 31, "virtio": 16, "sata": 6, "unused": 256, "net": 32, "ipconfig": 32, "serial": 4,
    "parallel": 3, "mp": 256, "dev": 256, "usb": 14, "hostpci": 16, "numa": 8, "virtiofs": 10,
}  # fmt: skip
"""How many of each the API knows where its viewer writes `[n]`."""


class BadFormat(Exception):
    """A value that its format refuses; the text is what follows `invalid format - `."""


class FormatErrors(BadFormat):
    """A property string that its schema refuses, one message for each property."""

    def __init__(self, errors: Errors) -> None:
        super().__init__("format error\n" + "".join(f"{name}: {text}\n" for name, text in sorted(errors.items())))


@functools.cache
def document() -> dict[str, Any]:
    """The compact form of the API: formats by name, and methods by path."""
    api: dict[str, Any] = json.loads((DATA / "api.json").read_text())
    extra: dict[str, Any] = json.loads((DATA / "extra.json").read_text())
    api["paths"].update(extra["paths"])
    return api


def named_format(name: str) -> Schema:
    """The properties of one of the API's property strings, for example those of `scsi[n]`."""
    properties: Schema = document()["formats"][name]
    return properties


def spread(properties: Schema) -> dict[str, Schema]:
    """`properties` with every `NAME[n]` written out as NAME0, NAME1 and so on."""
    spread_out: dict[str, Schema] = {}
    for name, schema in properties.items():
        if name.endswith("[n]"):
            stem = name.removesuffix("[n]")
            spread_out.update((f"{stem}{index}", schema) for index in range(COUNTS[stem]))
        else:
            spread_out[name] = schema
    return spread_out


def check_object(
    path: str, properties: Mapping[str, Schema], values: Mapping[str, Value], check: FormatCheck
) -> Errors:
    """The errors of `values`, by their full name; empty where all are accepted."""
    errors: Errors = {}
    for name, schema in properties.items():
        full = f"{path}.{name}" if path else name
        if name not in values:
            if not schema.get("optional") and "alias" not in schema:
                errors[full] = "property is missing and it is not optional"
        elif error := _check_value(full, schema, values[name], check):
            errors[full] = error
    for name in values:
        full = f"{path}.{name}" if path else name
        if name not in properties:
            errors[full] = NOT_DEFINED
            continue
        required = properties[name].get("requires")
        if isinstance(required, str) and required not in values:
            missing = f"{path}.{required}" if path else required
            errors[missing] = f"missing property - '{full}' requires this property"
    return errors


FormatCheck = Callable[[str | Schema, str, str], None]
"""Raises BadFormat where a format (by name or by its properties) refuses a value at a path."""


def _check_value(path: str, schema: Schema, value: Value, check: FormatCheck) -> str | None:
    if isinstance(value, list):
        return None if schema.get("type") == "array" else f"type check ('{schema.get('type')}') failed - got ARRAY"
    return _wrong_type(schema, value) or _wrong_text(path, schema, value, check) or _wrong_range(schema, value)


def _wrong_type(schema: Schema, value: str) -> str | None:
    kind = schema.get("type")
    accepted = {
        "boolean": value in {"0", "1"},
        "integer": re.fullmatch(r"[+-]?\d+", value) is not None,
        "number": is_number(value),
    }.get(str(kind), True)
    return None if accepted else f"type check ('{kind}') failed - got '{value}'"


def _wrong_text(path: str, schema: Schema, value: str, check: FormatCheck) -> str | None:
    if (expected := schema.get("format")) is not None:
        try:
            check(expected, value, path)
        except BadFormat as bad:
            return f"invalid format - {bad}"
    if (pattern := schema.get("pattern")) is not None and not re.fullmatch(_python(pattern), value):
        return "value does not match the regex pattern"
    if (longest := schema.get("maxLength")) is not None and len(value) > int(longest):
        return f"value may only be {longest} characters long"
    if (shortest := schema.get("minLength")) is not None and len(value) < int(shortest):
        return f"value must be at least {shortest} characters long"
    return None


def _wrong_range(schema: Schema, value: str) -> str | None:
    if is_number(value):
        if (largest := schema.get("maximum")) is not None and float(value) > float(largest):
            return f"value must have a maximum value of {largest}"
        if (least := schema.get("minimum")) is not None and float(value) < float(least):
            return f"value must have a minimum value of {least}"
    if (allowed := schema.get("enum")) is not None and value not in allowed:
        return f"value '{value}' does not have a value in the enumeration '{', '.join(allowed)}'"
    return None


def is_number(value: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+\.\d+|\d+\.|\.\d+|\d+)([eE][+-]?\d+)?", value) is not None


def _python(pattern: str) -> str:
    # Perl prints its compiled expressions with their flags: (?^:...).
    return pattern.replace("(?^:", "(?:")


def split_list(text: str) -> list[str]:
    """A list as PVE writes it: divided by commas, semicolons or white space."""
    return re.sub(r"[,;]", " ", text).split()


def parse_property_string(properties: Schema, text: str, path: str, check: FormatCheck) -> dict[str, str]:
    """`key=value,...` as a dictionary, aliases resolved and booleans as 0 and 1. Raises BadFormat."""
    values: dict[str, str] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        name, separator, value = part.partition("=")
        if separator and (not name or not value):
            raise BadFormat("missing key in comma-separated list property\n")
        if not separator:
            name, value = _default_key(properties, values), part
        _take(properties, values, name, value)
    if errors := check_object(path, properties, values, check):
        raise FormatErrors(errors)
    return values


def _take(properties: Schema, values: dict[str, str], name: str, value: str) -> None:
    if name in values:
        raise BadFormat(f"duplicate key in comma-separated list property: {name}\n")
    schema = properties.get(name, {})
    if alias := schema.get("alias"):
        if key_alias := schema.get("keyAlias"):
            if key_alias in values:
                raise BadFormat(f"key alias '{key_alias}' is already defined\n")
            values[key_alias] = name
        name, schema = alias, properties.get(alias, {})
    values[name] = parse_boolean(value) if schema.get("type") == "boolean" else value


def _default_key(properties: Schema, values: Iterable[str]) -> str:
    for name, schema in properties.items():
        if schema.get("default_key"):
            if name in values:
                raise BadFormat(f"duplicate key in comma-separated list property: {name}\n")
            return name
    raise BadFormat("value without key, but schema does not define a default key\n")


def parse_boolean(value: str) -> str:
    """0 or 1 for every word that PVE takes inside a property string; other words as they are."""
    if value.lower() in {"1", "on", "yes", "true"}:
        return "1"
    return "0" if value.lower() in {"0", "off", "no", "false"} else value
