"""From pydantic's errors to lines that name key, value and what is allowed, in the words of a TOML file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from harness.config.names import choices

Location = tuple[int | str, ...]

_LONGEST_VALUE = 200
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

_TYPES = {
    "string_type": "text in quotes",
    "int_type": "a whole number, without quotes",
    "bool_type": "true or false, without quotes",
    "list_type": "a list in brackets",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}


def describe(error: ValidationError, data: Mapping[str, Any], schema: type[BaseModel]) -> Iterator[str]:
    """One line per problem, in the order of the schema: `modes[2] = "lmv": no such mode; allowed: ...`.

    A validator that finds several problems says each in a line of its ValueError.
    """
    for details in error.errors(include_url=False):
        key = _key(details["loc"], data) + (".kind" if details["type"].startswith("union_tag") else "")
        yield from (f"{key}{_value(details)}: {reason}" for reason in _reason(details, schema).splitlines())


def shown(value: object) -> str:
    """The value as the TOML file has it; tables and dates are shortened."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {shown(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    if isinstance(value, float):
        return str(value)  # inf and nan as TOML has them, too
    return json.dumps(value, ensure_ascii=False, default=str)


def quoted_key(part: str) -> str:
    """A part of a key as a TOML file has it: in quotes where it is more than letters, digits, `_` and `-`."""
    return part if _BARE_KEY.fullmatch(part) else shown(part)


def _key(location: Location, data: Mapping[str, Any]) -> str:
    """The key as people write it. pydantic puts the kind of a layout into the location; the file has no such key."""
    key, here = "", data
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if part == "[key]":
            continue
        if isinstance(part, int):
            key += f"[{part}]"
        elif last or not isinstance(here, dict) or part in here:
            key += f".{quoted_key(part)}" if key else quoted_key(part)
        else:
            continue
        here = _item(here, part)
    return key


def _item(container: Any, part: int | str) -> Any:
    try:
        return container[part]
    except (KeyError, IndexError, TypeError):
        return None


def _value(details: ErrorDetails) -> str:
    """` = VALUE`, but for what is missing, for a name in a key, and for a table whose keys the reason names."""
    if details["type"] in ("missing", "union_tag_not_found") or details["loc"][-1:] == ("[key]",):
        return ""
    if details["type"] == "value_error" and isinstance(details["input"], dict):
        return ""
    # In the context the tag is text, whatever it is in the file.
    value = details["input"]["kind"] if details["type"] == "union_tag_invalid" else details["input"]
    text = shown(value)
    return f" = {text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + ' ...'}"


def _reason(details: ErrorDetails, schema: type[BaseModel]) -> str:  # noqa: PLR0911 - one line per kind of error
    kind, context = details["type"], details.get("ctx", {})
    match kind:
        case "value_error":
            return str(context["error"])
        case "missing":
            return "missing, and there is no default"
        case "extra_forbidden":
            return f"no such key; {choices(str(details['loc'][-1]), _keys_at(schema, details['loc']))}"
        case "literal_error":
            return choices(str(details["input"]), _quoted(context["expected"]))
        case "union_tag_invalid":
            given, kinds = details["input"]["kind"], _quoted(context["expected_tags"])
            return f"no such kind; {choices(given if isinstance(given, str) else '', kinds)}"
        case "union_tag_not_found":
            return f"missing; allowed: {', '.join(_tags(_annotation_at(schema, details['loc'])))}"
        case "greater_than_equal":
            return f"allowed: {context['ge']} and more"
        case "less_than_equal":
            return f"allowed: at most {context['le']}"
        case "too_short" | "string_too_short":
            return "must not be empty" if context["min_length"] == 1 else f"allowed: {context['min_length']} and more"
        case "int_parsing_size":
            return "too large a number"
        case "string_pattern_mismatch":
            return f"allowed: what matches {context['pattern']}"
    return f"must be {_TYPES[kind]}" if kind in _TYPES else details["msg"]


def _quoted(expected: str) -> list[str]:
    """The values in pydantic's list of what it expects: text stands in quotes there, numbers do not."""
    return [text or number for text, number in re.findall(r"'([^']*)'|(\d+)", expected)]


def _keys_at(schema: type[BaseModel], location: Location) -> list[str]:
    """The keys that the table holding the last part of `location` may have."""
    table = _required(_annotation_at(schema, location[:-1]))
    return list(table.model_fields) if isinstance(table, type) and issubclass(table, BaseModel) else []


def _annotation_at(annotation: Any, location: Location) -> Any:
    """The type that the schema gives to what stands at `location`; None where the location leaves the schema."""
    for part in location:
        annotation = _inside(annotation, part)
    return annotation


def _inside(annotation: Any, part: int | str) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return field.annotation if field else None
    arguments = get_args(annotation)
    match get_origin(annotation):
        case origin if origin is dict:
            return _bare(arguments[1])
        case origin if origin is list:
            return _bare(arguments[0])
        case origin if origin in (Union, UnionType):
            tables = {tag: _bare(table) for table in arguments for tag in _tags(table)}
            # pydantic puts the tag of a tagged union into the location; a plain `X | None` has none.
            return tables[part] if part in tables else _inside(_bare(arguments[0]), part)
    return None


def _tags(annotation: Any) -> list[str]:
    """The `kind`s that a table, or a union of tables, goes by."""
    bare = _bare(annotation)
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        kind = bare.model_fields.get("kind")
        return list(get_args(kind.annotation)) if kind else []
    return [tag for table in get_args(bare) for tag in _tags(table)]


def _required(annotation: Any) -> Any:
    """Of `X | None` the X; anything else as it is."""
    arguments = [each for each in get_args(annotation) if each is not type(None)]
    return _bare(arguments[0]) if get_origin(annotation) in (Union, UnionType) and len(arguments) == 1 else annotation


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
