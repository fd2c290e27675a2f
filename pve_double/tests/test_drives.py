"""Drive strings give the QEMU arguments that PVE made of them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pve_double import schema
from pve_double.qemu import command
from pve_double.qemu.blockdev import Image, engine
from pve_double.qemu.drives import Drive, parse_drive
from pve_double.qemu.machine import Config
from pve_double.tasks import TaskLog
from pve_double.testing import memory_node

RECORDED = [json.loads(line) for line in (schema.DATA / "drives.jsonl").read_text().splitlines()]


def config_of(recorded: dict[str, Any]) -> Config:
    machine = {} if recorded["machine"] == "default" else {"machine": recorded["machine"]}
    return {"scsihw": recorded["scsihw"], recorded["key"]: recorded["val"], **machine}


def without_node_names(value: Any) -> Any:
    """The recordings leave out the names of the inner nodes, which are digests."""
    if isinstance(value, dict):
        inner = {key: without_node_names(each) for key, each in value.items()}
        return inner if str(inner.get("node-name", "")).startswith("drive-") else _drop(inner)
    return value


def _drop(inner: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in inner.items() if key != "node-name"}


def lines(words: list[str], key: str) -> list[str]:
    """Each option with its value, as far as the recordings keep them: those that name the drive or its controller."""
    options = [f"{name} {value}" for name, value in zip(words[::2], words[1::2], strict=True)]
    kept = [each for each in options if re.search(rf"drive-{key}\b|^-object iothread|id=(scsihw|virtioscsi)\d", each)]
    return [normalized(each) for each in kept]


def normalized(line: str) -> str:
    name, _, value = line.partition(" ")
    if name != "-blockdev":
        return line
    tree = without_node_names(json.loads(value))
    return f"{name} {json.dumps(tree, sort_keys=True, separators=(',', ':'))}"


def drive_of(recorded: dict[str, Any]) -> Drive:
    drive = parse_drive(recorded["key"], recorded["val"])
    assert drive is not None
    return drive


@pytest.mark.parametrize(
    "recorded", RECORDED, ids=lambda each: f"{each['machine']}-{each['scsihw']}-{each['key']}-{each['val']}"
)
def test_a_drive_string_gives_the_arguments_that_pve_made_of_it(recorded: dict[str, Any]) -> None:
    node, config, drive = memory_node(), config_of(recorded), drive_of(recorded)
    words = command.drive_command(node, config, drive, TaskLog())
    assert lines(words, drive.key) == recorded["args"]


def test_all_recorded_drive_strings_are_compared() -> None:
    assert len(RECORDED) == 226


@pytest.mark.parametrize(
    ("drive", "cache", "expected"),
    [
        ("lvm", None, "native"),
        ("lvm", "writeback", "threads"),
        ("lvmthin", None, "io_uring"),
        ("dir", None, "io_uring"),
    ],
)
def test_without_aio_the_engine_depends_on_the_storage(drive: str, cache: str | None, expected: str) -> None:
    options = {} if cache is None else {"cache": cache}
    assert engine(Drive("scsi0", "x:vm-1-disk-0", options), Image("/dev/x/y", "raw", drive)) == expected
