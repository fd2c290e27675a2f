"""What of Proxmox VE's is removed: what the creation log has and still is that. All else on the node stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.config.names import RunId
from harness.errors import HarnessError, HostError, LabUnavailable, SafetyError
from harness.features.proxmox import GuestRules
from harness.features.proxmox.backend import ProxmoxHypervisor
from harness.features.proxmox.client import Client
from harness.features.proxmox.creation import Store, Stores, create_vm, list_used_ids
from harness.features.proxmox.session import Secret
from harness.features.proxmox.vm_config import CreatedStore, CreatedVm, CreatedVolume, build_shell_parameters
from harness.lab.created import Thing
from harness.measure.reap import reap
from harness.model.attach import Attach
from harness.model.layout import LvmThin, RawFile
from harness.model.mode import Mode
from pve_double.executor.memory import MemoryExecutor
from pve_double.faults import Fault
from pve_double.permissions import ROOT
from pve_double.server import Serving, serve
from pve_double.state import Node, Settings, make_node
from pve_double.storage.volumes import Storage
from pve_double.testing import FAST, PASSWORD, memory_node
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_nodes import connected
from tests.features.proxmox.proxmox_shell import DISK, LINK, NodeShell
from tests.features.proxmox.test_proxmox_backend import (
    HOST,
    LVM,
    RAW,
    RULES,
    RUN,
    SPAN,
    STORED,
    THIN,
    ZVOL,
    hypervisor,
    left,
    reaped,
)

__all__ = ["client", "node", "serving", "shell"]

CONTENT = "nodes/pve/storage/local-lvm/content"
LVM_STORE = f"voh-{RUN}-lvm"


@pytest.fixture
def ours(client: Client, shell: NodeShell, tmp_path: Path) -> ProxmoxHypervisor:
    iso = tmp_path / "guest.iso"
    iso.write_bytes(b"\0" * 4096)
    return hypervisor(client, iso, shell, facts={"tool_zpool": "1", "tool_zfs": "1", "module_zfs": "1"})


def post(client: Client, path: str, **settings: object) -> None:
    client.task("post", path, settings, is_done=lambda: False, deadline=30)


def volumes(client: Client) -> list[str]:
    return sorted(each["volid"] for each in client.get(CONTENT))


@contextmanager
def killed(ours: ProxmoxHypervisor, shell: NodeShell, *modes: Mode, on: Any = STORED) -> Iterator[None]:
    """A run that was killed when its layouts were there: nothing of its cleaning up is called before the test's end."""
    held = ours.layouts(shell.log(RUN), [on], [HOST, *modes], span=SPAN)
    held.__enter__()
    shell.lose_connection()
    try:
        yield
    finally:
        with suppress(HarnessError):
            held.__exit__(None, None, None)


Kill = Callable[..., None]


@pytest.fixture
def kill(ours: ProxmoxHypervisor, shell: NodeShell) -> Iterator[Kill]:
    with ExitStack() as stack:

        def run(*modes: Mode, on: Any = STORED) -> None:
            stack.enter_context(killed(ours, shell, *modes, on=on))

        yield run


def orphan(client: Client, vmid: int = 9000, storage: str = "local-lvm") -> None:
    """A volume of a removed VM: its storage was not available when the VM was removed."""
    settings = {"vmid": vmid, "filename": f"vm-{vmid}-disk-0", "size": "4M", "format": "raw"}
    client.write("post", f"nodes/pve/storage/{storage}/content", settings, is_done=lambda: False)


# Volumes of a VM that is gone


def test_an_id_with_a_volume_of_an_earlier_vm_is_not_used(
    client: Client, ours: ProxmoxHypervisor, shell: NodeShell
) -> None:
    orphan(client)
    with ours.layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN) as layouts:
        assert layouts.guest(THIN).path == "/dev/pve/vm-9001-voh-1"
    assert volumes(client) == ["local-lvm:vm-9000-disk-0"]


