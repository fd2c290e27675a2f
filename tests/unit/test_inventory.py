"""Lab files: what they mean, and what a mistake in them is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.lab.inventory import DiskByFile, DiskById, HostSpec, Inventory, SshAddress, load_lab

GOOD = """
profile = "publish"

[host.node1]
kind = "ssh"
address = "192.0.2.7"
key = "/keys/node1"

[host.node1.disk.optane]
id = "/dev/disk/by-id/nvme-INTEL_900P"
serial = "PHM1"
destroy = true

[host.here]
kind = "local"

[host.here.disk.loop]
file = "/var/tmp/loop.img"
size = "2 GiB"
"""


def load(directory: Path, text: str) -> Inventory:
    path = directory / "lab.toml"
    path.write_text(text, encoding="utf-8")
    return load_lab(path)


def complaint(directory: Path, text: str) -> list[str]:
    """The lines of the error that `text` is refused with, without the file's name."""
    with pytest.raises(ConfigError) as error:
        load(directory, text)
    lines = error.value.message.splitlines()
    prefix = f"{directory / 'lab.toml'}: "
    assert all(line.startswith(prefix) for line in lines)
    return [line.removeprefix(prefix) for line in lines]


def good_but(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def test_a_lab_file_names_hosts_and_their_disks(tmp_path: Path) -> None:
    lab = load(tmp_path, GOOD)
    assert lab.profile == "publish"
    assert lab.hosts == (
        HostSpec(
            "node1",
            "ssh",
            SshAddress("192.0.2.7", 22, "root", Path("/keys/node1"), None),
            (DiskById("optane", "/dev/disk/by-id/nvme-INTEL_900P", "PHM1", destroy=True),),
        ),
        HostSpec("here", "local", None, (DiskByFile("loop", Path("/var/tmp/loop.img"), 2 << 30, destroy=False),)),
    )


def test_nothing_may_be_destroyed_unless_the_owner_wrote_so(tmp_path: Path) -> None:
    assert not load(tmp_path, good_but("destroy = true\n", "")).host_of("optane").disk("optane").destroy


def test_without_a_profile_a_lab_is_measured_by_the_quickest(tmp_path: Path) -> None:
    assert load(tmp_path, good_but('profile = "publish"', "")).profile == "smoke"


def test_a_home_directory_is_meant_by_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    ssh = load(tmp_path, good_but("/keys/node1", "~/.ssh/lab")).hosts[0].ssh
    assert ssh is not None
    assert ssh.key == Path("/home/somebody/.ssh/lab")


DISK_KEYS = "id, serial, file, size, destroy, storages"
HOST_KEYS = "kind, address, port, user, key, host_key, api, guest, disk"
WHY_BOTH = "missing; a disk is named by id and serial, so that no other is written to"
OPTANE, LOOP = "host.node1.disk.optane", "host.here.disk.loop"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "destroy = true",
            "destory = true",
            f'{OPTANE}.destory = true: no such key; allowed: {DISK_KEYS} (did you mean "destroy"?)',
        ),
        ("destroy = true", 'destroy = "yes"', f'{OPTANE}.destroy = "yes": must be true or false, without quotes'),
        (
            "address =",
            "adress =",
            f'host.node1.adress = "192.0.2.7": no such key; allowed: {HOST_KEYS} (did you mean "address"?)',
        ),
        (
            'kind = "local"',
            'kind = "local"\nadress = "x"',
            f'host.here.adress = "x": no such key; allowed: {HOST_KEYS} (did you mean "address"?)',
        ),
        (
            'kind = "local"',
            'kind = "lokal"',
            'host.here.kind = "lokal": allowed: local, ssh, proxmox (did you mean "local"?)',
        ),
        ('kind = "local"', "", "host.here.kind: missing, and there is no default"),
        ('id = "/dev/disk/by-id/nvme-INTEL_900P"\n', "", f"{OPTANE}.id: {WHY_BOTH}"),
        ('serial = "PHM1"\n', "", f"{OPTANE}.serial: {WHY_BOTH}"),
        ('serial = "PHM1"', 'serial = ""', f'{OPTANE}.serial = "": must not be empty'),
        (
            "/dev/disk/by-id/nvme-INTEL_900P",
            "/dev/sdb",
            f'{OPTANE}.id = "/dev/sdb": allowed: what matches ^/dev/disk/by-.*',
        ),
        ("/var/tmp/loop.img", "loop.img", f'{LOOP}.file = "loop.img": allowed: an absolute path'),
        ('file = "/var/tmp/loop.img"', "file = 7", f"{LOOP}.file = 7: must be a path in quotes"),
        (
            'size = "2 GiB"',
            "",
            f'{LOOP}.size: missing; a disk made of a file needs it, for example "2 GiB"',
        ),
        ('"2 GiB"', "2", f'{LOOP}.size = 2: must be text in quotes; allowed: for example "2 GiB"'),
        (
            "destroy = true",
            'size = "2 GiB"',
            f"{OPTANE}.size: of no use with id; allowed: only with file",
        ),
        (
            '"2 GiB"',
            '"2 GB"',
            f"{LOOP}.size = \"2 GB\": '2 GB' is ambiguous: write GiB (powers of 1024)",
        ),
        (
            '"2 GiB"',
            '"big"',
            f"{LOOP}.size = \"big\": 'big' is no size: write for example 4k, 256 KiB, 64 MiB or 1 GiB",
        ),
        (
            'file = "/var/tmp/loop.img"',
            'file = "/var/tmp/loop.img"\nid = "/dev/disk/by-id/x"',
            f"{LOOP}: file and id cannot stand together; allowed: id + serial, or file + size",
        ),
        ("[host.node1]", "[host.node1]\nport = 0", "host.node1.port = 0: allowed: 1 and more"),
        ("[host.node1]", "[host.node1]\nport = 65536", "host.node1.port = 65536: allowed: at most 65535"),
        ("[host.node1]", '[host.node1]\nport = "22"', 'host.node1.port = "22": must be a whole number, without quotes'),
        (
            'address = "192.0.2.7"\n',
            "",
            'host.node1.address: missing; a host of kind "ssh" needs it',
        ),
        ('key = "/keys/node1"\n', "", 'host.node1.key: missing; a host of kind "ssh" needs it'),
        (
            'kind = "local"',
            'kind = "local"\nuser = "admin"',
            'host.here.user: of no use with kind = "local"; allowed: only with kind = "ssh" or "proxmox"',
        ),
        (
            "[host.node1]",
            '[host.node1]\nhost_key = "AAAA"',
            r'host.node1.host_key = "AAAA": allowed: what matches ^(ssh-|ecdsa-)\S+ \S+',
        ),
        (
            '"publish"',
            '"pubish"',
            'profile = "pubish": no such profile; allowed: smoke, standard, publish (did you mean "publish"?)',
        ),
        ('profile = "publish"', "profile = 3", "profile = 3: must be text in quotes"),
    ],
)
def test_a_mistake_is_told_with_key_value_and_what_is_allowed(tmp_path: Path, old: str, new: str, line: str) -> None:
    assert complaint(tmp_path, good_but(old, new)) == [line]


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = good_but('key = "/keys/node1"\n', "").replace('serial = "PHM1"\n', "").replace("/var/tmp/loop.img", "x")
    assert len(complaint(tmp_path, text)) == 3


