"""A qcow2 image whose data is in a file of its own, and throttle groups: what is made, asked for and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.features.proxmox.layouts import refuse_layout
from harness.features.proxmox.vm_config import refuse_drive
from harness.guest.libvirt.requirements import Versions, refuse_attach, refuse_mode, refuse_unoffered
from harness.layout.storage_files import create_qcow2
from harness.model.attach import Attach, Server
from harness.model.layout import Qcow2
from harness.model.mode import Mode
from harness.model.option import Effective
from harness.results.validity import configuration_check
from tests.unit.granted import pretended
from tests.unit.test_layouts_commands import MIB, Listening
from tests.unit.test_scenario_load import complaint, load

APART = Qcow2(data_file=True)
FILE = """
title = "Tables apart from data"
modes = ["host", "own", "other"]
workloads = ["randread-4k"]
write_rate = "1 GiB/s"

[mode.own]
layout = { kind = "qcow2", data_file = true }
attach = { iops = 1000, throttle_group = "both" }

[mode.other]
layout = { kind = "qcow2" }
attach = { iops = 1000, throttle_group = "both" }
"""


def test_the_image_has_the_tables_and_the_other_file_the_data() -> None:
    host = Listening()
    sources = create_qcow2(pretended("/dev/sda1", host), "/m/q", 64 * MIB, APART)
    (create,) = (command for command in host.commands if command.startswith("qemu-img create"))
    assert ",preallocation=metadata,data_file=/m/q.data,data_file_raw=on /m/q.qcow2" in create
    assert (sources.guest.path, sources.guest.data_file, sources.twin.path) == ("/m/q.qcow2", "/m/q.data", "/m/q.raw")


@pytest.mark.parametrize("found", [True, False])
def test_the_data_file_is_read_back(*, found: bool) -> None:
    check = configuration_check(Mode("own", APART, Attach()), Effective(qemu_data_file=found))
    assert check is not None
    assert check.ok is found


def test_a_group_is_read_back() -> None:
    mode = Attach(iops=1000, throttle_group="both")
    for group, ok in (("both", True), ("ua-own", False)):
        check = configuration_check(mode, Effective(qemu_throttle_group=group))
        assert check is not None
        assert check.ok is ok


def test_a_host_that_lacks_them_says_which_version_has_them() -> None:
    debian_12 = Versions(9_000_000, 7_002_000)
    why = refuse_mode(Mode("own", APART, Attach()), debian_12)
    assert why is not None
    assert why.startswith("data_file needs libvirt 10.10.0, but the host has 9.0.0")
    assert refuse_attach(Attach(iops=1, throttle_group="both"), debian_12, cpus=4) is None
    assert refuse_layout(APART) == "Proxmox VE has no option for a data file of qcow2"


@pytest.mark.parametrize(
    ("server", "old", "new"),
    [
        ("ublk", "no release of QEMU serves a disk by ublk", "no release of QEMU serves a disk by ublk"),
        ("nvme-io_uring", "needs QEMU 7.2.0, but the host has 7.0.0", "no release of libvirt can request it"),
        ("vhost-vdpa", "needs libvirt 9.8.0, but the host has 9.0.0", "it needs a device /dev/vhost-vdpa-N"),
    ],
)
def test_ways_that_no_host_offers_are_skipped_with_a_reason(server: Server, old: str, new: str) -> None:
    for versions, said in ((Versions(9_000_000, 7_000_000), old), (Versions(12_000_000, 11_000_000), new)):
        assert said in (refuse_unoffered(Attach("virtio-blk", server=server), versions) or "")
    assert refuse_unoffered(Attach("virtio-blk", server="storage-daemon"), Versions(1, 1)) is None
    assert 'server = "' in (refuse_drive(Attach("virtio-blk", server=server)) or "")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("data_file = true", "data_file = true, snapshots = 2", "data_file = true conflicts with layout.snapshots = 2"),
        ("{ iops = 1000, throttle_group", "{ throttle_group", "attach.throttle_group"),
        ("true }\nattach = { iops = 1000", "true }\nattach = { iops = 5", "has other limits in the same group"),
        ('"both" }\n\n', '"Both" }\n\n', "attach.throttle_group"),
    ],
)
def test_mistakes_are_reported(before: str, after: str, said: str, tmp_path: Path) -> None:
    assert [mode.name for mode in load(tmp_path, FILE).modes] == ["host", "own", "other"]
    lines = complaint(tmp_path, FILE.replace(before, after))
    assert any(said in line for line in lines), lines
