"""What is put on storages of Proxmox VE, and storages that it makes: whole, once, and gone at the end."""

from __future__ import annotations

import re
from contextlib import ExitStack, suppress
from math import ceil
from pathlib import Path

import pytest

from harness.errors import HostError, SafetyError, Unsupported
from harness.events import Events
from harness.features.proxmox.backend import ensure_iso
from harness.features.proxmox.client import Client, PveError
from harness.features.proxmox.creation import OpenDevices, Store, Stores
from harness.features.proxmox.layouts import compute_volumes_need, create_volumes, refuse_layout, store_layers
from harness.features.proxmox.vm_config import CreatedVm, Maker
from harness.lab.created import CreationLog, Entry
from harness.lab.guard.writable import built_on, created
from harness.lab.hosts import GuestFiles
from harness.lab.inventory import DiskByStorage
from harness.lab.transport.local import LocalRunner
from harness.layout.regions import Region
from harness.model.attach import Attach
from harness.model.layout import LvmThin, Preallocation, Zvol
from harness.model.mode import Mode
from pve_double.faults import Fault, Kind
from pve_double.state import Node
from pve_double.storage.disks import Disk
from pve_double.storage.volumes import Storage
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_nodes import played_back
from tests.features.proxmox.proxmox_shell import DISK, NodeShell
from tests.features.proxmox.test_proxmox_backend import (
    HOST,
    RUN,
    SPAN,
    STORED,
    THIN,
    hypervisor,
    left,
)
from tests.unit.played_shell import PlayedShell

__all__ = ["client", "node", "serving", "shell"]

KIB, MIB, GIB = 1024, 1024**2, 1024**3
EXTENT = 4 * MIB
ISO_BYTES = 4096
STORE = f"voh-{RUN}-thin"


@pytest.fixture
def stores(client: Client, shell: NodeShell) -> Stores:
    return Stores(client, shell.log(RUN), CreatedVm.planned("pve", 9000, RUN))


def region(shell: NodeShell) -> Region:
    """A partition of ours, as the kernel, blkid and PVE know it."""
    shell.divide('start=2048, size=2097152, uuid=0b1c-ours, name="voh"')
    (device,) = created(shell, Entry("", RUN, "", {"disks": ["PVETEST_disk1"]}), ["/dev/sdb1"])
    return Region("lvm", device, MIB, GIB, "0b1c-ours")


def guest_iso(directory: Path) -> Path:
    iso = directory / "guest.iso"
    iso.write_bytes(b"\0" * ISO_BYTES)
    return iso


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
def test_an_upload_whose_answer_was_lost_is_found_and_not_repeated(
    node: Node, client: Client, tmp_path: Path, kind: Kind, shell: NodeShell
) -> None:
    node.faults.add(Fault(kind, "POST .*/upload", seconds=1.0))
    with hypervisor(client, guest_iso(tmp_path), shell).layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN):
        pass
    assert node.faults.listing() == []
    (found,) = [each for each in client.get("nodes/pve/storage/local/content") if "/voh-" in each["volid"]]
    assert found["size"] == ISO_BYTES
    assert [each["type"] for each in client.get("nodes/pve/tasks", {"source": "all"})].count("imgcopy") == 1
    assert left(client) == []


def test_a_damaged_upload_is_an_error(node: Node, client: Client, tmp_path: Path, shell: NodeShell) -> None:
    node.faults.add(Fault("task-fails", "POST .*/upload", text="checksum mismatch: got '0' != expect '1'"))
    with (
        pytest.raises(PveError, match="imgcopy failed: checksum mismatch"),
        hypervisor(client, guest_iso(tmp_path), shell).layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN),
    ):
        pass
    assert left(client) == []


# Storages


@pytest.mark.parametrize("call", ["POST .*/disks/lvm", "DELETE .*/disks/lvm/"])
@pytest.mark.parametrize("kind", ["gone", "cut-after"])
def test_a_storage_whose_answer_was_lost_is_created_and_removed_once(
    *, node: Node, client: Client, stores: Stores, shell: NodeShell, call: str, kind: Kind
) -> None:
    node.faults.add(Fault(kind, call))
    with stores.made("lvm", STORE, region(shell), {}):
        assert STORE in client.storages()
    assert node.faults.listing() == []
    assert node.disks.pools == []
    tasks = [each["type"] for each in client.get("nodes/pve/tasks", {"source": "all"})]
    assert sorted(tasks) == ["lvmcreate", "lvmremove"]


