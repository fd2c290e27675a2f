"""Users, tokens, roles and pools of the double: what they may do, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from pve_double.server import Serving, serve
from pve_double.testing import NODE, QEMU, Client, memory_node
from pve_double.tests.recorded_calls import DISK

PASSWORD = "long enough for PVE"
FAILED = "Authentication failed!"
WORDS = {"CSRFPreventionToken": "x", "Cookie": "PVEAuthCookie=PVE:root@pam:0::x"}


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with serve(memory_node()) as found:
        yield found


@pytest.fixture(scope="module")
def root(serving: Serving) -> Client:
    return Client(serving)


def user(serving: Serving, root: Client, name: str, role: str, path: str = "/") -> Client:
    """A new user with one role somewhere."""
    assert root.post("access/users", userid=name, password=PASSWORD).status == 200
    assert root.put("access/acl", path=path, users=name, roles=role).status == 200
    return Client(serving, name, password=PASSWORD)


def token(serving: Serving, root: Client, name: str, **settings: Any) -> Client:
    """A token of root's."""
    made = root.post(f"access/users/root@pam/token/{name}", **settings).result
    return Client(serving, "root@pam", token_name=name, token_value=made["value"])


def test_a_user_is_listed_changed_and_gone_with_its_rights(serving: Serving, root: Client) -> None:
    client = user(serving, root, "one@pve", "PVEVMUser", "/vms")
    assert client.get("version").status == 200
    assert root.put("access/users/one@pve", comment="a tester").status == 200
    listed = {each["userid"]: each for each in root.get("access/users").result}
    assert listed["one@pve"] == {"userid": "one@pve", "enable": 1, "comment": "a tester", "realm-type": "pve"}
    assert [each["userid"] for each in client.get("access/users").result] == ["one@pve"]
    root.put("access/users/one@pve", enable=0)
    assert client.get("version").text == "Authentication failed!"
    root.delete("access/users/one@pve")
    assert "one@pve" not in [each["ugid"] for each in root.get("access/acl").result]
    assert root.get("access/users/one@pve").text == "no such user ('one@pve')"


def test_a_token_has_rights_of_its_own_unless_it_is_told_not_to(serving: Serving, root: Client) -> None:
    apart, same = token(serving, root, "apart"), token(serving, root, "same", privsep=0)
    assert same.get(f"{NODE}/storage/local-lvm/status").status == 200
    refused = apart.get(f"{NODE}/storage/local-lvm/status")
    assert refused.text == "Permission check failed (/storage/local-lvm, Datastore.Audit|Datastore.AllocateSpace)"
    root.put("access/acl", path="/storage", tokens="root@pam!apart", roles="PVEDatastoreUser")
    assert apart.get(f"{NODE}/storage/local-lvm/status").status == 200
    root.put("access/users/root@pam/token/apart", privsep=0)
    assert apart.get(f"{NODE}/status").status == 200
    named = {each["tokenid"]: each for each in root.get("access/users/root@pam/token").result}
    assert named["same"] == {"tokenid": "same", "privsep": 0}


def test_what_is_for_roots_ticket_alone_no_token_may(serving: Serving, root: Client) -> None:
    refused = token(serving, root, "wiper", privsep=0).put(f"{NODE}/disks/wipedisk", disk="/dev/sdb")
    assert (refused.status, refused.text) == (403, "Permission check failed (user != root@pam)")


def test_a_role_is_made_of_privileges_and_grows(root: Client) -> None:
    assert root.post("access/roles", roleid="Bench", privs="VM.Audit VM.Allocate").status == 200
    root.put("access/roles/Bench", privs="Datastore.Audit", append=1)
    assert root.get("access/roles/Bench").result == {"Datastore.Audit": 1, "VM.Allocate": 1, "VM.Audit": 1}
    listed = {each["roleid"]: each for each in root.get("access/roles").result}
    assert (listed["Bench"]["special"], listed["PVEVMUser"]["special"]) == (0, 1)
    assert "Permissions.Modify" not in listed["PVEAdmin"]["privs"]
    assert root.delete("access/roles/Bench").status == 200
    assert root.get("access/roles/Bench").text == "role 'Bench' does not exist"


DEVICES = [
    ({"usb0": "mapping=stick"}, 403, "/mapping/usb/stick, Mapping.Use"),
    ({"usb0": "usb3=1"}, 500, "either 'host' or 'mapping' must be set."),
    ({"hostpci0": "mapping=card"}, 403, "/mapping/pci/card, Mapping.Use"),
    ({"rng0": "source=/dev/hwrng"}, 403, "/mapping/hwrng, Mapping.Use"),
    ({"startup": "order=1"}, 403, "/, Sys.Modify"),
    ({"lock": "backup"}, 500, "only root can set 'lock' config"),
    ({"affinity": "0"}, 500, "only root can set 'affinity' config"),
    ({"net0": "virtio,bridge=vmbr0"}, 403, "/sdn/zones/localnetwork/vmbr0, SDN.Use"),
    ({"scsi5": "local-lvm:1"}, 403, "/storage/local-lvm, Datastore.AllocateSpace"),
]


