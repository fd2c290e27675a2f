"""Measuring in a pool of Ceph: a run creates and removes its own images alone."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError, HostError, SafetyError, Unsupported
from harness.features.init.offers import Names, find_storages
from harness.features.rbd.images import CephPool, StoredImage
from harness.lab import pin
from harness.lab.lab_file import lab_of
from harness.lab.storages import look_at
from harness.lab.transport.base import Completed
from harness.layout import NetworkDisk
from harness.layout.build import Layouts
from harness.layout.storage import build_on_storage, refuse_on_storage
from harness.measure.reap import reap
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.layout import Lvm, Rbd
from harness.model.mode import Mode
from tests.unit.loop_disks import NO_HYPERVISOR
from tests.unit.storage_doubles import GIB, RUN, ProgramHost

MIB = 1 << 20
SPAN = 16 * MIB
THEIRS = "vms/vm-101-disk-0"
HOST = Mode("host", Device(), None)
KRBD = Mode("krbd", Rbd(object_size=8 * MIB), Attach())
LIBRBD = Mode("librbd", Rbd(client="librbd"), Attach())


class CephHost(ProgramHost):
    """A host with a client of a cluster: its pool `vms` has the image of another guest."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "../features/rbd/ceph_program.py", ("ceph", "rbd", "qemu-img"), [])
        theirs = {"id": "101", "meta": {}, "snapshots": [{"name": "kept"}], "size": "10G", "words": []}
        self.state = {
            "fsid": "f00d",
            "up": True,
            "osds": 12,
            "qemu": True,
            "pools": {
                "vms": {"id": 4, "stored": 10 * GIB, "free": 100 * GIB},
                "files": {"id": 5, "stored": 0, "free": GIB, "application": "cephfs"},
                "cold": {"id": 6, "stored": 0, "free": GIB, "type": "erasure"},
            },
            "images": {THEIRS: theirs},
            "mapped": {},
        }

    @property
    def ours(self) -> dict[str, Any]:
        return {name: image for name, image in self.state["images"].items() if name != THEIRS}

    def device_of(self, path: str) -> str | None:
        return path if path in self.state["mapped"].values() else None

    def _run(self, argv: list[str], deadline: float, stdin: str | bytes | None) -> Completed:
        if argv[:2] == ["sh", "-c"] and argv[2] == pin._PINNED:
            # The devices are not those of this machine.
            argv = argv[6 + 2 * int(argv[5]) :]
        return super()._run(argv, deadline, stdin)


@pytest.fixture
def host(tmp_path: Path) -> CephHost:
    return CephHost(tmp_path)


def build(host: CephHost, *modes: Mode, at: str = "vms") -> AbstractContextManager[Layouts]:
    return build_on_storage(host.log, look_at(host, "rbd", at), f"Ceph pool {at}", modes, span=SPAN)


def test_each_mode_has_an_image_that_is_mapped_and_gone_at_the_end(host: CephHost) -> None:
    with build(host, HOST, KRBD, LIBRBD) as layouts:
        names = [name.rsplit("-", 1)[0] for name in host.ours]
        assert names == [f"vms/voh-{RUN}-{mode}" for mode in ("host", "krbd", "librbd")]
        for name, image in host.ours.items():
            assert image["meta"] == {"voh.token": name.rpartition("-")[2]}
            assert image["words"][:4] == ["create", "--size", "16M", "--object-size"]
        assert [image["words"][4] for image in host.ours.values()] == ["4096K", "8192K", "4096K"]
        assert layouts.device.path == "/dev/rbd0"
        assert layouts.guest(KRBD).network is None
        assert layouts.guest(LIBRBD).network == NetworkDisk("rbd", list(host.ours)[2])
        assert layouts.twin(LIBRBD).path == "/dev/rbd2"
    assert host.ours == {}
    assert host.state["mapped"] == {}
    assert host.logged == []


def test_the_device_is_counted_only_if_the_guest_uses_it(host: CephHost) -> None:
    with build(host, HOST, KRBD, LIBRBD) as layouts:
        assert layouts.disks(KRBD) == ("rbd1",)
        assert layouts.disks(LIBRBD) == ()
        assert layouts.shared is not None
        assert layouts.shared.facts == {"cluster": "f00d", "replicas": "3", "librbd": "yes"}
        assert "the difference of the clients" in layouts.shared.notes["librbd"]
        assert "krbd" not in layouts.shared.notes


def leave(host: CephHost) -> None:
    """Images that a killed run has left."""
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(HostError))
        stack.enter_context(build(host, HOST, KRBD))
        host.change_all(up=False)
    host.change_all(up=True)


def test_after_a_kill_reap_removes_the_images_and_nothing_else(host: CephHost) -> None:
    leave(host)
    assert len(host.ours) == 2
    sentences = reap(host, NO_HYPERVISOR, host.logged)
    assert len(sentences) == 2
    assert sentences[0].startswith("removed after a killed run: the image vms/voh-")
    assert list(host.state["images"]) == [THEIRS]
    assert host.state["mapped"] == {}


