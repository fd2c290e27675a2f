"""The user's project and options, and what these and the lab make of scenario files: the cells to choose from.

`-k` with the name of a disk selects the cells of that disk, and not those of a disk whose name it begins with. pytest
looks for a word anywhere in the id of a cell. The id of `local` in the mode `lvm-thin` is `local-lvm-thin-...`, which
contains `local-lvm`, the name of another storage: both are default names of Proxmox VE.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from _pytest.mark import KeywordMatcher
from _pytest.mark.expression import Expression
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.config.names import choices, near
from harness.config.problems import describe, read_toml
from harness.errors import ConfigError
from harness.feature import FeatureLimit, FeatureTables, RunLimit, RunOption, RunSwitch, find_brought, list_brought
from harness.files import shipped
from harness.lab.inventory import DiskById, HostSpec, Inventory, array_of, class_known
from harness.lab.lab_file import EMBEDDED_LAB, LAB_FILE, LAB_VARIABLE, choose_inventory
from harness.model.mode import Cell
from harness.model.values import MOST_ROUNDS
from harness.model.workloads import PROFILES
from harness.scenario.load import find_scenarios, load_scenario
from harness.scenario.plan import expand
from harness.scenario.scenario import ForLab, OfferedDisk, Requested, Scenario, for_lab
from harness.scenario.setups import places_needed
from harness.terminal import quoted
from harness.units import parse_duration

SCENARIOS = "scenarios"
"""The name of the directory with scenario files and the test body, in a checkout and in the package."""

_TABLE = "virt-overhead"
_HINT = "docs/install.md explains the table [tool.virt-overhead]"


class _Table(BaseModel):
    """The table `[tool.virt-overhead]` of pyproject.toml."""

    model_config = ConfigDict(extra="forbid", strict=True)

    scenarios: list[str] = Field(default_factory=list)
    """Directories with further scenarios, relative to pyproject.toml."""


@dataclass(frozen=True, slots=True)
class Project:
    """`directory` is the user's. `scenarios` are the directories with scenario files, each once."""

    directory: Path
    scenarios: tuple[Path, ...]


def read_project(config: pytest.Config) -> Project:
    """The project of this run: `--project`, else pytest's rootdir. Raises ConfigError for a wrong pyproject.toml.

    The scenarios are the project's own `scenarios/`, else those that come with the harness; and those that
    `--scenarios` or pyproject.toml adds. A project that adds its own `scenarios/` has the shipped ones, too.
    """
    directory = config.getoption("--project") or config.rootpath
    if not directory.is_dir():
        raise ConfigError(f"--project={directory}: no such directory")
    added = [*_read_table(directory), *(Path(extra).absolute() for extra in config.getoption("--scenarios") or ())]
    path = config.rootpath / SCENARIOS
    has_own = path.is_dir() and path.resolve() not in {extra.resolve() for extra in added}
    base = path if has_own else shipped("scenarios")
    return Project(directory, tuple({path.resolve(): path for path in (base, *added)}.values()))


def load_scenarios(directories: Iterable[Path]) -> dict[str, Scenario]:
    """The scenarios in these directories by name. Raises ConfigError if one is not valid, or two have the same name."""
    paths: dict[str, Path] = {}
    for directory in directories:
        for path in find_scenarios(directory):
            if other := paths.get(path.stem):
                raise ConfigError(
                    f"{path}: {other} is a scenario of the same name", hint="rename your file: its name is part of ids"
                )
            paths[path.stem] = path
    return {name: load_scenario(path) for name, path in paths.items()}


def _read_table(directory: Path) -> list[Path]:
    path = directory / "pyproject.toml"
    if not path.is_file():
        return []
    data = read_toml(path, what="project", hint=_HINT).get("tool", {}).get(_TABLE, {})
    try:
        table = _Table.model_validate(data)
    except ValidationError as error:
        problems = "\n".join(f"{path}: [tool.{_TABLE}] {problem}" for problem in describe(error, data, _Table))
        raise ConfigError(problems, hint=_HINT) from None
    return [directory / scenario for scenario in table.scenarios]


