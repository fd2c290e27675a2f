"""What a real Proxmox VE answered, played back over HTTPS: no answer is taken for another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import GuestError
from harness.features.proxmox.client import Client, PveError, is_lock_timeout
from harness.features.proxmox.machine import VirtualMachine, find_address
from tests.features.proxmox.proxmox_nodes import Recorded, played_back

RECORDS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "recorded.jsonl").read_text(encoding="utf-8").splitlines()
]
ERRORS = [each for each in RECORDS if "error" in each]
TASKS = [each for each in RECORDS if "task" in each]
RESULTS = [each for each in RECORDS if "error" not in each and "task" not in each]


def name_of(record: dict[str, Any]) -> str:
    return f"{record['as']}-{record['name']}"


@pytest.fixture(scope="module")
def playback() -> Iterator[tuple[Recorded, Client]]:
    with played_back() as found:
        yield found


@pytest.fixture
def play(playback: tuple[Recorded, Client], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Exchanges the recorded call; gives up on what is uncertain at once, not after a minute."""
    recorded, client = playback
    monkeypatch.setattr("harness.features.proxmox.client.SETTLE_SECONDS", 0.0)
    monkeypatch.setattr("harness.features.proxmox.client._LEAST_SETTLING", 0.0)

    def put(record: dict[str, Any]) -> tuple[Recorded, Client]:
        recorded.record, recorded.answered = record, 0
        return recorded, client

    return put


def not_done() -> bool:
    return False


@pytest.mark.parametrize("record", ERRORS, ids=name_of)
def test_an_error_has_the_text_of_pve(record: dict[str, Any], play: Any) -> None:
    _, client = play(record)
    deadline = 0.2 if is_lock_timeout(record["error"]["content"]) else 20
    with pytest.raises(PveError) as error:
        client.write("post", "nodes/pve/qemu/1/config", {"x": 1}, is_done=not_done, deadline=deadline)
    assert record["error"]["content"] in error.value.message
    for key, text in (record["error"]["errors"] or {}).items():
        assert key == "errors" or f"{key}: {text.strip()}" in error.value.message
    assert "node1" in error.value.message


@pytest.mark.parametrize("record", [each for each in ERRORS if each["error"]["code"] == 596], ids=name_of)
def test_a_write_whose_answer_was_lost_is_never_repeated(record: dict[str, Any], play: Any) -> None:
    recorded, client = play(record)
    with pytest.raises(PveError, match="it is unknown whether it was done"):
        client.write("post", "nodes/pve/qemu/1/agent/exec", {}, is_done=not_done)
    assert recorded.answered == 1
    assert client.write("post", "nodes/pve/qemu/1/agent/exec", {}, is_done=lambda: True) is None
    assert recorded.answered == 2


def test_the_error_for_what_only_root_may_do_names_root(play: Any) -> None:
    passthrough = [each for each in ERRORS if "arbitrary filesystem paths" in each["error"]["content"]]
    assert passthrough
    for record in passthrough:
        _, client = play(record)
        with pytest.raises(PveError) as error:
            client.write("post", "nodes/pve/qemu", {}, is_done=not_done)
        assert "root@pam with a password" in (error.value.hint or "")


@pytest.mark.parametrize("record", TASKS, ids=name_of)
def test_a_task_is_followed_to_its_end(record: dict[str, Any], play: Any) -> None:
    recorded, client = play(record)
    task = record["task"]
    if task["exitstatus"] == "OK":
        assert client.task("post", "nodes/pve/qemu", {}, is_done=not_done, deadline=20).warnings == ()
        return
    with pytest.raises(PveError) as error:
        client.task("post", "nodes/pve/qemu", {}, is_done=not_done, deadline=1)
    assert task["exitstatus"] in error.value.message
    assert task["log"][-1] in error.value.message
    # Only of a lock that PVE waited for in vain is it known that nothing was done.
    assert (recorded.answered > 1) == is_lock_timeout(task["exitstatus"])


@pytest.mark.parametrize("record", RESULTS, ids=name_of)
def test_an_answer_arrives_as_it_was_given(record: dict[str, Any], play: Any) -> None:
    _, client = play(record)
    assert client.get("anything") == record["result"]


def test_a_warning_is_not_a_success(play: Any) -> None:
    record = next(each for each in TASKS if each["task"]["exitstatus"] == "bridge 'vmbr77' does not exist")
    log = record["task"]["log"]
    _, client = play({**record, "task": {"exitstatus": "WARNINGS: 1", "log": log}})
    end = client.task("post", "nodes/pve/qemu/1/status/start", {}, is_done=not_done, deadline=20)
    assert end.warnings == ("iothread is only valid with virtio disk or virtio-scsi-single controller, ignoring",)
    with pytest.raises(GuestError, match="iothread is only valid with"):
        VirtualMachine(client, 1).start()


def test_a_guest_is_reached_at_the_address_that_its_agent_reports(play: Any) -> None:
    record = next(each for each in RESULTS if each["name"] == "net-ifs")
    _, client = play(record)
    address = find_address(VirtualMachine(client, 101).interfaces() or ())
    assert address is not None
    assert address.startswith("10.99.")


def test_an_agent_that_does_not_answer_yet_is_waited_for(play: Any) -> None:
    early = next(each for each in ERRORS if each["name"] == "agent early")
    _, client = play(early)
    assert VirtualMachine(client, 140).interfaces() is None


def test_a_script_that_was_killed_in_the_guest_has_failed(play: Any) -> None:
    killed = next(each for each in RESULTS if each["name"] == "sig")
    _, client = play({**killed, "result": {"pid": 301, **killed["result"]}})
    with pytest.raises(GuestError, match=r"`ip link` failed in the guest: \(it printed nothing\)"):
        VirtualMachine(client, 140).run_by_agent("ip link", deadline=5)


def test_a_pending_change_is_reported_by_its_name(play: Any) -> None:
    unplugged, changed = (each for each in RESULTS if each["name"] == "pending")
    _, client = play(unplugged)
    assert VirtualMachine(client, 101).pending() == {"boot": "order=ide2;net0", "scsi0": "its removal"}
    _, client = play(changed)
    assert VirtualMachine(client, 121).pending() == {
        "scsi0": "local-lvm:vm-121-disk-0,aio=io_uring,cache=writeback,size=1G"
    }


def test_bytes_are_those_that_qemu_counted(play: Any) -> None:
    record = next(each for each in RESULTS if each["name"] == "status")
    _, client = play(record)
    counted = VirtualMachine(client, 101).transferred(["scsi0"])["scsi0"]
    assert (counted.read, counted.written) == (4608, 0)
    with pytest.raises(GuestError, match="counts nothing for scsi9"):
        VirtualMachine(client, 101).transferred(["scsi9"])
