"""Every recorded call of a real node, asked again of the double through proxmoxer: the same outcome."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pve_double import schema
from pve_double.faults import Fault
from pve_double.pace import Pace
from pve_double.server import Serving, serve
from pve_double.testing import Client, Outcome, memory_node
from pve_double.tests.recorded_calls import Step, steps

RECORDED = [json.loads(line) for line in (schema.DATA / "recorded.jsonl").read_text().splitlines()]
TESTERS_PASSWORD = "a tester's own"
CHANGING = {"digest", "meta", "smbios1", "vmgenid", "ctime", "snaptime", "avail", "used", "used_fraction", "cipassword"}


class Replay:
    """The callers of the recordings: root with a ticket, root's token, and another user."""

    def __init__(self, serving: Serving, directory: Path) -> None:
        self._serving = serving
        self._directory = directory
        self._clients = {"root@pam": Client(serving)}
        self._pids: dict[str, int] = {}

    def _client(self, who: str) -> Client:
        if who not in self._clients:
            self._clients[who] = Client(self._serving, who, password=TESTERS_PASSWORD)
        return self._clients[who]

    def outcome(self, step: Step) -> Outcome:
        if step.guest:
            self._client("root@pam").wait_for_agent(step.guest)
        if step.fault is not None:
            self._serving.node.faults.add(Fault(**step.fault))
        params = {name: self._filled(value) for name, value in step.params.items()}
        if step.upload is None:
            outcome = self._client(step.who).call(step.method, step.path, params)
        else:
            name, size = step.upload
            path = self._directory / name
            magic = b"QFI\xfb" if name.endswith(".qcow2") else b""
            path.write_bytes(magic.ljust(size, b"\0"))
            with path.open("rb") as file:
                outcome = self._client(step.who).post(step.path, filename=file, **params)
        self._remember(step, outcome.result)
        return outcome

    def _filled(self, value: Any) -> Any:
        match = re.fullmatch(r"\{(.+)\}", value) if isinstance(value, str) else None
        return self._pids[match[1]] if match else value

    def _remember(self, step: Step, result: Any) -> None:
        if isinstance(result, dict) and "pid" in result:
            self._pids[step.name] = result["pid"]
        if isinstance(result, dict) and result.get("full-tokenid") == "root@pam!t1":
            self._clients["root@pam!t1"] = Client(
                self._serving, "root@pam", token_name="t1", token_value=result["value"]
            )


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Outcome]]:
    """The outcomes of all recorded calls, in their order."""
    directory = tmp_path_factory.mktemp("uploads")
    with serve(memory_node(Pace(0.02, boot_seconds=10))) as serving:
        replay = Replay(serving, directory)
        yield [outcome for step in steps() for outcome in [replay.outcome(step)] if step.name]


def problem(recorded: dict[str, Any], outcome: Outcome) -> str | None:
    """How the outcome differs from the recorded one; None where it does not."""
    if outcome.status != recorded["status"]:
        return f"HTTP {outcome.status} ({outcome.text} {outcome.errors}) instead of {recorded['status']}"
    if outcome.text != recorded.get("text", ""):
        return f"'{outcome.text}' instead of '{recorded.get('text')}'"
    if recorded.get("errors", {}) != outcome.errors:
        return f"{outcome.errors} instead of {recorded.get('errors')}"
    if outcome.exitstatus != recorded.get("exitstatus"):
        return f"the task ended '{outcome.exitstatus}' instead of '{recorded.get('exitstatus')}': {outcome.log}"
    return None


@pytest.mark.parametrize("place", range(len(RECORDED)), ids=lambda place: f"{place}-{RECORDED[place]['name']}")
def test_a_recorded_call_has_its_recorded_outcome(replayed: list[Outcome], place: int) -> None:
    assert problem(RECORDED[place], replayed[place]) is None


def without_what_changes(value: Any) -> Any:
    """A result without dates, random identities, fill levels, and the order of a storage's content types."""
    if isinstance(value, dict):
        return {key: without_what_changes(each) for key, each in value.items() if key not in CHANGING}
    if isinstance(value, list):
        return [without_what_changes(each) for each in value]
    if isinstance(value, str) and re.fullmatch(r"[a-z]+(,[a-z]+)+", value):
        return sorted(value.split(","))
    if isinstance(value, str):
        return re.sub(r"([0-9A-F]{2}:){5}[0-9A-F]{2}", "MAC", value)
    return value


SHORTENED = {"list", "pend", "rescan? cfg unused"}
"""Calls whose results were kept only in part."""
READ = [place for place, each in enumerate(RECORDED) if "result" in each and each["name"] not in SHORTENED]


@pytest.mark.parametrize("place", READ, ids=lambda place: f"{place}-{RECORDED[place]['name']}")
def test_a_recorded_configuration_or_listing_reads_the_same(replayed: list[Outcome], place: int) -> None:
    assert without_what_changes(replayed[place].result) == without_what_changes(RECORDED[place]["result"])


LOGGED = [place for place, each in enumerate(RECORDED) if "log" in each]


@pytest.mark.parametrize("place", LOGGED, ids=lambda place: f"{place}-{RECORDED[place]['name']}")
def test_a_recorded_task_printed_the_same(replayed: list[Outcome], place: int) -> None:
    assert [shortened(line) for line in replayed[place].log] == [shortened(line) for line in RECORDED[place]["log"]]


def shortened(line: str) -> str:
    """A line without the names of temporary files, moments, and QEMU's arguments, which other tests compare."""
    return re.sub(r"(/[^ ]*pveupload-\S+|^--\d{4}-.*|-blockdev \{.*\}(?=:))", "...", line)


def test_all_recorded_calls_are_replayed() -> None:
    asked = [(step.name, step.who) for step in steps() if step.name]
    assert asked == [(recorded["name"], recorded["as"]) for recorded in RECORDED]
    assert len(asked) == 261