REQUIRE_VERDICT = "--require-verdict"

LARGEST_SEED = 2**31 - 1
"""The largest seed that a run chooses itself. fio also gets seeds that are slightly larger."""

Inconclusive = Literal["fail", "skip"]


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options. If `seed` is None, the run chooses one.

    `inventory` has the hosts to measure on. `hosts` has all hosts of the lab file.
    """

    inventory: Inventory
    hosts: tuple[HostSpec, ...]
    profile: str
    reports: Path
    seed: int | None
    rounds: int | None
    time: float | None
    """Seconds for measuring each scenario."""
    require_lab: bool
    resume: Path | None
    inconclusive: Inconclusive
    limit: RunLimit | None
    """The limit that a run must keep; None for no limit."""
    require_verdict: bool
    disks: frozenset[str] | None = None
    """The only disks to measure; None for all."""
    of_features: tuple[tuple[RunOption, str], ...] = ()
    """The options of features that were given, with their values."""
    switches: frozenset[str] = frozenset()
    """The flags of features that were given: what the run measures more."""


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("virt-overhead", "overhead of virtual machines on disks")

    def add(flag: str, metavar: str, words: str, parse: Callable[[str], Any] = str, **more: Any) -> None:
        """An option with a value, which `parse` reads. Errors need not name the option."""
        group.addoption(flag, metavar=metavar, help=words, type=parse, **more)

    profiles = [profile.name for profile in PROFILES]
    group.addoption("--profile", choices=profiles, help="how thoroughly to measure (default: the lab's, else smoke)")
    of_lab = (
        f"the lab file, or `{EMBEDDED_LAB}` for the embedded lab "
        f"(default: ${LAB_VARIABLE}, else {LAB_FILE} in the project's directory, else the embedded lab)"
    )
    of_scenarios = (
        "a directory with further scenario files; may be given several times (also: `scenarios` of "
        "[tool.virt-overhead] in pyproject.toml)"
    )
    of_project = (
        f"the directory of {LAB_FILE}, reports/ and pyproject.toml (default: pytest's rootdir; with "
        "`virt-overhead run`, the current directory)"
    )
    of_time = (
        'how long to measure each scenario, for example "20 min": where the rounds so far decide nothing yet '
        "(default: the profile's rounds and time limit)"
    )
    add("--lab", "FILE", of_lab, _parse_path)
    add("--host", "NAME", "measure only on this host of the lab")
    add("--disk", "NAME", "measure only this disk of the lab; may be given several times", action="append")
    add("--reports", "DIR", "the directory for runs (default: reports/)", _parse_path)
    add("--scenarios", "DIR", of_scenarios, _parse_path, action="append")
    add("--project", "DIR", of_project, _parse_path)
    add("--seed", "N", "seed of every random choice (default: a new one)", partial(_parse_number, 0, LARGEST_SEED))
    add("--rounds", "N", "rounds to measure (default: the profile's)", partial(_parse_number, 1, MOST_ROUNDS))
    add("--time", "DURATION", of_time, _parse_time)
    add("--resume", "RUN", "resume the run in this directory; its complete rounds count", _parse_path)
    group.addoption(
        "--require-lab",
        action="store_true",
        help="cells that the lab cannot measure (not reachable, or something is missing) are errors instead of skips",
    )
    group.addoption(
        "--inconclusive",
        choices=get_args(Inconclusive),
        default="skip",
        help="the outcome of a cell that the rounds did not decide (default: skip, which is not a failure)",
    )
    if (limit := find_brought(FeatureLimit)) is not None:
        group.addoption(limit.flag, metavar=limit.metavar, type=partial(_parse_limit, limit), help=limit.help)
    group.addoption(
        REQUIRE_VERDICT,
        action="store_true",
        help="a run in which no budget was decided (no cell is within or exceeds its budget) is a failure",
    )
    for switch in list_brought(RunSwitch):
        group.addoption(switch.flag, action="store_true", help=switch.help)
    for option in list_brought(RunOption):
        group.addoption(option.flag, metavar=option.metavar, help=option.help)
    # pytest prints this if it does not know an option.
    known = [name for option in group.options for name in option.names()]
    words = {word.partition("=")[0] for word in sys.argv[1:] if word.startswith("--")}.difference(known)
    parser.extra_info |= {word: similar for word in words if (similar := near(word, known, 0.8).strip())}


def read_options(config: pytest.Config, project: Path) -> Options:
    """The options of this run of the project in the directory `project`. ConfigError if the lab file cannot be used."""
    if config.getoption("--rounds") and config.getoption("--time"):
        raise ConfigError("--rounds and --time contradict each other", hint="use one of them")
    inventory = choose_inventory(config.getoption("--lab"), project)
    hosts = inventory.hosts
    if host := config.getoption("--host"):
        inventory = inventory.only(host)
    reports = config.getoption("--reports") or project / "reports"
    requested = tuple(
        (option, value) for option in list_brought(RunOption) if (value := config.getoption(option.flag)) is not None
    )
    for option, value in requested:
        option.check(value, reports)  # A mistake is reported now, not after hours of measuring.
    return Options(
        inventory=inventory,
        hosts=hosts,
        profile=config.getoption("--profile") or inventory.profile,
        reports=reports,
        seed=config.getoption("--seed"),
        rounds=config.getoption("--rounds"),
        time=config.getoption("--time"),
        require_lab=config.getoption("--require-lab"),
        resume=config.getoption("--resume"),
        inconclusive=config.getoption("--inconclusive"),
        limit=config.getoption(limit.flag) if (limit := find_brought(FeatureLimit)) is not None else None,
        require_verdict=config.getoption(REQUIRE_VERDICT),
        disks=frozenset(config.getoption("--disk")) if config.getoption("--disk") else None,
        of_features=requested,
        switches=frozenset(switch.flag for switch in list_brought(RunSwitch) if config.getoption(switch.flag)),
    )


def _parse_number(least: int, most: int, text: str) -> int:
    # int() refuses numbers of thousands of digits with its own message.
    if not re.fullmatch("[0-9]{1,19}", text) or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: allowed: a whole number from {least} to {most}")
    return int(text)


def _parse_time(text: str) -> float:
    try:
        seconds = parse_duration(re.sub("m$", "min", text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: {error}") from None
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: allowed: a duration above 0")
    return seconds


def _parse_limit(limit: FeatureLimit, text: str) -> RunLimit:
    try:
        return limit.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: {error}") from None


def _parse_path(text: str) -> Path:
    if not text:  # For example from an unset variable. Path would use the current directory.
        raise argparse.ArgumentTypeError("the value is empty; allowed: a path")
    return Path(text)


def scenarios_for(options: Options, scenarios: Mapping[str, Scenario]) -> ForLab:
    """The scenarios for the lab's disks. Raises ConfigError if the lab does not have a disk that --disk names."""
    inventory = options.inventory
    offered = [offered_disk for host in inventory.hosts for offered_disk in _list_offered(host)]
    known = list(dict.fromkeys(disk.name for disk in offered))
    for name in options.disks or ():
        if name not in known:
            allowed = choices(name, known) if known else "it has no disks"
            raise ConfigError(f'--disk={name}: {inventory.source} has no disk "{name}"; {allowed}')
    adapted = for_lab(scenarios, offered, options.disks)
    for tables in list_brought(FeatureTables):
        if requests := tuple(request for request in inventory.requests if isinstance(request.value, tables.table)):
            adapted = _adapt(adapted, inventory.source, tables, requests)
    return adapted


