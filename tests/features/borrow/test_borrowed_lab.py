"""A VM that is borrowed, in a lab file: what the keys mean, and what is refused beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.features.calibrate.command import choose_disk
from harness.features.proxmox import ProxmoxSpec
from harness.lab.inventory import BorrowedVm, LibvirtSpec, VmLogin
from tests.unit.test_inventory import GOOD, complaint, load

GUEST = """
[host.node1.guest]
borrow = "shop"
address = "192.0.2.50"
key = "/keys/shop"
"""
WHERE = "host.node1.guest"
LOGIN = VmLogin("192.0.2.50", 22, "root", Path("/keys/shop"), None, through_host=True)


def test_the_keys_name_a_vm_and_the_login_to_it(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD + GUEST).hosts[0].hypervisor
    assert isinstance(spec, LibvirtSpec)
    assert spec.borrowed == BorrowedVm("shop", LOGIN)
    assert not spec.boots_guests
    other = GUEST + 'port = 2222\nuser = "admin"\nreach = "direct"\nhost_key = "ssh-ed25519 AAAA"\n'
    spec = load(tmp_path, GOOD + other).hosts[0].hypervisor
    assert isinstance(spec, LibvirtSpec)
    changed = VmLogin("192.0.2.50", 2222, "admin", Path("/keys/shop"), "ssh-ed25519 AAAA", through_host=False)
    assert spec.borrowed == BorrowedVm("shop", changed)


def test_a_vm_may_be_reached_through_its_guest_agent(tmp_path: Path) -> None:
    table = '[host.node1.guest]\nborrow = "shop"\nreach = "agent"\n'
    spec = load(tmp_path, GOOD + table).hosts[0].hypervisor
    assert isinstance(spec, LibvirtSpec)
    assert spec.borrowed == BorrowedVm("shop", None)
    with pytest.raises(ConfigError, match=f'{WHERE}.key: conflicts with reach = "agent", which needs no login'):
        load(tmp_path, GOOD + table + 'key = "/keys/shop"\n')


def test_a_host_without_it_boots_guests(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).hosts[0].hypervisor.boots_guests


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (
            'key = "/keys/shop"',
            "",
            [f'{WHERE}.key: missing; borrow = "shop" needs it for SSH'],
        ),
        (
            'borrow = "shop"',
            "",
            [
                f'{WHERE}.address: cannot be used with kind = "ssh"; allowed: only with kind = "proxmox"',
                f'{WHERE}.key: needs borrow; allowed: only with borrow = "VM"',
            ],
        ),
        (
            '"192.0.2.50"',
            '"192.0.2.50/24"',
            [f'{WHERE}.address = "192.0.2.50/24": allowed with borrow: a name or an address alone'],
        ),
        (
            'borrow = "shop"',
            'borrow = "shop"\nvcpus = 4\npin_emulator = "1"',
            [
                f"{WHERE}.{key}: conflicts with borrow, because size and placement of shop belong to its owner; "
                "allowed: one of the two"
                for key in ("vcpus", "pin_emulator")
            ],
        ),
        (
            'borrow = "shop"',
            'borrow = "shop"\ntemplate = 900',
            [f'{WHERE}.template: cannot be used with kind = "ssh"; allowed: only with kind = "proxmox"'],
        ),
    ],
    ids=["no-key", "no-vm", "prefix", "size", "node"],
)
def test_a_mistake_is_refused_with_the_key(tmp_path: Path, old: str, new: str, lines: list[str]) -> None:
    assert sorted(complaint(tmp_path, GOOD + GUEST.replace(old, new))) == sorted(lines)


NODE = """
[host.node1]
kind = "proxmox"
address = "192.0.2.7"
key = "/keys/node1"

[host.node1.api]
url = "https://192.0.2.7:8006"
node = "pve"
secret = { env = "PVE_PASSWORD" }

[host.node1.guest]
borrow = "100"
address = "192.0.2.50"
key = "/keys/shop"
vmids = [8000, 8001]

[host.node1.disk.optane]
id = "/dev/disk/by-id/nvme-INTEL_900P"
serial = "PHM1"
destroy = true
"""


def test_a_vm_of_proxmox_ve_is_named_by_its_id(tmp_path: Path) -> None:
    spec = load(tmp_path, NODE).hosts[0].hypervisor
    assert isinstance(spec, ProxmoxSpec)
    assert spec.borrowed == BorrowedVm("100", LOGIN)
    assert not spec.boots_guests
    assert (spec.guest.vmids, spec.guest.address) == ((8000, 8001), None)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"100"', '"shop"', 'borrow = "shop": allowed: the id of a VM of the node, for example "100"'),
        (
            "vmids = [8000, 8001]",
            "template = 900",
            "template: conflicts with borrow, because no guest is booted; allowed: one of the two",
        ),
        ('borrow = "100"', "", 'key: needs borrow; allowed: only with borrow = "VM"'),
    ],
    ids=["name", "template", "no-vm"],
)
def test_a_mistake_in_the_table_of_a_node_is_refused_with_the_key(
    tmp_path: Path, old: str, new: str, line: str
) -> None:
    assert f"{WHERE}.{line}" in complaint(tmp_path, NODE.replace(old, new))


def test_a_calibration_needs_guests_that_are_booted(tmp_path: Path) -> None:
    host = load(tmp_path, GOOD + GUEST).hosts[0]
    with pytest.raises(ConfigError) as error:
        choose_disk(host, "optane")
    assert "host.node1.guest.borrow" in (error.value.hint or "")
