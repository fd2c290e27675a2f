"""Volumes of Proxmox VE in a pool of Ceph: the client of each storage, the twin on the node, and what a run leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HostError, Unsupported
from harness.features.proxmox.backend import ProxmoxHypervisor
from harness.features.proxmox.client import Client
from harness.features.proxmox.creation import PveVolume
from harness.features.proxmox.guest import parse_resolved
from harness.features.rbd.images import locate_pool, refuse_on_node
from harness.lab.inventory import DiskByStorage
from harness.layout import NetworkDisk
from harness.layout.build import Layouts
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.layout import Rbd
from harness.model.mode import Mode
from pve_double import nodeshell
from pve_double.executor.memory import MemoryExecutor
from pve_double.qemu import command
from pve_double.state import Node
from pve_double.storage.volumes import CLUSTER, Storage
from pve_double.tasks import TaskLog
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_shell import DISK, NodeShell
from tests.features.proxmox.test_proxmox_backend import RUN, SPAN, boot_twice, hypervisor, iso, reaped
from tests.features.proxmox.test_proxmox_privileges import ACLS, ON_STORAGES, ROLES, token_with

__all__ = ["client", "iso", "node", "serving", "shell"]

HOST = Mode("host", Device(), None)
KRBD = Mode("krbd", Rbd(), Attach())
LIBRBD = Mode("librbd", Rbd(client="librbd"), Attach())
CEPH = DiskByStorage("ceph", key="storage", at="ceph")
MAPPED = DiskByStorage("mapped", key="storage", at="mapped")
KEYS = "/etc/pve/priv/ceph"
THEIRS = "ceph:vm-101-disk-0"


@pytest.fixture
def executor(node: Node) -> MemoryExecutor:
    """That of a node with two storages on the pool `vms`, the second one with krbd. The VM of others has a volume."""
    for name, options in (("ceph", {}), ("mapped", {"krbd": "1", "namespace": "bench"})):
        node.store.storages[name] = Storage(name, "rbd", frozenset({"images"}), 1 << 40, pool="vms", options=options)
    node.store.allocate("ceph", 101, TaskLog(), size_bytes=1 << 30)
    assert isinstance(node.executor, MemoryExecutor)
    return node.executor


@pytest.fixture
def ours(client: Client, iso: Path, shell: NodeShell, executor: MemoryExecutor) -> ProxmoxHypervisor:
    del executor
    return hypervisor(client, iso, shell)


@contextmanager
def built(ours: ProxmoxHypervisor, shell: NodeShell, disk: DiskByStorage, *modes: Mode) -> Iterator[Layouts]:
    with ours.layouts(shell.log(RUN), [disk], [HOST, *modes], span=SPAN) as layouts:
        yield layouts


def list_volumes(node: Node) -> list[str]:
    return [volume.id for name in ("ceph", "mapped") for volume in node.store.of(name)]


def test_with_krbd_the_guest_and_its_twin_have_the_device_that_the_node_has_mapped(
    ours: ProxmoxHypervisor, shell: NodeShell, node: Node, executor: MemoryExecutor
) -> None:
    with built(ours, shell, MAPPED, KRBD) as layouts:
        volume = layouts.guest(KRBD)
        assert isinstance(volume, PveVolume)
        assert (volume.volid, volume.network) == ("mapped:vm-9000-voh-1", None)
        assert volume.path == f"/dev/rbd-pve/{CLUSTER}/vms/bench/vm-9000-voh-1"
        assert volume.path == node.store.path(volume.volid)
        assert layouts.twin(KRBD) == volume
        assert executor.mapped == {f"vms/bench/vm-9000-voh-{number}": f"/dev/rbd{number}" for number in range(2)}
        assert executor.disabled == {}
        assert layouts.shared is not None
        assert layouts.shared.facts["krbd of mapped"] == "1"
        assert (layouts.shared.facts["cluster"], layouts.shared.facts["replicas"]) == (CLUSTER, "3")
        assert layouts.shared.notes == {}
    assert (list_volumes(node), executor.mapped, executor.held, shell.logged) == ([THEIRS], {}, set(), [])


def test_with_librbd_qemu_opens_the_image_and_the_twin_is_the_image_as_the_node_maps_it(
    ours: ProxmoxHypervisor, shell: NodeShell, node: Node, executor: MemoryExecutor
) -> None:
    with built(ours, shell, CEPH, LIBRBD) as layouts:
        volume = layouts.guest(LIBRBD)
        assert volume.network == NetworkDisk("rbd", "vms/vm-9000-voh-1")
        assert volume.path == f"/dev/rbd-pve/{CLUSTER}/vms/vm-9000-voh-1"
        # Host and guest would have to hand the lock over.
        assert executor.disabled["vms/vm-9000-voh-1"] == {"fast-diff", "object-map", "exclusive-lock"}
        assert layouts.shared is not None
        assert "the difference of the clients" in layouts.shared.notes["librbd"]
        assert "krbd of ceph" not in layouts.shared.facts
    assert (list_volumes(node), executor.mapped, shell.logged) == ([THEIRS], {}, [])


def test_a_mode_with_the_other_client_is_refused_with_the_remedy(ours: ProxmoxHypervisor) -> None:
    assert ours.unsupported_by_host(HOST, CEPH) is None
    assert ours.unsupported_by_host(LIBRBD, CEPH) is None
    assert ours.unsupported_by_host(KRBD, MAPPED) is None
    assert ours.unsupported_by_host(KRBD, CEPH) == (
        "storage ceph has krbd 0, so Proxmox VE attaches all of its volumes by librbd: measure client = "
        '"librbd", or name a storage on the same pool with krbd 1 in the lab file '
        "(pvesm add rbd NAME --pool vms --krbd 1)"
    )
    assert "attaches all of its volumes by krbd" in str(ours.unsupported_by_host(LIBRBD, MAPPED))


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (Mode("large", Rbd(client="librbd", object_size=8 << 20), Attach()), "objects of 4 MiB"),
        (Mode("nvme", Rbd(client="librbd"), Attach(bus="nvme")), "bus nvme"),
    ],
)
def test_what_proxmox_ve_cannot_make_is_refused(ours: ProxmoxHypervisor, mode: Mode, said: str) -> None:
    assert said in str(ours.unsupported_by_host(mode, CEPH))


def test_an_image_is_never_on_a_disk_under_test(ours: ProxmoxHypervisor) -> None:
    assert "can only be on a storage in use" in str(ours.unsupported_by_host(KRBD, DISK))


@pytest.mark.parametrize(("disk", "mode"), [(MAPPED, KRBD), (CEPH, LIBRBD)], ids=lambda each: each.name)
def test_the_twin_stays_the_same_device_when_proxmox_ve_stops_the_vm(
    *,
    ours: ProxmoxHypervisor,
    client: Client,
    shell: NodeShell,
    executor: MemoryExecutor,
    disk: DiskByStorage,
    mode: Mode,
) -> None:
    with built(ours, shell, disk, mode) as layouts:
        before = dict(executor.mapped)
        boot_twice(client, layouts, mode)
        assert executor.mapped == before
        assert shell.sessions == 1
    assert (executor.mapped, shell.sessions) == ({}, 0)


@pytest.fixture
def killed(ours: ProxmoxHypervisor, shell: NodeShell) -> Iterator[None]:
    """What a killed run has left: two images."""
    run = built(ours, shell, CEPH, LIBRBD)
    run.__enter__()
    yield
    shell.lose_connection()


@pytest.mark.usefixtures("killed")
def test_after_a_kill_reap_unmaps_and_removes_the_images_and_nothing_else(
    ours: ProxmoxHypervisor, shell: NodeShell, node: Node, executor: MemoryExecutor
) -> None:
    assert len(list_volumes(node)) == 3
    assert reaped(ours, shell) == {"pve-volume": ["removed", "removed"], "pve-vm": ["removed"]}
    assert (list_volumes(node), executor.mapped, shell.logged) == ([THEIRS], {}, [])


@pytest.mark.usefixtures("killed")
def test_another_image_of_the_same_name_stays(ours: ProxmoxHypervisor, shell: NodeShell, node: Node) -> None:
    volid = "ceph:vm-9000-voh-1"
    node.store.volumes[volid] = replace(node.store.volumes[volid], uid="0" * 32)
    assert reaped(ours, shell)["pve-volume"] == ["foreign", "removed"]
    assert list_volumes(node) == [THEIRS, volid]


@pytest.mark.usefixtures("killed")
def test_an_image_that_is_still_open_stays_in_the_log(
    ours: ProxmoxHypervisor, shell: NodeShell, node: Node, executor: MemoryExecutor
) -> None:
    shell.lose_connection()
    executor.held.add("/dev/rbd1")
    with pytest.raises(HostError, match="sysfs write failed"):
        reaped(ours, shell)
    assert len(list_volumes(node)) == 3


@pytest.mark.usefixtures("killed")
def test_an_image_of_which_somebody_has_made_a_snapshot_stays(
    ours: ProxmoxHypervisor, shell: NodeShell, node: Node, executor: MemoryExecutor
) -> None:
    executor.snapshots.add("ceph:vm-9000-voh-1@theirs")
    with pytest.raises(HostError, match="somebody has made snapshots of it: rbd snap ls vms/vm-9000-voh-1"):
        reaped(ours, shell)
    assert "ceph:vm-9000-voh-1" in list_volumes(node)


def test_qemu_has_no_engine_of_the_kernel_for_librbd(node: Node, executor: MemoryExecutor) -> None:
    del executor
    drives = {"scsi0": "mapped:vm-101-disk-0", "scsi1": THEIRS, "scsihw": "virtio-scsi-single", "kvm": "0"}
    node.store.allocate("mapped", 101, TaskLog(), size_bytes=1 << 30)
    arguments = command.build(node, 101, {**drives, "machine": "q35"}, TaskLog())
    mapped, by_qemu = (parse_resolved(arguments, key) for key in ("scsi0", "scsi1"))
    assert mapped is not None
    assert by_qemu is not None
    assert (mapped.network, mapped.aio) == (None, "io_uring")
    assert mapped.filename == f"/dev/rbd-pve/{CLUSTER}/vms/bench/vm-101-disk-0"
    assert (by_qemu.network, by_qemu.filename, by_qemu.direct) == ("rbd", "", True)


def test_a_token_measures_there_only_with_the_role_of_the_docs(tmp_path: Path, iso: Path) -> None:
    roles = {role: privileges for role, privileges in ROLES.items() if role in ON_STORAGES}
    for acls, may in ((ACLS, False), ([*ACLS, ("/storage/ceph", "VohVolumes", "")], True)):
        (tmp_path / str(may)).mkdir()
        with token_with(roles, tmp_path / str(may), acls) as (_, token, played):
            store = played.node.store
            store.storages["ceph"] = Storage("ceph", "rbd", frozenset({"images"}), 1 << 40, pool="vms")
            with ExitStack() as stack:
                if not may:
                    stack.enter_context(pytest.raises(Unsupported, match="the node has no storage with this name"))
                layouts = stack.enter_context(built(hypervisor(token, iso, played), played, CEPH, LIBRBD))
                assert layouts.guest(LIBRBD).network is not None
            assert store.of("ceph") == []


@pytest.mark.parametrize(
    ("entry", "at"),
    [
        (
            {"storage": "ceph", "pool": "vms"},
            f"vms:id=admin:keyring={KEYS}/ceph.keyring:conf=/etc/pve/ceph.conf",
        ),
        (
            {"storage": "far", "monhost": "10.0.0.1:6789, 10.0.0.2", "username": "pve", "namespace": "a"},
            f"rbd:id=pve:keyring={KEYS}/far.keyring:namespace=a:own_conf={KEYS}/far.conf:mons=10.0.0.1%3A6789,10.0.0.2",
        ),
    ],
)
def test_the_login_is_that_of_the_storage(entry: dict[str, Any], at: str) -> None:
    assert locate_pool(entry) == at


def test_a_pool_whose_name_a_shell_could_read_as_more_is_refused() -> None:
    for mode in (HOST, LIBRBD):
        why = refuse_on_node({"storage": "ceph", "pool": "a:conf=/x"}, mode)
        assert "does not support the name of its pool" in str(why)


def test_a_storage_with_its_data_elsewhere_is_refused_also_for_the_baseline(
    ours: ProxmoxHypervisor, node: Node
) -> None:
    node.store.storages["ceph"].options["data-pool"] = "coded"
    for mode in (HOST, LIBRBD):
        assert "has its data in another pool (data-pool)" in str(ours.unsupported_by_host(mode, CEPH))


def test_the_path_is_that_of_the_plugin(node: Node, executor: MemoryExecutor) -> None:
    del executor
    printed = nodeshell.run(node, ["pvesm", "path", THEIRS])
    keyring = "keyring=/etc/pve/priv/ceph/ceph.keyring"
    assert printed.text == f"rbd:vms/vm-101-disk-0:conf=/etc/pve/ceph.conf:id=admin:{keyring}\n"
