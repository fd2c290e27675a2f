"""Whether storages have room for the volumes of a run: found out on the node before the first thing is created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import SafetyError, Unsupported
from harness.features.proxmox.backend import ProxmoxHypervisor
from harness.features.proxmox.client import Client
from harness.features.proxmox.layouts import allocated, require_room
from harness.lab.inventory import DiskByStorage
from harness.lab.storages import Allocation, StorageSpace, shortages
from harness.model.attach import Attach
from harness.model.layout import Lvm, LvmThin, Qcow2, RawFile, Zvol
from harness.model.mode import Mode
from pve_double.state import Node
from pve_double.storage.volumes import Storage
from pve_double.testing import memory_node
from tests.features.proxmox.proxmox_fixtures import client, serving, shell
from tests.features.proxmox.proxmox_shell import NodeShell
from tests.features.proxmox.test_proxmox_backend import HOST, RUN, SPAN, hypervisor, left

__all__ = ["client", "serving", "shell"]

GIB = 1 << 30
IMAGES = frozenset({"images", "rootdir"})
MODES = {
    "lvm": Mode("lvm", Lvm(), Attach()),
    "lvm-thin": Mode("thin", LvmThin(), Attach()),
    "raw": Mode("raw", RawFile(), Attach()),
    "qcow2": Mode("qcow2", Qcow2(), Attach()),
    "zvol": Mode("zvol", Zvol(), Attach()),
}


@pytest.fixture
def node() -> Node:
    """Beside local and local-lvm of 252 and 200 GiB a volume group, a pool, and two directories on one file system."""
    node = memory_node(cpus=4)
    for storage in (
        Storage("thick", "lvm", IMAGES, 10 * GIB, vgname="thick"),
        Storage("tank", "zfspool", IMAGES, 10 * GIB, pool="tank/vms"),
        Storage("here", "dir", IMAGES, 10 * GIB, path="/srv/here"),
        Storage("there", "dir", IMAGES, 10 * GIB, path="/srv/there"),
    ):
        node.store.storages[storage.id] = storage
    node.file_systems |= {"/srv/here": "/dev/mapper/srv-data", "/srv/there": "/dev/mapper/srv-data"}
    return node


@pytest.fixture
def ours(client: Client, shell: NodeShell, tmp_path: Path) -> ProxmoxHypervisor:
    iso = tmp_path / "guest.iso"
    iso.write_bytes(b"\0" * 4096)
    return hypervisor(client, iso, shell)


@pytest.mark.parametrize(
    ("layout", "storage", "place"),
    [
        ("lvm", "thick", "volume group thick"),
        ("zvol", "tank", "ZFS pool tank"),
        ("raw", "here", "file system /dev/mapper/srv-data"),
        ("qcow2", "here", "file system /dev/mapper/srv-data"),
    ],
)
def test_a_run_that_would_fill_a_storage_is_refused_before_anything_is_created(
    *, client: Client, ours: ProxmoxHypervisor, shell: NodeShell, layout: str, storage: str, place: str
) -> None:
    disk = DiskByStorage("vmstore", {layout: storage})  # type: ignore[dict-item]
    said = rf"storage {storage} \({place}\): the run needs .*, 10 GiB are free, and 1 GiB of them must stay free"
    with (
        pytest.raises(Unsupported, match=said),
        ours.layouts(shell.log(RUN), [disk], [HOST, MODES[layout]], span=5 * GIB),
    ):
        pass
    assert left(client) == []
    assert client.get("nodes/pve/tasks", {"source": "all"}) == []
    assert shell.logged == []


def test_a_run_that_leaves_the_reserve_free_is_accepted(ours: ProxmoxHypervisor, shell: NodeShell) -> None:
    disk = DiskByStorage("vmstore", {"raw": "local"})
    with ours.layouts(shell.log(RUN), [disk], [HOST, MODES["raw"]], span=SPAN):
        pass


def test_a_thin_pool_counts_what_is_written_and_not_what_was_promised(
    node: Node, client: Client, shell: NodeShell
) -> None:
    require_room(client, shell, [Allocation("local-lvm", 150 * GIB)])
    node.thin_usage["pve/data"] = ("40.00", "10.00")
    with pytest.raises(Unsupported, match=r"local-lvm \(thin pool pve/data\): the run needs 150 GiB, 120 GiB are free"):
        require_room(client, shell, [Allocation("local-lvm", 150 * GIB)])


def test_a_thin_pool_whose_metadata_would_run_full_is_refused(node: Node, client: Client, shell: NodeShell) -> None:
    node.thin_usage["pve/data"] = ("1.00", "79.99")
    with pytest.raises(Unsupported, match="its metadata of 1 GiB is 80% full, the run needs 1 MiB more"):
        require_room(client, shell, [Allocation("local-lvm", GIB)])


def test_storages_on_one_file_system_count_together(client: Client, shell: NodeShell) -> None:
    require_room(client, shell, [Allocation("here", 5 * GIB)])
    with pytest.raises(
        Unsupported, match=r"storage here, there \(file system .*: the run needs 10 GiB, 10 GiB are free"
    ):
        require_room(client, shell, [Allocation("here", 5 * GIB), Allocation("there", 5 * GIB)])


def test_a_directory_on_a_thin_volume_takes_room_of_the_pool_as_well(
    node: Node, client: Client, shell: NodeShell
) -> None:
    node.thin_devices["/dev/mapper/srv-data"] = "pve/data"
    node.thin_usage["pve/data"] = ("95.00", "10.00")
    with pytest.raises(Unsupported, match=r"storage here \(thin pool pve/data\)"):
        require_room(client, shell, [Allocation("here", 5 * GIB)])


def test_if_the_free_space_is_unknown_nothing_is_created(node: Node, client: Client, shell: NodeShell) -> None:
    node.thin_usage["pve/data"] = ("", "")
    with pytest.raises(SafetyError, match="the free space on local-lvm is unknown"):
        require_room(client, shell, [Allocation("local-lvm", SPAN)])
    node.store.storages["thick"].vgname = "gone"
    node.store.storages["odd"] = Storage("odd", "lvm", IMAGES, GIB, vgname="")
    with pytest.raises(SafetyError, match="the place of storage odd of type lvm is unknown"):
        require_room(client, shell, [Allocation("odd", SPAN)])


def test_the_smallest_quota_of_a_pools_datasets_counts() -> None:
    places = [
        StorageSpace("a", "ZFS pool tank", 100 * GIB, 80 * GIB),
        StorageSpace("b", "ZFS pool tank", 100 * GIB, 10 * GIB),
    ]
    assert list(shortages(places, [Allocation("a", GIB), Allocation("b", GIB)])) == []
    assert list(shortages(places, [Allocation("a", GIB), Allocation("b", 5 * GIB)])) != []


@pytest.mark.parametrize(
    ("entry", "how"),
    [
        ({"type": "lvm"}, "in full"),
        ({"type": "zfspool"}, "in full"),
        ({"type": "zfspool", "sparse": 1}, "when written"),
        ({"type": "nfs"}, "as a file"),
        ({"type": "btrfs"}, "when written"),
        ({"type": "lvmthin"}, "when written"),
    ],
)
def test_what_is_already_allocated_is_not_needed_again(entry: dict[str, Any], how: str) -> None:
    assert allocated(entry) == how
