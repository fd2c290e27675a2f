"""Every recorded call of a real node, asked again of the double through proxmoxer: the same outcome."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from proxmoxer import ProxmoxAPI
from proxmoxer.core import ResourceException

from tests.pve_double import schema
from tests.pve_double.faults import Fault
from tests.pve_double.pace import Pace
from tests.pve_double.recorded_calls import NODE, QEMU, Step, steps
from tests.pve_double.server import Serving, serve
from tests.pve_double.testing import PASSWORD, memory_node

RECORDED = [json.loads(line) for line in (schema.DATA / "recorded.jsonl").read_text().splitlines()]
TESTERS_PASSWORD = "a tester's own"
TASK_SECONDS = 30.0
CHANGING = {"digest", "meta", "smbios1", "vmgenid", "ctime", "snaptime", "avail", "used", "used_fraction", "cipassword"}


@dataclass
class Replayed:
    """What came of a call: an HTTP status with its text, or a task's exit status and log."""

    status: int
    text: str = ""
    errors: dict[str, str] = field(default_factory=dict)
    exitstatus: str | None = None
    log: list[str] = field(default_factory=list)
    result: Any = None


class Client:
    """proxmoxer as root with a ticket, as root's token, and as another user."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._apis: dict[str, ProxmoxAPI] = {"root@pam": self._connect("root@pam", password=PASSWORD)}
        self._pids: dict[str, int] = {}

    def _connect(self, user: str, **how: str) -> ProxmoxAPI:
        host, authority = f"{self._serving.host}:{self._serving.port}", str(self._serving.authority)
        return ProxmoxAPI(host, user=user, verify_ssl=authority, timeout=60, **how)

    def _api(self, who: str) -> ProxmoxAPI:
        if who not in self._apis:
            self._apis[who] = self._connect(who, password=TESTERS_PASSWORD)
        return self._apis[who]

    def replay(self, step: Step, directory: Path) -> Replayed:
        if step.guest:
            self._wait_for_agent(step.guest)
        if step.fault is not None:
            self._serving.node.faults.add(Fault(**step.fault))
        try:
            result = self._send(step, directory)
        except ResourceException as refused:
            # The recordings have what proxmoxer found in an empty answer as text.
            errors = {name: str(text) for name, text in (refused.errors or {}).items()}
            return Replayed(refused.status_code, refused.content, errors)
        if isinstance(result, str) and result.startswith("UPID:"):
            task = self._finished(result)
            return Replayed(200, exitstatus=task["exitstatus"], log=self._log(result))
        self._remember(step, result)
        return Replayed(200, result=result)

    def _send(self, step: Step, directory: Path) -> Any:
        params = {name: self._filled(value) for name, value in step.params.items()}
        if step.upload is None:
            return getattr(self._api(step.who)(step.path), step.method)(**params)
        name, size = step.upload
        path = directory / name
        path.write_bytes(bytes(size))
        with path.open("rb") as file:
            return self._api(step.who)(step.path).post(filename=file, **params)

    def _filled(self, value: Any) -> Any:
        match = re.fullmatch(r"\{(.+)\}", value) if isinstance(value, str) else None
        return self._pids[match[1]] if match else value

    def _remember(self, step: Step, result: Any) -> None:
        if isinstance(result, dict) and "pid" in result:
            self._pids[step.name] = result["pid"]
        if isinstance(result, dict) and result.get("full-tokenid") == "root@pam!t1":
            self._apis["root@pam!t1"] = self._connect("root@pam", token_name="t1", token_value=result["value"])

    def _finished(self, upid: str) -> dict[str, Any]:
        deadline = time.monotonic() + TASK_SECONDS
        while time.monotonic() < deadline:
            task: dict[str, Any] = self._api("root@pam")(f"{NODE}/tasks/{upid}/status").get()
            if task["status"] == "stopped":
                return task
            time.sleep(0.002)
        pytest.fail(f"{upid} still runs")

    def _log(self, upid: str) -> list[str]:
        return [line["t"] for line in self._api("root@pam")(f"{NODE}/tasks/{upid}/log").get(limit=500)]

    def _wait_for_agent(self, vmid: int) -> None:
        deadline = time.monotonic() + TASK_SECONDS
        while time.monotonic() < deadline:
            try:
                self._api("root@pam")(f"{QEMU}/{vmid}/agent/ping").post()
            except ResourceException:
                time.sleep(0.01)
            else:
                return


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Replayed]]:
    """The outcomes of all recorded calls, in their order."""
    directory = tmp_path_factory.mktemp("uploads")
    with serve(memory_node(Pace(0.02, boot_seconds=10))) as serving:
        client = Client(serving)
        yield [outcome for step in steps() for outcome in [client.replay(step, directory)] if step.name]


def problem(recorded: dict[str, Any], outcome: Replayed) -> str | None:
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
def test_a_recorded_call_has_its_recorded_outcome(replayed: list[Replayed], place: int) -> None:
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
def test_a_recorded_configuration_or_listing_reads_the_same(replayed: list[Replayed], place: int) -> None:
    assert without_what_changes(replayed[place].result) == without_what_changes(RECORDED[place]["result"])


LOGGED = [place for place, each in enumerate(RECORDED) if "log" in each]


@pytest.mark.parametrize("place", LOGGED, ids=lambda place: f"{place}-{RECORDED[place]['name']}")
def test_a_recorded_task_printed_the_same(replayed: list[Replayed], place: int) -> None:
    assert [shortened(line) for line in replayed[place].log] == [shortened(line) for line in RECORDED[place]["log"]]


def shortened(line: str) -> str:
    """A line without the names of temporary files, moments, and QEMU's arguments, which other tests compare."""
    return re.sub(r"(/[^ ]*pveupload-\S+|^--\d{4}-.*|-blockdev \{.*\}(?=:))", "...", line)


def test_all_recorded_calls_are_replayed() -> None:
    asked = [(step.name, step.who) for step in steps() if step.name]
    assert asked == [(recorded["name"], recorded["as"]) for recorded in RECORDED]
    assert len(asked) == 261
