"""Each type of storage of a node while another VM uses it: its reserve stays free, and only our volumes are removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.errors import SafetyError, Unsupported
from harness.events import Events
from harness.features.proxmox.backend import ProxmoxHypervisor
from harness.features.proxmox.client import Client
from harness.lab.inventory import DiskByStorage
from harness.measure.prepare import condition
from harness.model.attach import Attach
from harness.model.layout import Lvm, LvmThin, Qcow2, RawFile, Zvol
from harness.model.mode import Mode
from pve_double.executor.memory import MemoryExecutor
from pve_double.state import Node
from pve_double.storage.volumes import Storage
from pve_double.tasks import TaskLog
from pve_double.testing import memory_node
from tests.features.proxmox.proxmox_fixtures import client, serving, shell
from tests.features.proxmox.proxmox_shell import NodeShell
from tests.features.proxmox.test_proxmox_backend import HOST, RUN, SPAN, boot_twice, hypervisor, reaped

__all__ = ["client", "serving", "shell"]

GIB = 1 << 30
FILES = (Mode("raw", RawFile(), Attach()), Mode("qcow2", Qcow2(), Attach()))
IMAGES = frozenset({"images"})
NEIGHBOUR = 101


@dataclass(frozen=True)
class Type:
    """A type of storage: its entry in storage.cfg, and the modes on it."""

    storage: Storage
    modes: tuple[Mode, ...]


TYPES = {
    each.storage.kind: each
    for each in (
        Type(Storage("mine", "lvm", IMAGES, 10 * GIB, vgname="mine"), (Mode("lvm", Lvm(), Attach()),)),
        Type(
            Storage("mine", "lvmthin", IMAGES, 10 * GIB, vgname="mine", thinpool="data"),
            (Mode("thin", LvmThin(), Attach()),),
        ),
        Type(Storage("mine", "zfspool", IMAGES, 10 * GIB, pool="tank/vms"), (Mode("zvol", Zvol(), Attach()),)),
        Type(Storage("mine", "dir", IMAGES, 10 * GIB, path="/srv/mine"), FILES),
        Type(Storage("mine", "nfs", IMAGES, 10 * GIB, path="/mnt/pve/mine"), FILES),
        Type(Storage("mine", "cifs", IMAGES, 10 * GIB, path="/mnt/pve/mine"), FILES),
        Type(Storage("mine", "cephfs", IMAGES, 10 * GIB, path="/mnt/pve/mine"), FILES),
        Type(Storage("mine", "btrfs", IMAGES, 10 * GIB, path="/srv/mine"), FILES),
    )
}
OWN = DiskByStorage("storage", key="storage", at="mine")


# In a run, those with files of other machines are like a directory.
DIFFERENT = pytest.mark.parametrize("of", ["lvm", "lvmthin", "zfspool", "dir", "btrfs"], indirect=True)


@pytest.fixture(params=TYPES)
def of(request: pytest.FixtureRequest) -> Type:
    return TYPES[request.param]


@pytest.fixture
def node(of: Type) -> Node:
    node = memory_node(cpus=4)
    node.store.storages["mine"] = of.storage
    return node


@pytest.fixture
def ours(client: Client, shell: NodeShell, tmp_path: Path) -> ProxmoxHypervisor:
    iso = tmp_path / "guest.iso"
    iso.write_bytes(b"\0" * 4096)
    return hypervisor(client, iso, shell)


@pytest.fixture(autouse=True)
def bystander(client: Client, node: Node) -> Iterator[None]:
    """Another VM with a disk on the storage. At the end there is nothing else, and it is unchanged."""
    made = {"vmid": NEIGHBOUR, "scsi0": "mine:1,cache=none"}
    client.task("post", f"{client.node}/qemu", made, is_done=lambda: False, deadline=30)
    before = everything(client, node)
    assert len(before["volumes"]) == 1
    yield
    assert everything(client, node) == before


def everything(client: Client, node: Node) -> dict[str, Any]:
    """The VMs, the storages, and what is on the storage: with the identities that only the node knows."""
    vms = [each["vmid"] for each in client.get(f"{client.node}/qemu")]
    return {
        "vms": {vmid: client.get(f"{client.node}/qemu/{vmid}/config") for vmid in vms},
        "storages": client.get("storage"),
        "volumes": [(each.id, each.uid, each.size_bytes) for each in node.store.of("mine") if not _is_large(each.id)],
    }


def _is_large(volid: str) -> bool:
    return "large" in volid


def fill(node: Node) -> None:
    """The other VM gets a volume that leaves less than the reserve."""
    storage = node.store.config("mine")
    if storage.kind == "lvmthin":
        node.thin_usage["mine/data"] = ("93.00", "10.00")
        return
    name = f"vm-{NEIGHBOUR}-large" + (".raw" if storage.path else "")
    size = storage.total_bytes - node.store.used_bytes(storage) - GIB // 2
    node.store.allocate("mine", NEIGHBOUR, TaskLog(), size_bytes=size, name=name)


def test_its_volumes_are_filled_and_removed_and_no_group_begins_once_it_is_full(
    *, ours: ProxmoxHypervisor, shell: NodeShell, node: Node, of: Type
) -> None:
    modes = [HOST, *of.modes]
    assert [ours.unsupported_by_host(mode, OWN) for mode in modes] == [None] * len(modes)
    with ours.layouts(shell.log(RUN), [OWN], modes, span=SPAN) as layouts:
        regions = layouts.regions
        assert len(regions) == len(modes)
        shell.asked.clear()
        condition(shell, layouts, "fill", [], seed=1, events=Events())
        for region in regions.values():
            assert any(f"filename={region.path}" in said for said in shell.asked)
        assert layouts.shared is not None
        layouts.shared.room.require(0)
        fill(node)
        with pytest.raises(SafetyError, match=r"filling up: .* 1 GiB of them must stay free for others"):
            layouts.shared.room.require(0)


@DIFFERENT
def test_reap_removes_what_a_killed_run_left(ours: ProxmoxHypervisor, shell: NodeShell, of: Type) -> None:
    killed = ExitStack()
    layouts = killed.enter_context(ours.layouts(shell.log(RUN), [OWN], [HOST, *of.modes], span=SPAN))
    volumes = len({source.path for source in (*layouts.regions.values(), *layouts.by_mode.values())})
    ended = reaped(ours, shell)
    assert ended == {"pve-volume": ["removed"] * volumes, "pve-vm": ["removed"]}
    killed.pop_all()
    assert shell.logged == []


@DIFFERENT
def test_the_volumes_stay_the_same_devices_when_proxmox_ve_stops_the_vm(
    *, ours: ProxmoxHypervisor, client: Client, shell: NodeShell, node: Node, of: Type
) -> None:
    with ours.layouts(shell.log(RUN), [OWN], [HOST, *of.modes], span=SPAN) as layouts:
        boot_twice(client, layouts, of.modes[0])
        assert isinstance(node.executor, MemoryExecutor)
        assert node.executor.inactive == set()
        for region in layouts.regions.values():
            region.writable.run(["true"], deadline=30)
        assert shell.sessions == (0 if of.storage.path else 1)
    assert (shell.sessions, node.executor.held) == (0, set())


@pytest.mark.parametrize("of", ["lvm"], indirect=True)
def test_a_volume_that_became_another_device_is_never_written_to(
    *, ours: ProxmoxHypervisor, client: Client, shell: NodeShell, of: Type
) -> None:
    (mode,) = of.modes
    with ours.layouts(shell.log(RUN), [OWN], [HOST, mode], span=SPAN) as layouts:
        # Somebody ends the command on the node that holds the volumes open.
        shell.lose_connection()
        boot_twice(client, layouts, mode)
        device = layouts.twin(mode).writable
        with pytest.raises(SafetyError, match="vm-9000-voh-1 is gone"):
            device.run(["true"], deadline=30)
        client.task("post", f"{client.node}/qemu/9000/status/start", {}, is_done=lambda: False, deadline=30)
        with pytest.raises(SafetyError, match="another diskseq now"):
            device.run(["true"], deadline=30)
    assert shell.logged == []


@DIFFERENT
def test_a_run_stops_while_it_fills_a_storage_that_becomes_full(
    *, ours: ProxmoxHypervisor, shell: NodeShell, node: Node, of: Type
) -> None:
    with ours.layouts(shell.log(RUN), [OWN], [HOST, *of.modes], span=SPAN) as layouts:
        fill(node)
        shell.asked.clear()
        with pytest.raises(SafetyError, match="nothing more is written to storage mine, which is filling up"):
            condition(shell, layouts, "fill", [], seed=1, events=Events())
        assert not any("filename=" in said for said in shell.asked)
    assert shell.logged == []


@DIFFERENT
def test_a_run_that_would_touch_the_reserve_creates_nothing(
    *, ours: ProxmoxHypervisor, shell: NodeShell, node: Node, of: Type
) -> None:
    fill(node)
    with (
        pytest.raises(Unsupported, match="must stay free for others"),
        ours.layouts(shell.log(RUN), [OWN], [HOST, *of.modes], span=SPAN),
    ):
        pass
    assert shell.logged == []
