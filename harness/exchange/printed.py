"""What one call of fio printed, in the form of its JSON, whichever form the file has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REMEDY = "repair the file or measure again: fio --output-format=json+ --output=FILE"


@dataclass(frozen=True, slots=True)
class Printed:
    """One output of fio: `values` has the keys of its JSON, and is not checked yet.

    `before` is what fio printed before it. `remarks` say what this form lacks. With `options_known`, an option that is
    not in it has fio's default. Without `timed`, its time is that of the file.
    """

    values: Mapping[str, Any]
    before: str = ""
    remarks: tuple[str, ...] = ()
    options_known: bool = True
    timed: bool = True