def test_a_volume_that_appears_later_with_the_id_of_our_vm_stays(
    client: Client, ours: ProxmoxHypervisor, shell: NodeShell
) -> None:
    with ours.layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN):
        orphan(client)
    assert volumes(client) == ["local-lvm:vm-9000-disk-0"]
    assert client.get("nodes/pve/qemu") == []


def test_if_every_id_has_a_volume_nothing_is_created(client: Client, ours: ProxmoxHypervisor, shell: NodeShell) -> None:
    orphan(client)
    orphan(client, 9001)
    with (
        pytest.raises(LabUnavailable, match="no VM id from 9000 to 9001 is free"),
        ours.layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN),
    ):
        pass
    assert shell.logged == []


@pytest.mark.parametrize("kind", ["not listed", "not seen"])
def test_if_the_login_may_not_see_all_volumes_no_id_is_used(
    *, node: Node, serving: Serving, client: Client, shell: NodeShell, tmp_path: Path, kind: str
) -> None:
    iso = tmp_path / "guest.iso"
    iso.write_bytes(b"\0" * 4096)
    orphan(client)
    if kind == "not listed":
        node.faults.add(Fault("refused", "GET .*/local-lvm/content$", text="error with cfs lock: no quorum"))
        said = "the volumes on storage local-lvm cannot be listed"
        with pytest.raises(SafetyError, match=said):
            hypervisor(client, iso, shell).layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN).__enter__()
        return
    for path, body in {
        "access/users": {"userid": "bench@pve"},
        "access/roles": {"roleid": "Some", "privs": "VM.Audit,VM.Allocate,Datastore.AllocateSpace"},
    }.items():
        client.write("post", path, body, is_done=lambda: False)
    for path in ("/vms", "/storage"):
        acl = {"path": path, "users": "bench@pve", "roles": "Some"}
        client.write("put", "access/acl", acl, is_done=lambda: False)
    value = client.write("post", "access/users/bench@pve/token/voh", {"privsep": 0}, is_done=lambda: False)["value"]
    with (
        connected(serving, user="bench@pve", token="voh", secret=Secret(value)) as token,
        pytest.raises(SafetyError, match="bench@pve!voh may not see all volumes on storage"),
    ):
        list_used_ids(token)


# VMs


def test_a_vm_of_the_log_is_removed_after_its_volumes(
    client: Client, ours: ProxmoxHypervisor, shell: NodeShell, kill: Kill
) -> None:
    kill(THIN)
    assert reaped(ours, shell) == {"pve-volume": ["removed"] * 2, "pve-vm": ["removed"]}
    assert left(client) == []


def test_what_no_longer_exists_is_absent(client: Client, ours: ProxmoxHypervisor, shell: NodeShell, kill: Kill) -> None:
    kill(THIN)
    client.task("delete", "nodes/pve/qemu/9000", {"destroy-unreferenced-disks": 1}, is_done=lambda: False, deadline=30)
    assert reaped(ours, shell) == {"pve-volume": ["absent"] * 2, "pve-vm": ["absent"]}


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "database"},
        {"description": "please do not remove"},
        {"smbios1": "uuid=11111111-2222-3333-4444-555555555555"},
    ],
    ids=["another name", "other notes", "another machine"],
)
def test_a_vm_without_the_token_in_its_notes_is_left_alone(
    client: Client, ours: ProxmoxHypervisor, shell: NodeShell, settings: dict[str, str]
) -> None:
    with create_vm(client, shell.log(RUN), RULES, build_shell_parameters(RULES, "local:iso/mini.iso", 1)) as (
        machine,
        vm,
    ):
        entry = shell.logged[0]
        machine.set(settings)
        removal = ours.remove(entry)
        assert removal is not None
        assert removal.outcome == "foreign"
        machine.set({"name": vm.name, "description": vm.token, "smbios1": f"uuid={vm.uuid}"})
    assert left(client) == []


