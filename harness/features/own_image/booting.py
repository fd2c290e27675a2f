"""Guests from a disk image on the host, which is never written to: its layer, and what cloud-init does."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal
from xml.etree import ElementTree as ET

from harness.errors import GuestError, HostError, Unsupported
from harness.events import Events, Note
from harness.files import read_script
from harness.guest.booting import Started
from harness.guest.libvirt.domain import DriveNames, RootBus, UsedIds
from harness.image.keys import KEY_NAME, make_key, read_public_key
from harness.lab.created import CreationLog, HostThing, RandomName, fenced
from harness.lab.pin import STATE_DIRECTORY, why_unsafe
from harness.lab.transport.base import Runner, whole
from harness.model.guest import FIO_DIRECTORY, INSTALL, INSTALLED_FIO, Firmware, GuestOptions
from harness.model.option import Effective
from harness.untrusted import parse_json

if TYPE_CHECKING:
    from harness.guest.libvirt.guest import RunningDomain, ToStart

READY_SECONDS = 300.0
_COPY_SECONDS = 300.0
_RESULT = "/run/cloud-init/result.json"

_WAIT = read_script("harness.features.own_image", "wait_for_cloud_init.sh", RESULT=_RESULT)
_INSTALL = read_script("harness.features.own_image", "install_fio.sh")
BOOT_SECONDS = {"kvm": 240.0, "tcg": 900.0}
"""cloud-init prepares the system before its SSH server starts."""
_ALIASES = ("ua-voh-system", "ua-voh-seed")
_PREFIX = "vd"
_GUESTS = f"{STATE_DIRECTORY}/guests"
_FORMATS = ("qcow2", "raw")
_SEED = "seed"
_NO_PROGRAM, _NO_FAT = 3, 4

_READ_IMAGE = rf"""
command -v qemu-img >/dev/null || exit {_NO_PROGRAM}
qemu-img --help | grep -qw vvfat || exit {_NO_FAT}
exec qemu-img info --force-share --output=json "$1"
"""

_MAKE_IMAGE = read_script("harness.features.own_image", "create_own_image.sh")


@dataclass(frozen=True, slots=True)
class HostKey:
    """The SSH host key that a guest gets."""

    private: str
    public: str


def build_user_data(authorized_key: str, host_key: HostKey) -> str:
    """The user data of a guest: root logs in with the key, and the guest shows this host key. Pure.

    Everything that takes time and does not change how disks perform is off. JSON is YAML.
    """
    settings = {
        "users": [],
        "disable_root": False,
        "ssh_pwauth": False,
        "ssh_authorized_keys": [authorized_key],
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": host_key.private, "ed25519_public": host_key.public},
        "growpart": {"mode": "off"},
        "resize_rootfs": False,
        "package_update": False,
        "package_upgrade": False,
    }
    return f"#cloud-config\n{json.dumps(settings, indent=1)}\n"


def wait_until_set_up(runner: Runner, events: Events) -> None:
    """Wait until cloud-init is done in the guest. A note has what it reports as failed.

    Raises GuestError if it is not done in time.
    """
    words = ["sh", "-s", "--", str(round(READY_SECONDS))]
    try:
        done = runner.run(words, stdin=_WAIT, deadline=READY_SECONDS + 60, check=False)
    except HostError as error:
        raise GuestError(f"{runner.name}: it stopped answering while cloud-init set it up") from error
    if done.status != 0:
        raise GuestError(
            f"{runner.name}: cloud-init was not done within {READY_SECONDS:.0f} s after the first login",
            hint="look at /var/log/cloud-init.log in a guest of the image",
        )
    if failed := parse_errors(done.stdout, runner.name):
        events(Note(f"{runner.name}: cloud-init reports: {'; '.join(failed)}"))


def parse_errors(printed: str, guest: str) -> list[str]:
    """The errors in cloud-init's result. Raises GuestError if it is not JSON. Pure."""
    document = parse_json(printed, f"{guest}: {_RESULT}", GuestError)
    result = document.get("v1", {}) if isinstance(document, dict) else {}
    errors = result.get("errors", []) if isinstance(result, dict) else []
    return [str(error) for error in errors] if isinstance(errors, list) else []