def test_a_failed_task_whose_answer_was_lost_is_reported_with_its_log(
    node: Node, stores: Stores, shell: NodeShell
) -> None:
    node.faults.add(Fault("gone", "POST .*/disks/lvm"))
    node.faults.add(Fault("task-fails", "POST .*/disks/lvm", text="vgcreate error: device is busy"))
    with (
        pytest.raises(PveError, match="lvmcreate failed: vgcreate error: device is busy"),
        stores.made("lvm", STORE, region(shell), {}),
    ):
        pass
    assert node.disks.pools == []


def test_the_volume_group_of_a_thin_pool_that_was_not_made_is_removed(
    node: Node, client: Client, stores: Stores, shell: NodeShell
) -> None:
    # PVE makes the group first, the pool second, the storage last; see PVE::API2::Disks::LVMThin.
    ours = region(shell)
    group = {"name": STORE, "device": "/dev/sdb1"}
    client.task("post", "nodes/pve/disks/lvm", group, is_done=lambda: False, deadline=30)
    node.disks.find("/dev/sdb1").used = ""
    node.faults.add(Fault("task-fails", "POST .*/disks/lvmthin", text="lvcreate failed: insufficient free space"))
    with (
        pytest.raises(PveError, match="insufficient free space") as error,
        stores.made("lvmthin", STORE, ours, {}),
    ):
        pass
    assert "left behind" not in error.value.message
    assert node.disks.pools == []


HELD = "got lock request timeout"
MAKERS = pytest.mark.parametrize("maker", ["lvm", "lvmthin", "directory", "zfs"])


def kinds(client: Client) -> list[str]:
    """The kinds of tasks that the node has run, the oldest first."""
    return [each["type"] for each in reversed(client.get("nodes/pve/tasks", {"source": "all"}))]


@MAKERS
def test_what_a_task_made_before_it_lacked_a_lock_is_removed_and_made_again(
    node: Node, client: Client, stores: Stores, shell: NodeShell, maker: Maker
) -> None:
    # PVE::API2::Disks: the storage is entered in the configuration last, and for that its lock is needed.
    node.faults.add(Fault("storage-config-locked", "create", times=2))
    with stores.made(maker, STORE, region(shell), {"raidlevel": "single"} if maker == "zfs" else {}):
        assert STORE in client.storages()
        assert [pool.kind for pool in node.disks.pools] == [maker]
    made, removed = f"{maker}create".replace("ectory", ""), f"{maker}remove".replace("ectory", "")
    assert kinds(client) == [made, removed, made, removed, made, removed]
    assert node.faults.listing() == []
    assert nothing_left(node, client)


@MAKERS
def test_a_storage_whose_entry_could_not_be_removed_in_time_is_removed_whole(
    node: Node, client: Client, stores: Stores, shell: NodeShell, maker: Maker
) -> None:
    with stores.made(maker, STORE, region(shell), {"raidlevel": "single"} if maker == "zfs" else {}):
        node.faults.add(Fault("storage-config-locked", "delete"))
    assert node.faults.listing() == []
    assert nothing_left(node, client)


def nothing_left(node: Node, client: Client) -> bool:
    assert (node.disks.pools, node.disks.mount_points) == ([], set())
    assert left(client) == []
    return True


def test_what_is_not_provably_ours_stays_after_a_lock_timeout_and_the_first_error_is_reported(
    node: Node, stores: Stores, shell: NodeShell
) -> None:
    ours = region(shell)

    def another_disk() -> None:
        """Meanwhile, somebody made a group with this name on another disk."""
        (pool,) = node.disks.pools
        pool.disk = node.disks.find("/dev/sdb")
        pool.disk.partuuid = "ffff-another"

    node.faults.add(Fault("storage-config-locked", "create"))
    node.disks.after_make = another_disk
    with pytest.raises(PveError, match=HELD) as error, stores.made("lvm", STORE, ours, {}):
        pass
    assert "what the task had done was not undone" in error.value.message
    assert "is on /dev/sdb, which is not the partition of this run" in error.value.message
    assert [pool.name for pool in node.disks.pools] == [STORE]


def test_a_repeated_task_that_fails_names_the_first_failure_too(
    node: Node, client: Client, stores: Stores, shell: NodeShell
) -> None:
    node.faults.add(Fault("storage-config-locked", "create"))
    node.disks.after_make = lambda: node.faults.add(Fault("refused", "POST .*/disks/lvm", text="no more"))
    with pytest.raises(PveError, match="no more") as error, stores.made("lvm", STORE, region(shell), {}):
        pass
    first = f"lvmcreate failed: create storage failed: cfs-lock 'file-storage_cfg' error: {HELD}"
    assert f"it was repeated after: host node1: POST nodes/pve/disks/lvm: {first}" in error.value.message
    node.faults.clear()
    assert nothing_left(node, client)