def test_a_vm_that_got_our_id_later_is_left_alone(
    client: Client, ours: ProxmoxHypervisor, shell: NodeShell, kill: Kill
) -> None:
    kill(THIN)
    config = client.get("nodes/pve/qemu/9000/config")
    client.task("delete", "nodes/pve/qemu/9000", {"destroy-unreferenced-disks": 1}, is_done=lambda: False, deadline=30)
    # As like ours as an administrator can make it: even the notes are copied.
    copied = {key: config[key] for key in ("name", "description", "tags")}
    post(client, "nodes/pve/qemu", vmid=9000, scsi0="local-lvm:1", **copied)
    ended = reaped(ours, shell)
    assert ended["pve-vm"] == ["foreign"]
    assert volumes(client) == ["local-lvm:vm-9000-disk-0"]


def test_a_clone_of_our_vm_is_left_alone(client: Client, ours: ProxmoxHypervisor, shell: NodeShell, kill: Kill) -> None:
    kill(THIN)
    name = client.get("nodes/pve/qemu/9000/config")["name"]
    post(client, "nodes/pve/qemu/9000/clone", newid=500, name=name)
    assert reaped(ours, shell)["pve-vm"] == ["removed"]
    assert left(client) == ["VM 500"]


def test_a_vm_with_a_foreign_disk_stays_until_the_disk_is_moved(
    client: Client, ours: ProxmoxHypervisor, shell: NodeShell, kill: Kill
) -> None:
    kill(THIN)
    entry = next(each for each in shell.logged if each.kind == "pve-vm")
    post(client, "nodes/pve/qemu/9000/config", scsi5="local-lvm:1")
    with pytest.raises(HostError, match="it has: local-lvm:vm-9000-disk-0 as scsi5"):
        reaped(ours, shell)
    assert volumes(client) == ["local-lvm:vm-9000-disk-0"]
    assert entry.file in {each.file for each in shell.logged}


def test_a_vm_with_a_foreign_snapshot_stays(client: Client, ours: ProxmoxHypervisor, shell: NodeShell) -> None:
    with create_vm(client, shell.log(RUN), RULES, build_shell_parameters(RULES, "local:iso/mini.iso", 1)) as (
        machine,
        _,
    ):
        post(client, f"{machine.path}/snapshot", snapname="mine")
        with pytest.raises(HostError, match="it has: the snapshot mine"):
            ours.remove(shell.logged[0])
        client.task("delete", f"{machine.path}/snapshot/mine", {}, is_done=lambda: False, deadline=30)
    assert left(client) == []


def test_a_new_volume_with_our_name_is_left_alone(
    node: Node, client: Client, ours: ProxmoxHypervisor, shell: NodeShell, kill: Kill
) -> None:
    kill(THIN)
    volid = "local-lvm:vm-9000-voh-1"
    node.store.volumes[volid] = replace(node.store.volumes[volid], uid="another")
    assert reaped(ours, shell) == {"pve-volume": ["foreign", "removed"], "pve-vm": ["removed"]}
    assert volumes(client) == [volid]


def test_an_existing_volume_is_refused(client: Client, shell: NodeShell) -> None:
    settings = {"vmid": 9000, "filename": "vm-9000-voh-0", "size": "4M", "format": "raw"}
    client.write("post", CONTENT, settings, is_done=lambda: False)
    stores = Stores(client, shell.log(RUN), CreatedVm.planned("pve", 9000, RUN))
    with (
        pytest.raises(SafetyError, match="volume local-lvm:vm-9000-voh-0 already exists"),
        stores.volume(Store("local-lvm"), 0, SPAN, "raw", file=False),
    ):
        pass
    assert volumes(client) == ["local-lvm:vm-9000-voh-0"]
    assert shell.logged == []


