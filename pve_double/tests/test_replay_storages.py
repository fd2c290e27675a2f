"""Calls about storages, disks and a stopped VM that a second node answered, asked again of the double.

Recorded with pve-manager 9.2.11, qemu-server 9.2.6, pve-storage 9.1.7 and pve-http-server 6.0.5 on Debian 13. The node
had the storages `local` (a directory), `local-lvm` (a thin pool) and `lvm1` (a volume group), no zfsutils, and VM 300,
which was stopped. The recordings have requests, and of a result only its type and keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from pve_double import schema
from pve_double.server import Serving, serve
from pve_double.storage.volumes import Storage
from pve_double.testing import NODE, QEMU, Client, Outcome, memory_node

RECORDED = [json.loads(line) for line in (schema.DATA / "recorded-storages.jsonl").read_text().splitlines()]
OTHER_LOGIN: dict[str, dict[str, str]] = {
    "bad ticket": {"Cookie": "PVEAuthCookie=PVE:root@pam:00000000::bogus"},
    "unknown token": {"Authorization": "PVEAPIToken=root@pam!none=00000000-0000-0000-0000-000000000000"},
}


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    node = memory_node(zfs=False)
    node.store.storages["lvm1"] = Storage("lvm1", "lvm", frozenset({"images", "rootdir"}), 2 << 30, vgname="vg1")
    with serve(node) as found:
        yield found


@pytest.fixture(scope="module")
def replayed(serving: Serving) -> list[Outcome]:
    """The outcomes of all recorded calls, in their order."""
    root = Client(serving)
    assert root.post(QEMU, vmid=300, memory=128, kvm=0, scsi0="local-lvm:1").exitstatus == "OK"
    return [outcome(serving, root, call) for call in RECORDED]


def outcome(serving: Serving, root: Client, call: dict[str, Any]) -> Outcome:
    path = call["path"].format(node="pve")
    if (headers := OTHER_LOGIN.get(call["name"])) is None:
        return root.call(call["method"].lower(), path, call["params"])
    url = f"{serving.url}/api2/json/{path}"
    answer = requests.get(url, headers=headers, verify=str(serving.authority), timeout=10)
    return Outcome(answer.status_code, answer.reason)


@pytest.mark.parametrize("place", range(len(RECORDED)), ids=lambda place: str(RECORDED[place]["name"]))
def test_a_recorded_call_has_its_recorded_outcome(replayed: list[Outcome], place: int) -> None:
    recorded, found = RECORDED[place], replayed[place]
    assert (found.status, found.text) == (recorded["status"], recorded.get("reason", ""))
    assert dict(found.errors) == recorded.get("errors", {})
    assert found.exitstatus == recorded.get("exitstatus")
    if "task" in recorded:
        assert str(found.result).split(":")[5:7] == [recorded["task"], recorded["task_id"]]
    elif "result" in recorded:
        assert described(found.result) == described_as(recorded["result"])


def described(result: Any) -> Any:
    """A result as the recordings have it: its type, and a text, the keys of an object, or the length of a list."""
    match result:
        case dict():
            return "dict", sorted(result)
        case list():
            return "list", len(result)
    return type(result).__name__, str(result)


def described_as(recorded: dict[str, Any]) -> Any:
    kind, value = next(iter(recorded.items()))
    return kind, len(value) if kind == "list" else sorted(value) if kind == "dict" else value


def test_the_thin_pool_of_local_lvm_is_listed_with_its_group(serving: Serving) -> None:
    # PVE::Storage::LvmThinPlugin::list_thinpools and LVMPlugin::lvm_vgs list what the node has, whoever made it.
    root = Client(serving)
    (pool,) = root.get(f"{NODE}/disks/lvmthin").result
    assert (pool["vg"], pool["lv"], pool["lv_size"]) == ("pve", "data", 214_748_364_800)
    assert {"lv_size", "used", "metadata_size", "metadata_used"} <= pool.keys()
    groups = {each["name"]: each for each in root.get(f"{NODE}/disks/lvm").result["children"]}
    assert groups.keys() == {"pve", "vg1"}
    assert groups["pve"]["children"][0]["leaf"] == 1
