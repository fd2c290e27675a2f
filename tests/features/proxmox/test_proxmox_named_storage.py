"""A storage of a node that the lab file names alone: which layouts it has, and that neighbours may use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import Unsupported
from harness.features.proxmox.backend import ProxmoxHypervisor
from harness.features.proxmox.client import Client
from harness.features.proxmox.layouts import add_layouts, list_offered
from harness.lab.inventory import DiskByStorage
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.layout import LvmThin, Qcow2, RawFile
from harness.model.mode import Mode
from pve_double.state import Node
from pve_double.storage.volumes import Storage
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_shell import NodeShell
from tests.features.proxmox.test_proxmox_backend import RUN, SPAN, hypervisor, left

__all__ = ["client", "node", "serving", "shell"]

HOST = Mode("host", Device(), None)
THIN = Mode("thin", LvmThin(), Attach())
RAW = Mode("raw", RawFile(), Attach())
QCOW2 = Mode("qcow2", Qcow2(), Attach())


@pytest.fixture
def ours(client: Client, shell: NodeShell, tmp_path: Path) -> ProxmoxHypervisor:
    iso = tmp_path / "guest.iso"
    iso.write_bytes(b"\0" * 4096)
    return hypervisor(client, iso, shell)


def named(storage: str) -> DiskByStorage:
    return DiskByStorage("storage", key="storage", at=storage)


@pytest.mark.parametrize(
    ("kind", "layouts"),
    [
        ("lvm", ("lvm",)),
        ("lvmthin", ("lvm-thin",)),
        ("dir", ("raw", "qcow2")),
        ("nfs", ("raw", "qcow2")),
        ("zfspool", ("zvol",)),
        ("iscsi", ()),
        ("rbd", ("rbd",)),
    ],
)
def test_the_type_of_a_storage_decides_its_layouts(kind: str, layouts: tuple[str, ...]) -> None:
    assert list_offered(kind) == layouts


def test_layouts_that_the_lab_file_names_are_not_changed(client: Client) -> None:
    disk = DiskByStorage("vmstore", {"raw": "local"})
    assert add_layouts(client, disk) == disk
    assert add_layouts(client, named("local")).storages == {"raw": "local", "qcow2": "local"}


def test_a_storage_that_the_node_does_not_have_is_refused(client: Client) -> None:
    with pytest.raises(Unsupported, match="storage nowhere: the node has no storage with this name"):
        add_layouts(client, named("nowhere"))


def test_a_type_without_disk_images_is_refused_with_the_types_that_have_them(node: Node, client: Client) -> None:
    node.store.storages["target"] = Storage("target", "iscsi", frozenset({"images"}), 1 << 40)
    with pytest.raises(Unsupported, match="storage target is of type iscsi") as error:
        add_layouts(client, named("target"))
    assert error.value.hint == "allowed: a storage of type lvm, lvmthin, dir, nfs, cifs, cephfs, btrfs, zfspool, rbd"


def test_modes_that_the_storage_does_not_offer_are_skipped_with_the_reason(ours: ProxmoxHypervisor) -> None:
    local, thin = named("local"), named("local-lvm")
    assert [ours.unsupported_by_host(mode, local) for mode in (HOST, RAW, QCOW2)] == [None, None, None]
    assert ours.unsupported_by_host(THIN, local) == "its layout is lvm-thin; storage local offers: raw, qcow2"
    assert ours.unsupported_by_host(RAW, thin) == "its layout is raw; storage local-lvm offers: lvm-thin"
    assert "the node has no storage with this name" in str(ours.unsupported_by_host(RAW, named("nowhere")))


def test_volumes_are_created_on_it_and_its_disks_are_shared(
    client: Client, ours: ProxmoxHypervisor, shell: NodeShell
) -> None:
    shell.prints["--inverse"] = "sda\nsdb\n"
    with ours.layouts(shell.log(RUN), [named("local-lvm")], [HOST, THIN], span=SPAN) as layouts:
        assert layouts.guest(THIN).path == "/dev/pve/vm-9000-voh-1"
        assert layouts.shared is not None
        assert layouts.shared.words == "storage local-lvm"
        assert layouts.shared.disks == ("sda", "sdb")
    assert left(client) == []


def test_a_storage_without_a_disk_on_the_node_is_measured_by_fio_and_qemu(
    client: Client, ours: ProxmoxHypervisor, shell: NodeShell
) -> None:
    shell.prints["--inverse"] = ""
    with ours.layouts(shell.log(RUN), [named("local")], [HOST, RAW], span=SPAN) as layouts:
        assert layouts.disk == ""
        assert layouts.shared is not None
        assert layouts.shared.disks == ()
    assert left(client) == []
