"""Storages of type rbd, as RBDPlugin.pm and CephConfig.pm of pve-storage have them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from pve_double import nodeshell
from pve_double.executor.memory import MemoryExecutor
from pve_double.server import Serving, serve
from pve_double.state import Node
from pve_double.storage.volumes import CLUSTER, Storage
from pve_double.testing import NODE, QEMU, Client, memory_node
from pve_double.tests.test_executor import Recorder, executor

VM = {"memory": 128, "scsihw": "virtio-scsi-single", "machine": "q35", "kvm": 0, "cpu": "max"}
LOGIN = "conf=/etc/pve/ceph.conf:id=admin:keyring=/etc/pve/priv/ceph/ceph.keyring"


@pytest.fixture
def serving() -> Iterator[Serving]:
    with serve(memory_node()) as found:
        yield found


@pytest.fixture
def root(serving: Serving) -> Client:
    """Root, on a node with two storages on a pool: `ceph`, and `mapped` with krbd in a namespace."""
    client = Client(serving)
    for settings in ({"storage": "ceph"}, {"storage": "mapped", "krbd": 1, "namespace": "a"}):
        outcome = client.post("storage", type="rbd", pool="vms", content="images", keyring="k", **settings)
        assert outcome.status == 200, outcome
    return client


def ceph_of(serving: Serving) -> MemoryExecutor:
    assert isinstance(serving.node.executor, MemoryExecutor)
    return serving.node.executor


def create(root: Client, storage: str, **settings: Any) -> Any:
    return root.post(f"{NODE}/storage/{storage}/content", vmid=300, size=1500, **settings)


def read_blockdev(words: Sequence[str]) -> dict[str, Any]:
    """The node at the bottom of the only drive."""
    (text,) = (value for option, value in pairwise(words) if option == "-blockdev")
    node = json.loads(text)
    while isinstance(node.get("file"), dict):
        node = node["file"]
    return dict(node)


def test_the_configuration_shows_the_client_and_not_the_key(root: Client) -> None:
    mapped = root.get("storage/mapped").result
    assert (mapped["krbd"], mapped["shared"], mapped["pool"], mapped["namespace"]) == ("1", 1, "vms", "a")
    assert "keyring" not in mapped
    listed = {entry["storage"]: entry for entry in root.get(f"{NODE}/storage").result}
    assert (listed["ceph"]["type"], listed["ceph"]["shared"], listed["local-lvm"]["shared"]) == ("rbd", 1, 0)


def test_a_volume_is_an_image_of_whole_mebibytes(root: Client) -> None:
    assert create(root, "ceph", filename="vm-300-a").result == "ceph:vm-300-a"
    (entry,) = root.get(f"{NODE}/storage/ceph/content").result
    assert (entry["name"], entry["format"], entry["vmid"], entry["size"]) == ("vm-300-a", "raw", 300, 2 << 20)
    assert "ctime" not in entry
    assert "(17) File exists" in create(root, "ceph", filename="vm-300-a").text
    assert "should be 'vm-300-*'" in create(root, "ceph", filename="vm-301-a").text
    assert "unsupported format" in create(root, "ceph", filename="vm-300-b", format="qcow2").text


@pytest.mark.parametrize(
    ("storage", "path"),
    [("ceph", f"rbd:vms/vm-300-a:{LOGIN}"), ("mapped", f"/dev/rbd-pve/{CLUSTER}/vms/a/vm-300-a")],
)
def test_where_a_volume_is_depends_on_the_client(root: Client, storage: str, path: str) -> None:
    create(root, storage, filename="vm-300-a")
    assert root.get(f"{NODE}/storage/{storage}/content/{storage}:vm-300-a").result["path"] == path


def test_an_external_cluster_has_its_monitors_in_the_path() -> None:
    options = {"monhost": "10.0.0.1:6789 10.0.0.2", "username": "pve"}
    far = Storage("far", "rbd", frozenset({"images"}), 1 << 40, options=options)
    assert far.path_of("vm-300-a") == (
        "rbd:rbd/vm-300-a:conf=/etc/pve/priv/ceph/far.conf:mon_host=10.0.0.1\\:6789;10.0.0.2:auth_supported=cephx:id=pve:"
        "keyring=/etc/pve/priv/ceph/far.keyring"
    )


def test_qemu_opens_an_image_by_itself_or_its_device(root: Client, serving: Serving) -> None:
    for vmid, storage in ((300, "ceph"), (301, "mapped")):
        assert root.post(QEMU, vmid=vmid, scsi0=f"{storage}:1,aio=native", **VM).exitstatus == "OK"
    by_qemu, mapped = (
        read_blockdev(nodeshell.showcmd(serving.node, vmid, pretty=False).replace("'", "").split())
        for vmid in (300, 301)
    )
    assert (by_qemu["driver"], by_qemu["pool"], by_qemu["image"], by_qemu["user"]) == (
        "rbd",
        "vms",
        "vm-300-disk-0",
        "admin",
    )
    assert by_qemu["conf"] == "/etc/pve/ceph.conf"
    assert "aio" not in by_qemu
    assert (mapped["driver"], mapped["aio"]) == ("host_device", "native")
    assert mapped["filename"] == f"/dev/rbd-pve/{CLUSTER}/vms/a/vm-301-disk-0"


def test_a_start_maps_the_image_with_krbd_alone_and_a_stop_unmaps_it_unless_it_is_open(
    root: Client, serving: Serving
) -> None:
    ceph = ceph_of(serving)
    for vmid, storage in ((300, "ceph"), (301, "mapped")):
        root.post(QEMU, vmid=vmid, scsi0=f"{storage}:1", **VM)
        assert root.post(f"{QEMU}/{vmid}/status/start").exitstatus == "OK"
    assert ceph.mapped == {"vms/a/vm-301-disk-0": "/dev/rbd0"}
    ceph.held.add("/dev/rbd0")
    stopped = root.post(f"{QEMU}/301/status/stop")
    assert stopped.exitstatus == "OK"
    assert "can't unmap rbd device /dev/rbd0: rbd: sysfs write failed" in stopped.log
    assert ceph.mapped
    ceph.held.clear()
    root.post(f"{QEMU}/301/status/start")
    root.post(f"{QEMU}/301/status/stop")
    assert ceph.mapped == {}


def test_a_snapshot_of_a_running_vm_is_one_of_each_image(root: Client, serving: Serving) -> None:
    ceph = ceph_of(serving)
    ceph.saves_state = True
    root.post(QEMU, vmid=300, scsi0="ceph:1", scsi1="mapped:1", **VM)
    root.post(f"{QEMU}/300/status/start")
    assert root.post(f"{QEMU}/300/snapshot", snapname="now").exitstatus == "OK"
    assert ceph.snapshots == {"ceph:vm-300-disk-0@now", "mapped:vm-300-disk-0@now"}
    assert root.delete(f"{QEMU}/300/snapshot/now").exitstatus == "OK"
    assert ceph.snapshots == set()


def test_the_commands_of_the_node_see_the_same_images(root: Client, serving: Serving) -> None:
    node: Node = serving.node
    create(root, "ceph", filename="vm-300-a")

    def run(*words: str) -> str:
        return nodeshell.run(node, list(words)).text

    assert f"fsid {CLUSTER}" in run("ceph", "osd", "dump")
    features = json.loads(run("rbd", "info", "--format", "json", "vms/vm-300-a"))["features"]
    assert "exclusive-lock" in features
    run("rbd", "feature", "disable", "vms/vm-300-a", "exclusive-lock")
    assert "exclusive-lock" not in run("rbd", "info", "--format", "json", "vms/vm-300-a")
    assert run("rbd", "map", "vms/vm-300-a") == "/dev/rbd0\n"
    assert run("readlink", "-e", f"/dev/rbd-pve/{CLUSTER}/vms/vm-300-a") == "/dev/rbd0\n"
    assert run("rbd", "status", "--format", "json", "vms/vm-300-a") == '{"watchers":[{"client":4100}]}\n'
    run("rbd", "unmap", "/dev/rbd0")
    assert run("rbd", "status", "--format", "json", "vms/vm-300-a") == '{"watchers":[]}\n'
    assert nodeshell.run(node, ["readlink", "-e", f"/dev/rbd-pve/{CLUSTER}/vms/vm-300-a"]).status != 0
    assert "No such file or directory" in run("rbd", "info", "--format", "json", "vms/vm-1-none")


def test_a_machine_with_ceph_gets_the_commands_of_the_plugin() -> None:
    commands = Recorder(fails={"test": ""})
    storage = Storage("ceph", "rbd", frozenset({"images"}), 1 << 40, pool="vms", options={"krbd": "1"})
    runs, name = executor(commands), "vm-100-disk-0"
    runs.create(storage, name, 1 << 20)
    runs.activate(storage, name)
    runs.take_snapshot(storage, name, "now")
    runs.drop_snapshot(storage, name, "now")
    runs.deactivate(storage, name)
    runs.remove(storage, name)
    login = "rbd --conf /etc/pve/ceph.conf --id admin --keyring /etc/pve/priv/ceph/ceph.keyring"
    assert [line.removeprefix(login).strip() for line in commands.lines if line.startswith("rbd")] == [
        "create --image-format 2 --size 1M vms/vm-100-disk-0",
        "map vms/vm-100-disk-0",
        "snap create --no-progress --snap now vms/vm-100-disk-0",
        "snap rm --no-progress --snap now vms/vm-100-disk-0",
        "snap purge --no-progress vms/vm-100-disk-0",
        "rm --no-progress vms/vm-100-disk-0",
    ]
