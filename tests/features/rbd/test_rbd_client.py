"""A guest whose QEMU opens an image of Ceph: its XML, and what is read back."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from harness.guest.libvirt.domain import build_domain_xml
from harness.guest.libvirt.effective import parse_process
from harness.guest.protocol import GuestDisk
from harness.lab.facts import HostFacts
from harness.layout import BlockSource, NetworkDisk
from harness.model.attach import Attach
from harness.model.layout import Rbd, find_missing_requirement
from harness.model.mode import Mode
from tests.unit.test_domain import guest

SECRET = "8f1c3c0e-6d1f-4f0a-9c57-1f6d1b0c2a11"
COMMAND_LINE = """argument\t-blockdev
argument\t{"driver":"rbd","pool":"vms","image":"one","node-name":"libvirt-1-storage","discard":"unmap"}
argument\t-blockdev
argument\t{"node-name":"libvirt-1-format","driver":"raw","file":"libvirt-1-storage","discard":"unmap"}
argument\t-blockdev
argument\t{"driver":"host_device","filename":"/dev/rbd0","aio":"native","node-name":"libvirt-2-storage"}
"""


def disk_of(network: NetworkDisk) -> ET.Element:
    source = BlockSource("/dev/rbd0", "block", 0, 64 << 20, network=network)
    domain = ET.fromstring(build_domain_xml(guest(GuestDisk("librbd", source, Attach()))))
    (disk,) = domain.iterfind("devices/disk")
    return disk


def test_qemu_opens_the_image_by_its_name_and_not_the_device_of_the_host() -> None:
    disk = disk_of(NetworkDisk("rbd", "vms/one", config="/etc/ceph/b.conf", login=("guests", SECRET)))
    assert disk.get("type") == "network"
    (source,) = disk.iterfind("source")
    assert source.attrib == {"protocol": "rbd", "name": "vms/one"}
    (config,), (auth,), (secret,) = (source.findall(path) for path in ("config", "auth", "auth/secret"))
    assert config.attrib == {"file": "/etc/ceph/b.conf"}
    assert auth.attrib == {"username": "guests"}
    assert secret.attrib == {"type": "ceph", "uuid": SECRET}


def test_the_client_has_a_cache_and_no_engine_of_the_kernel() -> None:
    (driver,) = disk_of(NetworkDisk("rbd", "vms/one")).iterfind("driver")
    assert driver.get("cache") == "none"
    assert "io" not in driver.attrib


def test_the_driver_of_the_network_is_read_back() -> None:
    process = parse_process(COMMAND_LINE)
    assert process.network("libvirt-1-format") == "rbd"
    assert process.network("libvirt-2-storage") is None
    assert process.aio("libvirt-1-format") is None
    assert process.discard("libvirt-1-format") == "unmap"


def test_an_image_is_never_on_a_disk_under_test() -> None:
    why = find_missing_requirement(Rbd(), HostFacts({"tool_rbd": "/usr/bin/rbd", "tool_ceph": "/usr/bin/ceph"}))
    assert why == "an image of Ceph RBD can only be on a storage in use: name one in the lab file, by the key rbd"


def test_what_must_be_read_back_depends_on_the_client() -> None:
    krbd, librbd = (Mode(client, Rbd(client=client), Attach()).expected for client in ("krbd", "librbd"))
    assert (krbd.qemu_block_driver, krbd.aio) == (None, "native")
    assert (librbd.qemu_block_driver, librbd.aio, librbd.qemu_aio) == ("rbd", None, None)
