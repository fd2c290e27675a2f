"""Records of features in results.json, damaged in every way: each is read rightly, or refused by file and key."""

from __future__ import annotations

import copy
import json
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from harness.cli import main
from harness.config.names import RunId
from harness.feature import feature_records
from harness.features.snapshots.measuring import make_record
from harness.results import Run, RunStore
from tests.build import RUN_ID, synthetic_run, with_records
from tests.features.arrays.test_array_states import stored as store_states
from tests.features.breakdown import test_breakdown
from tests.features.commands.test_report_commands import record_of
from tests.features.container import test_container
from tests.features.decompose.test_decompose_report import array, with_decompositions
from tests.features.rbd.test_rbd_report import with_bytes
from tests.features.search import queueing
from tests.features.snapshots.test_snapshot_pauses import SCENARIO, load
from tests.features.zfs.test_zfs import zfs_run
from tests.unit import killed_campaign
from tests.unit.array_state_runs import measured as measure_states

MUTANTS = 24
"""Of each run."""
COMMANDS = (
    ("report",),
    ("report", "--markdown"),
    ("report", "--json"),
    ("compare",),
    ("export", "--csv=values.csv", "--openmetrics=values.prom"),
)
WRONG: tuple[Any, ...] = (
    *(None, "x", "", True, -1, -0.5, 0, 1e-300, 2, 1e40, 1 << 62, 1 << 70, math.nan, [], {}, [1], {"x": 1}, "lvm"),
)
Place = tuple[Any, ...]
"""Keys and numbers that lead to a value in the document."""


def search_run() -> Run:
    killed_campaign.record()
    return queueing.searched_run(RunStore.create(Path("searched"), RUN_ID), queueing.searching())


def broken_down_run() -> Run:
    killed_campaign.record()
    store = RunStore.create(Path("traced"), RUN_ID)
    test_breakdown.measured(store, test_breakdown.Traces)
    return store.read_results()


def commands_run() -> Run:
    run = synthetic_run(modes=["host", "lvm"], rounds=3)
    records = record_of(run, 1000.0, 800.0, mode="lvm"), replace(record_of(run, 9.0, 9.5), problem="it ended early")
    return with_records(run, "commands", records)


def arrays_run() -> Run:
    modes = ["raid5", "raid5-degraded", "raid5-rebuilding"]
    return store_states(measure_states(modes, ["randread-4k"]))


def decomposed_run() -> Run:
    return with_records(with_decompositions(synthetic_run()), "scalings", (array(),))


def snapshots_run() -> Run:
    first, second, *_ = load(Path.cwd(), SCENARIO)
    ended = make_record(first, "h", kind="it", problem="it ended early")
    measured = replace(
        ended, alone=(9.0, 8.0), beside=(7.0, 7.5), slowest_alone=(0.1, 0.1), slowest_beside=(0.2, 0.3), taking=(1.0,)
    )
    return with_records(synthetic_run(), "snapshots", (measured, make_record(second, "h", problem="no room")))


RUNS: tuple[Callable[[], Run], ...] = (
    search_run,
    broken_down_run,
    commands_run,
    arrays_run,
    decomposed_run,
    snapshots_run,
    zfs_run,
    lambda: with_bytes(10**9, 2 * 10**9),
    test_container.measured,
)


