"""Chains of snapshots: how they are made and filled, what moves through them, and what cannot be measured on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.features.proxmox.layouts import refuse_layout
from harness.layout.storage_files import compute_qcow2_need, create_qcow2, fill_image, list_image_files
from harness.model.attach import Attach
from harness.model.job import Job
from harness.model.layout import Qcow2, amplification
from harness.model.mode import Mode
from harness.model.option import Effective
from harness.results.validity import configuration_check
from tests.unit.granted import pretended
from tests.unit.test_layouts_commands import MIB, Listening
from tests.unit.test_scenario_load import complaint, load

CHAIN = Mode("chain", Qcow2(snapshots=2), Attach())
FILE = """
title = "A chain"
modes = ["host", "chain"]
workloads = ["randread-4k"]
write_rate = "1 GiB/s"

[mode.chain]
layout = { kind = "qcow2", snapshots = 2 }
attach = {}
"""


def test_each_snapshot_is_on_the_one_before_and_the_data_is_at_the_bottom() -> None:
    host = Listening()
    region = pretended("/dev/sda1", host)
    sources = create_qcow2(region, "/m/chain", 64 * MIB, Qcow2(snapshots=2))
    made = [command for command in host.commands if command.startswith("qemu-img create")]
    assert [command.partition("lazy_refcounts=off")[2] for command in made] == [
        f",preallocation=metadata /m/chain.qcow2 {64 * MIB}",
        " -b /m/chain.qcow2 -F qcow2 /m/chain-1.qcow2",
        " -b /m/chain-1.qcow2 -F qcow2 /m/chain-2.qcow2",
    ]
    assert sources.guest.path == "/m/chain-2.qcow2"
    fill_image(sources)
    assert host.commands[-1].endswith(" /m/chain.raw /m/chain.qcow2")


def test_an_image_without_snapshots_is_filled_itself() -> None:
    host = Listening()
    sources = create_qcow2(pretended("/dev/sda1", host), "/m/plain", 64 * MIB, Qcow2())
    fill_image(sources)
    assert (sources.guest.path, sources.guest.data) == ("/m/plain.qcow2", None)
    assert host.commands[-1].endswith(" /m/plain.raw /m/plain.qcow2")


def test_there_is_room_for_what_the_guest_writes_on_top() -> None:
    plain, chain = (compute_qcow2_need(Qcow2(snapshots=number)).bytes(64 * MIB) for number in (0, 2))
    assert chain - plain >= 64 * MIB
    assert list_image_files("chain", Qcow2(snapshots=2)) == ["chain.qcow2", "chain-1.qcow2", "chain-2.qcow2"]


def test_the_first_write_to_a_cluster_copies_it() -> None:
    small = Job("randwrite", 4096, iodepth=1, ramp=0, seconds=1)
    found, plain = amplification(Qcow2(snapshots=2), small), amplification(Qcow2(), small)
    assert found.most_written > 16 > plain.most_written
    assert found.read_for_write > 16 > plain.read_for_write


@pytest.mark.parametrize(("depth", "ok"), [(2, True), (0, False), (1, False)])
def test_the_depth_is_read_back(depth: int, *, ok: bool) -> None:
    check = configuration_check(CHAIN, Effective(qemu_backing_files=depth))
    assert check is not None
    assert check.ok is ok


def test_reads_beside_writes_are_refused(tmp_path: Path) -> None:
    assert load(tmp_path, FILE).modes[1].layout == Qcow2(snapshots=2)
    (line,) = complaint(tmp_path, FILE.replace('"randread-4k"', '"randread-4k", "randwrite-4k"'))
    assert line.startswith('mode.chain.layout.snapshots = 2: conflicts with "randwrite-4k" beside "randread-4k"')
    assert refuse_layout(Qcow2(snapshots=1)) == "virt-overhead makes chains of snapshots only on a host with libvirt"
    assert refuse_layout(Qcow2()) is None