def test_a_file_that_is_no_toml_names_the_line(tmp_path: Path) -> None:
    assert complaint(tmp_path, good_but('"publish"', "publish"))[0].startswith("line 2")


def test_a_lab_without_hosts_is_refused(tmp_path: Path) -> None:
    assert complaint(tmp_path, 'profile = "smoke"\n') == ["host: missing, and there is no default"]
    assert complaint(tmp_path, "[host]\n") == ["host = {  }: must not be empty"]


def test_a_missing_file_names_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").touch()
    with pytest.raises(
        ConfigError, match=r'lap\.toml: no such lab file; allowed: lab\.toml \(did you mean "lab\.toml"'
    ):
        load_lab(tmp_path / "lap.toml")


def test_a_disk_is_found_on_its_one_host(tmp_path: Path) -> None:
    lab = load(tmp_path, GOOD)
    assert (lab.host_of("optane").name, lab.host_of("loop").name) == ("node1", "here")


def test_a_disk_on_two_hosts_asks_for_one_of_them(tmp_path: Path) -> None:
    lab = load(tmp_path, good_but("disk.loop", "disk.optane"))
    with pytest.raises(ConfigError, match='disk "optane" is on several hosts: node1, here') as error:
        lab.host_of("optane")
    assert error.value.hint == "choose one with --host NAME"
    assert lab.only("here").host_of("optane").name == "here"


def test_the_disks_of_an_array_have_to_be_on_one_host(tmp_path: Path) -> None:
    lab = load(tmp_path, GOOD)
    assert lab.host_of_all(["loop"]).name == "here"
    with pytest.raises(ConfigError, match="disks of one scenario are on several hosts: optane on node1, loop on here"):
        lab.host_of_all(["optane", "loop"])


def test_an_unknown_disk_is_told_the_nearest_name_and_where_to_add_it(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r'no disk "octane"; allowed: optane, loop \(did you mean "optane"\?\)'
    ) as error:
        load(tmp_path, GOOD).host_of("octane")
    assert error.value.hint is not None
    assert "[host.NAME.disk.octane]" in error.value.hint


def test_an_unknown_host_is_told_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'no host "node2"; allowed: node1, here \(did you mean "node1"\?\)'):
        load(tmp_path, GOOD).only("node2")
