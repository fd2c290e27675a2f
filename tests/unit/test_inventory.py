"""Lab files: what they mean, and what a mistake in them is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.lab.inventory import DiskByFile, DiskById, DiskByStorage, HostSpec, Inventory, SshAddress, class_known
from harness.lab.lab_file import load_lab

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


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('kind = "local"', 'type = "local"', "host.here.kind: missing; allowed: local, ssh, proxmox"),
        (".disk.", ".disks.", "host.here.disks: no such key; allowed: kind, address"),
    ],
)
def test_a_missing_key_says_its_values_and_a_wrong_table_is_not_written_out(
    tmp_path: Path, old: str, new: str, line: str
) -> None:
    text = '[host.here]\nkind = "local"\n[host.here.disk.loop]\nfile = "/var/tmp/x"\nsize = "1 GiB"\n'
    (tmp_path / "lab.toml").write_text(text.replace(old, new))
    with pytest.raises(ConfigError) as error:
        load_lab(tmp_path / "lab.toml")
    assert error.value.message.startswith(f"{tmp_path / 'lab.toml'}: {line}")


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


def test_the_link_of_a_lun_may_name_its_target(tmp_path: Path) -> None:
    link = "/dev/disk/by-path/ip-192.0.2.1:3260-iscsi-iqn.2026-11.x:san-lun-1"
    (disk, *_) = load(tmp_path, good_but("/dev/disk/by-id/nvme-INTEL_900P", link)).hosts[0].disks
    assert isinstance(disk, DiskById)
    assert disk.id == link


def test_nothing_may_be_destroyed_unless_the_owner_wrote_so(tmp_path: Path) -> None:
    assert not load(tmp_path, good_but("destroy = true\n", "")).host_of("optane").disk("optane").destroy


def test_without_a_profile_a_lab_is_measured_by_the_quickest(tmp_path: Path) -> None:
    assert load(tmp_path, good_but('profile = "publish"', "")).profile == "smoke"


def test_a_home_directory_is_meant_by_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    ssh = load(tmp_path, good_but("/keys/node1", "~/.ssh/lab")).hosts[0].ssh
    assert ssh is not None
    assert ssh.key == Path("/home/somebody/.ssh/lab")


def test_the_class_of_a_disk_is_stated_or_shown_by_its_link_or_not_known(tmp_path: Path) -> None:
    stated = good_but("destroy = true", 'destroy = true\nclass = "ssd"')
    classes = [class_known(load(tmp_path, text).host_of("optane").disk("optane")) for text in (GOOD, stated)]
    assert classes == ["nvme", "ssd"]
    loop = load(tmp_path, GOOD).host_of("loop").disk("loop")
    assert class_known(loop) is None
    assert class_known(replace(loop, disk_class="hdd")) == "hdd"
    assert class_known(DiskByStorage("pool", {"lvm-thin": "local-lvm"})) == "storage"


DISK_KEYS = "id, serial, overwrite_data, file, size, destroy, endurance, class, storages, array"
HOST_KEYS = "kind, address, port, user, key, host_key, fio, guest, backup_directory, disk, storage, api"
WHY_BOTH = "missing; id and serial together identify the disk that may be overwritten"
A_LINK = "allowed: a link such as /dev/disk/by-id/nvme-MODEL_SERIAL (ls -l /dev/disk/by-id/)"
BY_PLACE = "names a slot, which may hold another disk later; allowed: a link in /dev/disk/by-id/"
BY_CONTENTS = "names the contents of a disk, which the run overwrites; allowed: a link in /dev/disk/by-id/"
NO_FILE = "cannot be a backing file; allowed: a path in a file system, or a disk by id and serial"
AN_ADDRESS = "allowed: only a name or an address; user and port have separate keys"
A_KEY = "not a public key; allowed: its type and the key, for example `ssh-ed25519 AAAA...`"
NO_NAME = "not a valid name; allowed: letters, digits and `_`, `.`, `-`, with a letter or digit first"
OPTANE, LOOP = "host.node1.disk.optane", "host.here.disk.loop"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "destroy = true",
            "destory = true",
            f'{OPTANE}.destory = true: no such key; allowed: {DISK_KEYS} (did you mean "destroy"?)',
        ),
        (
            "destroy = true",
            'class = "sdd"',
            f'{OPTANE}.class = "sdd": allowed: nvme, ssd, hdd, array (did you mean "ssd"?)',
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
        ('kind = "local"', "", "host.here.kind: missing; allowed: local, ssh, proxmox"),
        ('id = "/dev/disk/by-id/nvme-INTEL_900P"\n', "", f"{OPTANE}.id: {WHY_BOTH}"),
        ('serial = "PHM1"\n', "", f"{OPTANE}.serial: {WHY_BOTH}"),
        ('serial = "PHM1"', 'serial = ""', f'{OPTANE}.serial = "": must not be empty'),
        (
            "/dev/disk/by-id/nvme-INTEL_900P",
            "/dev/sdb",
            f'{OPTANE}.id = "/dev/sdb": {A_LINK}',
        ),
        *(
            ("/dev/disk/by-id/nvme-INTEL_900P", link, f'{OPTANE}.id = "{link}": {why}')
            for link, why in (
                ("/dev/disk/by-id/../../sdb", A_LINK),
                ("/dev/disk/by-id/..", A_LINK),
                ("/dev/disk/by-id/", A_LINK),
                ("/dev/disk/by-id/a b", A_LINK),
                ("nvme-INTEL_900P", A_LINK),
                ("/dev/disk/by-label/data", BY_CONTENTS),
                ("/dev/disk/by-path/pci-0000:03:00.0-nvme-1", BY_PLACE),
                ("/dev/disk/by-path/ip-192.0.2.1:3260-iscsi-iqn.2026-11.x:san-lun-1-part1", BY_PLACE),
                ("/dev/disk/by-diskseq/9", BY_PLACE),
                ("/dev/disk/by-dname/disk-1", A_LINK),
                ("/dev/disk/by-partuuid/0815", BY_CONTENTS),
                (
                    "/dev/disk/by-id/wwn-1#2",
                    (
                        "fio treats the text after # as a comment; "
                        "allowed: another link to the disk (ls -l /dev/disk/by-*/)"
                    ),
                ),
                (
                    "/dev/disk/by-id/nvme-INTEL_900P-part1",
                    "names a partition; allowed: the link of the whole disk, without -part...",
                ),
            )
        ),
        *(
            ('serial = "PHM1"', f"serial = {serial}", f"{OPTANE}.serial = {serial}: {why}")
            for serial, why in (
                ('"  "', "must not be empty"),
                ('"PHM 1"', "allowed: text without spaces"),
                ('" PHM1"', "allowed: text without spaces"),
                ("1", "must be text in quotes"),
            )
        ),
        *(
            ("/var/tmp/loop.img", path, f'{LOOP}.file = "{path}": {why}')
            for path, why in (
                ("loop.img", "allowed: an absolute path, or one that begins with ~/"),
                ("", "must not be empty"),
                ("~nobody-of-that-name/x", "this user does not exist; allowed: an absolute path"),
                ("/var/../loop.img", "allowed: an absolute path without `..`"),
                ("//var/loop.img", "allowed: an absolute path without `..`"),
                ("/var/a\\u0000b", "allowed: one line of printable characters"),
                ("/", NO_FILE),
                ("/dev/sdb", NO_FILE),
                ("/dev/disk/by-id/nvme-INTEL_900P", NO_FILE),
                ("/proc/kcore", NO_FILE),
            )
        ),
        *(
            ('"2 GiB"', f'"{size}"', f'{LOOP}.size = "{size}": not a valid size; allowed: 64 MiB or more, in whole MiB')
            for size in ("0", "1", "63 MiB", "100000000")
        ),
        *(
            ("192.0.2.7", address, f'host.node1.address = "{address}": {AN_ADDRESS}')
            for address in ("", " ", "root@192.0.2.7", "192.0.2.7:22", "-oProxyCommand=x", "node1\\n")
        ),
        *(
            ("/keys/node1", path, f'host.node1.key = "{path}": {why}')
            for path, why in (
                ("", "must not be empty"),
                ("keys/node1", "allowed: an absolute path, or one that begins with ~/"),
                ("~nobody-of-that-name/x", "this user does not exist; allowed: an absolute path"),
            )
        ),
        ("[host.node1]", '[host.node1]\nuser = ""', 'host.node1.user = "": must not be empty'),
        ("[host.node1]", '[host.node1]\nhost_key = "ssh-rsa !!"', f'host.node1.host_key = "ssh-rsa !!": {A_KEY}'),
        ("disk.loop]", 'disk."lo op"]', f'host.here.disk."lo op": {NO_NAME}'),
        ("disk.loop]", 'disk."../loop"]', f'host.here.disk."../loop": {NO_NAME}'),
        ("disk.loop]", 'disk.""]', f'host.here.disk."": {NO_NAME}'),
        ("[host.node1]", '[host."no\\nde"]\nkind = "local"\n[host.node1]', f'host."no\\nde": {NO_NAME}'),
        (
            "[host.here]",
            '[host.again]\nkind = "ssh"\naddress = "192.0.2.7"\nkey = "/k"\n[host.here]',
            "host.again: the same machine as host.node1; allowed: one table for each, with all of its disks",
        ),
        (
            "[host.here]",
            '[host.again]\nkind = "local"\n[host.here]',
            "host.here: the same machine as host.again; allowed: one table for each, with all of its disks",
        ),
        (
            "[host.here]",
            '[host.node1.disk.b]\nid = "/dev/disk/by-id/b"\nserial = "PHM1"\n[host.here]',
            f'host.node1.disk.b.serial = "PHM1": the same value as {OPTANE}; allowed: each disk once',
        ),
        (
            "[host.here]",
            '[host.node1.disk.b]\nid = "/dev/disk/by-id/nvme-INTEL_900P"\nserial = "B"\n[host.here]',
            (
                f'host.node1.disk.b.id = "/dev/disk/by-id/nvme-INTEL_900P": the same value as {OPTANE}; '
                "allowed: each disk once"
            ),
        ),
        (
            "[host.here.disk.loop]",
            '[host.here.disk.b]\nfile = "/var/tmp/loop.img"\nsize = "2 GiB"\n[host.here.disk.loop]',
            f'{LOOP}.file = "/var/tmp/loop.img": the same value as host.here.disk.b; allowed: each disk once',
        ),
        ('file = "/var/tmp/loop.img"', "file = 7", f"{LOOP}.file = 7: must be a path in quotes"),
        (
            'size = "2 GiB"',
            "",
            f'{LOOP}.size: missing; a disk with a backing file needs it, for example "2 GiB"',
        ),
        ('"2 GiB"', "2", f'{LOOP}.size = 2: must be text in quotes; allowed: for example "2 GiB"'),
        (
            "destroy = true",
            'size = "2 GiB"',
            f"{OPTANE}.size: cannot be used with id; allowed: only with file",
        ),
        (
            '"2 GiB"',
            '"2 GB"',
            f'{LOOP}.size = "2 GB": GB is ambiguous; allowed: GiB (powers of 1024)',
        ),
        (
            '"2 GiB"',
            '"big"',
            f'{LOOP}.size = "big": not a valid size; allowed: for example 4k, 256 KiB, 64 MiB or 1 GiB',
        ),
        (
            'file = "/var/tmp/loop.img"',
            'file = "/var/tmp/loop.img"\nid = "/dev/disk/by-id/x"',
            f"{LOOP}: file and id cannot be used together; allowed: id + serial, or file + size",
        ),
        ("[host.node1]", "[host.node1]\nport = 0", "host.node1.port = 0: allowed: 1 or more"),
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
            'host.here.user: cannot be used with kind = "local"; allowed: only with kind = "ssh" or "proxmox"',
        ),
        (
            "[host.node1]",
            '[host.node1]\nhost_key = "AAAA"',
            f'host.node1.host_key = "AAAA": {A_KEY}',
        ),
        (
            '"publish"',
            '"pubish"',
            'profile = "pubish": no such profile; allowed: smoke, standard, publish (did you mean "publish"?)',
        ),
        ('profile = "publish"', "profile = 3", "profile = 3: must be text in quotes"),
    ],
)
def test_a_mistake_is_reported_with_key_value_and_what_is_allowed(
    tmp_path: Path, old: str, new: str, line: str
) -> None:
    assert complaint(tmp_path, good_but(old, new)) == [line]


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    text = good_but('key = "/keys/node1"\n', "").replace('serial = "PHM1"\n', "").replace('size = "2 GiB"\n', "")
    assert len(complaint(tmp_path, text)) == 3


def test_a_file_that_is_not_toml_is_refused_with_the_line(tmp_path: Path) -> None:
    assert complaint(tmp_path, good_but('"publish"', "publish"))[0].startswith("line 2")


def test_a_lab_without_hosts_is_refused(tmp_path: Path) -> None:
    assert complaint(tmp_path, 'profile = "smoke"\n') == ["host: missing, and it has no default"]
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


def test_a_disk_of_the_network_that_two_hosts_name_asks_for_one_of_them(tmp_path: Path) -> None:
    """Two runs at once would write to the same LUN, and neither host sees the other."""
    other = GOOD[GOOD.index("[host.node1]") : GOOD.index("[host.here]")]
    other = (
        other.replace("host.node1", "host.node2").replace("disk.optane", "disk.lun").replace("192.0.2.7", "192.0.2.8")
    )
    lab = load(tmp_path, f"{GOOD}\n{other}")
    assert [host.name for host in lab.hosts if any(disk.name == "lun" for disk in host.disks)] == ["node2"]
    for name in ("optane", "lun"):
        with pytest.raises(ConfigError, match=f'disk "{name}" is on several hosts: node1, node2') as error:
            lab.host_of(name)
        assert error.value.hint == "choose one with --host NAME"
    assert lab.only("node2").host_of("lun").name == "node2"


def test_the_disks_of_an_array_must_be_on_one_host(tmp_path: Path) -> None:
    lab = load(tmp_path, GOOD)
    assert lab.host_of_all(["loop"]).name == "here"
    with pytest.raises(
        ConfigError, match="the disks of one scenario are on several hosts: optane on node1, loop on here"
    ):
        lab.host_of_all(["optane", "loop"])


def test_an_unknown_disk_is_refused_with_the_nearest_name_and_where_to_add_it(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r'no disk "octane"; allowed: optane, loop \(did you mean "optane"\?\)'
    ) as error:
        load(tmp_path, GOOD).host_of("octane")
    assert error.value.hint is not None
    assert "[host.NAME.disk.octane]" in error.value.hint


@pytest.mark.parametrize("address", ["node1.example", "192.0.2.7", "2001:db8::7", "fe80::1%eth0", "node_1"])
def test_a_host_is_found_by_its_name_or_any_address(tmp_path: Path, address: str) -> None:
    ssh = load(tmp_path, good_but("192.0.2.7", address)).hosts[0].ssh
    assert ssh is not None
    assert ssh.address == address


def test_one_machine_may_answer_on_several_ports(tmp_path: Path) -> None:
    again = '[host.again]\nkind = "ssh"\naddress = "192.0.2.7"\nport = 2222\nkey = "/k"\n'
    assert len(load(tmp_path, GOOD + again).hosts) == 3


def test_a_lab_without_disks_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='no disk "optane"; it has no disks'):
        load(tmp_path, '[host.here]\nkind = "local"\n').host_of("optane")


def test_an_unknown_host_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'no host "node2"; allowed: node1, here \(did you mean "node1"\?\)'):
        load(tmp_path, GOOD).only("node2")
