"""Containers as pve-container's public sources have them: created, configured, started, stopped, destroyed; rights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pve_double.server import Serving, serve
from pve_double.testing import Client, memory_node

LXC = "nodes/pve/lxc"
TEMPLATE = "local:vztmpl/tiny.tar.gz"
WANTED = {"vmid": 200, "ostemplate": TEMPLATE, "rootfs": "local-lvm:0.25", "hostname": "box"}


@pytest.fixture
def serving() -> Iterator[Serving]:
    node = memory_node(cpus=4)
    node.store.add_file("local", "vztmpl", "tiny.tar.gz", 1000)
    with serve(node) as found:
        yield found


@pytest.fixture
def root(serving: Serving) -> Client:
    return Client(serving)


def user_with(root: Client, serving: Serving, *privileges: str) -> Client:
    root.post("access/users", userid="user@pve", password="a-password")
    root.post("access/roles", roleid="Some", privs=",".join(privileges))
    root.put("access/acl", path="/", users="user@pve", roles="Some")
    return Client(serving, "user@pve", password="a-password")


def test_the_life_of_a_container(root: Client, serving: Serving) -> None:
    made = root.post(LXC, **WANTED, cores=2)
    assert (made.exitstatus, made.log[0]) == ("OK", '  Logical volume "vm-200-disk-0" created.')
    config = root.get(f"{LXC}/200/config").result
    assert config["rootfs"] == "local-lvm:vm-200-disk-0,size=256M"
    assert (config["unprivileged"], config["memory"], config["ostype"]) == ("1", "512", "unmanaged")
    assert [each["vmid"] for each in root.get("cluster/resources", type="vm").result] == [200]
    assert root.get("cluster/nextid", vmid=200).errors == {"vmid": "VM 200 already exists"}
    assert root.post(f"{LXC}/200/status/stop").text == "CT 200 not running"
    root.put(f"{LXC}/200/config", dev0="path=/dev/sdb", mp0="/usr,mp=/usr,ro=1")
    assert root.post(f"{LXC}/200/status/start").exitstatus == "OK"
    assert root.get(f"{LXC}/200/status/current").result["status"] == "running"
    assert root.post(f"{LXC}/200/status/start").text == "CT 200 already running"
    assert root.delete(f"{LXC}/200").text == "unable to destroy CT 200 - container is running"
    assert root.post(f"{LXC}/200/status/stop").exitstatus == "OK"
    assert root.delete(f"{LXC}/200").exitstatus == "OK"
    assert root.get(f"{LXC}/200/config").text == "Configuration file 'nodes/pve/lxc/200.conf' does not exist"
    assert not [volume for volume in serving.node.store.volumes if "vm-200" in volume]


def test_a_failed_creation_leaves_nothing(root: Client, serving: Serving) -> None:
    assert root.post(LXC, **{**WANTED, "ostemplate": "local:vztmpl/none.tar.gz"}).exitstatus is not None
    assert serving.node.containers == {}
    assert root.post(LXC, **{**WANTED, "rootfs": "local:1"}).errors == {
        "storage": "storage 'local' does not support container directories"
    }


def test_a_vm_has_the_id(root: Client) -> None:
    root.post("nodes/pve/qemu", vmid=200)
    assert root.post(LXC, **WANTED).text == "VM 200 already exists on node 'pve'"
    assert root.post(LXC, **{**WANTED, "vmid": 201}).exitstatus == "OK"
    assert root.post(LXC, **{**WANTED, "vmid": 201}).text == "CT 201 already exists on node 'pve'"


def test_a_device_that_is_missing_fails_the_start(root: Client, serving: Serving) -> None:
    serving.node.executor.missing.add("/dev/gone")  # type: ignore[attr-defined] # that of memory
    root.post(LXC, **WANTED, dev0="path=/dev/gone")
    assert root.post(f"{LXC}/200/status/start").exitstatus == "startup for container '200' failed"
    assert "is not a valid path" in root.put(f"{LXC}/200/config", dev1="/etc/passwd").errors["dev1"]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"dev0": "path=/dev/sdb"}, "configuring device passthrough is only allowed for root@pam"),
        ({"mp0": "/usr,mp=/usr"}, "mount point type bind is only allowed for root@pam"),
        ({"mp0": "/dev/sdb,mp=/disk"}, "mount point type device is only allowed for root@pam"),
    ],
)
def test_what_only_root_with_a_password_may(root: Client, serving: Serving, option: dict[str, str], said: str) -> None:
    serving.node.access.add_token("root@pam", "t1", privsep=False, value="a-value")
    token = Client(serving, "root@pam", token_name="t1", token_value="a-value")
    refused = token.post(LXC, **WANTED, **option)
    assert (refused.status, said in refused.text) == (403, True), refused
    assert token.post(LXC, **WANTED).exitstatus == "OK"
    assert root.delete(f"{LXC}/200").exitstatus == "OK"


def test_the_rights_that_a_user_needs(root: Client, serving: Serving) -> None:
    rights = ["VM.Allocate", "VM.Config.Disk", "VM.Config.Network", "Datastore.AllocateSpace", "VM.Audit"]
    user = user_with(root, serving, *rights)
    assert "VM.Config.CPU" in user.post(LXC, **WANTED, cores=1).text
    assert "Sys.Modify" in user.post(LXC, **WANTED, unprivileged=0).text
    assert user.post(LXC, **WANTED).exitstatus == "OK"
    assert "VM.PowerMgmt" in user.post(f"{LXC}/200/status/start").text
