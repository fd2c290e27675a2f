"""Guests from a disk image of others: what is refused, what the guest gets, what is made on the host and removed."""

from __future__ import annotations

import json
import stat
import uuid
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from harness.config.names import RunId
from harness.errors import GuestError, Unsupported
from harness.features.own_image import booting
from harness.features.own_image.booting import (
    GuestSystemFiles,
    HostKey,
    build_user_data,
    create_system_files,
    parse_errors,
    read_system,
    refuse_image,
)
from harness.guest.booting import LinuxInside, look_inside_linux
from harness.guest.libvirt.requirements import _refuse_firmware
from harness.lab.created import CreationLog, read_log
from harness.lab.transport.local import LocalRunner
from harness.model.attach import Attach
from harness.model.guest import INSTALLED_FIO, GuestOptions, find_guest_problems
from harness.model.option import Bus

HERE = LocalRunner("host here")
KEY = HostKey("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n", "ssh-ed25519 HOST")
IMAGE = "/images/debian.qcow2"
DEBIAN = GuestOptions(image=IMAGE)
SYSTEM = {"user": "0", "fio": "fio-3.39", "os": "debian ", "virtio_scsi": "yes", "virtio_blk": "yes"}
RUN = RunId("20260101-000000-abcd")

# It says what the real one says, and notes what it was asked for.
QEMU_IMG = r"""#!/bin/sh
case $1 in
--help) echo "Supported formats: qcow2 raw $FORMATS" ;;
info) [ -z "$BROKEN" ] || { echo "$BROKEN" >&2; exit 1; }; echo "{\"format\": \"$FORMAT\"}" ;;
convert) echo "$@" >seed.img; cat seed/user-data seed/meta-data >>seed.img ;;
create) echo "$@" >system.qcow2 ;;
esac
"""


