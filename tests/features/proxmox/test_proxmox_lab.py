"""Nodes of Proxmox VE in a lab file: what they mean, and what a mistake in them is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.features.proxmox import ApiSpec, GuestRules, ProxmoxSpec, SecretSource
from harness.lab.inventory import DiskById, DiskByStorage, Inventory, SshAddress
from harness.lab.lab_file import load_lab

PIN = ":".join(["0A"] * 32)
GOOD = f"""
[host.pve1]
kind = "proxmox"
key = "/keys/pve1"

[host.pve1.api]
url = "https://pve1.example:8443"
node = "pve1"
user = "bench@pve"
token = "voh"
secret = {{ env = "PVE_TOKEN" }}
fingerprint = "{PIN}"

[host.pve1.guest]
bridge = "vmbr1"
vmids = [900, 909]
network = "static"
address = "192.0.2.50/24"
gateway = "192.0.2.1"
memory = "1 GiB"

[host.pve1.disk.optane]
id = "/dev/disk/by-id/nvme-INTEL_900P"
serial = "PHM1"
destroy = true

[host.pve1.disk.vmstore]
storages = {{ lvm-thin = "local-lvm", raw = "local" }}
"""


def load(directory: Path, text: str) -> Inventory:
    path = directory / "lab.toml"
    path.write_text(text, encoding="utf-8")
    return load_lab(path)


def good_but(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def test_a_node_is_its_api_its_guests_and_its_disks(tmp_path: Path) -> None:
    (node,) = load(tmp_path, GOOD).hosts
    assert isinstance(node.hypervisor, ProxmoxSpec)
    assert node.hypervisor.api == ApiSpec(
        url="https://pve1.example:8443",
        node="pve1",
        user="bench@pve",
        secret=SecretSource(env="PVE_TOKEN"),
        token="voh",
        fingerprint=PIN,
    )
    assert (node.hypervisor.api.host, node.hypervisor.api.port) == ("pve1.example", 8443)
    assert node.hypervisor.guest == GuestRules(
        bridge="vmbr1",
        vmids=(900, 909),
        memory=1 << 30,
        network="static",
        address="192.0.2.50/24",
        gateway="192.0.2.1",
    )
    assert node.disks == (DiskById("optane", "/dev/disk/by-id/nvme-INTEL_900P", "PHM1", destroy=True),)
    assert node.stored == (DiskByStorage("vmstore", {"lvm-thin": "local-lvm", "raw": "local"}),)
    assert node.target("vmstore") == node.stored[0]


def test_each_of_several_guests_has_an_address_of_a_list(tmp_path: Path) -> None:
    several = '["192.0.2.50/24", "192.0.2.51/24"]'
    (listed,) = load(tmp_path, good_but('"192.0.2.50/24"', several)).hosts
    assert isinstance(listed.hypervisor, ProxmoxSpec)
    assert listed.hypervisor.guest.addresses == ("192.0.2.50/24", "192.0.2.51/24")
    (one,) = load(tmp_path, GOOD).hosts
    assert isinstance(one.hypervisor, ProxmoxSpec)
    assert one.hypervisor.guest.addresses == ("192.0.2.50/24",)


def test_ssh_goes_to_the_address_of_the_api_unless_another_is_named(tmp_path: Path) -> None:
    (node,) = load(tmp_path, GOOD).hosts
    assert node.ssh == SshAddress("pve1.example", 22, "root", Path("/keys/pve1"), None)
    (node,) = load(tmp_path, good_but('key = "/keys', 'address = "192.0.2.9"\nport = 2222\nkey = "/keys')).hosts
    assert node.ssh == SshAddress("192.0.2.9", 2222, "root", Path("/keys/pve1"), None)


def test_without_keys_of_ssh_pytest_runs_on_the_node_itself(tmp_path: Path) -> None:
    (node,) = load(tmp_path, good_but('key = "/keys/pve1"\n', "")).hosts
    assert node.ssh is None


def test_only_the_password_of_root_may_pass_devices(tmp_path: Path) -> None:
    (node,) = load(tmp_path, GOOD).hosts
    assert isinstance(node.hypervisor, ProxmoxSpec)
    assert (node.hypervisor.api.who, node.hypervisor.api.may_pass_devices) == ("bench@pve!voh", False)
    for user, token, may in (("root@pam", "", True), ("root@pam", 'token = "voh"\n', False), ("admin@pve", "", False)):
        text = good_but("bench@pve", user).replace('token = "voh"\n', token)
        (node,) = load(tmp_path, text).hosts
        assert isinstance(node.hypervisor, ProxmoxSpec)
        assert node.hypervisor.api.may_pass_devices == may


def test_without_kvm_the_cpu_is_the_most_that_can_be_emulated(tmp_path: Path) -> None:
    for text, cpu in (
        (GOOD, "host"),
        (good_but('bridge = "vmbr1"', "kvm = false"), "max"),
        (good_but('bridge = "vmbr1"', 'kvm = false\ncpu = "qemu64"'), "qemu64"),
    ):
        (node,) = load(tmp_path, text).hosts
        assert isinstance(node.hypervisor, ProxmoxSpec)
        assert node.hypervisor.guest.cpu == cpu


API, GUEST = "host.pve1.api", "host.pve1.guest"
STORE = "host.pve1.disk.vmstore"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "example:8443",
            "example:99999",
            f'{API}.url = "https://pve1.example:99999": its port is not a number from 1 to',
        ),
        ("example:8443", "example:0", f'{API}.url = "https://pve1.example:0": its port is not a number from 1 to'),
        ("https://pve1", "http://pve1", f'{API}.url = "http://pve1.example:8443": allowed: for example "https://'),
        ("bench@pve", "bench", f'{API}.user = "bench": allowed: a name with its realm'),
        ("bench@pve", "bench@pve!voh", f'{API}.user = "bench@pve!voh": contains a token; allowed'),
        (
            '{ env = "PVE_TOKEN" }',
            '{ env = "A", file = "b" }',
            f"{API}.secret: allowed: exactly one of env, file and keyring",
        ),
        ('{ env = "PVE_TOKEN" }', "{}", f"{API}.secret: allowed: exactly one of env, file and keyring"),
        (PIN, "0A:0B", f'{API}.fingerprint = "0A:0B": allowed: 32 bytes'),
        ("fingerprint", 'ca_file = "/ca.pem"\nfingerprint', f"{API}.fingerprint: cannot be used with {API}.ca_file"),
        (
            f'fingerprint = "{PIN}"',
            'ca_file = "~nobody-here/ca.pem"',
            f'{API}.ca_file = "~nobody-here/ca.pem": this user does not exist',
        ),
        (f'fingerprint = "{PIN}"', 'ca_file = "ca.pem"', f'{API}.ca_file = "ca.pem": allowed: an absolute path'),
        ("[900, 909]", "[909, 900]", f"{GUEST}.vmids = [909, 900]: allowed: from 100 to 999999999, the smaller one"),
        ("[900, 909]", "[900]", f"{GUEST}.vmids = [900]: allowed: the first and the last id"),
        ("192.0.2.50/24", "192.0.2.50", f'{GUEST}.address = "192.0.2.50": allowed: an address with its prefix length'),
        (
            '"192.0.2.50/24"',
            '["192.0.2.50/24", 5]',
            f'{GUEST}.address = ["192.0.2.50/24", 5]: allowed: an address with',
        ),
        (
            '"192.0.2.50/24"',
            '["192.0.2.50/24", "192.0.2.51"]',
            f'{GUEST}.address = "192.0.2.51": allowed: an address with its prefix length',
        ),
        (
            '"192.0.2.50/24"',
            '["192.0.2.50/24", "192.0.2.50/24"]',
            f'{GUEST}.address = ["192.0.2.50/24", "192.0.2.50/24"]: allowed: each address once',
        ),
        ("192.0.2.1", "gateway", f'{GUEST}.gateway = "gateway": allowed: an address'),
        ('address = "192.0.2.50/24"\n', "", f'{GUEST}.address: missing; network = "static" needs it'),
        ('"static"', '"agent"', f'{GUEST}.address: cannot be used with network = "agent"'),
        ('"static"', '"cloud-init"', f'{GUEST}.network = "cloud-init": the guest image of virt-overhead does not'),
        ('"static"', '"static"\ntemplate = 900', f'{GUEST}.network = "static": needs the guest image of'),
        ('"1 GiB"', '"64 MiB"', f'{GUEST}.memory = "64 MiB": allowed: whole MiB from "256 MiB"'),
        ("lvm-thin", "lvmthin", f"{STORE}.storages.lvmthin: allowed: lvm, lvm-thin, raw, qcow2, zvol"),
        ("storages", "destroy = true\nstorages", f"{STORE}.destroy: cannot be used with storages"),
        ('bridge = "vmbr1"', 'kvm = false\ncpu = "host"', f'{GUEST}.cpu = "host": QEMU has it only with KVM; allowed'),
        (
            'bridge = "vmbr1"',
            'kvm = false\ncpu = "cputype=host,flags=+aes"',
            f'{GUEST}.cpu = "cputype=host,flags=+aes"',
        ),
        ('[host.pve1.guest]\nbridge = "vmbr1"', "[host.pve1.guest]\nbride = 1", f"{GUEST}.bride = 1: no such key"),
    ],
)
def test_a_mistake_is_reported_with_key_and_what_is_allowed(tmp_path: Path, old: str, new: str, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, good_but(old, new))
    (said, *_) = error.value.message.splitlines()
    assert said.removeprefix(f"{tmp_path / 'lab.toml'}: ").startswith(line)


def test_a_node_without_an_api_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'host\.x\.api: missing; a host of kind "proxmox" needs it'):
        load(tmp_path, "[host.x]\nkind = 'proxmox'\n")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('{ env = "PVE_TOKEN" }', '"hunter2"', f"{API}.secret: allowed: exactly one of env, file and keyring"),
        ('{ env = "PVE_TOKEN" }', '{ password = "hunter2" }', f'{API}.secret.password = "***": no such key'),
        ('token = "voh"', 'password = "hunter2"', f'{API}.password = "***": no such key'),
        ('"voh"', '"voh=hunter2"', f'{API}.token = "voh=***": allowed: a letter, then letters'),
        ("https://", "https://me:hunter2@", f'{API}.url = "https://***@pve1.example:8443": allowed'),
    ],
)
def test_a_secret_in_the_lab_file_is_refused_without_showing_it(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, good_but(old, new))
    assert "hunter2" not in str(error.value)
    assert said in error.value.message