def install_fio(runner: Runner, archive: Path) -> None:
    """Copy virt-overhead's own fio into the guest. Raises HostError."""
    runner.run(["mkdir", "-p", FIO_DIRECTORY], deadline=30)
    runner.put(archive, f"{FIO_DIRECTORY}/fio.tar", deadline=_COPY_SECONDS)
    runner.run(["sh", "-s", "--", FIO_DIRECTORY], stdin=_INSTALL, deadline=60)


@dataclass(frozen=True, slots=True)
class SystemFiles:
    """What a guest of a disk image boots from: the files in a directory on the host, made for this guest only."""

    directory: str
    firmware: Firmware = "bios"

    @property
    def layer(self) -> str:
        """The copy-on-write layer on top of the image."""
        return f"{self.directory}/system.qcow2"

    @property
    def seed(self) -> str:
        """The disk with the data for cloud-init."""
        return f"{self.directory}/seed.img"

    @property
    def variables(self) -> str:
        """The variables of UEFI. libvirt creates the file."""
        return f"{self.directory}/variables.fd"

    def add_firmware(self, system: ET.Element) -> None:
        """Add the firmware. BIOS is the default. libvirt chooses a UEFI that boots systems without a signature, too."""
        if self.firmware == "uefi":
            system.set("firmware", "efi")
            ET.SubElement(ET.SubElement(system, "firmware"), "feature", enabled="no", name="secure-boot")
            ET.SubElement(system, "nvram").text = self.variables

    def add_disks(self, devices: ET.Element, bus: RootBus) -> UsedIds:
        """Add both disks of the system. Returns the names that they have.

        Nothing survives the guest, so nothing is flushed: what the system itself writes disturbs the measurement least.
        """
        names = DriveNames()
        taken = []
        for alias, path, image_format in zip(_ALIASES, (self.layer, self.seed), ("qcow2", "raw"), strict=True):
            disk = ET.SubElement(devices, "disk", type="file", device="disk")
            driver = {"name": "qemu", "type": image_format, "discard": "unmap", "detect_zeroes": "off"}
            ET.SubElement(disk, "driver", driver | {"cache": "unsafe", "io": "threads"})
            ET.SubElement(disk, "source", file=path)
            taken.append(names.next(_PREFIX))
            ET.SubElement(disk, "target", dev=taken[-1], bus="virtio")
            if path == self.seed:
                ET.SubElement(disk, "readonly")
            else:
                ET.SubElement(disk, "boot", order="1")
            bus.place(disk)
            ET.SubElement(disk, "serial").text = alias.removeprefix("ua-")
            ET.SubElement(disk, "alias", name=alias)
        return UsedIds(names=frozenset(taken))


class GuestSystemFiles(HostThing):
    """The directory with what a guest of a disk image boots from. Its name is known to nobody else."""

    kind: Literal["guest-system"] = "guest-system"
    directory: RandomName

    removal: ClassVar[str] = r"""
[ -d "$1" ] || { echo absent; exit 0; }
cd "$1" && rm -rf seed && rm -f seed.img system.qcow2 variables.fd && cd / || exit
rmdir "$1" 2>/dev/null && echo removed || echo "foreign: $1 has files of others"
"""

    @property
    def words(self) -> str:
        return f"the system of a guest in {self.directory}"


def read_system(live: ET.Element) -> Effective:
    """Image and firmware of the guest that runs as `live`. Nothing for a guest without a disk for its system."""
    for disk in live.iterfind("devices/disk"):
        alias, below = disk.find("alias"), disk.find("backingStore/source")
        if alias is not None and alias.get("name") == _ALIASES[0]:
            uefi = live.find("os/loader") is not None
            image = below.get("file") if below is not None else None
            return Effective(qemu_image=image, qemu_firmware="uefi" if uefi else "bios")
    return Effective()


