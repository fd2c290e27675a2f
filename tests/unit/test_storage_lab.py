"""Storage in use in a lab file: its keys, and what a mistake in them is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.lab.guard import serial_of
from harness.lab.inventory import DiskByStorage, HostSpec
from harness.lab.lab_file import load_lab

LOCAL = '[host.here]\nkind = "local"\n'
NODE = (
    '[host.here]\nkind = "proxmox"\n[host.here.api]\nurl = "https://192.0.2.9:8006"\nnode = "pve"\n'
    'secret = { env = "PVE" }\n'
)


def host(directory: Path, storages: str, of: str = LOCAL) -> HostSpec:
    path = directory / "lab.toml"
    path.write_text(f"{of}{storages}", encoding="utf-8")
    return load_lab(path).hosts[0]


def table(text: str, name: str = "vms") -> str:
    return f"[host.here.storage.{name}]\n{text}\n"


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        ('volume_group = "pve"', "volume group pve"),
        ('thin_pool = "pve/data"', "thin pool pve/data"),
        ('directory = "/var/lib/libvirt/images"', "directory /var/lib/libvirt/images"),
        ('pool = "my images"', "libvirt pool my images"),
        ('dataset = "tank/vms"', "ZFS dataset tank/vms"),
    ],
)
def test_a_scenario_finds_a_storage_by_its_name(tmp_path: Path, text: str, identity: str) -> None:
    spec = host(tmp_path, table(text))
    assert spec.disks == ()
    assert spec.target("vms").identity == identity
    assert serial_of(spec.target("vms")) == identity


def test_a_node_has_storages_by_name_and_by_layout(tmp_path: Path) -> None:
    by_layout = '[host.here.disk.both]\nstorages = { raw = "local", qcow2 = "local" }\n'
    spec = host(tmp_path, table('storage = "local-lvm"') + by_layout, NODE)
    assert spec.stored == (
        DiskByStorage("both", {"raw": "local", "qcow2": "local"}),
        DiskByStorage("vms", key="storage", at="local-lvm"),
    )
    assert [each.identity for each in spec.stored] == ["storage local", "storage local-lvm"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "host.here.storage.vms: allowed: exactly one of volume_group, thin_pool, directory, pool, rbd, dataset"),
        ('volume_group = "a"\npool = "b"', "host.here.storage.vms: allowed: exactly one of"),
        ('volume_group = "-a"', "allowed: the name of a volume group"),
        ('volume_group = ""', "allowed: the name of a volume group"),
        ('thin_pool = "data"', "allowed: volume group and thin pool"),
        ('directory = "/"', "and not the root directory"),
        ('directory = "/srv/../etc"', "without `..`"),
        ('directory = "/dev/shm/vms"', "is not on a disk"),
        ('directory = "/srv/a#b"', "fio treats the text after # as a comment"),
        ('dataset = "tank/"', "allowed: a ZFS pool or dataset"),
        ('storage = "local"', "host.here.storage.vms.storage: cannot be used on this kind of host"),
        ('device = "/dev/sda"', "no such key; allowed: volume_group, thin_pool, directory, pool, storage"),
    ],
)
def test_a_mistake_is_told_with_what_is_allowed(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        host(tmp_path, table(text))
    assert said in error.value.message


def test_a_directory_of_a_node_is_a_storage_of_its_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="directory: cannot be used on this kind of host; allowed: storage"):
        host(tmp_path, table('directory = "/srv"'), NODE)


def test_a_storage_and_a_disk_have_different_names(tmp_path: Path) -> None:
    disk = '[host.here.disk.vms]\nfile = "/var/tmp/a"\nsize = "2 GiB"\n'
    with pytest.raises(ConfigError, match=r"host\.here\.disk\.vms has the same name"):
        host(tmp_path, table('pool = "default"') + disk)


def test_a_storage_is_named_once(tmp_path: Path) -> None:
    twice = table('volume_group = "pve"') + table('volume_group = "pve"', "again")
    with pytest.raises(ConfigError, match=r"the same volume group pve as host\.here\.storage\.vms"):
        host(tmp_path, twice)