@pytest.fixture
def qemu_img(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A qemu-img that reads every image as qcow2, and can make a FAT disk. Its variables change that."""
    program = tmp_path / "bin" / "qemu-img"
    program.parent.mkdir()
    program.write_text(QEMU_IMG)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    for name, value in {"FORMATS": "vvfat", "FORMAT": "qcow2", "BROKEN": ""}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


# --- what is requested ---


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            GuestOptions(image=IMAGE, kernel="/boot/vmlinuz"),
            f'kernel = "/boot/vmlinuz": conflicts with image = "{IMAGE}"',
        ),
        (GuestOptions(firmware="uefi"), 'firmware = "uefi": conflicts with image left out'),
        (GuestOptions(fio="install", initramfs="/boot/initrd"), 'fio = "install": conflicts with image left out'),
        (GuestOptions(fio="/usr/bin/fio"), 'fio = "/usr/bin/fio": conflicts with image left out'),
    ],
    ids=["kernel", "firmware", "install", "fio"],
)
def test_options_that_contradict_an_image_are_refused(options: GuestOptions, why: str) -> None:
    (found,) = find_guest_problems(options)
    assert found.startswith(why)


def test_an_image_replaces_the_kernel_of_another_request_and_the_other_way_round() -> None:
    kernel = GuestOptions(kernel="/boot/vmlinuz", initramfs="/boot/initrd", vcpus=2)
    image = GuestOptions(image=IMAGE, firmware="uefi", fio="install", vcpus=4)
    assert image.over(kernel) == image
    assert kernel.over(image) == kernel
    assert GuestOptions(vcpus=1).over(image) == GuestOptions(image=IMAGE, firmware="uefi", fio="install", vcpus=1)
    assert GuestOptions(fio="/usr/bin/fio").over(image).image == IMAGE
    assert image.expected(iothreads=1).guest_fio == INSTALLED_FIO


# --- what the host lacks ---


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, None),
        ({"FORMAT": "raw"}, None),
        ({"FORMAT": "vmdk"}, "its format is vmdk: convert it with qemu-img convert -O qcow2"),
        ({"FORMATS": "vdi"}, "qemu-img there cannot make a FAT disk"),
        ({"BROKEN": "Could not open 'x'"}, "qemu-img cannot read it: Could not open 'x': correct the path"),
        ({"PATH": ""}, "qemu-img is not installed there, which makes the guest's disks: apt-get install"),
    ],
    ids=["qcow2", "raw", "vmdk", "fat", "broken", "program"],
)
def test_what_a_host_lacks_for_an_image_is_reported_with_the_remedy(
    tmp_path: Path, qemu_img: pytest.MonkeyPatch, changed: Mapping[str, str], why: str | None
) -> None:
    runner = LocalRunner("host here")
    assert refuse_image(GuestOptions(), runner) is None
    (tmp_path / "sh").symlink_to("/bin/sh")
    for name, value in changed.items():
        qemu_img.setenv(name, value or str(tmp_path))
    found = refuse_image(DEBIAN, runner)
    assert found is None if why is None else found is not None
    assert (why or "") in (found or "")


def test_a_host_without_uefi_is_named_with_the_remedy() -> None:
    without = "<domainCapabilities><os><enum name='firmware'/></os></domainCapabilities>"
    has = without.replace("<enum name='firmware'/>", "<enum name='firmware'><value>efi</value></enum>")
    uefi = GuestOptions(image=IMAGE, firmware="uefi")
    assert "apt-get install ovmf" in (_refuse_firmware(ET.fromstring(without), uefi, "kvm1") or "")
    assert _refuse_firmware(ET.fromstring(has), uefi, "kvm1") is None
    assert _refuse_firmware(ET.fromstring(without), DEBIAN, "kvm1") is None


# --- what its system lacks ---


@pytest.mark.parametrize(
    ("changed", "fio", "why"),
    [
        ({}, "fio", None),
        ({"fio": ""}, "fio", "apt-get install fio when the image is made"),
        ({"fio": ""}, "/opt/fio", "/opt/fio is not fio, or cannot be started: correct the path"),
        ({"virtio_blk": ""}, "fio", "in the guest of IMAGE, the kernel has no driver virtio_blk"),
    ],
    ids=["nothing", "fio", "path", "driver"],
)
def test_what_the_system_of_an_image_lacks_is_reported_with_the_remedy(
    changed: Mapping[str, str], fio: str, why: str | None
) -> None:
    system = LinuxInside({**SYSTEM, **changed}, fio)
    found = system.unsupported_by_guest_os(
        "the guest of IMAGE", Attach("virtio-blk"), otherwise=" when the image is made"
    )
    assert system.unsupported_by_guest_os("it", Attach("virtio-scsi")) is None or "fio" in (why or "")
    assert (found is None) if why is None else why in (found or "")


@pytest.mark.parametrize(("bus", "driver"), [("sata", "ahci"), ("ide", "ata_piix"), ("nvme", "nvme")])
def test_the_driver_of_each_bus_is_required(bus: Bus, driver: str) -> None:
    attach = Attach(bus, iothread=False)
    assert f"no driver {driver}" in (LinuxInside(SYSTEM).unsupported_by_guest_os("it", attach) or "")
    assert LinuxInside(SYSTEM | {driver: "yes"}).unsupported_by_guest_os("it", attach) is None


def test_a_kernel_without_haltpoll_cannot_wait_so() -> None:
    polling = GuestOptions(idle="haltpoll", kernel="/boot/own")
    why = LinuxInside(SYSTEM).refuse_idle("the guest of /boot/own", polling) or ""
    assert why.startswith("in the guest of /boot/own, the kernel has no cpuidle_haltpoll: leave out idle")
    assert LinuxInside(SYSTEM | {"haltpoll": "yes"}).refuse_idle("it", polling) is None
    assert LinuxInside(SYSTEM).refuse_idle("it", GuestOptions(idle="poll")) is None


def test_the_check_runs_in_a_real_system() -> None:
    found = look_inside_linux(HERE, "/nowhere/fio").system
    assert found["user"].isdigit()
    assert found["fio"] == ""
    assert found["os"]


# --- what the guest gets ---


def test_cloud_init_lets_only_our_key_in_and_gives_the_guest_its_host_key() -> None:
    first, _, text = build_user_data("ssh-ed25519 OURS", KEY).partition("\n")
    assert first == "#cloud-config"
    found = json.loads(text)
    assert found["ssh_authorized_keys"] == ["ssh-ed25519 OURS"]
    assert found["users"] == []
    assert found["disable_root"] is False
    assert found["ssh_pwauth"] is False
    assert found["ssh_keys"] == {"ed25519_private": KEY.private, "ed25519_public": KEY.public}


@pytest.mark.parametrize(
    ("printed", "errors"),
    [
        ('{"v1": {"datasource": "DataSourceNoCloud", "errors": []}}', []),
        ('{"v1": {"errors": ["(\'runcmd\', 1)"]}}', ["('runcmd', 1)"]),
        ("[]", []),
    ],
    ids=["none", "one", "other"],
)
def test_what_cloud_init_reports_as_failed_is_read(printed: str, errors: list[str]) -> None:
    assert parse_errors(printed, "guest on here") == errors


def test_a_result_that_is_not_json_is_an_error_of_the_guest() -> None:
    with pytest.raises(GuestError, match=r"guest on here: /run/cloud-init/result.json"):
        parse_errors("nothing", "guest on here")


# --- what is made on the host ---


@pytest.mark.usefixtures("qemu_img")
def test_a_guest_has_a_layer_and_a_seed_that_only_root_can_read_and_both_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(booting, "_GUESTS", str(tmp_path / "guests"))
    log = CreationLog(LocalRunner("host here"), RUN, str(tmp_path / "log"))
    with create_system_files(log, DEBIAN, "ssh-ed25519 OURS", KEY) as files:
        (entry,) = read_log(log.runner, str(tmp_path / "log"))
        assert entry.record["directory"] == files.directory
        there = {path.name: path for path in Path(files.directory).iterdir()}
        assert set(there) == {"seed.img", "system.qcow2"}
        assert there["system.qcow2"].read_text() == f"create -q -f qcow2 -b {IMAGE} -F qcow2 system.qcow2\n"
        seed = there["seed.img"].read_text()
        assert '"label": "cidata"' in seed
        assert "ssh-ed25519 OURS" in seed
        assert f"instance-id: {Path(files.directory).name}" in seed
        assert {stat.S_IMODE(path.stat().st_mode) for path in there.values()} == {0o600}
        assert stat.S_IMODE(Path(files.directory).stat().st_mode) == 0o711
    assert list((tmp_path / "guests").iterdir()) == []
    assert read_log(log.runner, str(tmp_path / "log")) == []


def test_files_of_others_in_the_directory_of_a_guest_stay(tmp_path: Path) -> None:
    guest = tmp_path / str(uuid.uuid4())
    guest.mkdir()
    (guest / "mine").write_text("")
    (guest / "system.qcow2").write_text("")
    removal = GuestSystemFiles(directory=str(guest)).remove(HERE)
    assert removal.outcome == "foreign"
    assert [path.name for path in guest.iterdir()] == ["mine"]
    assert GuestSystemFiles(directory=str(tmp_path / str(uuid.uuid4()))).remove(HERE).outcome == "absent"


@pytest.mark.usefixtures("qemu_img")
def test_an_image_that_changes_its_format_before_the_boot_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORMAT", "vdi")
    log = CreationLog(LocalRunner("host here"), RUN, str(tmp_path))
    with pytest.raises(Unsupported, match="its format is vdi"), create_system_files(log, DEBIAN, "key", KEY):
        pytest.fail("it was booted")


# --- what is read back ---


@pytest.mark.parametrize(("loader", "firmware"), [("", "bios"), ("<loader type='pflash'/>", "uefi")])
def test_image_and_firmware_are_read_back_from_the_running_domain(loader: str, firmware: str) -> None:
    live = ET.fromstring(
        f"<domain><os>{loader}</os><devices><disk><backingStore type='file'><source file='{IMAGE}'/></backingStore>"
        "<alias name='ua-voh-system'/></disk></devices></domain>"
    )
    found = read_system(live)
    assert (found.qemu_image, found.qemu_firmware) == (IMAGE, firmware)


def test_a_guest_without_an_image_has_neither() -> None:
    assert dict(read_system(ET.fromstring("<domain><devices><disk/></devices></domain>")).settings()) == {}
