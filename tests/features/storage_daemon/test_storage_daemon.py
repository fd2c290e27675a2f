"""Disks of a storage daemon: its arguments, what is read back of it, and that nothing of it is left."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.config.names import RunId
from harness.features.storage_daemon.serving import DaemonProcess, make_options, parse_served, serve_disk
from harness.guest.protocol import GuestDisk
from harness.guest.qemu_process import Engines, InspectedProcess
from harness.lab.created import CreationLog, read_log
from harness.lab.transport.local import LocalRunner
from harness.layout import BlockSource
from harness.measure.reap import HOST_THINGS
from harness.model.attach import Attach
from harness.results.validity import configuration_check
from tests.unit.granted import granted
from tests.unit.processes import ends

RUN = RunId("20260101-000000-abcd")
SERVED = Attach("virtio-blk", server="storage-daemon")
DEVICE = BlockSource("/dev/disk/by-id/nvme-900P", "block", 0, 1 << 26)
QCOW2 = BlockSource("/mnt/a.qcow2", "file", 0, 1 << 26, format="qcow2")

# Starts as the daemon does, and leaves a process with its arguments.
PROGRAM = """#!/bin/sh
python3 -c 'import time; time.sleep(60)' "$@" >/dev/null 2>&1 &
echo $! >"$3"
"""


def arguments(attach: Attach, source: BlockSource = DEVICE) -> tuple[str, ...]:
    options = make_options(GuestDisk("own", source, attach), attach, "/run/socket", queues=2)
    return tuple(word for option, value in options for word in (f"--{option}", json.dumps(value)))


@pytest.mark.parametrize("source", [DEVICE, QCOW2])
@pytest.mark.parametrize(
    "attach",
    [
        SERVED,
        replace(SERVED, cache="directsync", aio="io_uring"),
        replace(SERVED, cache="unsafe", aio="threads", iothread=False),
        replace(SERVED, discard="unmap", detect_zeroes="unmap", poll_max_ns=0),
    ],
)
def test_what_the_daemon_is_asked_for_is_read_back(attach: Attach, source: BlockSource) -> None:
    found = parse_served(InspectedProcess(arguments(attach, source), Engines({"native": 1, "io_uring": 1})))
    check = configuration_check(attach, found)
    assert check is not None
    assert check.ok, check.detail
    assert found.qemu_block_driver == source.format


def test_an_engine_that_the_daemon_never_set_up_is_read_back() -> None:
    process = InspectedProcess(arguments(SERVED), Engines({"native": 0, "io_uring": 0}))
    assert parse_served(process).qemu_aio == "threads"


def test_the_daemon_has_a_queue_for_each_vcpu_unless_the_mode_requests_others() -> None:
    queues = [json.loads(arguments(each)[-1])["num-queues"] for each in (SERVED, replace(SERVED, queues=7))]
    assert queues == [2, 7]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GuestDisk:
    """A file, and a program that stands for the daemon."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "qemu-storage-daemon").write_text(PROGRAM)
    (programs / "qemu-storage-daemon").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    image = tmp_path / "disk"
    image.write_bytes(b"\0" * 4096)
    return GuestDisk("own", BlockSource(str(image), "file", 0, 4096, grant=granted(str(image), LocalRunner())), SERVED)


def test_a_daemon_is_recorded_and_ended_with_its_socket(disk: GuestDisk, tmp_path: Path) -> None:
    log = CreationLog(LocalRunner(), RUN, str(tmp_path / "created"))
    with serve_disk(log, disk, 1) as daemon:
        pid = int(Path(daemon.pid_file).read_text())
        assert daemon.read_effective(LocalRunner()).qemu_block_driver == "raw"
        (entry,) = read_log(LocalRunner(), str(tmp_path / "created"))
        thing = entry.parsed(HOST_THINGS)
        assert isinstance(thing, DaemonProcess)
        assert thing.directory == daemon.directory
    assert ends(pid)
    assert not Path(daemon.directory).exists()
    assert read_log(LocalRunner(), str(tmp_path / "created")) == []
    assert thing.remove(LocalRunner()).outcome == "absent"
