"""Whatever stands in a file, people are told of it in lines that name the file: thousands of mistakes, by chance."""

from __future__ import annotations

import copy
import json
import random
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.lab.lab_file import load_lab
from harness.scenario.load import find_scenarios, load_scenario
from harness.scenario.plan import describe_plan, plan_for

SCENARIOS = [tomllib.loads(path.read_text()) for path in find_scenarios(Path(__file__).parents[2] / "scenarios")]
LABS = [
    {
        "profile": "smoke",
        "host": {
            "a": {
                "kind": "ssh",
                "address": "192.0.2.7",
                "key": "/k",
                "host_key": "ssh-ed25519 AAAA",
                "disk": {
                    "optane": {"id": "/dev/disk/by-id/x", "serial": "S", "destroy": True},
                    "loop": {"file": "/x", "size": "1 GiB"},
                },
            },
            "here": {"kind": "local"},
            "pve": {
                "kind": "proxmox",
                "api": {"url": "https://192.0.2.9", "node": "n", "secret": {"env": "X"}},
                "guest": {"vmids": [9000, 9001], "network": "static", "address": "192.0.2.50/24"},
                "disk": {"s": {"storages": {"raw": "local"}}},
            },
        },
    }
]
VALUES: list[Any] = [
    *(
        "",
        " ",
        "x",
        "lvm",
        "host",
        "vfio",
        "md",
        "4k",
        "0",
        "-1",
        "1e9 s",
        "10 %",
        "+5 us",
        "none",
        "1 GiB/s",
        "\u0664",
    ),
    *("a\nb", "\x07", "\xe9", "guest:lvm", "/dev/sda", "../x", "https://u:p@h:99999", "https://[::1", "9" * 500),
    *(0, 1, -1, 2, 3, 10, 2**63, 10**30, True, False, 0.0, 1.0, -0.5, float("inf"), float("nan")),
    *([], {}, [[]], [{}], ["host"], ["lvm", "lvm"], [1, 2], {"a": 1}, {"kind": 1.5}, {"kind": []}, {"kind": "lvm"}),
    *({"kind": "md", "level": 5, "disks": 3}, {"device": "lun"}, {"device": "vfio"}, {"on": {"kind": "md"}}),
]
KEYS = [
    "x",
    "",
    "a.b",
    "disk",
    "disks",
    "mode",
    "layout",
    "attach",
    "kind",
    "on",
    "level",
    "host",
    "id",
    "file",
    "both",
]


def written(value: object) -> str:
    """As TOML, on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {written(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return str(value) if isinstance(value, float) else json.dumps(value)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every table and list with each key or index of it."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else []):
        yield value, key
        yield from places(inner)


def with_mistakes(document: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    for _ in range(chance.choice([1, 1, 2, 3])):
        where, key = chance.choice(list(places(changed)) or [(changed, "title")])
        match chance.choice(["replace", "replace", "remove", "add"]):
            case "remove" if key in where or isinstance(where, list):
                del where[key]
            case "add" if isinstance(where, dict):
                where[chance.choice(KEYS)] = copy.deepcopy(chance.choice(VALUES))
            case _:
                where[key] = copy.deepcopy(chance.choice(VALUES))
    return changed


def plan(path: Path) -> None:
    scenario = load_scenario(path)
    for profile in scenario.profiles:
        describe_plan(plan_for(scenario, profile.name))


@pytest.mark.parametrize(("documents", "read"), [(SCENARIOS, plan), (LABS, load_lab)], ids=["scenarios", "lab files"])
def test_a_file_with_mistakes_is_used_or_refused_in_lines_that_name_it(
    tmp_path: Path, documents: list[dict[str, Any]], read: Callable[[Path], object]
) -> None:
    chance = random.Random(1)
    path = tmp_path / "file.toml"
    refused: list[ConfigError] = []
    for _ in range(600):
        document = with_mistakes(chance.choice(documents), chance)
        path.write_text("".join(f"{json.dumps(key)} = {written(value)}\n" for key, value in document.items()))
        try:
            read(path)
        except ConfigError as error:
            refused.append(error)
    assert len(refused) > 300
    for refusal in refused:
        lines = refusal.message.splitlines()
        assert all(line.startswith(f"{path}: ") and len(line) < 2000 for line in lines), lines
        # What pydantic would say of it by itself, in words of Python.
        assert not any(word in refusal.message for word in ("Input should", "Value error", "instance of")), lines
        assert refusal.hint


def test_no_key_is_checked_by_a_pattern_that_the_message_would_show() -> None:
    sources = (Path(__file__).parents[2] / "harness").rglob("*.py")
    assert [path.name for path in sources if re.search(r"Field\([^)]*\bpattern=", path.read_text())] == []
