"""Measuring on a volume group and a thin pool that are in use: a run creates and removes its own volumes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from harness.errors import HostError, SafetyError, Unsupported
from harness.features.doctor.machine import Level, examine_storage
from harness.lab.facts import HostFacts
from harness.lab.inventory import DiskByStorage
from harness.lab.storages import Place, look_at
from harness.lab.transport.base import Runner
from harness.layout.build import Layouts
from harness.layout.storage import StoredVolume, build_on_storage, refuse_on_storage
from harness.measure.reap import reap
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.layout import Lvm, LvmThin
from harness.model.mode import Mode
from tests.unit.failing import outcomes
from tests.unit.loop_disks import NO_HYPERVISOR
from tests.unit.storage_doubles import GIB, RUN, LvmHost

MIB = 1 << 20
SPAN = 64 * MIB
BYSTANDERS = ["data", "vm-101-disk-0"]

HOST = Mode("host", Device(), None)
LVM = Mode("lvm", Lvm(), Attach())
THIN = Mode("lvm-thin", LvmThin(), Attach())
PLACES: dict[Place, tuple[str, Mode]] = {"volume_group": ("pve", LVM), "thin_pool": ("pve/data", THIN)}


@pytest.fixture
def host(tmp_path: Path) -> LvmHost:
    return LvmHost(tmp_path)


def build(host: LvmHost, place: Place, *, span: int = SPAN) -> AbstractContextManager[Layouts]:
    at, mode = PLACES[place]
    return build_on_storage(host.log, look_at(host, place, at), f"{place} {at}", [HOST, mode], span=span)


@pytest.mark.parametrize("place", PLACES)
def test_each_mode_and_the_baseline_have_a_volume_of_their_own(host: LvmHost, place: Place) -> None:
    _, mode = PLACES[place]
    with build(host, place) as layouts:
        names = [f"voh-{RUN}-host", f"voh-{RUN}-{mode.name}"]
        assert host.volumes == [*BYSTANDERS, *names]
        assert [layouts.device.path, layouts.guest(mode).path] == [f"/dev/pve/{name}" for name in names]
        assert layouts.twin(mode) == layouts.guest(mode)
        assert layouts.disk == "sda"
        # Their own counters are exact, whatever others do on sda.
        assert (layouts.disks(None), layouts.disks(mode)) == (("dm-2",), ("dm-3",))
        assert layouts.shared is not None
        assert layouts.shared.disks == ("sda",)
        records = [entry.record for entry in host.logged]
        assert [each["uuid"] for each in records] == [f"uuid-of-{name}" for name in names]
        assert len({each["tag"] for each in records}) == 2
    assert host.volumes == BYSTANDERS
    assert host.logged == []


def test_a_volume_is_recorded_before_it_is_created(host: LvmHost) -> None:
    def record_when_created(argv: list[str], deadline: float, stdin: Any) -> Any:
        if "lvcreate" in argv:
            recorded.append(len(host.logged))
        return run(argv, deadline, stdin)

    recorded: list[int] = []
    run = host._run
    host._run = record_when_created  # type: ignore[method-assign]
    with build(host, "thin_pool"):
        assert recorded == [1, 2]


def test_the_settings_of_lvm_are_those_of_the_host(host: LvmHost) -> None:
    with build(host, "volume_group"):
        pass
    assert not any("--config" in command for command in host.ran), "its metadata would not be backed up"


def test_volumes_of_a_group_are_on_one_of_its_disks(host: LvmHost) -> None:
    host.change("parts", **{"/dev/sda3": 2 * GIB, "/dev/sdb1": 5 * GIB})
    with build(host, "volume_group"):
        created = [command for command in host.ran if "lvcreate" in command]
        assert len(created) == 2
        assert all(command.endswith(" pve /dev/sdb1") for command in created)
    with pytest.raises(Unsupported, match="no physical volume of volume group pve has 6 GiB free"):
        build(host, "volume_group", span=3 * GIB).__enter__()
    assert host.volumes == BYSTANDERS


def test_volumes_on_different_disks_are_not_compared(host: LvmHost) -> None:
    disks = iter((["sda"], ["sdb"]))
    run = host._run

    def moving(argv: list[str], deadline: float, stdin: Any) -> Any:
        if "devices_of" in str(stdin):
            host.disks = next(disks)
        return run(argv, deadline, stdin)

    host._run = moving  # type: ignore[method-assign]
    with pytest.raises(SafetyError, match="are on different disks: sda for the baseline, sdb for lvm"):
        build(host, "volume_group").__enter__()
    assert host.volumes == BYSTANDERS


@pytest.mark.parametrize(
    ("place", "part", "values", "why"),
    [
        # 40 % of 50 GiB are used: 30 GiB are free, of which 2.5 GiB must stay free.
        ("thin_pool", "pool", {"used": 0.95}, "2.5 GiB are free, and 2.5 GiB of them must stay free"),
        ("thin_pool", "pool", {"metadata_used": 0.8}, "must not become more than 80% full"),
        ("volume_group", "group", {"size": 54 * GIB}, "4 GiB are free, and 2.7 GiB of them must stay free for others"),
    ],
)
def test_nothing_is_created_if_less_than_the_reserve_would_stay_free(
    *, host: LvmHost, place: Place, part: str, values: dict[str, float], why: str
) -> None:
    host.change(part, **values)
    with pytest.raises(Unsupported, match=why):
        build(host, place, span=GIB).__enter__()
    assert host.volumes == BYSTANDERS
    assert host.logged == []


def test_a_pool_that_others_fill_meanwhile_is_not_filled_any_further(host: LvmHost) -> None:
    with build(host, "thin_pool", span=4 * GIB) as layouts:
        assert layouts.shared is not None
        room = layouts.shared.room
        assert room is not None
        room.require_for(layouts.device.path, 4 * GIB, GIB)
        host.change("pool", used=0.94)
        with pytest.raises(SafetyError, match="nothing more is written to thin pool pve/data, which is filling up"):
            room.require_for(layouts.device.path, 4 * GIB, GIB)
        host.change("pool", used=0.5, metadata_used=0.81)
        with pytest.raises(SafetyError, match="more than 80% full"):
            room.require_for(layouts.device.path, 4 * GIB, GIB)
    assert host.volumes == BYSTANDERS


def test_a_volume_of_a_group_has_all_its_space_from_the_beginning(host: LvmHost) -> None:
    with build(host, "volume_group", span=4 * GIB) as layouts:
        host.change("group", size=64 * GIB)
        assert layouts.shared is not None
        assert layouts.shared.room is not None
        layouts.shared.room.require_for(layouts.device.path, 4 * GIB, 4 * GIB)


@pytest.mark.parametrize(
    ("place", "part", "values", "why"),
    [
        ("volume_group", "group", {"missing": 1}, "LVM does not report that all its disks are there"),
        ("volume_group", "group", {"permissions": "read-only"}, "it is read-only"),
        ("volume_group", "group", {"name": "other"}, 'Volume group "pve" not found'),
        ("thin_pool", "pool", {"health": "out_of_data"}, "LVM reports out_of_data"),
    ],
)
def test_a_storage_whose_state_is_not_fit_is_refused(
    *, host: LvmHost, place: Place, part: str, values: dict[str, object], why: str
) -> None:
    host.change(part, **values)
    with pytest.raises(Unsupported, match=why):
        build(host, place).__enter__()


def test_a_volume_is_not_a_thin_pool(host: LvmHost) -> None:
    with pytest.raises(Unsupported, match="it is not a thin pool"):
        look_at(host, "thin_pool", "pve/vm-101-disk-0")


def test_nothing_is_created_on_a_group_that_took_the_name_of_another(host: LvmHost) -> None:
    found = look_at(host, "volume_group", "pve")
    host.change("group", uuid="uuid-of-another")
    with pytest.raises(SafetyError, match=r"pve was \(uuid-of-pve\) and is \(uuid-of-another\) now"):
        build_on_storage(host.log, found, "volume group pve", [LVM], span=SPAN).__enter__()
    assert host.volumes == BYSTANDERS


OURS = {"name": f"voh-{RUN}-host", "uuid": "uuid-of-ours", "tags": "voh-1234", "size": GIB, "kind": "linear"}


def abandoned(host: LvmHost, now: Mapping[str, object] = MappingProxyType({}), *, uuid: str = "uuid-of-ours") -> None:
    """What a killed run leaves: a volume and its record. `now` are facts of the volume that changed since."""
    record = StoredVolume(
        disks=("volume group pve",), name=str(OURS["name"]), group_uuid="uuid-of-pve", tag="voh-1234", uuid=uuid
    )
    host.log.record(record)
    state = host.state
    state["volumes"].append(OURS | dict(now))
    host.state = state


def reaped(host: LvmHost) -> list[str]:
    return reap(host, NO_HYPERVISOR, host.logged)


@pytest.mark.parametrize("uuid", ["uuid-of-ours", ""], ids=["recorded", "killed before its UUID was recorded"])
def test_reap_removes_what_a_killed_run_left(host: LvmHost, uuid: str) -> None:
    abandoned(host, uuid=uuid)
    assert reaped(host) == [f"removed after a killed run: the volume voh-{RUN}-host, of run {RUN}"]
    assert host.volumes == BYSTANDERS
    assert host.logged == []


def test_reap_forgets_a_volume_that_was_never_created(host: LvmHost) -> None:
    abandoned(host)
    host.change("group")
    state = host.state
    state["volumes"].pop()
    host.state = state
    assert reaped(host) == []
    assert host.logged == []


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({"tags": ""}, "is another volume, without the tag of the run"),
        ({"tags": "voh-12345"}, "is another volume, without the tag of the run"),
        ({"uuid": "uuid-of-another"}, "has the UUID uuid-of-another"),
    ],
)
def test_reap_leaves_a_volume_of_the_same_name_that_is_not_ours(
    host: LvmHost, now: dict[str, object], why: str
) -> None:
    abandoned(host, now)
    (sentence,) = reaped(host)
    assert why in sentence
    assert host.volumes == [*BYSTANDERS, f"voh-{RUN}-host"]


def snapshot(host: LvmHost) -> None:
    state = host.state
    copy = {"name": "backup", "uuid": "u", "tags": "", "size": GIB, "kind": "linear", "origin": "uuid-of-ours"}
    state["volumes"].append(copy)
    host.state = state


def without_the_group(host: LvmHost) -> None:
    host.change("group", uuid="uuid-of-another")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (snapshot, "somebody has made a snapshot of it, which its removal would remove"),
        (without_the_group, "its volume group uuid-of-pve is not there"),
    ],
)
def test_reap_keeps_the_record_of_what_it_cannot_remove(
    host: LvmHost, change: Callable[[LvmHost], None], why: str
) -> None:
    abandoned(host)
    change(host)
    before = host.volumes
    with pytest.raises(HostError, match=why):
        reaped(host)
    assert host.volumes == before
    assert len(host.logged) == 1


def test_after_a_failure_nothing_is_left(host: LvmHost) -> None:
    def check(outcome: str) -> None:
        if outcome == "left":
            reaped(host)
        assert host.volumes == BYSTANDERS
        assert host.logged == []

    def layouts(runner: Runner) -> AbstractContextManager[Layouts]:
        log = host.log
        log.runner = runner
        return build_on_storage(log, found, "thin pool pve/data", [HOST, THIN], span=SPAN)

    found = look_at(host, "thin_pool", "pve/data")
    seen = outcomes(host, layouts, check, step=3)  # tests/soak has all commands, of a real LVM
    assert seen[-1] == "built"
    assert {"clean", "left"} <= set(seen)


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (HOST, None),
        (THIN, None),
        (Mode("thin-512k", LvmThin(chunk=512 << 10), Attach()), None),
        (
            Mode("thin-1m", LvmThin(chunk=MIB), Attach()),
            "its chunk is 1 MiB, but that of thin pool pve/data is 512 KiB",
        ),
        (LVM, "its layout is lvm on bare device; thin pool pve/data offers: lvm-thin"),
    ],
    ids=lambda value: value.name if isinstance(value, Mode) else "",
)
def test_a_mode_that_a_thin_pool_cannot_have_is_skipped_with_the_reason(
    host: LvmHost, mode: Mode, why: str | None
) -> None:
    assert refuse_on_storage(mode, look_at(host, "thin_pool", "pve/data"), HostFacts({})) == why


def test_the_chunk_of_the_pool_is_stated(host: LvmHost) -> None:
    with build(host, "thin_pool") as layouts:
        assert layouts.shared is not None
        assert layouts.shared.notes == {
            "lvm-thin": "its volume is allocated by 512 KiB, the chunk of thin pool pve/data"
        }


def test_the_doctor_says_what_a_storage_offers_and_how_much_of_it_a_run_may_use(host: LvmHost) -> None:
    finding = examine_storage(host, DiskByStorage("vms", key="thin_pool", at="pve/data"))
    # 40 % of 50 GiB are used, and 5 % must stay free.
    assert finding.value == "thin pool pve/data offers lvm-thin; 27.5 GiB for volumes of a run"
    assert finding.level is Level.OK
    host.change("pool", used=0.96)
    assert examine_storage(host, DiskByStorage("vms", key="thin_pool", at="pve/data")).level is Level.PROBLEM


def test_the_doctor_names_a_storage_that_cannot_be_used(host: LvmHost) -> None:
    finding = examine_storage(host, DiskByStorage("vms", key="volume_group", at="pev"))
    assert finding.level is Level.PROBLEM
    assert 'Volume group "pev" not found' in finding.value
    assert "correct the name in the lab file" in str(finding.advice)