def test_a_vm_that_somebody_has_locked_stays_and_the_message_says_how_to_unlock_it(
    *, node: Node, client: Client, ours: ProxmoxHypervisor, shell: NodeShell, kill: Kill
) -> None:
    kill(THIN)
    node.machines[9000].config["lock"] = "backup"
    with pytest.raises(HostError, match=r"VM 9000 is locked \(backup\)") as error:
        reap(shell, ours, shell.logged)
    assert "if it has ended: qm unlock 9000 on pve, then: virt-overhead reap" in (error.value.hint or "")
    assert "lsof" not in (error.value.hint or "")
    assert "did not create" not in error.value.message
    assert node.machines[9000].config["lock"] == "backup"
    shell.run(["qm", "unlock", "9000"], deadline=1)
    reap(shell, ours, shell.logged)
    assert left(client) == []


# Storages


def test_a_storage_whose_name_begins_like_ours_is_left_alone(
    client: Client, ours: ProxmoxHypervisor, shell: NodeShell
) -> None:
    post(client, "nodes/pve/disks/lvm", name="voh-archive", device="/dev/sdb", add_storage=1)
    settings = {"vmid": 500, "filename": "vm-500-disk-0", "size": "4M"}
    client.write("post", "nodes/pve/storage/voh-archive/content", settings, is_done=lambda: False)
    assert reaped(ours, shell) == {}
    with ours.layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN):
        pass
    assert "voh-archive" in {each["storage"] for each in client.get("storage")}
    assert len(client.get("nodes/pve/storage/voh-archive/content")) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"vgname": "pve"}, "has vgname pve, not"),
        ({"nodes": "pve,pve2"}, "has nodes pve,pve2, not pve"),
        ({"nodes": None}, "has nodes (not set), not pve"),
    ],
    ids=["another group", "several nodes", "all nodes"],
)
def test_a_storage_whose_entry_was_changed_is_left_alone(
    *, node: Node, ours: ProxmoxHypervisor, shell: NodeShell, change: dict[str, str | None], why: str, kill: Kill
) -> None:
    kill(LVM, on=DISK)
    entry = next(each for each in shell.logged if each.kind == "pve-store")
    storage = node.store.storages[LVM_STORE]
    for key, value in change.items():
        if key == "vgname":
            storage.vgname = str(value)
        elif value is None:
            del storage.options[key]
        else:
            storage.options[key] = value
    removal = ours.remove(entry)
    assert removal is not None
    assert removal.outcome == "foreign"
    assert why in removal.why
    assert [pool.name for pool in node.disks.pools] == [LVM_STORE]


@pytest.mark.parametrize("mode", [LVM, RAW, ZVOL], ids=lambda mode: mode.layout.kind)
def test_options_that_pve_or_its_owner_has_set_do_not_make_a_storage_foreign(
    *, node: Node, client: Client, ours: ProxmoxHypervisor, shell: NodeShell, mode: Mode, kill: Kill
) -> None:
    kill(mode, on=DISK)
    name = next(str(each.record["name"]) for each in shell.logged if each.kind == "pve-store")
    node.store.storages[name].options |= {"bwlimit": "clone=1000", "a-new-key-of-pve": "1"}
    assert set(reaped(ours, shell)["pve-store"]) == {"removed"}
    assert left(client) == []
    assert node.disks.pools == []


@pytest.mark.parametrize("mode", [LVM, Mode("t", LvmThin(), Attach()), RAW], ids=["lvm", "lvmthin", "directory"])
def test_what_is_on_another_partition_than_ours_is_left_alone(
    node: Node, client: Client, ours: ProxmoxHypervisor, shell: NodeShell, mode: Mode
) -> None:
    maker, name = {"lvm": ("lvm", "lvm"), "t": ("lvmthin", "thin"), "raw": ("directory", "ext4")}[mode.name]
    name = f"voh-{RUN}-{name}"
    thing = CreatedStore(node="pve", name=name, maker=maker, partuuid="0b1c-ours")  # type: ignore[arg-type]
    entry = shell.log(RUN).record(thing)
    node.disks.find("/dev/sdb").partuuid = "ffff-another"
    post(client, f"nodes/pve/disks/{maker}", name=name, device="/dev/sdb", add_storage=1)
    removal = ours.remove(entry)
    assert removal is not None
    assert removal.outcome == "foreign"
    assert "is on /dev/sdb, which is not the partition of this run" in removal.why
    assert [pool.name for pool in node.disks.pools] == [name]