def list_places(value: JsonValue, at: Place = ()) -> Iterator[Place]:
    """The places of all values in a document, of at most three items of each list."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*at, key)
        yield from list_places(item, (*at, key))


def find(document: Any, place: Place) -> Any:
    for key in place:
        document = document[key]
    return document


def mutate(document: dict[str, Any], chance: random.Random, keys: list[str]) -> tuple[dict[str, Any], str]:
    """The document with a change of one value below one of these keys, and what was changed."""
    document = copy.deepcopy(document)
    places = [place for place in list_places({key: document[key] for key in keys}) if len(place) > 1]
    place = chance.choice(places)
    *above, key = place
    parent, value = find(document, tuple(above)), find(document, place)
    others = [other for other in (parent if isinstance(parent, dict) else range(len(parent))) if other != key]
    kind = chance.choice(("set", "set", "set", "drop", "empty", "swap", "copy", "move"))
    if kind == "drop":
        del parent[key]
    elif kind == "empty" and isinstance(value, dict | list):
        parent[key] = type(value)()
    elif kind == "swap" and others:
        other = chance.choice(others)
        parent[key], parent[other] = parent[other], parent[key]
    elif kind == "copy" and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(value))
    elif kind == "move":
        same = [other for other in places if type(find(document, other)) is type(value)]
        parent[key] = copy.deepcopy(find(document, chance.choice(same)))
    else:
        parent[key] = chance.choice(WRONG)
    return document, f"{kind} {'.'.join(map(str, place))}"


class Stored:
    """A run beside a whole one, and the commands that read both."""

    def __init__(self, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
        self.whole = RunStore.create(Path("reports"), RunId("20260102-120000-0002"))
        self.whole.write_results(replace(run, run=replace(run.run, id=self.whole.path.name)))
        self.damaged = RunStore.create(Path("reports"), RUN_ID)
        self.damaged.write_results(run)
        self.document = json.loads(self.damaged.results_path.read_text())
        self._capsys = capsys

    def read(self, document: JsonValue, command: tuple[str, ...]) -> tuple[int, str, str]:
        """Status, output and errors of the command for this results.json."""
        self.damaged.results_path.write_text(json.dumps(document))
        verb, *options = command
        paths = [str(self.damaged.path)]
        if verb == "compare":
            paths.insert(0, str(self.whole.path))
        self._capsys.readouterr()
        status = main([verb, *paths, *options])
        return (status, *self._capsys.readouterr())


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("make", RUNS)
def test_a_damaged_record_is_read_rightly_or_refused_by_its_key(
    make: Callable[[], Run], capsys: pytest.CaptureFixture[str]
) -> None:
    stored = Stored(make(), capsys)
    keys = [of.key for of in feature_records() if stored.document.get(of.key)] or ["cells"]
    chance = random.Random(make.__name__ + keys[0])
    refused = 0
    for number in range(MUTANTS):
        document, change = mutate(stored.document, chance, keys)
        status, printed, errors = stored.read(document, COMMANDS[number % len(COMMANDS)])
        assert "internal error" not in errors, (change, errors)
        if "is not a valid results.json" in errors:
            refused += 1
            assert any(key in errors for key in keys), (change, errors)
            assert "restore it from a backup, or measure again" in errors
        else:
            assert status in (0, 1), (change, errors)
            assert not re.search(r"\b(nan|inf)\b", printed, re.IGNORECASE), (change, printed)
    assert refused > MUTANTS / 4


@pytest.mark.parametrize("make", RUNS[:-1])
def test_a_record_that_is_there_twice_or_of_a_cell_that_is_not_is_refused(
    make: Callable[[], Run], capsys: pytest.CaptureFixture[str]
) -> None:
    stored = Stored(make(), capsys)
    for key in (of.key for of in feature_records() if stored.document.get(of.key)):
        records = stored.document[key]
        twice = stored.read({**stored.document, key: [*records, records[0]]}, ("report",))
        assert f"{key}: {records[0].get('id') or records[0]['cell']} is there twice" in twice[2]
        if "cell" in records[0]:
            foreign = [{**records[0], "cell": "another-cell"}, *records[1:]]
            lost = stored.read({**stored.document, key: foreign}, ("report",))
            assert f"{key}: another-cell is not a cell of the run" in lost[2]


@pytest.mark.parametrize("schema", [None, 0, -1, 2, 1.5, "1", True, [1]])
def test_another_schema_is_refused(schema: JsonValue, capsys: pytest.CaptureFixture[str]) -> None:
    stored = Stored(synthetic_run(rounds=2), capsys)
    status, _, errors = stored.read({**stored.document, "schema": schema}, ("report",))
    assert status == 1
    assert "results.json" in errors
    assert "schema" in errors
    assert "->" in errors
