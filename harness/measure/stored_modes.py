"""The modes that a run stores for --resume, in a form that a later version can compare. Pure."""

from __future__ import annotations

import ast
from functools import cache
from typing import Any

from pydantic import JsonValue, TypeAdapter

from harness.model.mode import Mode, ModeDetail
from harness.model.values import STORED


def mode_record(mode: Mode) -> JsonValue:
    """The mode's layout and attachment with all options, as plain JSON."""
    return _record(mode.detail)


def comparable_mode(stored: JsonValue) -> JsonValue:
    """A stored mode as `mode_record` returns it now: with the defaults of options that the run's version did not have.

    A mode that cannot be read stays as it is, so it differs from every mode.
    """
    try:
        found = _of_version_1(stored) if isinstance(stored, str) else stored
        return _record(_adapter().validate_python(found, context=STORED))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return stored


def _of_version_1(text: str) -> dict[str, Any]:
    """The record of a mode that virt-overhead 0.1 stored as Python code: `Lvm(kind='lvm', ...), Attach(...)`."""
    code = ast.parse(text, mode="eval").body
    if not isinstance(code, ast.Tuple) or len(code.elts) != 2:
        raise ValueError("not a layout and an attachment")
    layout, attach = map(_plain, code.elts)
    return {"layout": layout, "attach": attach}


def _plain(code: ast.expr) -> Any:
    match code:
        case ast.Call(keywords=options):
            return {str(option.arg): _plain(option.value) for option in options}
        case ast.Constant(value=value):
            return value
    raise ValueError("neither a call nor a constant")


def _record(mode: ModeDetail) -> JsonValue:
    found: JsonValue = _adapter().dump_python(mode, mode="json")
    return found


@cache
def _adapter() -> TypeAdapter[ModeDetail]:
    return TypeAdapter(ModeDetail)
