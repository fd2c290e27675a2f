"""What lab, --disk and -k make of scenario files: a scenario for each disk of a class, and the cells to choose from.

`-k` with the name of a disk selects the cells of that disk, and not those of a disk whose name it begins with. pytest
looks for a word anywhere in the id of a cell. The id of `local` in the mode `lvm-thin` is `local-lvm-thin-...`, which
contains `local-lvm`, the name of another storage: both are default names of Proxmox VE.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from _pytest.mark import KeywordMatcher
from _pytest.mark.expression import Expression

from harness.config.names import choices, near
from harness.errors import ConfigError
from harness.feature import FeatureTables, feature_tables
from harness.lab.inventory import DiskById, HostSpec, Inventory, array_of, class_known
from harness.model.cell import Cell
from harness.plugin.options import Options
from harness.scenario.classes import ForLab, OfferedDisk, for_lab
from harness.scenario.planning import expand
from harness.scenario.scenario import Requested, Scenario
from harness.scenario.setups import places_needed


def scenarios_for(options: Options, scenarios: Mapping[str, Scenario]) -> ForLab:
    """The scenarios for the lab's disks. Raises ConfigError if the lab does not have a disk that --disk names."""
    inventory = options.inventory
    offered = [offered_disk for host in inventory.hosts for offered_disk in _list_offered(host)]
    known = list(dict.fromkeys(each.name for each in offered))
    for name in options.disks or ():
        if name not in known:
            allowed = choices(name, known) if known else "it has no disks"
            raise ConfigError(f'--disk={name}: {inventory.source} has no disk "{name}"; {allowed}')
    found = for_lab(scenarios, offered, options.disks)
    for tables in feature_tables():
        if requests := tuple(request for request in inventory.requests if isinstance(request.value, tables.table)):
            found = _adapt(found, inventory.source, tables, requests)
    return found


def _adapt(found: ForLab, source: str, tables: FeatureTables, requests: tuple[Requested, ...]) -> ForLab:
    """The scenarios with what the lab file asks of a feature. Those with tables of their own keep them."""
    scenarios, notes = dict(found.scenarios), list(found.notes)
    for name, scenario in found.scenarios.items():
        if scenario.requests_of(tables.table) or tables.adapt is None:
            continue
        adapted, problems = tables.adapt(replace(scenario, requests=(*scenario.requests, *requests)))
        if problems:
            notes.append(f"{name}: measured without the {tables.what} of {source}: {problems[0]}")
        else:
            scenarios[name] = adapted
    return replace(found, scenarios=scenarios, notes=tuple(notes))


def cells_of(options: Options, found: ForLab) -> list[Cell]:
    """The cells of all scenarios, or those that need no other disks than --disk names.

    The reference of an array belongs to it, and need not be named.

    Raises ConfigError if there are none.
    """
    cells = [(scenario, cell) for scenario in found.scenarios.values() for cell in expand(scenario, options.profile)]
    usable = [cell for each, cell in cells if options.disks is None or _list_needed(each, cell) <= options.disks]
    if not usable:
        named = f"--disk={', '.join(sorted(options.disks))}" if options.disks else options.inventory.source
        why = "; ".join(found.notes) or "every scenario needs other disks"
        raise ConfigError(
            f"{named}: no scenario measures only these disks: {why}",
            hint='scenarios with disk = "any" measure every disk (docs/scenarios.md)',
        )
    return usable


def nearest_lines(keyword: str, cells: Sequence[Cell]) -> list[str]:
    """For `-k` that selects no cell: what its words that match nothing may have meant."""
    names = list(dict.fromkeys(name for cell in cells for name in (cell.scenario, cell.disk, cell.mode.name)))
    words = [word for word in re.findall(r"[\w.-]+", keyword) if word not in ("and", "or", "not")]
    unknown = [word for word in words if not any(word.lower() in cell.id.lower() for cell in cells)]
    return [f'-k: no cell has "{word}" in its id{near(word, names)}' for word in unknown]


def choice_lines(inventory: Inventory, scenarios: Iterable[Scenario]) -> list[str]:
    """For each scenario that asked for a class: its file, its disk, and why the disk has the class."""
    offered = {offered_disk.name: offered_disk for host in inventory.hosts for offered_disk in _list_offered(host)}
    return [
        f"{scenario.name}: {scenario.file} on disk {scenario.disk}, {offered[scenario.disk].known_from}"
        for scenario in scenarios
        if scenario.disk_class is not None
    ]


def _list_offered(host: HostSpec) -> Iterable[OfferedDisk]:
    for disk in host.measured:
        known = class_known(disk)
        stated = getattr(disk, "disk_class", None) is not None
        if known is None:
            words = "its class is not known before the host is asked"
        elif stated or not isinstance(disk, DiskById):
            words = f"class {known} by the lab file"
        else:
            words = f"class {known} assumed from its link {disk.id.rpartition('/')[2]}"
        array = array_of(disk)
        yield OfferedDisk(
            disk.name,
            known,
            words,
            simulated=host.kind == "embedded",
            on_array=array is not None,
            reference=array.reference if array is not None else "",
        )


def _list_needed(scenario: Scenario, cell: Cell) -> frozenset[str]:
    return frozenset(scenario.disks[place] for place in places_needed([cell.mode]))


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
