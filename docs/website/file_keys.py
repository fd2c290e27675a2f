"""The page of the keys of scenario and lab files, from their tables in the code."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, get_args, get_type_hints

from pydantic import BeforeValidator, TypeAdapter

from docs.website.tables import escape, format_table, name_values, quote, read_field_docs
from harness.feature import FeatureStorage, FeatureTables, ModeKeys, list_brought
from harness.features.proxmox import ApiSpec, NodeGuestKeys, SecretSource
from harness.lab.inventory import StatedArray
from harness.lab.lab_file import DiskKeys, LabKeys, make_host_keys
from harness.lab.lab_schema import StorageKeys
from harness.model.guest import OPTIONS_TABLE
from harness.model.mode import Budget, Mode
from harness.model.workloads import Profile
from harness.scenario.load import ScenarioFile

_INTRODUCTION = """For people who write scenario and lab files: every key of their tables. Made from the code by
`python -m docs.website.generate`. [Scenarios](../scenarios.md) and [labs](../lab.md) explain how to use them,
[options](options.md) has the keys of `layout`, `attach` and `guest`."""

Row = tuple[str, str, str, str]
"""Key, values, default and meaning."""

_OF_MODE = ("layout", "attach", "guest", "cached")


def file_keys_page() -> str:
    """Every table of a scenario file and of a lab file."""
    return "\n".join(["# Keys of scenario and lab files", "", _INTRODUCTION, "", *_of_scenarios(), *_of_labs()])


def _of_scenarios() -> Iterator[str]:
    yield from _table("Scenario file", _rows(ScenarioFile), _rows_of_features(in_lab=False))
    of_features = (_rows(keys.table) for keys in list_brought(ModeKeys))
    yield from _table("`[mode.NAME]`", _rows(Mode, only=_OF_MODE), *of_features)
    yield from _table("`[profile.NAME]`", _rows(Profile, leave_out=("name",), changes=True))
    yield from _table("`[[budget]]`", _rows(Budget))
    for tables in list_brought(FeatureTables):
        yield from _table(f"`[{tables.key}.NAME]`", _rows(tables.table))


def _of_labs() -> Iterator[str]:
    yield from _table("Lab file", _rows(LabKeys), _rows_of_features(in_lab=True))
    yield from _table("`[host.NAME]`", _rows(make_host_keys()))
    yield from _table("`[host.NAME.api]`", _rows(ApiSpec))
    yield from _table("The key of `secret`", _rows(SecretSource))
    options = tuple(OPTIONS_TABLE.model_fields)
    yield from _table("`[host.NAME.guest]`, beside the options", _rows(NodeGuestKeys, leave_out=options))
    yield from _table("`[host.NAME.disk.DISK]`", _rows(DiskKeys))
    of_features = (
        (f"`{storage.key}`", "text", "none", f"A {storage.kind.words}. Layouts: {quote(storage.kind.layouts)}.")
        for storage in list_brought(FeatureStorage)
    )
    yield from _table("`[host.NAME.storage.STORAGE]`", _rows(StorageKeys), of_features)
    yield from _table("`array` of a disk or a storage", _rows(StatedArray))


def _table(title: str, *rows: Iterable[Row]) -> Iterator[str]:
    yield from format_table(title, ("key", "values", "default", "meaning"), chain(*rows))


def _rows_of_features(*, in_lab: bool) -> Iterator[Row]:
    for tables in list_brought(FeatureTables):
        if tables.in_lab or not in_lab:
            words = (tables.table.__doc__ or "").partition("\n")[0]
            yield f"`{tables.key}`", f"tables `[{tables.key}.NAME]`", "none", escape(words)


def _rows(
    table: type, *, only: Collection[str] = (), leave_out: Collection[str] = (), changes: bool = False
) -> Iterator[Row]:
    """A row for each key. `changes`: a key that is left out has another value than its default here."""
    words, hints = read_field_docs(table), get_type_hints(table, include_extras=True)
    schema = TypeAdapter(table).json_schema()
    if reference := schema.get("$ref"):
        schema = schema["$defs"][reference.rpartition("/")[2]]
    names = {field.alias: name for name, field in getattr(table, "model_fields", {}).items() if field.alias}
    for key, value in schema["properties"].items():
        name = names.get(key, key)
        if name not in leave_out and (not only or name in only):
            default = "that of the profile" if changes else _default(value, required=key in schema.get("required", ()))
            meaning = " ".join(words.get(name, "").split())
            yield f"`{key}`", _values(value, hints[name]), default, escape(meaning)


def _values(value: Mapping[str, Any], annotation: Any) -> str:
    """The allowed values, or an example: that which a message about a wrong value shows."""
    if (example := find_example(annotation)) is not None:
        return f'for example `"{example}"`'
    kinds = [kind for kind in value.get("anyOf", (value,)) if kind != {"type": "null"}]
    return ", ".join(dict.fromkeys(map(name_values, kinds)))


def _default(value: Mapping[str, Any], *, required: bool) -> str:
    if required:
        return "required"
    match value.get("default"):
        case float() as seconds:
            return f'`"{seconds:g} s"`'
        case None | [] | "" | {}:
            return "none"
        case default:
            return f"`{json.dumps(default)}`"


def find_example(annotation: Any) -> str | None:
    """The example of a value that is text in a file and something else in the code (`from_text`)."""
    for part in (*getattr(annotation, "__metadata__", ()), *get_args(annotation)):
        if isinstance(part, BeforeValidator):
            example = (
                inspect.getclosurevars(part.func).nonlocals.get("example") if inspect.isfunction(part.func) else None
            )
        else:
            example = find_example(part)
        if example is not None:
            return str(example)
    return None
