"""Definitions of guests and of the system that name a disk: by any path that leads to it, also through images."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.lab.guard import inspect, refusals, require_writable
from harness.lab.inventory import DiskByFile
from harness.lab.transport.base import Completed
from tests.unit.loop_disks import RUNNER, loop, require, sparse

SIZE = 64 << 20


@dataclass
class OtherEtc:
    """This machine with the files of `etc` in place of /etc, in a mount namespace of its own."""

    etc: Path
    block: Path | None = None
    """In place of /sys/class/block, if there is one."""
    name: str = "host here"

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        script = 'mount --bind "$1" /etc && { [ -z "$2" ] || mount --bind "$2" /sys/class/block; } && shift 2 && "$@"'
        bind = ["unshare", "--mount", "sh", "-c", script, "sh", str(self.etc), str(self.block or "")]
        return RUNNER.run([*bind, *argv], deadline=deadline, stdin=stdin, check=check)

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Place:
    """A blank disk on a loop device, and the /etc of its host."""

    directory: Path
    device: str
    etc: Path
    block: Path | None = None

    @property
    def file(self) -> Path:
        return self.directory / "disk.img"

    @property
    def number(self) -> str:
        return Path(f"/sys/class/block/{self.device.rpartition('/')[2]}/dev").read_text().strip()

    def link(self, name: str) -> Path:
        path = self.directory / name
        path.symlink_to(self.device)
        return path

    def write(self, name: str, text: str) -> None:
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        path = self.etc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def domain(self, disk: str, name: str = "db") -> None:
        self.write(f"libvirt/qemu/{name}.xml", f"<domain><name>{name}</name><devices>{disk}</devices></domain>")

    @property
    def refused(self) -> list[str]:
        spec = DiskByFile("loop", self.file, SIZE, destroy=True)
        return refusals(spec, inspect(OtherEtc(self.etc, self.block), self.device))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    require("unshare", "perl")
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("this machine allows no mount namespaces")
    etc = tmp_path / "etc"
    etc.mkdir()
    for needed in ("passwd", "alternatives", "ld.so.cache"):  # awk is a link to one of the alternatives
        subprocess.run(["cp", "-a", f"/etc/{needed}", str(etc)], check=False)
    with loop(sparse(tmp_path / "disk.img", SIZE)) as device:
        yield Place(tmp_path, device, etc)


def block(path: object) -> str:
    return f"<disk type='block' device='disk'><source dev='{path}'/><target dev='vda'/></disk>"


def of_file(path: object) -> str:
    return f'<disk type="file"><source file="{path}"/><target dev="vda"/></disk>'


SPELLINGS: dict[str, Callable[[Place], object]] = {
    "the kernel's name": lambda place: place.device,
    "a link of its owner": lambda place: place.link("vm-disk"),
    "a link with a comma, a blank and a colon": lambda place: place.link("a, b: c"),
    "its number": lambda place: f"/dev/block/{place.number}",
    "two slashes": lambda place: place.device.replace("/dev/", "/dev//"),
    "a dot": lambda place: place.device.replace("/dev/", "/dev/./"),
    "two dots": lambda place: place.device.replace("/dev/", "/dev/../dev/"),
    "entities of XML": lambda place: place.device.replace("/", "&#47;").replace("l", "&#x6c;"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_domain_names_the_disk_by_any_path_that_leads_to_it(place: Place, spelling: str) -> None:
    assert place.refused == []
    place.domain(block(SPELLINGS[spelling](place)))
    (reason,) = place.refused
    assert reason.startswith("a virtual machine or a storage is defined with it: /etc/libvirt/qemu/db.xml names ")


def qcow2(path: Path, *, backing: str = "", data: str = "") -> Path:
    """The header of an image of version 3, as in QEMU's docs/interop/qcow2.rst."""
    extension = struct.pack(">II", 0x44415441, len(data)) + data.encode().ljust(-(-len(data) // 8) * 8, b"\0")
    header = bytearray(104)
    struct.pack_into(">4sIQI", header, 0, b"QFI\xfb", 3, 104 + len(extension) + 8, len(backing))
    struct.pack_into(">I", header, 100, 104)
    path.write_bytes(bytes(header) + extension + bytes(8) + backing.encode())
    return path


def test_an_image_that_is_based_on_the_disk_is_found_through_the_images_between(place: Place) -> None:
    base = qcow2(place.directory / "base.qcow2", backing=str(place.link("a-link")))
    qcow2(place.directory / "snapshot.qcow2", backing=base.name)
    place.domain(of_file(place.directory / "snapshot.qcow2"))
    (reason,) = place.refused
    assert f"snapshot.qcow2, which is based on {base}, which is based on" in reason


def test_images_that_are_based_on_each_other_end(place: Place) -> None:
    qcow2(place.directory / "a.qcow2", backing="b.qcow2")
    qcow2(place.directory / "b.qcow2", backing="a.qcow2")
    place.domain(of_file(place.directory / "a.qcow2"))
    assert place.refused == []


def json_backing(place: Place) -> None:
    inner = f'json:{{"driver":"raw","file":{{"driver":"host_device","filename":"/dev//{place.device[5:]}"}}}}'
    place.domain(of_file(qcow2(place.directory / "json.qcow2", backing=inner)))


def volume_of_a_pool(place: Place) -> None:
    pool = f"<pool type='dir'><name>vms</name><target><path>{place.directory}</path></target></pool>"
    place.write("libvirt/storage/vms.xml", pool)
    place.link("disk-of-db")
    place.domain("<disk type='volume'><source pool='vms' volume='disk-of-db'/></disk>")


DEFINITIONS: dict[str, Callable[[Place], None]] = {
    "the file behind the loop device": lambda place: place.domain(of_file(f"/{place.file}")),
    "a file with the data of a qcow2": lambda place: place.domain(
        of_file(qcow2(place.directory / "data.qcow2", data=str(place.link("data"))))
    ),
    "a base in JSON": json_backing,
    "a volume of a pool of directories": volume_of_a_pool,
    "a section of characters in XML": lambda place: place.write(
        "libvirt/storage/vms.xml", f"<pool><source><device><![CDATA[{place.device}]]></device></source></pool>"
    ),
    "XML in UTF-16": lambda place: place.write_bytes(
        "libvirt/qemu/db.xml", f"<domain>{block(place.device)}</domain>".encode("utf-16")
    ),
    "elements and attributes in a namespace": lambda place: place.domain(
        f'<v:disk xmlns:v="urn:v"><v:source v:dev = "{place.device}"/></v:disk>'
    ),
    "an argument of QEMU": lambda place: place.domain(
        f"<qemu:arg value='driver=host_device,filename=/dev/block/{place.number},node-name=x'/>"
    ),
    "swap space by a link": lambda place: place.write("fstab", f"{place.link('swap')} none swap noauto 0 0\n"),
    "encrypted swap": lambda place: place.write("crypttab", f"swap /dev//{place.device[5:]} /dev/urandom swap,plain\n"),
    "a service that starts a VM": lambda place: place.write(
        "systemd/system/vm.service", f"[Service]\nExecStart=qemu-system-x86_64 -drive file=/dev/./{place.device[5:]}\n"
    ),
    "a guest of Xen": lambda place: place.write("xen/db.cfg", f"disk = [ 'phy:{place.link('xen')},xvda,w' ]\n"),
    "a VM of Proxmox VE": lambda place: place.write(
        "pve/nodes/pve1/qemu-server/100.conf", f"scsi1: {place.link('pve')},size=64M\n"
    ),
    "arguments of a VM of Proxmox VE": lambda place: place.write(
        "pve/nodes/pve1/qemu-server/100.conf", f"args: -drive file=/dev/block/{place.number},if=none\n"
    ),
}


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_other_definitions_that_lead_to_the_disk_are_found(place: Place, definition: str) -> None:
    DEFINITIONS[definition](place)
    if (place.etc / "pve").exists():
        (place.etc / "pve" / "storage.cfg").write_text("dir: local\n\tpath /var/lib/vz\n")
    (reason,) = place.refused
    assert reason.startswith("a virtual machine or a storage is defined with it: ")


def test_definitions_of_other_disks_and_comments_are_no_reason(place: Place) -> None:
    place.domain(block("/dev/null") + block("/dev/not-there") + of_file(place.etc / "passwd"))
    place.domain("<description>see /dev/loop-control</description>", "text")
    place.write("fstab", f"# {place.device} none swap sw 0 0\n/dev/not-there / ext4 defaults 0 1\n")
    place.write("systemd/system/tune.service", f"[Service]\nExecStart=blockdev --setra 0 {place.device}\n")
    assert place.refused == []


def test_another_loop_device_on_the_same_file_uses_the_disk(place: Place) -> None:
    (place.directory / "again").symlink_to(place.file)
    with loop(place.directory / "again") as other:
        (reason,) = place.refused
    name = place.device.rpartition("/")[2]
    assert reason == f"{name} by /sys/block/{other.rpartition('/')[2]}/loop is in use"


def test_a_file_that_its_owner_writes_in_another_way_is_the_same_file(place: Place) -> None:
    if os.getuid() != 0:
        pytest.skip("the guard looks at disks as root")
    (place.directory / "link").symlink_to(place.directory)
    spec = DiskByFile("loop", place.directory / "link" / "disk.img", SIZE, destroy=True)
    assert require_writable(OtherEtc(place.etc), spec, place.device).path == place.device


@pytest.fixture
def scsi(place: Place) -> Place:
    """The same disk as device 2:0:3:1 of SCSI, with a character device, as sysfs shows one."""
    block = place.directory / "block"
    name = place.device.rpartition("/")[2]
    (block / name).mkdir(parents=True)
    real = Path("/sys/class/block") / name
    for path in real.iterdir():
        (block / name / path.name).symlink_to(real.resolve() / path.name)
    generic = place.directory / "2:0:3:1" / "scsi_generic" / "sg9"
    generic.mkdir(parents=True)
    (generic / "dev").write_text("21:9\n")
    (block / name / "device").symlink_to(place.directory / "2:0:3:1")
    place.block = block
    return place


def hostdev(host: int, target: int, unit: int) -> str:
    address = f'<address bus="0" target="{target}" unit="{unit}"/>'
    source = f"<source><adapter name='scsi_host{host}'/>{address}</source>"
    return f"<hostdev mode='subsystem' type='scsi'>{source}</hostdev>"


def test_a_scsi_device_that_a_guest_gets_is_recognised_by_its_place(scsi: Place) -> None:
    scsi.domain(hostdev(2, 3, 0) + hostdev(1, 3, 1) + hostdev(2, 0, 1))
    assert scsi.refused == []
    scsi.domain(hostdev(2, 3, 1))
    (reason,) = scsi.refused
    assert reason.endswith("db.xml names SCSI device 2:0:3:1")


def test_the_character_device_of_a_disk_is_the_disk(scsi: Place) -> None:
    for minor in (8, 9):
        os.mknod(scsi.directory / f"sg{minor}", 0o600 | stat.S_IFCHR, os.makedev(21, minor))
    scsi.domain(block(scsi.directory / "sg8"))
    assert scsi.refused == []
    scsi.domain(block(scsi.directory / "sg9"))
    (reason,) = scsi.refused
    assert reason.endswith(f"db.xml names {scsi.directory}/sg9")
