"""`-k` with the name of a disk: it selects the cells of that disk, and not those of a disk whose name it begins with.

pytest looks for a word anywhere in the id of a cell. The id of `local` in the mode `lvm-thin` is `local-lvm-thin-...`,
which contains `local-lvm`, the name of another storage: both are default names of Proxmox VE.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import pytest
from _pytest.mark import KeywordMatcher
from _pytest.mark.expression import Expression

from harness.model.cell import Cell


def is_across(word: str, cell: Cell, names: Collection[str]) -> bool:
    """Whether `word` is the name of another scenario or disk, and is in the id of the cell only across the border of
    scenario and mode. `names` are all names of scenarios and disks, in lower case. Pure.
    """
    word, scenario = word.lower(), cell.scenario.lower()
    rest = cell.id.lower().removeprefix(f"{scenario}-")
    if word not in names or word in (scenario, cell.disk.lower()):
        return False
    return word.startswith(f"{scenario}-") and word not in scenario and word not in rest


def deselect_across(
    config: pytest.Config, items: list[pytest.Item], cell_of: Mapping[pytest.Item, Cell], given: Iterable[str]
) -> None:
    """Deselect the items that `-k` selected only by such a match. `given` has the names of scenarios and disks."""
    names = frozenset(map(str.lower, given))
    words = str(config.option.keyword or "")
    if not any(name in words.lower() for name in names):
        return
    expression = Expression.compile(words)
    left_out = {item for item, cell in cell_of.items() if not _is_selected(expression, item, cell, names)}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _is_selected(expression: Expression, item: pytest.Item, cell: Cell, names: Collection[str]) -> bool:
    matches = KeywordMatcher.from_item(item)

    def is_in(word: str, /, **options: str | int | bool | None) -> bool:
        return matches(word, **options) and not is_across(word, cell, names)

    return expression.evaluate(is_in)
