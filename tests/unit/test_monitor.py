"""Which of QEMU's block devices a disk of ours is, and which of libvirt's: by alias and serial, on every bus."""

from __future__ import annotations

import json
import threading
from typing import Any, cast

import libvirt
import libvirt_qemu
import pytest

from harness.errors import GuestError
from harness.guest.libvirt.connection import Connection, ask, find_device_entry

# As QEMU 10 answers `query-blockstats`, without what nothing here reads: a SCSI disk, a virtio-blk one, a SATA one,
# and a node that no device has.
BLOCKSTATS: list[dict[str, Any]] = json.loads(
    """
    [
      {"device": "", "qdev": "scsi0-0-0-0", "node-name": "libvirt-4-format",
       "stats": {"rd_bytes": 1048576, "wr_bytes": 0, "rd_operations": 16}},
      {"device": "", "qdev": "/machine/peripheral/virtio-disk1/virtio-backend", "node-name": "libvirt-3-format",
       "stats": {"rd_bytes": 4096, "wr_bytes": 8192, "rd_operations": 1}},
      {"device": "", "qdev": "/machine/peripheral/virtio-disk10/virtio-backend", "node-name": "libvirt-2-format",
       "stats": {"rd_bytes": 10, "wr_bytes": 10, "rd_operations": 1}},
      {"device": "", "qdev": "sata0-0-2", "node-name": "libvirt-1-format",
       "stats": {"rd_bytes": 0, "wr_bytes": 512, "rd_operations": 0}},
      {"device": "", "node-name": "libvirt-1-storage", "stats": {"rd_bytes": 99, "wr_bytes": 99}}
    ]
    """
)


@pytest.mark.parametrize(
    ("alias", "node"),
    [
        ("scsi0-0-0-0", "libvirt-4-format"),
        ("virtio-disk1", "libvirt-3-format"),
        ("virtio-disk10", "libvirt-2-format"),
        ("sata0-0-2", "libvirt-1-format"),
    ],
)
def test_a_device_is_found_by_libvirts_alias_on_every_bus(alias: str, node: str) -> None:
    found = find_device_entry(alias, BLOCKSTATS)
    assert found is not None
    assert found["node-name"] == node


@pytest.mark.parametrize("alias", ["virtio-disk", "scsi0-0-0", "sata0-0-1", "sata"])
def test_a_part_of_a_name_is_not_a_device(alias: str) -> None:
    assert find_device_entry(alias, BLOCKSTATS[:-1]) is None


def test_a_path_from_the_root_is_found_as_well() -> None:
    entry = {"qdev": "/machine/peripheral/scsi0-0-0-0", "stats": {}}
    assert find_device_entry("scsi0-0-0-0", [entry]) is entry


class Connected:
    host = "kvm1"


def test_a_qemu_that_does_not_answer_is_reported_as_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr("harness.guest.libvirt.connection._SECONDS", 0.1)
    monkeypatch.setattr(libvirt_qemu, "qemuMonitorCommand", lambda *_: released.wait(300))
    with pytest.raises(GuestError, match="host kvm1: QEMU did not answer query-blockstats within 100 ms"):
        ask(cast(Connection, Connected()), None, "query-blockstats")
    released.set()


def test_a_refusal_has_the_text_of_libvirt() -> None:
    # libvirt's own test driver runs domains without a monitor.
    handle = libvirt.open("test:///default")
    try:
        with pytest.raises(GuestError, match=r"host kvm1: QEMU did not get the command query-blockstats: \S+"):
            ask(cast(Connection, Connected()), handle.lookupByName("test"), "query-blockstats")
    finally:
        handle.close()
