"""A storage in use on a host with libvirt, from its table in the lab file to a filled volume and a measured slice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.config.names import RunId
from harness.errors import SafetyError, Unsupported
from harness.events import Events
from harness.guest.libvirt.backend import LibvirtHypervisor, parse_pool, place_of
from harness.guest.libvirt.connection import Connection
from harness.lab import storages as storage_space
from harness.lab.created import CreationLog
from harness.lab.hosts import Host
from harness.lab.inventory import DiskByStorage, HostSpec
from harness.lab.lab_file import load_lab
from harness.measure.host_measurer import _find_notes, _find_uncounted
from harness.measure.phases import Phases
from harness.measure.prepare import SetupRequest, open_session
from harness.measure.recorder import describe_disks
from harness.measure.series import NothingToCompare
from harness.measure.session import Session
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.layout import Lvm, RawFile
from harness.model.mode import Arm, Mode, Place
from tests.unit.loop_disks import RUNNER, require
from tests.unit.this_host import connected, this_host

MIB = 1 << 20
HOST = Mode("host", Device(), None)
RAW = Mode("raw", RawFile(), None)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    require("fio")
    if os.getuid() != 0:
        pytest.skip("files of volumes are made by root")
    found = tmp_path / "vms"
    found.mkdir()
    (found / "bystander.raw").write_bytes(b"its own data")
    yield found
    assert {path.name: path.read_bytes() for path in found.iterdir()} == {"bystander.raw": b"its own data"}


@pytest.fixture
def spec(directory: Path, tmp_path: Path) -> HostSpec:
    lab = tmp_path / "lab.toml"
    lab.write_text(
        f'[host.here]\nkind = "local"\n[host.here.storage.vms]\ndirectory = "{directory}"\n'
        '[host.here.storage.named]\npool = "vms"\n'
    )
    return load_lab(lab).hosts[0]


@pytest.fixture
def connection(directory: Path) -> Iterator[Connection]:
    with connected("here") as found:
        found.handle.storagePoolCreateXML(
            f"<pool type='dir'><name>vms</name><target><path>{directory}</path></target></pool>", 0
        )
        yield found


@pytest.fixture
def host(spec: HostSpec) -> Host:
    return this_host(spec)


@pytest.fixture
def hypervisor(host: Host, connection: Connection) -> LibvirtHypervisor:
    return LibvirtHypervisor(host, connection, Events())


def opened(host: Host, hypervisor: LibvirtHypervisor, storage: str, *modes: Mode, log: Path) -> Iterator[Session]:
    request = SetupRequest((storage,), modes, jobs=(), span=16 * MIB, conditioning="fill")
    created = CreationLog(RUNNER, RunId.new(), str(log / "created"))
    with open_session(
        host, hypervisor, [host.spec.target(storage)], request, log=created, seed=1, phases=Phases(Events())
    ) as at:
        yield at


@pytest.mark.parametrize("storage", ["vms", "named"])
def test_the_volumes_are_filled_and_the_results_say_where_they_are(
    *,
    host: Host,
    hypervisor: LibvirtHypervisor,
    directory: Path,
    tmp_path: Path,
    storage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each is filled in several parts, with a look at the space before each.
    monkeypatch.setattr("harness.measure.prepare.FILLED_AT_ONCE", 6 * MIB)
    for at in opened(host, hypervisor, storage, HOST, RAW, log=tmp_path):
        assert at.layouts.span == 16 * MIB
        for arm in (Arm(Place.HOST), Arm(Place.TWIN, RAW)):
            file = Path(at.target(arm).path)
            assert file.is_relative_to(directory)
            data = file.read_bytes()
            assert all(any(data[start : start + 4096]) for start in range(0, len(data), 4096))
            # A file has no counters of its own: the disks below are read, with the bytes of others.
            assert at.counted_disks(arm) == ()
        assert at.shared_disks == (at.layouts.disk,)
        (found,) = describe_disks(at, (), storage).items()
        assert found[0] == f"disk.{storage}"
        assert isinstance(found[1], dict)
        assert found[1]["storage"] == f"directory {directory}"
        assert found[1]["disks"] == at.layouts.disk
        (note,) = _find_notes(Arm(Place.HOST), at)[:1]
        assert note.startswith(f"the baseline is a volume on directory {directory}, which is in use; its bytes are")


def test_modes_on_other_layouts_are_skipped_before_anything_is_created(
    host: Host, hypervisor: LibvirtHypervisor, tmp_path: Path
) -> None:
    lvm = Mode("lvm", Lvm(), Attach())
    with pytest.raises(NothingToCompare, match=r"its layout is lvm on bare device; directory .* offers: raw, qcow2"):
        next(opened(host, hypervisor, "vms", HOST, lvm, log=tmp_path))
    assert not (tmp_path / "created").exists()


def test_an_arm_of_a_skipped_mode_needs_no_volume(host: Host, hypervisor: LibvirtHypervisor, tmp_path: Path) -> None:
    lvm = Mode("lvm", Lvm(), Attach())
    for built in opened(host, hypervisor, "vms", HOST, RAW, log=tmp_path):
        at = replace(built, skipped={"lvm": "directory vms offers: raw, qcow2"})
        arms = [Arm(Place.HOST), Arm(Place.TWIN, RAW), Arm(Place.TWIN, lvm), Arm(Place.GUEST, lvm)]
        assert _find_uncounted(arms, at) == {"host", "twin:raw"}


def test_a_storage_that_fills_up_while_it_is_filled_ends_the_run_and_is_cleaned_up(
    *, host: Host, hypervisor: LibvirtHypervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([None, None, "1 MiB is free"])
    monkeypatch.setattr(storage_space, "shortage", lambda *_: next(answers))
    with pytest.raises(SafetyError, match="1 MiB is free"):
        next(opened(host, hypervisor, "vms", HOST, RAW, log=tmp_path))
    assert list((tmp_path / "created").iterdir()) == []


def pool(text: str) -> str:
    return f"<pool {text}</pool>"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("type='dir'><target><path>/srv</path></target>", ("directory", "/srv")),
        ("type='netfs'><target><path>/srv/nfs</path></target>", ("directory", "/srv/nfs")),
        (
            "type='logical'><source><name>pve</name></source><target><path>/dev/pve</path></target>",
            ("volume_group", "pve"),
        ),
        ("type='zfs'><source><name>tank/vms</name></source>", ("dataset", "tank/vms")),
    ],
)
def test_a_pool_is_the_place_of_its_definition(text: str, place: tuple[str, str]) -> None:
    assert parse_pool(pool(text), "pool") == place


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (pool("type='iscsi'>"), "libvirt pool vms has the type iscsi"),
        (pool("type='dir'>"), "has the type dir"),
        ("<pool", "is not valid"),
    ],
)
def test_a_pool_of_another_type_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        parse_pool(text, "host here: libvirt pool vms")


def test_a_pool_that_does_not_run_is_refused(connection: Connection) -> None:
    with pytest.raises(Unsupported, match="libvirt did not find the pool nowhere"):
        place_of(connection, DiskByStorage("x", key="pool", at="nowhere"))
    connection.handle.storagePoolDefineXML(
        "<pool type='dir'><name>off</name><target><path>/srv</path></target></pool>", 0
    )
    with pytest.raises(Unsupported, match="libvirt pool off is not active"):
        place_of(connection, DiskByStorage("x", key="pool", at="off"))


def test_a_storage_of_proxmox_ve_is_refused_on_a_host_with_libvirt(connection: Connection) -> None:
    with pytest.raises(Unsupported, match="storage local-lvm belongs to Proxmox VE"):
        place_of(connection, DiskByStorage("x", {"lvm-thin": "local-lvm"}))
