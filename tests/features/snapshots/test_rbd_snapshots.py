"""Snapshots of images of Ceph on a host with libvirt: taken, removed, and left by a killed run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from harness.errors import HostError, Unsupported
from harness.features.snapshots.measuring import Taker, VolumeSnapshot, open_taker
from harness.features.snapshots.request import PlannedSnapshots, Snapshots
from harness.lab.inventory import DiskByStorage, HostSpec
from harness.layout.build import Layouts
from harness.measure.reap import reap
from harness.measure.session import Session
from harness.model.job import Job
from harness.model.mode import Cell, Mode
from tests.features.rbd.test_rbd_images import HOST, KRBD, LIBRBD, CephHost, build
from tests.unit.loop_disks import NO_HYPERVISOR
from tests.unit.storage_doubles import GIB
from tests.unit.test_measure_blocks import READ, WRITE, session

SPEC = HostSpec("here", "local", ssh=None, disks=(), stored=(DiskByStorage("ceph", key="rbd", at="vms"),))


@pytest.fixture
def host(tmp_path: Path) -> CephHost:
    return CephHost(tmp_path)


def in_session(host: CephHost, layouts: Layouts) -> Session:
    of_here = session(__file__, "none", counted=False, version="fio-3.39")
    return replace(of_here, host=replace(of_here.host, spec=SPEC, runner=cast("Any", host)), layouts=layouts)


def plan(mode: Mode, job: Job) -> PlannedSnapshots:
    return PlannedSnapshots(group="g", name="pause", cells=(Cell("s", "ceph", mode, job),), snapshots=Snapshots())


@contextmanager
def taking(host: CephHost, mode: Mode, job: Job = WRITE) -> Iterator[Taker]:
    with build(host, HOST, mode) as layouts, open_taker(plan(mode, job), in_session(host, layouts), host.log) as taker:
        yield taker


def list_taken(host: CephHost) -> list[tuple[str, int]]:
    """The mode of each image of the run that has snapshots, and their number."""
    return [(name.split("-")[-2], len(image["snapshots"])) for name, image in host.ours.items() if image["snapshots"]]


@pytest.mark.parametrize("mode", [KRBD, LIBRBD], ids=lambda mode: mode.name)
def test_a_snapshot_of_the_image_comes_and_goes_for_both_clients(host: CephHost, mode: Mode) -> None:
    with taking(host, mode) as taker:
        assert taker.kind == "snapshot of an RBD image"
        for _ in range(2):
            taker.take()
            assert list_taken(host) == [(mode.name, 1)]
            taker.remove()
            assert list_taken(host) == []
    assert host.ours == {}
    assert host.logged == []


def test_the_last_snapshot_is_removed_before_its_image(host: CephHost) -> None:
    with taking(host, KRBD) as taker:
        taker.take()
    assert host.ours == {}
    assert host.logged == []


def test_after_a_kill_reap_removes_the_snapshot_and_then_the_image(host: CephHost) -> None:
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(HostError))
        stack.enter_context(taking(host, KRBD)).take()
        host.change_all(up=False)
    host.change_all(up=True)
    assert list_taken(host) == [("krbd", 1)]
    sentences = reap(host, NO_HYPERVISOR, host.logged)
    assert sentences[0].startswith("removed after a killed run: the snapshot voh-")
    assert (host.ours, host.logged) == ({}, [])


def test_a_snapshot_of_others_keeps_the_image(host: CephHost) -> None:
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(HostError, match="somebody has made snapshots of it"))
        stack.enter_context(taking(host, KRBD)).take()
        state = host.state
        name = next(name for name in host.ours if "-krbd-" in name)
        state["images"][name]["snapshots"].append({"id": 5, "name": "theirs"})
        host.state = state
    assert [taken["name"] for image in host.ours.values() for taken in image["snapshots"]] == ["theirs"]


def test_a_snapshot_or_an_image_that_is_gone_is_absent(host: CephHost) -> None:
    with build(host, HOST, KRBD):
        (image,) = (name for name in host.ours if "-krbd-" in name)
        for of in (image, "vms/nothing"):
            thing = VolumeSnapshot(disks=(), system="rbd", of=of, name="voh-1", settings="vms")
            assert thing.remove(host).outcome == "absent"


def test_a_pool_without_room_for_what_is_overwritten_is_refused(host: CephHost) -> None:
    with build(host, HOST, KRBD) as layouts:
        host.change_all(pools={"vms": {"id": 4, "stored": 10 * GIB, "free": 1 << 20}})
        at = in_session(host, layouts)
        with (
            pytest.raises(Unsupported, match="what is overwritten under a snapshot"),
            open_taker(plan(KRBD, WRITE), at, host.log),
        ):
            pass
        with open_taker(plan(KRBD, READ), at, host.log) as taker:
            assert taker.kind == "snapshot of an RBD image"