@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
def test_the_mount_point_that_pve_leaves_is_removed(
    node: Node, stores: Stores, shell: NodeShell, filesystem: str
) -> None:
    path = f"/mnt/pve/{STORE}"
    with stores.made("directory", STORE, region(shell), {"filesystem": filesystem}):
        assert node.disks.mount_points == {path}
    assert node.disks.mount_points == set()


def test_a_mount_point_that_existed_before_the_run_is_refused_and_stays(
    node: Node, client: Client, stores: Stores, shell: NodeShell
) -> None:
    path = f"/mnt/pve/{STORE}"
    node.disks.mount_points.add(path)
    with pytest.raises(SafetyError, match=f"{path} already exists"), stores.made("directory", STORE, region(shell), {}):
        pass
    assert node.disks.mount_points == {path}
    assert kinds(client) == []
    assert shell.logged == []


def test_a_mount_point_with_foreign_files_stays(node: Node, stores: Stores, shell: NodeShell) -> None:
    path = f"/mnt/pve/{STORE}"
    held = stores.made("directory", STORE, region(shell), {})
    held.__enter__()
    # In the directory itself, not on what is mounted there.
    node.disks.hidden[path] = [f"{path}/notes"]
    with pytest.raises(HostError, match=f"cannot delete '{path}': Directory not empty"):
        held.__exit__(None, None, None)
    assert node.disks.mount_points == {path}
    assert [entry.kind for entry in shell.logged] == ["pve-store"]


