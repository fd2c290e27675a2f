"""Reads TOML, and translates pydantic's errors into lines that name key, value and what is allowed, in its notation."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

from harness.config.names import choices
from harness.errors import ConfigError
from harness.files import read_regular

Location = tuple[int | str, ...]

_LONGEST_VALUE = 200
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

_TYPES = {
    "string_type": "text in quotes",
    "int_type": "a whole number, without quotes",
    "bool_type": "true or false, without quotes",
    "list_type": "a list in brackets",
    "dict_type": "a table",
    "dataclass_type": "a table",
    "tuple_type": "a list in brackets",
    "model_type": "a table",
    "model_attributes_type": "a table",
}


def describe(error: ValidationError, data: Mapping[str, Any], schema: type[BaseModel]) -> Iterator[str]:
    """One line per problem, in the order of the schema: `modes[2] = "lmv": no such mode; allowed: ...`.

    A validator that finds several problems writes each on its own line of the ValueError.
    """
    for details in error.errors(include_url=False):
        if details["type"] == "too_short" and details["ctx"]["min_length"] == 1 and details["input"]:
            continue  # Every item is wrong and has its own line.
        key = _key(details["loc"], data)
        if details["type"].startswith("union_tag"):
            key += f".{_discriminator(details)}"
        yield from (f"{key}{_value(details)}: {reason}" for reason in _reason(details, schema).splitlines())


def shown(value: object) -> str:
    """The value in TOML notation. Tables and dates are shortened."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {shown(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    if isinstance(value, float):
        return str(value)  # Python writes inf and nan in the same way as TOML.
    return json.dumps(value, ensure_ascii=False, default=str)


def quoted_key(part: str) -> str:
    """A part of a key in TOML notation: in quotes if it has other characters than letters, digits, `_` and `-`."""
    return part if _BARE_KEY.fullmatch(part) else shown(part)


def _key(location: Location, data: Mapping[str, Any]) -> str:
    """The key in TOML notation. pydantic adds the kind of a layout to the location, but the file has no such key."""
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
    """` = VALUE`. Empty for a missing key, for a name in a key, and for a table that is wrong as a whole."""
    if details["type"] in ("missing", "union_tag_not_found") or details["loc"][-1:] == ("[key]",):
        return ""
    if details["type"] in ("value_error", "extra_forbidden", "list_type") and isinstance(details["input"], dict):
        return ""
    # pydantic's context has the tag as text, also if the file has another type.
    value = details["input"]
    if details["type"] == "union_tag_invalid":
        value = value[_discriminator(details)]
    text = shown(value)
    return f" = {text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + ' ...'}"


def _reason(details: ErrorDetails, schema: type[BaseModel]) -> str:  # noqa: PLR0911 - one line per kind of error
    kind, context = details["type"], details.get("ctx", {})
    match kind:
        case "value_error":
            return str(context["error"])
        case "missing":
            values = [value for value in get_args(_annotation_at(schema, details["loc"])) if isinstance(value, str)]
            if values:
                return f"missing; allowed: {', '.join(values)}"
            table = _required(_annotation_at(schema, details["loc"][:-1]))
            field = getattr(table, "model_fields", {}).get(details["loc"][-1])
            functions = [getattr(validator, "func", None) for validator in getattr(field, "metadata", ())]
            examples = (f'; for example "{found}"' for run in functions if (found := getattr(run, "example", None)))
            return f"missing, and it has no default{next(examples, '')}"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"no such key; {choices(str(details['loc'][-1]), _keys_at(schema, details['loc']))}"
        case "literal_error":
            return choices(str(details["input"]), _quoted(context["expected"]))
        case "union_tag_invalid":
            name = _discriminator(details)
            given, allowed = details["input"][name], _quoted(context["expected_tags"])
            return f"no such {name}; {choices(given if isinstance(given, str) else '', allowed)}"
        case "union_tag_not_found":
            return f"missing; allowed: {', '.join(_tags(_annotation_at(schema, details['loc'])))}"
        case "greater_than_equal":
            return f"allowed: {context['ge']} or more"
        case "less_than_equal" | "too_long" | "string_too_long":
            unit = " characters" if kind == "string_too_long" else ""
            return f"allowed: at most {context.get('le', context.get('max_length'))}{unit}"
        case "too_short" | "string_too_short":
            return "must not be empty" if context["min_length"] == 1 else f"allowed: {context['min_length']} or more"
        case "int_parsing_size":
            return "the number is too large"
        case "list_type" if isinstance(details["input"], dict):
            return "allowed: a list of tables, each with its name in double brackets: [[NAME]]"
    return f"must be {_TYPES[kind]}" if kind in _TYPES else details["msg"]


def _discriminator(details: ErrorDetails) -> str:
    """The key by which pydantic chooses a table of a union: its name, or the name of a function."""
    discriminator: str = details.get("ctx", {})["discriminator"]
    return discriminator.strip("'").removesuffix("()")


