"""Measuring on a ZFS dataset that is in use: a run creates and removes its own datasets alone."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from harness.errors import HostError, Unsupported
from harness.features.zfs.volumes import StoredDataset
from harness.lab.storages import look_at
from harness.layout.build import Layouts
from harness.layout.storage import build_on_storage, find_volume_kind
from harness.measure.reap import reap
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.layout import ZfsFile, Zvol
from harness.model.mode import Mode
from tests.unit.loop_disks import NO_HYPERVISOR
from tests.unit.storage_doubles import GIB, RUN, ZfsHost

MIB = 1 << 20
SPAN = 16 * MIB
THEIRS = ["tank", "tank/vms", "tank/vms/vm-101-disk-0"]
NAME = f"tank/vms/voh-{RUN}-host"

HOST = Mode("host", Device(), None)
ZVOL = Mode("zvol", Zvol(volblocksize=64 << 10), Attach())
FILE = Mode("zfs", ZfsFile(recordsize=16 << 10), Attach())


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ZfsHost:
    monkeypatch.setattr("harness.features.zfs.volumes.MOUNT_DIRECTORY", str(tmp_path / "mnt"))
    return ZfsHost(tmp_path)


def build(host: ZfsHost, *modes: Mode, span: int = SPAN) -> AbstractContextManager[Layouts]:
    found = look_at(host, "dataset", "tank/vms")
    return build_on_storage(host.log, found, "ZFS dataset tank/vms", modes, span=span)


def test_volumes_and_files_are_datasets_with_the_options_of_their_modes(host: ZfsHost, tmp_path: Path) -> None:
    with build(host, HOST, ZVOL, FILE) as layouts:
        names = [f"tank/vms/voh-{RUN}-{mode}" for mode in ("host", "zvol", "zfs")]
        assert host.datasets == [*THEIRS, *names]
        assert layouts.device.path == f"/dev/zvol/{names[0]}"
        assert layouts.guest(ZVOL).kind == "block"
        assert host.state["datasets"][names[1]]["local"]["volblocksize"] == "65536"
        file = Path(layouts.guest(FILE).path)
        assert file == tmp_path / "mnt" / f"voh-{RUN}-zfs" / "disk.raw"
        assert file.stat().st_size == SPAN
        assert host.state["datasets"][names[2]]["local"]["recordsize"] == "16384"
        # ZFS serves reads of a zvol from its cache, so the disks of the pool are counted instead.
        assert layouts.disks(ZVOL) == ()
        assert layouts.shared is not None
        assert layouts.shared.disks == ("sda", "sdb")
        guids = [entry.record["guid"] for entry in host.logged]
        assert guids == [host.state["datasets"][name]["guid"] for name in names]
    assert host.datasets == THEIRS
    assert host.logged == []
    assert list((tmp_path / "mnt").iterdir()) == []


def test_nothing_is_created_if_less_than_the_reserve_would_stay_free(host: ZfsHost) -> None:
    with pytest.raises(Unsupported, match="5 GiB of them must stay free"):
        build(host, HOST, ZVOL, span=40 * GIB).__enter__()
    assert host.datasets == THEIRS


@pytest.mark.parametrize(
    ("layout", "times"),
    [(Zvol(), 1.0), (Zvol(volblocksize=4 << 10), 4 / 3), (Zvol(volblocksize=8 << 10), 4 / 3), (ZfsFile(), 1.0)],
)
def test_small_records_take_more_space_on_raidz(host: ZfsHost, layout: Zvol | ZfsFile, times: float) -> None:
    kind = find_volume_kind("dataset")
    mirror = look_at(host, "dataset", "tank/vms")
    assert mirror.raidz == ()
    disks = [f"\t/dev/sd{disk}1\t-" for disk in "abc"]
    host.change("pool", listed=["tank\t5G", "\traidz1-0\t5G", *disks, "logs\t-", "\t/dev/nvme0n1\t-"])
    raidz = look_at(host, "dataset", "tank/vms")
    assert raidz.raidz == ((1, 3, 4096),)
    assert kind.bytes_of(raidz, layout, SPAN) == pytest.approx(times * kind.bytes_of(mirror, layout, SPAN), abs=2)


def test_a_volume_is_not_a_place_for_volumes(host: ZfsHost) -> None:
    with pytest.raises(Unsupported, match="it is not a dataset"):
        look_at(host, "dataset", "tank/vms/vm-101-disk-0")
    with pytest.raises(Unsupported, match="dataset does not exist"):
        look_at(host, "dataset", "tank/nowhere")


def abandoned(host: ZfsHost, *, guid: str = "7", now_guid: str = "7", **now: object) -> None:
    """What a killed run leaves: a volume and its record. `now` are facts of the volume that changed since."""
    host.log.record(StoredDataset(disks=("ZFS dataset tank/vms",), name=NAME, token="t", guid=guid))
    state = host.state
    ours = {"type": "volume", "guid": now_guid, "size": GIB, "readonly": "off", "local": {"voh:token": "t"}}
    state["datasets"][NAME] = ours | now
    host.state = state


@pytest.mark.parametrize("guid", ["7", ""], ids=["recorded", "killed before its guid was recorded"])
def test_reap_removes_what_a_killed_run_left(host: ZfsHost, guid: str) -> None:
    abandoned(host, guid=guid)
    assert len(reap(host, NO_HYPERVISOR, host.logged)) == 1
    assert host.datasets == THEIRS
    assert host.logged == []


def test_reap_leaves_a_dataset_of_the_same_name_that_is_not_ours(host: ZfsHost) -> None:
    abandoned(host, local={})
    (sentence,) = reap(host, NO_HYPERVISOR, host.logged)
    assert "does not have the token of the run" in sentence
    abandoned(host, now_guid="8")
    (sentence,) = reap(host, NO_HYPERVISOR, host.logged)
    assert "has the guid 8" in sentence
    assert host.datasets == [*THEIRS, NAME]


def test_reap_keeps_the_record_of_a_dataset_with_a_snapshot(host: ZfsHost) -> None:
    abandoned(host, snapshot=True)
    with pytest.raises(HostError, match="has children"):
        reap(host, NO_HYPERVISOR, host.logged)
    assert len(host.logged) == 1


def test_reap_keeps_the_record_while_the_pool_is_not_imported(host: ZfsHost) -> None:
    abandoned(host)
    host.change("pool", imported=False)
    with pytest.raises(HostError, match="its pool tank is not imported"):
        reap(host, NO_HYPERVISOR, host.logged)
    assert len(host.logged) == 1