def test_an_image_of_which_somebody_has_made_a_snapshot_stays(host: CephHost) -> None:
    leave(host)
    state = host.state
    name = next(iter(host.ours))
    state["images"][name]["snapshots"] = [{"name": "kept"}]
    host.state = state
    assert any("somebody has made snapshots of it" in sentence for sentence in reap(host, NO_HYPERVISOR, host.logged))
    assert list(host.ours) == [name]


@pytest.mark.parametrize(("part", "value"), [("id", "feed"), ("meta", {"voh.token": "another"}), ("meta", {})])
def test_another_image_of_the_same_name_stays(host: CephHost, part: str, value: object) -> None:
    leave(host)
    state = host.state
    name = next(iter(host.ours))
    state["images"][name][part] = value
    host.state = state
    assert any("no longer the thing that was created" in each for each in reap(host, NO_HYPERVISOR, host.logged))
    assert list(host.ours) == [name]


def test_nothing_is_removed_from_another_cluster_and_the_record_stays(host: CephHost) -> None:
    leave(host)
    host.change_all(fsid="beef")
    with pytest.raises(HostError, match="it is in pool f00d/4, and pool vms is beef/4 now"):
        reap(host, NO_HYPERVISOR, host.logged)
    assert len(host.ours) == 2
    assert len(host.logged) == 2


def test_an_image_that_was_not_marked_yet_is_known_by_its_name(host: CephHost) -> None:
    leave(host)
    state = host.state
    for name in host.ours:
        state["images"][name]["meta"] = {}
    host.state = state
    for entry in host.logged:
        thing = entry.record | {"id": ""}
        host.log.amend(entry, _image(thing))
    reap(host, NO_HYPERVISOR, host.logged)
    assert host.ours == {}


def _image(record: dict[str, Any]) -> Any:
    return StoredImage(**{**record, "disks": tuple(record["disks"])})


def test_nothing_is_created_in_another_pool_of_the_same_name(host: CephHost) -> None:
    found = look_at(host, "rbd", "vms")
    state = host.state
    state["pools"]["vms"]["id"] = 9
    host.state = state
    with pytest.raises(SafetyError, match="vms was"), build_on_storage(host.log, found, "x", [HOST, KRBD], span=SPAN):
        pass
    assert host.ours == {}


@pytest.mark.parametrize(
    ("at", "why"),
    [("none", "has no pool with this name"), ("files", "not meant for images"), ("cold", "it is not replicated")],
)
def test_a_pool_that_cannot_have_images_is_refused(host: CephHost, at: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        look_at(host, "rbd", at)


def test_the_quota_of_a_pool_limits_its_space(host: CephHost) -> None:
    state = host.state
    state["pools"]["vms"]["quota"] = 11 * GIB
    host.state = state
    with pytest.raises(Unsupported, match="must stay free for others"), build(host, HOST, KRBD):
        pass


def test_librbd_needs_the_driver_of_qemu_and_a_login_of_libvirt(host: CephHost) -> None:
    def refusal(at: str, mode: Mode = LIBRBD) -> str:
        return refuse_on_storage(mode, look_at(host, "rbd", at), FACTS) or ""

    assert refusal("vms") == ""
    assert refusal("vms:id=guests", KRBD) == ""
    assert "virsh secret-define" in refusal("vms:id=guests")
    assert refusal("vms:id=guests:secret=8f1c3c0e-6d1f-4f0a-9c57-1f6d1b0c2a11") == ""
    assert "its layout is lvm" in refusal("vms", Mode("lvm", Lvm(), Attach()))
    host.change_all(qemu=False)
    assert "apt-get install qemu-block-extra" in refusal("vms")


FACTS: Any = None
"""Nothing of the host itself is asked."""


def test_the_notation_of_the_lab_file() -> None:
    pool = CephPool.parse("vms:id=guests:conf=/etc/ceph/b.conf:secret=8f1c3c0e-6d1f-4f0a-9c57-1f6d1b0c2a11")
    assert pool.open_with_qemu("one") == NetworkDisk(
        "rbd", "vms/one", config="/etc/ceph/b.conf", login=("guests", "8f1c3c0e-6d1f-4f0a-9c57-1f6d1b0c2a11")
    )


@pytest.mark.parametrize("at", ["", "a b", "vms:", "vms:id=", "vms:id=x:id=y", "vms:keyring=/x", "vms:conf=x"])
def test_another_notation_is_refused(at: str) -> None:
    with pytest.raises(ConfigError, match='allowed: a pool, for example "vms"'):
        lab_of({"host": {"here": {"kind": "local", "storage": {"mine": {"rbd": at}}}}}, "lab.toml")


def test_init_offers_the_pools_for_images(host: CephHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.features.rbd.CONFIGURATION", "/dev/null")
    offers, _ = find_storages(host, Names())
    assert [(offer.key, offer.at, offer.layouts) for offer in offers if offer.key == "rbd"] == [
        ("rbd", "vms", ("rbd",))
    ]
