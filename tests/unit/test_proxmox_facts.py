"""What the real Proxmox VE does and others would not expect: the code holds to it, fact by fact."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest

from harness.calibrate.command import disk_of
from harness.errors import ConfigError, GuestError, HostError, SafetyError, Unsupported
from harness.events import Events
from harness.guest.proxmox.claims import NodeConfig, claims
from harness.guest.proxmox.client import Client, PveError
from harness.guest.proxmox.drive import drive_keys
from harness.guest.proxmox.iso import ensure_iso
from harness.guest.proxmox.layers import store_layers, volumes_need
from harness.guest.proxmox.layouts import disk_below
from harness.guest.proxmox.machine import Machine
from harness.guest.proxmox.new_machine import create
from harness.guest.proxmox.node import require_same_node, require_unclaimed, stable_path
from harness.guest.proxmox.refusals import is_lock_timeout, remedy
from harness.guest.proxmox.secrets import Secret
from harness.guest.proxmox.stores import Stores, made_stores, reap_stores, remove_store, storage_ids
from harness.guest.proxmox.vm import shell_parameters
from harness.lab.hosts import GuestFiles
from harness.lab.inventory import DiskById, HostSpec
from harness.lab.proxmox import ApiSpec, GuestRules, ProxmoxSpec, SecretSource
from harness.scenario.attach import Attach
from harness.scenario.layouts import LvmThin, Partition, Preallocation
from harness.scenario.model import Mode
from tests.pve_double.faults import Fault, Kind
from tests.pve_double.server import serve
from tests.pve_double.state import Node
from tests.pve_double.testing import memory_node
from tests.unit.loop_disks import RUNNER, loop, mounted, require, run, sparse
from tests.unit.proxmox_nodes import connected, played_back
from tests.unit.test_proxmox_backend import (
    DISK,
    HOST,
    LINK,
    RUN,
    SPAN,
    STORED,
    THIN,
    PlayedShell,
    hypervisor,
    left,
    shell,
)

KIB, MIB, GIB = 1024, 1024**2, 1024**3
EXTENT = 4 * MIB
ISO_BYTES = 4096
RULES = GuestRules(vmids=(9000, 9003), kvm=False, cpu="max")
STORE = f"voh-{RUN}-thin"
API = ApiSpec("192.0.2.9", 8006, "pve", "root@pam", SecretSource("env", "X"))


@pytest.fixture
def node() -> Node:
    return memory_node(cpus=4)


@pytest.fixture
def client(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr("harness.guest.proxmox.client.SETTLE_SECONDS", 3.0)
    with serve(node) as serving, connected(serving) as found:
        yield found


def guest_iso(directory: Path) -> Path:
    iso = directory / "guest.iso"
    iso.write_bytes(b"\0" * ISO_BYTES)
    return iso


def started(client: Client) -> Machine:
    """A running VM with a disk from which it does not boot, and one from which it does."""
    machine = create(client, RULES, shell_parameters(RULES, RUN, "local:iso/mini.iso", 1))
    machine.set({"scsi0": "local-lvm:1,aio=native,cache=none,serial=a", "scsi1": "local-lvm:1,serial=b"})
    machine.set({"boot": "order=scsi1"})
    machine.start()
    return machine


# Uploads


def test_an_upload_has_its_fields_in_the_order_in_which_pveproxy_reads_them(tmp_path: Path) -> None:
    # PVE::APIServer::AnyEvent looks for content, then checksum-algorithm, then checksum, each at the very beginning of
    # what is left; a checksum before its algorithm is a "wrong Content-Disposition", and what follows the file is lost.
    iso = guest_iso(tmp_path)
    files = GuestFiles("", "", tmp_path / "key", "", iso, "0" * 64, "0123456789abcdef0123")
    with played_back() as (recorded, client):
        recorded.record = {"result": [{"storage": "local", "content": "iso", "volid": "another", "size": 0}]}
        assert ensure_iso(client, "local", files, Events()) == "local:iso/voh-0123456789abcdef.iso"
    names = re.findall(rb'name="([^"]+)"', recorded.body)
    assert names == [b"content", b"checksum-algorithm", b"checksum", b"filename", b"voh-0123456789abcdef.iso"]
    assert b'filename="voh-0123456789abcdef.iso"\r\nContent-Type: application/octet-stream\r\n\r\n' in recorded.body


@pytest.mark.parametrize("kind", ["gone", "cut-after", "ticket-expired", "slow"])
def test_an_upload_whose_answer_was_lost_is_found_whole_and_made_once(
    node: Node, client: Client, tmp_path: Path, kind: Kind
) -> None:
    node.faults.add(Fault(kind, "POST .*/upload", seconds=1.0))
    with hypervisor(client, guest_iso(tmp_path), shell()).layouts([STORED], [HOST, THIN], span=SPAN, run_id=RUN):
        pass
    assert node.faults.listing() == []
    (found,) = [each for each in client.get("nodes/pve/storage/local/content") if "/voh-" in each["volid"]]
    assert found["size"] == ISO_BYTES
    assert [each["type"] for each in client.get("nodes/pve/tasks", {"source": "all"})].count("imgcopy") == 1
    assert left(client) == []


def test_an_upload_that_arrived_otherwise_than_sent_is_an_error(node: Node, client: Client, tmp_path: Path) -> None:
    node.faults.add(Fault("task-fails", "POST .*/upload", text="checksum mismatch: got '0' != expect '1'"))
    with (
        pytest.raises(PveError, match="imgcopy failed: checksum mismatch"),
        hypervisor(client, guest_iso(tmp_path), shell()).layouts([STORED], [HOST, THIN], span=SPAN, run_id=RUN),
    ):
        pass
    assert left(client) == []


# What is sent


def test_yes_and_no_are_sent_as_the_numbers_that_pve_takes() -> None:
    with played_back() as (recorded, client):
        client.write("post", "nodes/pve/qemu", {"onboot": True, "tablet": False, "cores": 2}, seen=lambda: False)
    assert recorded.body == b"onboot=1&tablet=0&cores=2"


def test_a_command_in_the_guest_is_given_to_a_shell_word_by_word() -> None:
    # A program that is not there is answered with a 596, as if the answer had been lost.
    with played_back() as (recorded, client):
        recorded.record = {"result": {"pid": 291, "exited": 1, "exitcode": 0}}
        assert Machine(client, 9000).run_by_agent("ip link", deadline=5)
    assert recorded.body == b"command=%2Fbin%2Fsh&command=-c&command=ip+link"


@pytest.mark.parametrize(("bus", "last"), [("virtio-blk", "virtio15"), ("virtio-scsi", "scsi30"), ("sata", "sata5")])
def test_a_bus_has_as_many_places_as_pve_gives_it(bus: str, last: str) -> None:
    number = int(re.sub(r"\D", "", last)) + 1
    assert list(drive_keys({str(disk): bus for disk in range(number)}).values())[-1] == last
    with pytest.raises(ValueError, match=f"room for {number} disks"):
        drive_keys({str(disk): bus for disk in range(number + 1)})


# Locks


@pytest.mark.parametrize(
    ("said", "nothing_done"),
    [
        ("can't lock file '/var/lock/qemu-server/lock-121.conf' - got timeout", True),
        ("cfs-lock 'file-storage_cfg' error: got lock request timeout", True),
        ("cfs-lock 'storage-nfs' error: got lock timeout - aborting command", False),
        ("VM 101 qmp command 'query-status' failed - got timeout", False),
        ("VM is locked (backup)", False),
    ],
)
def test_only_a_lock_that_was_never_had_is_waited_for(said: str, nothing_done: bool) -> None:
    assert is_lock_timeout(said) == nothing_done


@pytest.mark.parametrize(
    ("said", "what_to_do"),
    [
        ("KVM virtualisation configured, but not available. Either disable in VM configuration", "kvm = false"),
        ("hostname lookup 'pve' failed - failed to get address info for: pve", "host.NAME.api.node"),
        ("cfs-lock 'file-storage_cfg' error: no quorum!", "pvecm status"),
        ("VM is locked (snapshot)", "qm unlock"),
        ("Only root may use this option.", "root@pam with a password"),
        ("Permission check failed (/vms/9000, VM.Allocate)", "docs/proxmox.md"),
    ],
)
def test_what_pve_says_is_answered_with_what_to_do(said: str, what_to_do: str) -> None:
    assert what_to_do in (remedy(said, API) or "")


# Changes that wait


def test_a_removal_that_pve_left_pending_is_taken_back(client: Client) -> None:
    machine = started(client)
    with pytest.raises(PveError, match="can't unplug bootdisk 'scsi1'"):
        machine.set({"delete": "scsi1"})
    assert machine.pending() == {}
    assert "scsi1" in client.get(f"{machine.path}/config")
    machine.destroy()


def test_a_drive_that_the_guest_does_not_let_go_of_stays_its_own(node: Node, client: Client) -> None:
    machine = started(client)
    node.faults.add(Fault("unplug-fails", "scsi0"))
    with pytest.raises(PveError, match="hot-unplugging"):
        machine.set({"delete": "scsi0"})
    assert machine.pending() == {}
    assert "scsi0" in client.get(f"{machine.path}/config")
    machine.destroy()


def test_a_change_that_only_waits_is_told_and_taken_back(client: Client) -> None:
    machine = started(client)
    with pytest.raises(GuestError, match=r"only at its next start: scsi0: local-lvm:vm-9000-disk-0,.*aio=io_uring"):
        machine.set({"scsi0": "local-lvm:vm-9000-disk-0,aio=io_uring,cache=none,serial=a,size=1G"})
    assert machine.pending() == {}
    assert "aio=native" in machine.config()["scsi0"]
    machine.destroy()


def test_a_drive_whose_removal_is_pending_is_still_in_use(client: Client) -> None:
    machine = create(client, RULES, shell_parameters(RULES, RUN, "local:iso/mini.iso", 1))
    # With the hot-plugging of disks switched off, a removal waits for the next start.
    machine.set({"scsi0": "local-lvm:1", "hotplug": "network"})
    machine.start()
    path = f"{machine.path}/config"
    client.task("post", path, {"delete": "scsi0"}, seen=lambda: False, deadline=30)
    assert "scsi0" not in client.get(path)
    volume = "local-lvm:vm-9000-disk-0"
    seen = {"VM 9000": {**client.get(path), **machine.config()}}
    assert claims([volume], NodeConfig(guests=seen)) == ["VM 9000 has it as scsi0"]
    machine.destroy()


@pytest.mark.parametrize("removed", [False, True], ids=["in use", "its removal waits"])
def test_a_disk_that_a_running_vm_has_is_refused_whatever_waits(client: Client, removed: bool) -> None:
    settings = {"vmid": 100, "scsi0": "local-lvm:1", "virtio0": LINK, "hotplug": "network"}
    client.task("post", "nodes/pve/qemu", settings, seen=lambda: False, deadline=30)
    machine = Machine(client, 100)
    machine.start()
    if removed:
        client.task("post", f"{machine.path}/config", {"delete": "virtio0"}, seen=lambda: False, deadline=30)
    with pytest.raises(SafetyError, match="VM 100 has it as virtio0"):
        require_unclaimed(client, shell(), DISK)


# Removing a VM


def test_a_storage_that_is_away_does_not_keep_a_vm_from_being_removed(node: Node, client: Client) -> None:
    # With destroy-unreferenced-disks PVE activates every storage of the node, and fails where one cannot be reached.
    machine = started(client)
    node.faults.add(Fault("task-fails", "DELETE .*/qemu/", text="storage 'nas' is not online"))
    machine.destroy()
    assert left(client) == []


def test_a_console_that_somebody_looks_at_does_not_keep_a_vm_from_being_removed(node: Node, client: Client) -> None:
    machine = started(client)
    closed = threading.Event()
    node.tasks.start("vncproxy", str(machine.vmid), "root@pam", lambda _log: closed.wait() and None)
    try:
        assert [each["type"] for each in client.get("nodes/pve/tasks", {"source": "active"})] == ["vncproxy"]
        machine.destroy()
    finally:
        closed.set()
    assert left(client) == []


def test_a_task_that_does_not_end_is_named(node: Node, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.guest.proxmox.machine.STOP_SECONDS", 0.2)
    machine = started(client)
    done = threading.Event()
    node.tasks.start("qmmove", str(machine.vmid), "root@pam", lambda _log: done.wait() and None)
    try:
        with pytest.raises(GuestError, match="a task of VM 9000 does not end: qmmove"):
            machine.destroy()
    finally:
        done.set()


# Counters


def test_counts_that_qemu_did_not_tell_in_time_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"status": "running", "blockstat": {"scsi0": {"rd_bytes": 4096, "wr_bytes": 0}}}
    with played_back() as (recorded, client):
        recorded.record = {"result": {"status": "running"}}
        late = threading.Timer(0.2, lambda: setattr(recorded, "record", {"result": told}))
        late.start()
        assert Machine(client, 9000).transferred("scsi0").read == 4096
        late.join()
        assert recorded.answered > 1
        recorded.record = {"result": {"status": "running"}}
        monkeypatch.setattr("harness.guest.proxmox.machine.COUNT_SECONDS", 0.0)
        with pytest.raises(GuestError, match="QEMU counts nothing for scsi0 of VM 9000"):
            Machine(client, 9000).transferred("scsi0")


# The agent


def test_an_end_of_a_command_that_was_told_and_lost_has_the_command_run_again(node: Node, client: Client) -> None:
    machine = started(client)
    while machine.interfaces() is None:
        pass
    node.faults.add(Fault("gone", "GET .*/agent/exec-status"))
    # It was told once, and that answer was lost: it is not known how it ended.
    assert machine.run_by_agent("true", deadline=10) is False
    assert machine.run_by_agent("true", deadline=10) is True
    machine.destroy()


# Storages


@pytest.mark.parametrize("call", ["POST .*/disks/lvm", "DELETE .*/disks/lvm/"])
@pytest.mark.parametrize("kind", ["gone", "cut-after"])
def test_a_storage_whose_answer_was_lost_is_made_and_removed_once(
    node: Node, client: Client, call: str, kind: Kind
) -> None:
    node.faults.add(Fault(kind, call))
    stores = Stores(client, shell(), 9000)
    with stores.made("lvm", STORE, "/dev/sdb", {}):
        assert STORE in storage_ids(client)
    assert node.faults.listing() == []
    assert made_stores(client) == []
    tasks = [each["type"] for each in client.get("nodes/pve/tasks", {"source": "all"})]
    assert sorted(tasks) == ["lvmcreate", "lvmremove"]


def test_a_task_whose_answer_was_lost_and_that_fails_is_told_with_its_log(node: Node, client: Client) -> None:
    node.faults.add(Fault("gone", "POST .*/disks/lvm"))
    node.faults.add(Fault("task-fails", "POST .*/disks/lvm", text="vgcreate error: device is busy"))
    with (
        pytest.raises(PveError, match="lvmcreate failed: vgcreate error: device is busy"),
        Stores(client, shell(), 9000).made("lvm", STORE, "/dev/sdb", {}),
    ):
        pass
    assert made_stores(client) == []


def test_the_volume_group_of_a_thin_pool_that_was_not_made_is_removed(node: Node, client: Client) -> None:
    # PVE makes the group first, the pool second, the storage last; see PVE::API2::Disks::LVMThin.
    group = {"name": STORE, "device": "/dev/sdb"}
    client.task("post", "nodes/pve/disks/lvm", group, seen=lambda: False, deadline=30)
    node.disks.find("/dev/sdb").used = ""
    node.faults.add(Fault("task-fails", "POST .*/disks/lvmthin", text="lvcreate failed: insufficient free space"))
    with (
        pytest.raises(PveError, match="insufficient free space") as error,
        Stores(client, shell(), 9000).made("lvmthin", STORE, "/dev/sdb", {}),
    ):
        pass
    assert "left behind" not in error.value.message
    assert made_stores(client) == []


def test_what_is_left_of_a_storage_is_removed_whichever_half_it_is(client: Client) -> None:
    half = {"name": STORE, "device": "/dev/sdb"}
    client.task("post", "nodes/pve/disks/lvm", half, seen=lambda: False, deadline=30)
    assert reap_stores(client) == [STORE]
    other = {"storage": STORE, "type": "dir", "path": f"/mnt/pve/{STORE}", "content": "images"}
    client.write("post", "storage", other, seen=lambda: False)
    assert reap_stores(client) == [STORE]
    assert STORE not in storage_ids(client)
    remove_store(client, STORE)


def test_a_volume_that_is_still_being_written_is_waited_for(node: Node, client: Client) -> None:
    machine = create(client, RULES, shell_parameters(RULES, RUN, "local:iso/mini.iso", 1))
    node.faults.add(Fault("gone", "POST .*/storage/local/content"))
    node.faults.add(Fault("slow", "POST .*/storage/local/content", seconds=100.0))
    stores = Stores(client, PlayedShell({}), machine.vmid)
    with stores.volume("local", 0, SPAN, "raw", file=True) as volume:
        (found,) = client.get("nodes/pve/storage/local/content", {"vmid": machine.vmid})
        assert (found["volid"], found["size"]) == (volume.volid, SPAN)
    machine.destroy()
    assert left(client) == []


@pytest.mark.parametrize("span_mib", [16, 64, 512, 4096, 20_000, 400_000, 2_500_000])
@pytest.mark.parametrize("modes", [1, 3])
def test_a_thin_pool_of_pve_has_room_for_its_volumes_on_a_disk_of_any_size(span_mib: int, modes: int) -> None:
    span = span_mib * MIB // EXTENT * EXTENT
    given = [Mode(f"m{number}", LvmThin(), Attach()) for number in range(modes)]
    with played_back() as (_, client):
        (layer,) = store_layers(Stores(client, PlayedShell({}), 9000), given)
    region = layer.need.bytes(span)
    # PVE::API2::Disks::LVMThin: what pvs tells, less 128 MiB, less metadata of 1 %, from 1 to 16 GiB, twice.
    extents = (region - MIB) // EXTENT
    data_kib = extents * EXTENT / KIB - 128 * KIB
    metadata_kib = min(max(data_kib / 100, GIB / KIB), 16 * GIB / KIB)
    data_kib -= 2 * metadata_kib
    data_extents, metadata_extents = ceil(data_kib * KIB / EXTENT), ceil(metadata_kib * KIB / EXTENT)
    assert data_extents + 2 * metadata_extents <= extents
    assert data_extents * EXTENT >= modes * span
    assert volumes_need(LvmThin()).shares == 1


def test_a_disk_that_is_too_small_for_a_thin_pool_is_told_why(client: Client, tmp_path: Path) -> None:
    iso = guest_iso(tmp_path)
    thin = Mode("thin", LvmThin(), Attach())
    with (
        pytest.raises(Unsupported, match=r"no room for .* beside them Proxmox VE takes: thin 2\.156 GiB"),
        hypervisor(client, iso, shell()).layouts([DISK], [HOST, thin], span=SPAN, run_id=RUN),
    ):
        pass
    assert left(client) == []


# Which disk, which node, who may see what


def test_a_partition_is_attached_by_a_path_that_outlasts_a_restart() -> None:
    links = f"/dev/sdb2\n{LINK}-part2\n/dev/disk/by-partuuid/1234\n"
    assert stable_path(PlayedShell({"/dev/mapper/*": links}), "/dev/sdb2", LINK) == f"{LINK}-part2"
    links = "/dev/sdb2\n/dev/disk/by-id/wwn-0x5-part2\n/dev/disk/by-partuuid/1234\n"
    assert stable_path(PlayedShell({"/dev/mapper/*": links}), "/dev/sdb2", LINK) == "/dev/disk/by-partuuid/1234"
    assert stable_path(PlayedShell({"/dev/mapper/*": "/dev/sdb2\n"}), "/dev/sdb2", LINK) == "/dev/sdb2"


def test_the_mode_partition_gets_such_a_path(client: Client, tmp_path: Path) -> None:
    iso = guest_iso(tmp_path)
    played = shell()
    played.prints["/dev/mapper/*"] = f"/dev/sdb2\n{LINK}-part2\n"
    parts = [{"path": f"/dev/sdb{number}", "type": "part", "start": number * 2048} for number in (1, 2)]
    played.prints["NAME,PATH,TYPE,START"] = json.dumps({"blockdevices": [{"children": parts}]})
    modes = [HOST, Mode("partition", Partition(), Attach())]
    with hypervisor(client, iso, played).layouts([DISK], modes, span=SPAN, run_id=RUN) as layouts:
        assert layouts.by_mode["partition"].path == f"{LINK}-part2"


def test_a_volume_on_a_loop_device_is_on_the_disk_of_its_file(tmp_path: Path) -> None:
    require("findmnt", "mkfs.ext4")
    file = sparse(tmp_path / "storage", 16 * MIB)
    try:
        expected = disk_below(RUNNER, str(file))
    except HostError:
        pytest.skip("the directory for tests is on no disk of this machine")
    with loop(file) as device:
        assert disk_below(RUNNER, device) == expected
        # A file on a file system on it, as a storage of a test node may be.
        run("mkfs.ext4", "-q", device)
        with mounted(device, tmp_path / "mounted"):
            assert disk_below(RUNNER, str(sparse(tmp_path / "mounted" / "volume", MIB))) == expected


def test_commands_that_reach_another_node_than_the_api_are_refused(client: Client) -> None:
    require_same_node(client, PlayedShell({}))
    require_same_node(client, PlayedShell({"/etc/pve/local": "nodes/pve\n"}))
    with pytest.raises(SafetyError, match="the API is that of node pve, but SSH leads to node pve2"):
        require_same_node(client, PlayedShell({"/etc/pve/local": "nodes/pve2\n"}))


def test_who_may_not_see_all_storages_is_not_told_that_a_disk_is_free(node: Node) -> None:
    with serve(node) as serving, connected(serving) as root:
        root.write("post", "access/users", {"userid": "bench@pve"}, seen=lambda: False)
        root.write("post", "access/roles", {"roleid": "Sees", "privs": "VM.Audit"}, seen=lambda: False)
        acl = {"path": "/vms", "users": "bench@pve", "roles": "Sees"}
        root.write("put", "access/acl", acl, seen=lambda: False)
        path = "access/users/bench@pve/token/voh"
        value = root.write("post", path, {"privsep": 0}, seen=lambda: False)["value"]
        with (
            connected(serving, user="bench@pve", token="voh", secret=Secret(value)) as client,
            pytest.raises(SafetyError, match="may not see all storages") as error,
        ):
            require_unclaimed(client, shell(), DISK)
    assert "Datastore.Audit" in (error.value.hint or "")


def test_a_calibration_says_before_it_starts_that_it_needs_the_password_of_root() -> None:
    disk = DiskById("optane", LINK, "PHM1", destroy=True)
    token = ProxmoxSpec(replace(API, user="bench@pve", token="voh"), GuestRules())
    host = HostSpec("pve1", "proxmox", ssh=None, disks=(disk,), proxmox=ProxmoxSpec(API, GuestRules()))
    assert disk_of(host, None) == "optane"
    with pytest.raises(ConfigError, match=r"root@pam with a password alone, not from bench@pve!voh") as error:
        disk_of(replace(host, proxmox=token), None)
    assert "host.pve1.api.user" in (error.value.hint or "")


# Storage options


@pytest.mark.parametrize("preallocation", ["off", "falloc", "full"])
def test_how_a_file_is_allocated_is_an_option_of_the_storage(client: Client, preallocation: Preallocation) -> None:
    with Stores(client, shell(), 9000).made("directory", f"voh-{RUN}-ext4", "/dev/sdb", {"filesystem": "ext4"}):
        stores = Stores(client, shell(), 9000)
        stores.preallocate(f"voh-{RUN}-ext4", preallocation)
        assert client.get(f"storage/voh-{RUN}-ext4")["preallocation"] == preallocation
        stores.preallocate("local", preallocation)
        assert "preallocation" not in client.get("storage/local")