def test_a_vm_admin_may_not_take_the_hosts_devices(serving: Serving, root: Client) -> None:
    vmid = 400
    assert root.post(QEMU, vmid=vmid, memory=128).exitstatus == "OK"
    client = user(serving, root, "vms@pve", "PVEVMAdmin", f"/vms/{vmid}")
    assert client.put(f"{QEMU}/{vmid}/config", name="mine", cores=2).status == 200
    for settings, status, text in DEVICES:
        refused = client.put(f"{QEMU}/{vmid}/config", **settings)
        assert refused.status == status, settings
        assert text in refused.text
    root.delete(f"{QEMU}/{vmid}")
    assert client.get(f"{QEMU}/{vmid}/config").text == f"Permission check failed (/vms/{vmid}, VM.Audit)"


def test_the_monitor_asks_for_more_the_more_a_command_does(serving: Serving, root: Client) -> None:
    root.post(QEMU, vmid=401, memory=128)
    client = user(serving, root, "mon@pve", "PVEAuditor")
    monitor = f"{QEMU}/401/monitor"
    assert client.post(monitor, command="info block").result == "ERROR: VM 401 not running\n"
    assert client.post(monitor, command="stop").text == "Permission check failed (/, Sys.Modify)"
    assert client.post(monitor, command="drive_add x").text == "root-only command 'drive_add'"
    assert "non-existent or not assigned a required permission" in client.post(monitor, command="dance").text


def test_others_tasks_are_seen_by_auditors_alone(serving: Serving, root: Client) -> None:
    root.post(QEMU, vmid=405, memory=128)
    upid = root.post(f"{QEMU}/405/status/stop").result
    client = user(serving, root, "alone@pve", "PVEVMUser", "/vms/405")
    assert client.get(f"{NODE}/tasks").result == []
    assert client.get(f"{NODE}/tasks/{upid}/log").text == f"Permission check failed (/{NODE}, Sys.Audit)"
    own = client.post(f"{QEMU}/405/status/stop").result
    assert [each["upid"] for each in client.get(f"{NODE}/tasks").result] == [own]
    assert root.get(f"{NODE}/tasks", userfilter="alone").result[0]["user"] == "alone@pve"
    assert root.get(f"{NODE}/tasks", statusfilter="error", vmid=405).result == []
    assert root.get(f"{NODE}/tasks/{upid}").result == [{"name": "log"}, {"name": "status"}]


def test_a_pool_gives_rights_to_its_members(serving: Serving, root: Client) -> None:
    root.post("pools", poolid="lab")
    client = user(serving, root, "pool@pve", "PVEVMAdmin", "/pool/lab")
    root.put("access/acl", path="/storage/local-lvm", users="pool@pve", roles="PVEDatastoreUser")
    assert client.post(QEMU, vmid=402, memory=128).status == 403
    assert client.post(QEMU, vmid=402, memory=128, pool="lab", scsi0="local-lvm:1").exitstatus == "OK"
    assert [each["vmid"] for each in root.get("pools/lab").result["members"]] == [402]
    assert client.get(f"{QEMU}/402/config").status == 200
    root.post("pools", poolid="lab2")
    assert root.put("pools/lab2", vms=402, **{"allow-move": 1}).status == 200
    assert client.get(f"{QEMU}/402/config").status == 403
    root.put("pools/lab2", storage="local-lvm")
    assert root.delete("pools/lab2").status == 500
    root.put("pools/lab2", storage="local-lvm", vms=402, delete=1)
    assert root.delete("pools/lab2").status == 200


REFUSED = [
    ({}, "No ticket"),
    ({"Authorization": "Basic cm9vdA=="}, "No ticket"),
    ({"Authorization": "PVEAPIToken=secret"}, FAILED),
    ({"Authorization": "PVEAPIToken=root@pam=secret"}, FAILED),
    ({"Authorization": "PVEAPIToken=no@pam!t1=secret"}, FAILED),
    ({"Authorization": "PVEAPIToken=root@pam!none=secret"}, FAILED),
    (WORDS, FAILED),
]


@pytest.mark.parametrize(
    ("headers", "text"), REFUSED, ids=[str(next(iter(headers.values()), "")) for headers, _ in REFUSED]
)
def test_who_is_nobody_learns_nothing_of_the_api(serving: Serving, headers: dict[str, str], text: str) -> None:
    answer = requests.get(f"{serving.url}/api2/json/bogus", headers=headers, verify=str(serving.authority), timeout=600)
    assert answer.status_code == 401
    assert answer.reason == text


def test_a_token_may_not_pass_a_device_through_in_any_way(serving: Serving, root: Client) -> None:
    client = token(serving, root, "bench", privsep=0)
    assert client.post(QEMU, vmid=410, memory=128).exitstatus == "OK"
    for settings in ({"scsi0": DISK}, {"scsi0": f"local-lvm:0,import-from={DISK}"}, {"ide0": f"{DISK},media=cdrom"}):
        assert client.put(f"{QEMU}/410/config", **settings).text.startswith("Only root can pass arbitrary")
