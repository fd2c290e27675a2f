"""What the generated pages share: tables of Markdown, and the words of the code on its fields and their values."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any


def format_table(title: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """The lines of a section with a table."""
    columns = tuple(head)
    yield from (f"## {title}", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns))
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def escape(text: str) -> str:
    """Text in a cell of a table: no bar ends it, and `<` begins no HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def quote(names: Iterable[object]) -> str:
    """A list of names as code, each once."""
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def name_values(schema: Mapping[str, Any]) -> str:
    """The values of a JSON Schema in words. A value that is text in a file may be a number there, without limits."""
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return quote(values)
    if "minimum" in schema:
        least = f"{schema['minimum']}"
        return f"{least} to {schema['maximum']}" if "maximum" in schema else f"{least} or more"
    if schema.get("type") == "array":
        values = schema.get("prefixItems")
        return f"{len(values)} numbers" if values else f"list: {name_values(schema['items'])}"
    if schema.get("$ref", "").endswith("/Workload"):
        return "a workload"
    if schema.keys() & {"$ref", "oneOf"} or schema.get("type") == "object":
        return "table"
    return "`true`, `false`" if schema.get("type") == "boolean" else "text"


@cache
def read_field_docs(record: type) -> Mapping[str, str]:
    """The docstrings below the fields of a class and of those that it extends, by the name of the field.

    pydantic can read them (`use_attribute_docstrings`), but then each start of the harness would parse its source.
    """
    return {name: text for base in reversed(record.__mro__) for name, text in _read_docstrings(base)}


def _read_docstrings(record: type) -> Iterator[tuple[str, str]]:
    if not record.__module__.startswith("harness."):
        return
    try:
        source = inspect.getsource(record)
    except OSError:  # a class that is created at run time
        return
    (definition,) = ast.parse(inspect.cleandoc("\n" + source)).body
    assert isinstance(definition, ast.ClassDef)
    for field, below in pairwise(definition.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                yield key, inspect.cleandoc(text)