def refuse_image(options: GuestOptions, runner: Runner) -> str | None:
    """Why the host cannot boot guests from the requested image, with the remedy; None if it can or need not."""
    if options.image is None:
        return None
    try:
        read_image_format(runner, options.image)
    except Unsupported as error:
        return error.message
    return None


def read_image_format(runner: Runner, image: str) -> str:
    """The format of the image on the host. Raises Unsupported, with the remedy, if guests cannot be booted from it."""
    done = runner.run(["sh", "-c", _READ_IMAGE, "sh", image], deadline=60, check=False)
    why = {
        _NO_PROGRAM: "qemu-img is not installed there, which makes the guest's disks: apt-get install qemu-utils",
        _NO_FAT: "qemu-img there cannot make a FAT disk for cloud-init (vvfat): measure on a host whose QEMU has it, "
        "such as Debian's, Ubuntu's or Fedora's",
    }.get(done.status)
    if why is None and done.status != 0:
        why = f"qemu-img cannot read it: {done.stderr.strip() or 'it gave no reason'}: correct the path, or the image"
    if why is None:
        image_info = parse_json(done.stdout, f"{runner.name}: qemu-img about {image}", HostError)
        format_name = image_info.get("format") if isinstance(image_info, dict) else None
        unsafe = why_unsafe(runner, image)
        if format_name in _FORMATS and unsafe is None:
            return str(format_name)
        why = unsafe and (
            f"another user could exchange it for one that refers to files of root: {unsafe}: copy it to a directory "
            "that only root can change"
        )
        why = why or f"its format is {format_name}: convert it with qemu-img convert -O qcow2"
    raise Unsupported(f'image = "{image}": {why}')


@contextmanager
def create_system_files(
    log: CreationLog, options: GuestOptions, authorized_key: str, host_key: HostKey
) -> Iterator[SystemFiles]:
    """What a new guest of the requested image boots from. It is removed at the end. Raises Unsupported, HostError."""
    if options.image is None:
        raise GuestError("no image is requested for this guest")
    source_format = read_image_format(log.runner, options.image)
    files = SystemFiles(f"{_GUESTS}/{uuid.uuid4()}", options.firmware or "bios")
    # QEMU shows a directory as a FAT disk. cloud-init looks for this label.
    seed = {"driver": "vvfat", "dir": _SEED, "floppy": True, "label": "cidata"}
    with log.making_here(GuestSystemFiles(directory=files.directory)) as entry:
        arguments = [files.directory, options.image, source_format, f"json:{json.dumps(seed)}"]
        make = ["sh", "-c", _MAKE_IMAGE, "sh", *arguments]
        given = build_user_data(authorized_key, host_key)
        log.runner.run(fenced(entry, whole(make, given)), stdin=given, deadline=120)
        yield files


def create_key() -> tuple[str, str]:
    """A new private key in OpenSSH's format, and its public key, for one guest. They are in no file afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        private = Path(directory) / KEY_NAME
        make_key(private)
        return private.read_text(encoding="ascii"), read_public_key(private)


@contextmanager
def start_from_image(guest: ToStart) -> Iterator[Started[RunningDomain]]:
    """A guest from the requested disk image, when cloud-init is done. It ends with the block, and its layer is removed.

    Raises Unsupported, with the remedy, if no guest can be booted from the image, HostError and GuestError.
    """
    from harness.guest.libvirt.guest import log_in  # noqa: PLC0415 - its caller has libvirt's binding; `reap` may not

    key = HostKey(*create_key())
    files, options = guest.host.guest_files, guest.spec.options
    with ExitStack() as stack:
        system = stack.enter_context(create_system_files(guest.log, options, read_public_key(files.key), key))
        guest = replace(guest, spec=replace(guest.spec, system=system))
        domain, runner = stack.enter_context(log_in(guest, key.public, BOOT_SECONDS))
        wait_until_set_up(runner, guest.events)
        fio = options.fio or "fio"
        if fio == INSTALL:
            install_fio(runner, files.fio)
            fio = INSTALLED_FIO
        yield Started(domain, runner, fio=fio)