def list_open(directory: Path) -> list[str]:
    """The names of the files in the directory that a process on this machine has open."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if (file := link.readlink()).parent == directory:
                found.append(file.name)
    return sorted(found)


def test_one_command_holds_all_volumes_open_until_each_is_removed(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path in paths:
        path.touch()
    devices = OpenDevices()
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(devices.hold(LocalRunner(), str(path)))
        assert list_open(tmp_path) == ["a", "b", "c"]
        with pytest.raises(HostError, match=r"/d cannot be held open: .*No such file"):
            stack.enter_context(devices.hold(LocalRunner(), str(tmp_path / "d")))
        with devices.hold(LocalRunner(), str(paths[0])):
            assert list_open(tmp_path) == ["a", "a", "b", "c"]
        assert list_open(tmp_path) == ["a", "b", "c"]
    assert list_open(tmp_path) == []


@pytest.mark.parametrize("file", [True, False], ids=["directory", "thin pool"])
def test_a_volume_waits_for_the_lock_of_its_storage(node: Node, client: Client, stores: Stores, *, file: bool) -> None:
    storage = "local" if file else "local-lvm"
    node.faults.add(Fault("storage-locked", f"^{storage}$", times=2))
    with stores.volume(Store(storage), 0, SPAN, "raw", file=file) as volume:
        assert [each["volid"] for each in client.get(f"nodes/pve/storage/{storage}/content", {"vmid": 9000})] == [
            volume.volid
        ]
        node.faults.add(Fault("storage-locked", f"^{storage}$", times=2))
    assert node.faults.listing() == []
    assert left(client) == []


def test_a_volume_that_is_still_being_written_is_waited_for(node: Node, client: Client, stores: Stores) -> None:
    node.faults.add(Fault("gone", "POST .*/storage/local/content"))
    node.faults.add(Fault("slow", "POST .*/storage/local/content", seconds=20.0))
    with stores.volume(Store("local"), 0, SPAN, "raw", file=True) as volume:
        (found,) = client.get("nodes/pve/storage/local/content", {"vmid": 9000})
        assert (found["volid"], found["size"]) == (volume.volid, SPAN)
    assert left(client) == []


@pytest.mark.parametrize("span_mib", [16, 64, 512, 4096, 20_000, 400_000, 2_500_000])
@pytest.mark.parametrize("modes", [1, 3])
def test_a_thin_pool_of_pve_has_room_for_its_volumes_on_a_disk_of_any_size(span_mib: int, modes: int) -> None:
    span = span_mib * MIB // EXTENT * EXTENT
    given = [Mode(f"m{number}", LvmThin(), Attach()) for number in range(modes)]
    with played_back() as (_, client):
        (layer,) = store_layers(Stores(client, CreationLog(PlayedShell({}), RUN), None), given)
    region = layer.need.bytes(span)
    # PVE::API2::Disks::LVMThin: what pvs tells, less 128 MiB, less metadata of 1 %, from 1 to 16 GiB, twice.
    extents = (region - MIB) // EXTENT
    data_kib = extents * EXTENT / KIB - 128 * KIB
    metadata_kib = min(max(data_kib / 100, GIB / KIB), 16 * GIB / KIB)
    data_kib -= 2 * metadata_kib
    data_extents, metadata_extents = ceil(data_kib * KIB / EXTENT), ceil(metadata_kib * KIB / EXTENT)
    assert data_extents + 2 * metadata_extents <= extents
    assert data_extents * EXTENT >= modes * span
    assert compute_volumes_need(LvmThin()).shares == 1


def test_a_disk_that_is_too_small_for_a_thin_pool_is_refused_with_the_reason(
    client: Client, tmp_path: Path, shell: NodeShell
) -> None:
    iso = guest_iso(tmp_path)
    thin = Mode("thin", LvmThin(), Attach())
    with (
        pytest.raises(Unsupported, match=r"no room for .* in addition, Proxmox VE needs: thin 2\.156 GiB"),
        hypervisor(client, iso, shell).layouts(shell.log(RUN), [DISK], [HOST, thin], span=SPAN),
    ):
        pass
    assert left(client) == []


def test_a_storage_is_made_on_each_partition_of_an_nvme_disk_though_pve_renumbers_them(
    node: Node, client: Client, stores: Stores, shell: NodeShell
) -> None:
    # PVE writes the type of the partition first, so that the kernel drops and adds all partitions of the disk.
    partitions = [Disk(f"/dev/nvme0n1p{number}", GIB, partuuid=f"0b1c-{number}") for number in (1, 2)]
    node.disks.disks += partitions
    node.disks.number(partitions)
    paths, partuuids = [each.device for each in partitions], [each.partuuid for each in partitions]
    (disk,) = created(shell, Entry("", RUN, "", {"disks": ["PHM1"]}), ["/dev/nvme0n1"])
    devices = built_on([disk], paths, partuuids)
    first, second = (
        Region(partuuid, device, 0, GIB, partuuid) for partuuid, device in zip(partuuids, devices, strict=True)
    )
    before = [each.minor for each in partitions]
    with stores.made("lvm", f"voh-{RUN}-lvm", first, {}), stores.made("directory", f"voh-{RUN}-ext4", second, {}):
        assert [each.minor for each in partitions] != before
        for device in devices:
            device.run(["true"], deadline=5)
    assert nothing_left(node, client)
    # The same number at another place is another partition.
    partitions[0].partuuid = "ffff-another"
    node.disks.number(partitions)
    with pytest.raises(SafetyError, match="/dev/nvme0n1p1 was"):
        devices[0].run(["true"], deadline=5)


# Storage options


@pytest.mark.parametrize("size", [8 * KIB, 16 * KIB, 64 * KIB])
def test_a_zvol_has_the_requested_block_size_and_its_reads_are_not_cached(
    *, client: Client, stores: Stores, shell: NodeShell, size: int
) -> None:
    name = f"voh-{RUN}-zfs"
    layout = Zvol(volblocksize=size)
    assert refuse_layout(layout) is None
    with (
        stores.made("zfs", name, region(shell), {"raidlevel": "single"}) as store,
        create_volumes(stores, store, 0, layout, SPAN) as sources,
    ):
        assert client.get(f"storage/{name}")["blocksize"] == str(size)
        assert sources.guest.path == f"/dev/zvol/{name}/vm-9000-voh-0"
        assert f"zfs set primarycache=metadata {name}/vm-9000-voh-0" in " ".join(shell.asked)
    assert left(client) == []


@pytest.mark.parametrize(("has", "fits"), [(None, False), ("16k", False), ("8k", True), ("8192", True), ("8K", True)])
def test_the_block_size_of_a_storage_in_use_is_not_changed(
    *, node: Node, client: Client, shell: NodeShell, tmp_path: Path, has: str | None, fits: bool
) -> None:
    options = {"blocksize": has} if has else {}
    node.store.storages["tank"] = Storage("tank", "zfspool", frozenset({"images"}), 10 * GIB, pool="t", options=options)
    ours = hypervisor(client, guest_iso(tmp_path), shell)
    why = ours.unsupported_by_host(
        Mode("z", Zvol(volblocksize=8 * KIB), Attach()), DiskByStorage("tank", key="storage", at="tank")
    )
    assert (why is None) == fits
    assert fits or "pvesm set tank --blocksize 8k" in (why or "")
    assert (
        ours.unsupported_by_host(Mode("z", Zvol(), Attach()), DiskByStorage("tank", key="storage", at="tank")) is None
    )


@pytest.mark.parametrize("preallocation", ["off", "falloc", "full"])
def test_how_a_file_is_allocated_is_an_option_of_the_storage(
    client: Client, stores: Stores, shell: NodeShell, preallocation: Preallocation
) -> None:
    name = f"voh-{RUN}-ext4"
    with stores.made("directory", name, region(shell), {"filesystem": "ext4"}) as store:
        stores.preallocate(store, preallocation)
        assert client.get(f"storage/{name}")["preallocation"] == preallocation
        stores.preallocate(Store("local"), preallocation)
        assert "preallocation" not in client.get("storage/local")
    assert left(client) == []
