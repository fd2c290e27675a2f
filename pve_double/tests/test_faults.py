"""Faults that a test asks for happen as they do on a real node."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

import pve_double
from pve_double.faults import KINDS
from pve_double.pace import Pace
from pve_double.server import Serving, serve
from pve_double.testing import NODE, PASSWORD, QEMU, Client, memory_node

README = Path(pve_double.__file__).parent / "README.md"
CONTENT = f"{NODE}/storage/local-lvm/content"


@pytest.fixture
def serving() -> Iterator[Serving]:
    with serve(memory_node(Pace(0.01, boot_seconds=1))) as found:
        yield found


@pytest.fixture
def root(serving: Serving) -> Client:
    return Client(serving)


def ask_for(serving: Serving, **fault: Any) -> None:
    """As a test in another process does it."""
    answer = requests.post(f"{serving.url}/double/faults", json=fault, verify=str(serving.authority), timeout=600)
    assert answer.status_code == 200, answer.text


def eventually(true: Any) -> bool:
    deadline = time.monotonic() + 300
    while not true() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(true())


def test_a_write_that_the_proxy_gives_up_on_goes_on_and_completes(serving: Serving, root: Client) -> None:
    root.post(QEMU, vmid=100, memory=128)
    ask_for(serving, kind="gone", match="PUT .*/config")
    outcome = root.put(f"{QEMU}/100/config", scsi0="local-lvm:1")
    assert outcome.status == 596
    assert eventually(lambda: "scsi0" in root.get(f"{QEMU}/100/config").result)
    assert root.put(f"{QEMU}/100/config", name="x").status == 200


def test_a_call_slower_than_the_proxys_patience_is_given_up_on(serving: Serving, root: Client) -> None:
    root.post(QEMU, vmid=100, memory=128)
    ask_for(serving, kind="slow", match="PUT .*/config", seconds=40)
    assert root.put(f"{QEMU}/100/config", name="late").status == 596
    assert root.get(f"{QEMU}/100/config").result.get("name") is None
    assert eventually(lambda: root.get(f"{QEMU}/100/config").result.get("name") == "late")


def test_a_lock_held_by_another_times_out_and_can_be_had_later(serving: Serving, root: Client) -> None:
    root.post(QEMU, vmid=100, memory=128)
    said = "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout"
    ask_for(serving, kind="lock-held", vmid=100, times=2)
    assert root.put(f"{QEMU}/100/config", name="x").text == said
    assert root.post(f"{QEMU}/100/status/start").exitstatus == said
    assert root.post(f"{QEMU}/100/status/start").exitstatus == "OK"


@pytest.mark.parametrize(("after", "made"), [(False, False), (True, True)])
def test_a_task_fails_before_or_after_its_work(serving: Serving, root: Client, after: bool, made: bool) -> None:
    ask_for(serving, kind="task-fails", match=f"POST /{QEMU}$", text="lvcreate died", after=after)
    assert root.post(QEMU, vmid=100, memory=128, scsi0="local-lvm:1").exitstatus == "lvcreate died"
    assert bool(root.get(CONTENT).result) == made


def test_a_task_ends_with_warnings(serving: Serving, root: Client) -> None:
    ask_for(serving, kind="warnings", match=f"POST /{QEMU}$", text="something was ignored")
    outcome = root.post(QEMU, vmid=100, memory=128)
    assert outcome.exitstatus == "WARNINGS: 1"
    assert "WARN: something was ignored" in outcome.log


def test_an_expired_ticket_is_refused_and_a_new_one_taken(serving: Serving, root: Client) -> None:
    ask_for(serving, kind="ticket-expired", match="GET /version")
    refused = root.get("version")
    assert (refused.status, refused.text) == (401, "Authentication failed!")
    assert root.get("version").status == 401
    assert Client(serving).get("version").status == 200


@pytest.mark.parametrize(("kind", "made"), [("cut-before", False), ("cut-after", True)])
def test_a_connection_is_cut_before_or_after_the_work(serving: Serving, root: Client, kind: str, made: bool) -> None:
    ask_for(serving, kind=kind, match=f"POST /{CONTENT}$")
    with pytest.raises(requests.ConnectionError):
        root.post(CONTENT, vmid=100, filename="vm-100-disk-0", size="1G")
    assert bool(root.get(CONTENT).result) == made


def test_another_client_takes_the_vmid_first(serving: Serving, root: Client) -> None:
    assert root.get("cluster/nextid").result == "100"
    ask_for(serving, kind="vmid-taken", match=f"POST /{QEMU}$")
    outcome = root.post(QEMU, vmid=100, memory=128)
    assert outcome.text == "unable to create VM 100 - VM 100 already exists on node 'pve'"
    assert root.get(f"{QEMU}/100/config").result["name"] == "somebody-else"
    assert root.post(QEMU, vmid=101, memory=128).exitstatus == "OK"


def test_a_busy_drive_is_not_let_go_of_and_stays_to_be_removed(serving: Serving, root: Client) -> None:
    root.post(QEMU, vmid=100, memory=128, scsihw="virtio-scsi-single", scsi0="local-lvm:1", scsi1="local-lvm:1")
    root.post(f"{QEMU}/100/status/start")
    ask_for(serving, kind="unplug-fails", match="100 scsi1")
    outcome = root.put(f"{QEMU}/100/config", delete="scsi1")
    assert outcome.errors == {
        "scsi1": "hotplug problem - error on hot-unplugging device 'scsi1' - still busy in guest?\n"
    }
    pending = {each["key"]: each for each in root.get(f"{QEMU}/100/pending").result}
    assert pending["scsi1"]["delete"] == 1
    assert root.put(f"{QEMU}/100/config", revert="scsi1").status == 200
    assert "scsi1" in root.get(f"{QEMU}/100/config").result


def test_a_guest_that_does_not_respond_keeps_its_virtio_drive(serving: Serving, root: Client) -> None:
    # On the second recorded node, with qemu-server 9.2.6.
    root.post(QEMU, vmid=100, memory=128, scsi0="local-lvm:1", virtio0="local-lvm:1", boot="order=scsi0")
    root.post(f"{QEMU}/100/status/start")
    ask_for(serving, kind="unplug-fails", match="100 virtio0")
    outcome = root.put(f"{QEMU}/100/config", delete="virtio0")
    told = "hotplug problem - error on hot-unplugging device 'virtio0' - still busy in guest?\n"
    assert (outcome.status, outcome.errors) == (400, {"virtio0": told})


@pytest.mark.parametrize(
    ("kind", "device", "remove"),
    [
        ("lvm", {"device": "/dev/sdb"}, {}),
        ("lvmthin", {"device": "/dev/sdb"}, {"volume-group": "data"}),
        ("directory", {"device": "/dev/sdb"}, {}),
        ("zfs", {"devices": "/dev/sdb", "raidlevel": "single"}, {}),
    ],
)
def test_the_lock_of_the_storage_configuration_is_needed_in_the_middle_of_a_task(
    *, serving: Serving, root: Client, kind: str, device: dict[str, str], remove: dict[str, str]
) -> None:
    ask_for(serving, kind="storage-config-locked", match="create")
    made = root.post(f"{NODE}/disks/{kind}", name="data", add_storage=1, **device)
    held = "cfs-lock 'file-storage_cfg' error: got lock request timeout"
    assert made.exitstatus == f"create storage failed: {held}"
    assert [pool.kind for pool in serving.node.disks.pools] == [kind]
    assert "data" not in {each["storage"] for each in root.get("storage").result}
    again = root.post(f"{NODE}/disks/{kind}", name="data", add_storage=1, **device)
    assert (again.status, again.text) == (500, "device '/dev/sdb' is already in use")
    root.post("storage", storage="data", **place(kind))
    ask_for(serving, kind="storage-config-locked", match="delete")
    cleanup = {"cleanup-config": 1, "cleanup-disks": 1, **remove}
    removed = root.delete(f"{NODE}/disks/{kind}/data", **cleanup)
    assert removed.exitstatus == f"config cleanup failed - delete storage failed: {held}"
    assert serving.node.disks.pools == []
    assert "data" in {each["storage"] for each in root.get("storage").result}


def place(kind: str) -> dict[str, str]:
    """The settings of the storage that `disks/...` makes."""
    return {
        "lvm": {"type": "lvm", "vgname": "data"},
        "lvmthin": {"type": "lvmthin", "vgname": "data", "thinpool": "data"},
        "directory": {"type": "dir", "path": "/mnt/pve/data"},
        "zfs": {"type": "zfspool", "pool": "data"},
    }[kind] | {"nodes": "pve"}


def test_a_volume_needs_the_lock_of_its_storage(serving: Serving, root: Client) -> None:
    ask_for(serving, kind="storage-locked", match="^local-lvm$")
    refused = root.post(CONTENT, vmid=100, filename="vm-100-disk-0", size="1G")
    told = "can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout"
    assert (refused.status, refused.text) == (500, told)
    assert root.get(CONTENT).result == []


def test_faults_are_listed_and_cleared_and_unknown_ones_refused(serving: Serving) -> None:
    url = f"{serving.url}/double/faults"
    ask_for(serving, kind="gone", match="x", times=3)
    verify = str(serving.authority)
    assert requests.get(url, verify=verify, timeout=600).json()[0]["times"] == 3
    assert requests.delete(url, verify=verify, timeout=600).json() == []
    unknown = requests.post(url, data=json.dumps({"kind": "bogus"}), verify=verify, timeout=600)
    assert unknown.status_code == 400
    assert all(kind in unknown.text for kind in KINDS)


def test_without_a_ticket_with_a_wrong_one_and_without_csrf_nothing_is_done(serving: Serving) -> None:
    verify, api = str(serving.authority), f"{serving.url}/api2/json"
    nobody = requests.get(f"{api}/version", verify=verify, timeout=600)
    assert (nobody.status_code, nobody.reason) == (401, "No ticket")
    login = {"username": "root@pam", "password": "wrong"}
    refused = requests.post(f"{api}/access/ticket", data=login, verify=verify, timeout=600)
    assert (refused.status_code, refused.reason) == (401, "authentication failure")
    login["password"] = PASSWORD
    ticket = requests.post(f"{api}/access/ticket", data=login, verify=verify, timeout=600).json()["data"]["ticket"]
    cookies = {"PVEAuthCookie": ticket}
    assert requests.get(f"{api}/version", cookies=cookies, verify=verify, timeout=600).status_code == 200
    without = requests.post(f"{api}/pools", data={"poolid": "x"}, cookies=cookies, verify=verify, timeout=600)
    assert (without.status_code, without.reason) == (401, "Permission denied - invalid csrf token")


def test_a_token_with_privileges_of_its_own_may_do_no_more_than_these(serving: Serving, root: Client) -> None:
    root.post("access/roles", roleid="Measure", privs="VM.Audit,VM.Allocate")
    value = root.post("access/users/root@pam/token/own", privsep=1).result["value"]
    root.put("access/acl", path="/vms", tokens="root@pam!own", roles="Measure")
    own = Client(serving, "root@pam", token_name="own", token_value=value)
    assert own.get("access/permissions", path="/vms").result == {"/vms": {"VM.Allocate": 1, "VM.Audit": 1}}
    refused = own.post(QEMU, vmid=100, scsi0="local-lvm:1")
    assert (refused.status, refused.text) == (
        403,
        "Permission check failed (/storage/local-lvm, Datastore.AllocateSpace)",
    )
    assert own.post(QEMU, vmid=100).exitstatus == "OK"
    start = own.post(f"{QEMU}/100/status/start")
    assert (start.status, start.text) == (403, "Permission check failed (/vms/100, VM.PowerMgmt)")
    root.delete("access/users/root@pam/token/own")
    assert own.get("version").status == 401


def test_faults_that_a_test_takes_back_do_not_happen(serving: Serving, root: Client) -> None:
    ask_for(serving, kind="refused", match="GET /version", text="no")
    url, authority = f"{serving.url}/double/faults", str(serving.authority)
    listed = requests.get(url, verify=authority, timeout=600).json()
    assert [(each["kind"], each["match"]) for each in listed] == [("refused", "GET /version")]
    assert requests.delete(url, verify=authority, timeout=600).json() == []
    assert root.get("version").status == 200


def test_a_guest_prints_what_a_test_gives_it(serving: Serving, root: Client) -> None:
    root.post(QEMU, vmid=100, memory=128, agent=1, start=1)
    root.wait_for_agent(100)
    answer: dict[str, Any] = {"vmid": 100, "command": "--version", "out": "fio-3.36\n", "exitcode": 3}
    requests.post(f"{serving.url}/double/guest", json=answer, verify=str(serving.authority), timeout=600)
    started = root.post(f"{QEMU}/100/agent/exec", command=["fio", "--version"]).result
    ended = root.get(f"{QEMU}/100/agent/exec-status", **started).result
    assert (ended["exitcode"], ended["out-data"]) == (3, "fio-3.36\n")


def test_the_readme_explains_every_fault() -> None:
    table = README.read_text().partition("| kind | what happens |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z-]+)`", "".join(line.split("|")[1] for line in table.splitlines()[2:]))) == set(KINDS)