def _adapt(given: ForLab, source: str, tables: FeatureTables, requests: tuple[Requested, ...]) -> ForLab:
    """The scenarios with what the lab file asks of a feature. Those with tables of their own keep them."""
    scenarios, notes = dict(given.scenarios), list(given.notes)
    for name, scenario in given.scenarios.items():
        if scenario.requests_of(tables.table) or tables.adapt is None:
            continue
        adapted, problems = tables.adapt(replace(scenario, requests=(*scenario.requests, *requests)))
        if problems:
            notes.append(f"{name}: measured without the {tables.what} of {source}: {problems[0]}")
        else:
            scenarios[name] = adapted
    return replace(given, scenarios=scenarios, notes=tuple(notes))


def cells_of(options: Options, given: ForLab) -> list[Cell]:
    """The cells of all scenarios, or those that need no other disks than --disk names.

    The reference of an array belongs to it, and need not be named.

    Raises ConfigError if there are none.
    """
    cells = [(scenario, cell) for scenario in given.scenarios.values() for cell in expand(scenario, options.profile)]
    usable = [
        cell for scenario, cell in cells if options.disks is None or _list_needed(scenario, cell) <= options.disks
    ]
    if not usable:
        named = f"--disk={', '.join(sorted(options.disks))}" if options.disks else options.inventory.source
        why = "; ".join(given.notes) or "every scenario needs other disks"
        raise ConfigError(
            f"{named}: no scenario measures only these disks: {why}",
            hint='scenarios with disk = "any" measure every disk (docs/scenarios.md)',
        )
    return usable