def test_reap_removes_the_mount_point_of_a_run_that_was_killed_just_before(
    node: Node, ours: ProxmoxHypervisor, shell: NodeShell, kill: Kill
) -> None:
    kill(RAW, on=DISK)
    (path,) = node.disks.mount_points
    name = path.rpartition("/")[2]
    node.disks.unmake("directory", name, group=name, cleanup_config=True, cleanup_disks=True)
    assert node.disks.mount_points == {path}
    assert reaped(ours, shell)["pve-store"] == ["absent"]
    assert node.disks.mount_points == set()


@pytest.mark.parametrize(
    ("mode", "name", "at", "what"),
    [
        (LVM, "lvm", f"/dev/{LVM_STORE}", "vm-500-disk-0"),
        (RAW, "ext4", f"/mnt/pve/voh-{RUN}-ext4", f"/mnt/pve/voh-{RUN}-ext4/dump/vzdump-qemu-100.vma"),
    ],
    ids=["a logical volume", "a backup"],
)
def test_a_storage_with_foreign_contents_stays(
    *, node: Node, ours: ProxmoxHypervisor, shell: NodeShell, mode: Mode, name: str, at: str, what: str, kill: Kill
) -> None:
    kill(mode, on=DISK)
    node.files[at] = [what]
    with pytest.raises(HostError, match=f"storage voh-{RUN}-{name} is not removed") as error:
        reaped(ours, shell)
    assert what in error.value.message
    assert [pool.name for pool in node.disks.pools] == [f"voh-{RUN}-{name}"]
    node.files.clear()
    assert reaped(ours, shell)["pve-store"] == ["removed"]


def test_a_storage_that_shares_its_place_stays(
    node: Node, ours: ProxmoxHypervisor, shell: NodeShell, kill: Kill
) -> None:
    kill(LVM, on=DISK)
    mine = Storage("mine", "lvm", frozenset({"images"}), 1 << 30, vgname=LVM_STORE)
    node.store.storages["mine"] = mine
    with pytest.raises(HostError, match="did not create everything on it: storage mine"):
        reaped(ours, shell)
    assert [pool.name for pool in node.disks.pools] == [LVM_STORE]


def test_a_storage_on_an_unknown_device_stays_in_the_log(
    node: Node, ours: ProxmoxHypervisor, shell: NodeShell, kill: Kill
) -> None:
    kill(LVM, on=DISK)
    # The disk was unplugged: LVM still knows of it, and it is not there.
    node.disks.disks = [each for each in node.disks.disks if each.device == "/dev/vda"]
    with pytest.raises(HostError, match="does not exist"):
        reaped(ours, shell)
    assert "pve-store" in {entry.kind for entry in shell.logged}
    assert LVM_STORE in node.store.storages


def test_the_configuration_of_a_storage_that_was_never_made_is_removed(
    client: Client, ours: ProxmoxHypervisor, shell: NodeShell
) -> None:
    thing = CreatedStore(node="pve", name=LVM_STORE, maker="lvm", partuuid="0b1c-ours")
    entry = shell.log(RUN).record(thing)
    half = {"storage": LVM_STORE, "type": "lvm", "vgname": LVM_STORE, "content": "images,rootdir", "nodes": "pve"}
    client.write("post", "storage", half, is_done=lambda: False)
    removal = ours.remove(entry)
    assert removal is not None
    assert removal.outcome == "removed"
    assert LVM_STORE not in {each["storage"] for each in client.get("storage")}


# A cluster