def _quoted(expected: str) -> list[str]:
    """The values in pydantic's list of expected values. Text is in quotes there, numbers are not."""
    return [text or number for text, number in re.findall(r"'([^']*)'|(\d+)", expected)]


def _keys_at(schema: type[BaseModel], location: Location) -> list[str]:
    """The allowed keys of the table that has the last part of `location`."""
    return list(_fields(_required(_annotation_at(schema, location[:-1]))))


def _annotation_at(annotation: Any, location: Location) -> Any:
    """The type at `location` in the schema. None if the schema does not have the location."""
    for part in location:
        annotation = _inside(annotation, part)
    return annotation


def _inside(annotation: Any, part: int | str) -> Any:
    if table := _fields(annotation):
        return _bare(table.get(str(part)))
    arguments = get_args(annotation)
    match get_origin(annotation):
        case origin if origin is dict:
            return _bare(arguments[1])
        case origin if origin in (list, tuple):
            return _bare(arguments[0])
        case origin if origin in (Union, UnionType):
            tables = {tag: _bare(table) for table in arguments for tag in _tags(table)}
            # pydantic adds the tag of a tagged union to the location. A plain `X | None` has no tag.
            return tables[part] if part in tables else _inside(_bare(arguments[0]), part)
    return None


def _fields(table: Any) -> Mapping[str, Any]:
    """The keys of a model or of a dataclass, with their types. Empty for anything else."""
    if isinstance(table, type) and issubclass(table, BaseModel):
        return {field.alias or name: field.annotation for name, field in table.model_fields.items()}
    if isinstance(table, type) and is_dataclass(table):
        hints = get_type_hints(table, include_extras=True)
        return {field.name: hints[field.name] for field in fields(table)}
    return {}


def _tags(annotation: Any) -> list[str]:
    """The tags of a table or of a union of tables: the values of `kind`, or explicit tags."""
    tags = [each.tag for each in getattr(annotation, "__metadata__", ()) if isinstance(each, Tag)]
    bare = _bare(annotation)
    if tags or "kind" in _fields(bare):
        return tags or list(get_args(_bare(_fields(bare)["kind"])))
    return [tag for table in get_args(bare) for tag in _tags(table)]


def _required(annotation: Any) -> Any:
    """X for `X | None`. Any other type unchanged."""
    arguments = [arg for arg in get_args(annotation) if arg is not type(None)]
    return _bare(arguments[0]) if get_origin(annotation) in (Union, UnionType) and len(arguments) == 1 else annotation


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def read_toml(path: Path, *, what: str, hint: str) -> dict[str, Any]:
    """The tables of `path`. `what` is the kind of file. Raises ConfigError with file, line and `hint`."""
    return _parse(path, _read(path, what, hint), hint)


def _read(path: Path, what: str, hint: str) -> str:
    try:
        content = read_regular(path, most_bytes=1 << 20, pipes=True)
        if (zero := content.find(0)) >= 0:
            raise UnicodeDecodeError("utf-8", content, zero, zero + 1, "UTF-16, or no text")
        return content.decode("utf-8-sig")  # Some editors begin a file with a byte order mark.
    except FileNotFoundError as error:
        others = [other.name for other in sorted(path.parent.glob("*.toml"))]
        known = f"; {choices(path.name, others)}" if others else ""
        raise ConfigError(f"{path}: no such {what} file{known}", hint=hint) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line}: not valid UTF-8", hint="save the file as UTF-8") from error
    except OSError as error:
        remedy = f"name a {what} file that this user may read"
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", hint=remedy) from error


_SYNTAX = {  # by the beginning of the text of tomllib
    "Invalid value": 'text needs straight quotes: KEY = "VALUE"; only numbers, true and false have none',
    "Invalid statement|Expected '=' after": 'a line is KEY = "VALUE" or [TABLE.NAME]',
    "Expected ']'": "the name of a table is in brackets, and has letters, digits, `_`, `-` and dots: [host.node1]",
    "Cannot": "the file has this key or table twice: write it once",
    "Invalid hex value|Unescaped": "write each backslash in text twice, or the text in single quotes",
}


def _parse(path: Path, text: str, hint: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        number = re.match(r"line (\d+)", where)
        line = text.split("\n")[int(number[1]) - 1].strip()[:200] if number else ""
        where = where.removesuffix(")") if number else "end of the file"
        what = re.sub(r"\('.*?',?\)", lambda key: "[" + ".".join(re.findall("'(.*?)'", key[0])) + "]", what)  # a tuple
        raise ConfigError(
            f"{path}: {where}: invalid TOML: {what}" + (f": {line}" if line else ""),
            hint=next((remedy for start, remedy in _SYNTAX.items() if re.match(start, what)), hint),
        ) from error


def matching(pattern: str, allowed: str) -> AfterValidator:
    """For text that the pattern matches as a whole. The message about another text says what is `allowed`."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"allowed: {allowed}")
        return text

    return AfterValidator(check)