def check_selection(config: pytest.Config, scenarios: Iterable[Path]) -> None:
    """Raise ConfigError if `-k` or `-m` is not a valid expression, or if a scenario is given as a path."""
    examples = {"-k": '"optane and (lvm or raw)"', "-m": "\"cell(mode='lvm', iodepth=32)\""}
    for (option, example), text in zip(examples.items(), (config.option.keyword, config.option.markexpr), strict=True):
        try:
            Expression.compile(text or "")
        except SyntaxError as error:
            hint = f"join parts with `and`, `or`, `not` and parentheses, for example {option} {example}"
            raise ConfigError(f"{option} {quoted(text)}: {error.msg}", hint=hint) from None
    files = {path.stem: path for directory in scenarios for path in find_scenarios(directory)}
    for word in map(Path, config.args):
        if word.stem in files and (word.suffix == ".toml" or not Path(config.invocation_params.dir, word).exists()):
            raise ConfigError(f"{word}: a scenario is not selected by its path", hint=f"use -k {word.stem}")


def explain_empty(config: pytest.Config, project: Path, notes: Iterable[str], cells: Sequence[Cell]) -> list[str]:
    """Why `-k` and `-m` select no cell: the notes on scenarios that they name, and words and values of no cell."""
    keyword, marks = config.option.keyword, config.option.markexpr
    words = [word for word in re.findall(r"[^\s()]+", keyword) if word not in ("and", "or", "not")]
    values = re.findall(r"(\w+)\s*=\s*('[^']*'|\"[^\"]*\"|\w+)", marks)
    why = [note for note in notes if note.partition(":")[0] in {*words, *(value.strip("'\"") for _, value in values)}]
    names = list(dict.fromkeys(name for cell in cells for name in (cell.scenario, cell.disk, cell.mode.name)))
    unknown = [word for word in words if not any(word.lower() in cell.id.lower() for cell in cells)]
    why += [f'-k: no cell has "{word}" in its id{near(word, names)}' for word in unknown]
    files = [path for path in project.glob(f"{SCENARIOS}/*.toml") if path.stem in unknown]
    why += [f"-k: {path.stem} is a scenario of this directory: add --scenarios={SCENARIOS}" for path in files]
    of_cells: dict[str, set[str]] = {}
    for key, value in (facet for cell in cells for facet in cell.facets.items()):
        of_cells.setdefault(key, set()).add(f"'{value}'" if isinstance(value, str) else str(value))
    why += [
        f"-m: no mark `{mark}`; {choices(mark, ['cell'])}" for mark in re.findall(r"(\w+)\(", marks) if mark != "cell"
    ]
    for key, value in values:
        if key not in of_cells:
            why.append(f"-m: a cell has no `{key}`; {choices(key, of_cells)}")
        elif (value := value.replace('"', "'")) not in of_cells[key]:
            why.append(f"-m: no cell has {key}={value}; {choices(value, sorted(of_cells[key]))}")
    return why or ["no cell has all that -k and -m require; without them, --collect-only lists all cells"]


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
            reference=(array.reference or "") if array is not None else "",
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