def test_reap_on_one_node_leaves_the_run_on_another_node_alone(tmp_path: Path) -> None:
    first = memory_node(cpus=4)
    settings = Settings(cpus=4, pace=FAST)
    make_node(ROOT, PASSWORD, MemoryExecutor(FAST.factor), settings, name="pve2", beside=first)
    iso = tmp_path / "guest.iso"
    iso.write_bytes(b"\0" * 4096)
    with serve(first) as serving, connected(serving) as here, connected(serving, node="pve2") as there:
        shells = {name: NodeShell(serving, tmp_path, name) for name in ("pve", "pve2")}
        other = hypervisor(there, iso, shells["pve2"], GuestRules(vmids=(9100, 9101), kvm=False, cpu="max"))
        run = other.layouts(shells["pve2"].log(RunId("20261122-090000-cd34")), [DISK], [HOST, LVM, RAW], span=SPAN)
        with run:
            storages = {each["storage"] for each in here.get("storage") if each["storage"].startswith("voh-")}
            assert len(storages) == 2
            mine = hypervisor(here, iso, shells["pve"])
            with killed(mine, shells["pve"], LVM, on=DISK):
                assert reaped(mine, shells["pve"])["pve-store"] == ["removed"]
            assert {each["storage"] for each in here.get("storage") if each["storage"].startswith("voh-")} == storages
            assert [each["vmid"] for each in there.get("nodes/pve2/qemu")] == [9100]
        assert left(here) == []
        assert there.get("nodes/pve2/qemu") == []


def test_the_log_of_another_node_is_refused(ours: ProxmoxHypervisor, shell: NodeShell) -> None:
    things: list[Thing] = [
        CreatedVm.planned("pve2", 9000, RUN),
        CreatedVolume(node="pve2", volid="local-lvm:vm-9000-voh-0", vmid=9000, token="x"),
        CreatedStore(node="pve2", name=LVM_STORE, maker="lvm", partuuid="x"),
    ]
    for thing in things:
        entry = shell.log(RUN).record(thing)
        with pytest.raises(HostError, match="is from node pve2, but the API is on node pve"):
            ours.remove(entry)


def test_a_vm_that_was_moved_to_another_node_is_left_alone(tmp_path: Path) -> None:
    first = memory_node(cpus=4)
    second = make_node(
        ROOT, PASSWORD, MemoryExecutor(FAST.factor), Settings(cpus=4, pace=FAST), name="pve2", beside=first
    )
    iso = tmp_path / "guest.iso"
    iso.write_bytes(b"\0" * 4096)
    with serve(first) as serving, connected(serving) as client:
        shell = NodeShell(serving, tmp_path)
        ours = hypervisor(client, iso, shell)
        with killed(ours, shell, THIN):
            second.machines[9000] = first.machines.pop(9000)
            removal = ours.remove(next(each for each in shell.logged if each.kind == "pve-vm"))
        assert removal is not None
        assert (removal.outcome, removal.why) == ("foreign", "VM 9000 is on node pve2 of the cluster")


def test_a_passed_disk_stays_after_its_vm_is_removed(node: Node, client: Client, shell: NodeShell) -> None:
    with create_vm(client, shell.log(RUN), RULES, build_shell_parameters(RULES, "local:iso/mini.iso", 1)) as (
        machine,
        _,
    ):
        machine.set({"scsi0": LINK})
    assert node.disks.find(LINK).used == ""
    assert left(client) == []


def test_a_raw_file_is_removed_by_its_inode(
    node: Node, client: Client, ours: ProxmoxHypervisor, shell: NodeShell, kill: Kill
) -> None:
    stored = replace(STORED, storages={"raw": "local"})
    kill(Mode("r", RawFile(), Attach()), on=stored)
    volid = "local:9000/vm-9000-voh-1.raw"
    node.store.volumes[volid] = replace(node.store.volumes[volid], uid="inode 7, born 8")
    assert reaped(ours, shell)["pve-volume"] == ["foreign", "removed"]
    kept = [each["volid"] for each in client.get("nodes/pve/storage/local/content") if each["content"] == "images"]
    assert kept == [volid]
