"""Encryption below the guest: how it is made and removed, what it needs, and what is read back of it."""

from __future__ import annotations

import re

import pytest

from harness.features.answers.decision import factors
from harness.features.proxmox.layouts import refuse_layout
from harness.layout.layers import Alone, LayerBuilder, Volumes, plan_bases
from harness.layout.regions import CryptDevice, Region, parse_encryption
from harness.layout.storage_files import Files
from harness.measure.reap import HOST_THINGS
from harness.model.attach import Attach
from harness.model.layout import Layout, Lvm, LvmThin, Partition, Qcow2, RawFile, find_missing_requirement
from harness.model.mode import Mode
from harness.model.option import Effective
from harness.results.validity import configuration_check
from tests.unit.granted import pretended
from tests.unit.test_layouts_commands import MIB, NAME, Listening, log

SPAN = 64 * MIB
STATUS = """/dev/mapper/voh-1.lvm is active and is in use.
  type:    LUKS2
  cipher:  aes-xts-plain64
  keysize: 512 [bits]
  key location: keyring
  device:  /dev/dm-0
  sector size:  4096 [bytes]
  offset:  32768 [512-byte units] (16777216 [bytes])
  mode:    read/write
"""
FOUND = Effective(
    host_encryption="luks2", host_cipher="aes-xts-plain64", host_key_bits=512, host_encryption_sector=4096
)


def region(host: Listening, layer: LayerBuilder) -> Region:
    return Region(layer.region, pretended("/dev/sda2", host), MIB, layer.need.bytes(SPAN), "partuuid-a")


@pytest.mark.parametrize(
    ("layer", "device", "name", "path"),
    [
        (Alone("m", "part1", encrypted=True), "/dev/sda2", f"{NAME}.m", f"/dev/mapper/{NAME}.m"),
        (Volumes(("m",), frozenset({"m"})), f"/dev/{NAME}/m", f"{NAME}.m", f"/dev/mapper/{NAME}.m"),
        (
            Files("ext4", (("m", RawFile(encryption="luks2")),), encrypted=True),
            "/dev/sda2",
            f"{NAME}.ext4-luks",
            f"/var/lib/virt-overhead/mnt/{NAME}-ext4-luks/m.raw",
        ),
    ],
    ids=["partition", "volume", "file"],
)
def test_the_guest_gets_what_is_on_the_encrypted_device(layer: LayerBuilder, device: str, name: str, path: str) -> None:
    host = Listening()
    with layer.build(log(host), region(host, layer), NAME, SPAN) as sources:
        assert sources["m"].guest.path == sources["m"].twin.path == path
    (made,) = (command.split() for command in host.commands if "luksFormat" in command)
    assert (made[-3], made[-1]) == (device, name)
    # The key is in no argument of a command.
    assert not re.search("[0-9a-f]{64}", " ".join(host.commands))


def test_each_has_room_for_its_header_and_only_encrypted_files_share_a_file_system() -> None:
    layouts: dict[str, Layout] = {
        "p": Partition(encryption="luks2"),
        "a": Lvm(),
        "b": Lvm(encryption="luks2"),
        "t": LvmThin(encryption="luks2"),
        "r": RawFile(),
        "s": RawFile(encryption="luks2"),
        "q": Qcow2(encryption="luks2"),
    }
    (disk,) = plan_bases([Mode(name, layout, Attach()) for name, layout in layouts.items()])
    assert list(disk.needs) == ["device", "part1", "lvm", "lvm-thin", "ext4", "ext4-luks"]
    assert disk.needs["part1"].fixed == 16 * MIB
    (plain,) = plan_bases([Mode(name, Lvm(), Attach()) for name in "ab"])
    assert disk.needs["lvm"].fixed - plain.needs["lvm"].fixed == 16 * MIB
    assert disk.needs["ext4-luks"].shares > 2 * disk.needs["ext4"].shares
    assert Qcow2(encryption="luks2").twin.encrypted


def test_a_killed_runs_device_is_found_in_the_log_by_uuid_and_name() -> None:
    assert CryptDevice in HOST_THINGS
    thing = CryptDevice(name="voh-1.lvm", uuid="1-2", partuuid="3-4")
    assert thing.arguments() == ["voh-1.lvm", "1-2", "3-4"]


def test_what_cryptsetup_reports_is_compared_with_the_request() -> None:
    mode = Mode("m", Lvm(encryption="luks2"), Attach())
    assert parse_encryption(STATUS) == FOUND
    check = configuration_check(mode, FOUND)
    assert check is not None
    assert check.ok
    check = configuration_check(mode, parse_encryption(""))
    assert check is not None
    assert check.detail.startswith("requested host_encryption = luks2, it is none")
    with pytest.raises(KeyError):
        parse_encryption("  cipher:  aes")


def test_it_is_one_option_of_a_layout_that_not_every_host_has() -> None:
    plain, luks = (Mode("m", Lvm(encryption=way), Attach()) for way in ("none", "luks2"))
    (factor,) = factors(plain.detail, luks.detail)
    assert factor.words == "encryption luks2"
    why = refuse_layout(luks.layout)
    assert why is not None
    assert "LUKS" in why

    class Bare:
        has_device_mapper = True

        def has_tool(self, name: str) -> bool:
            return name != "cryptsetup"

        def has_module(self, name: str) -> bool:  # noqa: ARG002
            return True

        def install(self, *packages: str) -> str:
            return f"apt-get install {' '.join(packages)}"

    assert find_missing_requirement(plain.layout, Bare()) is None
    assert (
        find_missing_requirement(luks.layout, Bare())
        == "cryptsetup is not installed there: apt-get install cryptsetup-bin"
    )
