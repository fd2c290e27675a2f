"""`virt-overhead init` on a node of Proxmox VE: its API is the double's, and its shell is played."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.errors import ConfigError
from harness.features.init import lab_file
from harness.features.init.lab_file import write_lab_text
from harness.features.init.node import find_offers, read_node_name
from harness.features.init.offers import _LIST, Names
from harness.features.proxmox import ProxmoxSpec
from harness.features.proxmox.client import TO_CREATE_VOLUMES, Client
from harness.features.proxmox.session import Secret
from harness.lab.inventory import DiskById, DiskByStorage, HostSpec
from harness.lab.lab_file import load_lab
from pve_double.server import Serving
from pve_double.storage.disks import Disk
from pve_double.storage.volumes import Storage
from pve_double.testing import PASSWORD
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_nodes import connected
from tests.features.proxmox.proxmox_shell import LINK, NodeShell

__all__ = ["client", "node", "serving", "shell"]

GIB = 1 << 30
ROOT = Path(__file__).parents[3]


@pytest.fixture
def on_node(shell: NodeShell) -> NodeShell:
    """The shell of the node, which has one free disk."""
    shell.prints = {
        "/etc/pve/local": "nodes/pve\n",
        "id -u": "0\n",
        "/sys/block/*": f"disk\tsdb\nserial\tPVETEST_disk1\nlink\t{LINK}\n",
        **shell.prints,
    }
    return shell


def storage(name: str, kind: str, **changes: Any) -> Storage:
    return replace(Storage(name, kind, frozenset({"images"}), 100 * GIB), **changes)


def test_storages_that_accept_images_are_offered_with_their_layouts(client: Client, on_node: NodeShell) -> None:
    offers = find_offers(client, on_node, Names())
    assert {each.name: (each.key, each.at, each.layouts) for each in offers.storages} == {
        "local": ("storage", "local", ("raw", "qcow2")),
        "local-lvm": ("storage", "local-lvm", ("lvm-thin",)),
    }


def test_other_storages_are_named_with_the_reason(serving: Serving, client: Client, on_node: NodeShell) -> None:
    storages = serving.node.store.storages
    storages["iso"] = storage("iso", "dir", content=frozenset({"iso"}), path="/iso")
    storages["san"] = storage("san", "iscsi")
    storages["full"] = storage("full", "lvm", total_bytes=GIB, vgname="full")
    storages["off"] = storage("off", "lvm", vgname="off", offline=True)
    storages["voh-20260101-lvm"] = storage("voh-20260101-lvm", "lvm", vgname="v")
    offers = find_offers(client, on_node, Names())
    assert [each.name for each in offers.storages] == ["local", "local-lvm"]
    whys = {each.what: each.why for each in offers.other_storages}
    assert whys["storage iso (dir)"] == "it does not accept disk images"
    assert whys["storage san (iscsi)"] == "its type is not supported"
    assert whys["storage full (lvm)"] == "1 GiB are free, and 1 GiB of them must stay free for others"
    assert whys["storage off (lvm)"] == "it is not active"
    assert whys["storage voh-20260101-lvm (lvm)"].startswith("a run of virt-overhead created it")


def test_a_storage_that_is_described_wrongly_hides_no_other(
    client: Client, shell: NodeShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, Any] = {
        "nodes/pve/storage": [
            {"storage": "odd", "type": "dir", "content": "images", "active": 1, "avail": -1, "total": "nan"},
            {"storage": "a b", "type": "dir", "content": "images", "active": 1, "avail": GIB, "total": GIB},
            "text",
            {
                "storage": "good",
                "type": "zfspool",
                "content": "images",
                "active": 1,
                "avail": 9 * GIB,
                "total": 9 * GIB,
            },
        ],
        "nodes/pve/disks/list": [],
    }
    may = {path: dict.fromkeys(TO_CREATE_VOLUMES, 1) for path in ("/storage/odd", "/storage/good")}
    monkeypatch.setattr(
        client, "get", lambda path, _params=None: may if path == "access/permissions" else answers[path]
    )
    offers = find_offers(client, shell, Names())
    assert [each.name for each in offers.storages] == ["good"]
    assert [each.why.partition(":")[0] for each in offers.other_storages] == [
        "host node1",
        "a lab file cannot name it",
        "host node1",
    ]


def test_a_storage_on_which_the_token_may_not_create_volumes_is_not_offered(
    serving: Serving, client: Client, on_node: NodeShell
) -> None:
    # The roles of docs/proxmox.md for a token: it uploads its ISO to local, and creates volumes on local-lvm only.
    client.write("post", "access/users", {"userid": "bench@pve"}, is_done=lambda: False)
    roles = {
        "VohMedia": ("Datastore.AllocateTemplate Datastore.Audit", "/storage/local"),
        "VohVolumes": ("Datastore.AllocateSpace Datastore.Audit", "/storage/local-lvm"),
        "VohDisks": ("Sys.Audit Sys.Modify VM.Audit", "/"),
    }
    for role, (privileges, path) in roles.items():
        client.write("post", "access/roles", {"roleid": role, "privs": privileges}, is_done=lambda: False)
        acl = {"path": path, "users": "bench@pve", "roles": role, "propagate": int(path != "/")}
        client.write("put", "access/acl", acl, is_done=lambda: False)
    value = client.write("post", "access/users/bench@pve/token/voh", {"privsep": 0}, is_done=lambda: False)["value"]
    with connected(serving, user="bench@pve", token="voh", secret=Secret(value)) as token:
        offers = find_offers(token, on_node, Names())
    assert [each.name for each in offers.storages] == ["local-lvm"]
    (other,) = offers.other_storages
    assert other.what == "storage local (dir)"
    assert "bench@pve!voh may not create volumes on it: it lacks Datastore.AllocateSpace on /storage/local" in other.why


def test_a_token_that_sees_no_storage_is_named_with_the_remedy(
    serving: Serving, client: Client, on_node: NodeShell
) -> None:
    client.write("post", "access/users", {"userid": "bench@pve"}, is_done=lambda: False)
    value = client.write("post", "access/users/bench@pve/token/voh", {"privsep": 0}, is_done=lambda: False)["value"]
    with connected(serving, user="bench@pve", token="voh", secret=Secret(value)) as token:
        offers = find_offers(token, on_node, Names())
    assert offers.storages == ()
    assert offers.notes == ("bench@pve!voh sees no storage: docs/proxmox.md has the privileges that it needs",)


def test_without_a_key_the_lab_file_says_where_commands_run(client: Client, shell: NodeShell) -> None:
    host = {"kind": "proxmox", "api": {"url": "https://192.0.2.9:8006", "node": "pve"}}
    offers = find_offers(client, shell, Names())
    text = write_lab_text("pve1", host, offers, "lab.toml")
    assert '# key = "~/.ssh/id_ed25519"' in text
    assert "refuse that, except on the node itself" in text
    assert "# key" not in write_lab_text("pve1", {**host, "key": "/k"}, offers, "lab.toml")


def test_a_refused_login_names_the_options_of_the_command(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PVE_PASSWORD", "wrong")
    command = ["init", "--proxmox", f"127.0.0.1:{serving.port}", "--secret", "env:PVE_PASSWORD"]
    assert main(command) == 1
    assert "from the node and name the copy as --ca-file, or pin" in capsys.readouterr().err
    monkeypatch.setenv("PVE_PASSWORD", "wrong")
    assert main([*command, "--ca-file", str(serving.authority)]) == 1
    assert "refuses the login of root@pam\n  -> check --user and --secret; a user with" in capsys.readouterr().err
    monkeypatch.setenv("PVE_PASSWORD", PASSWORD)
    assert main([*command, "--ca-file", str(serving.authority), "--node", "pev"]) == 1
    assert "-> set --node to the output of `hostname` on the node" in capsys.readouterr().err


def test_without_a_key_the_first_step_is_to_name_one(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--proxmox", f"127.0.0.1:{serving.port}", "--secret", "env:PVE_PASSWORD"]
    given += ["--ca-file", str(serving.authority)]
    monkeypatch.setenv("PVE_PASSWORD", PASSWORD)
    assert main(["init", *given]) == 0
    assert "next:\n  # first name root's SSH key for the node in lab.toml" in capsys.readouterr().out
    monkeypatch.setenv("PVE_PASSWORD", PASSWORD)
    assert main(["quick", *given]) == 2
    assert "-> name it with --key FILE" in capsys.readouterr().err
    assert not (tmp_path / "reports").exists()


def test_a_free_disk_is_offered_and_one_that_a_vm_has_is_not(client: Client, on_node: NodeShell) -> None:
    (disk,) = find_offers(client, on_node, Names()).disks
    assert (disk.id, disk.serial, disk.device) == (LINK, "PVETEST_disk1", "/dev/sdb")
    made = client.write("post", f"{client.node}/qemu", {"vmid": 101, "scsi0": f"{LINK},size=1G"}, is_done=lambda: True)
    assert made
    offers = find_offers(client, on_node, Names())
    assert offers.disks == ()
    assert [each.why for each in offers.other_disks] == ["VM 101 has it as scsi0"]


def test_without_a_shell_on_the_node_no_disk_is_offered(serving: Serving, client: Client, shell: NodeShell) -> None:
    del shell.prints["/etc/pve/local"]
    serving.node.disks.disks = [Disk("/dev/sda", GIB, used="LVM"), Disk("/dev/sdb", GIB, by_id=LINK, model="QEMU")]
    offers = find_offers(client, shell, Names())
    assert offers.disks == ()
    assert [each.why.partition(",")[0] for each in offers.other_disks] == [
        "in use: LVM",
        "Proxmox VE reports no use of it",
    ]
    assert offers.notes == (
        "disks were not inspected, because no command can run on the node without its SSH key (--key)",
    )
    assert not [said for said in shell.asked if _LIST in said]


def test_the_node_is_the_one_of_the_shell_or_the_only_one(
    client: Client, shell: NodeShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    del shell.prints["/etc/pve/local"]
    assert read_node_name(client, shell) == "pve"
    monkeypatch.setattr(client, "get", lambda _path: [{"node": "pve1"}, {"node": "pve2"}])
    with pytest.raises(ConfigError, match=r"several nodes: pve1, pve2\n  -> choose one with --node NAME"):
        read_node_name(client, shell)
    shell.prints["/etc/pve/local"] = "nodes/pve2\n"
    assert read_node_name(client, shell) == "pve2"


def test_the_file_for_a_node_loads_as_it_is(
    serving: Serving, on_node: NodeShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(_spec: HostSpec) -> NodeShell:
        return on_node

    monkeypatch.setattr(lab_file, "connect", connect)
    monkeypatch.chdir(tmp_path)
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    secret.chmod(0o600)
    words = ["--proxmox", f"127.0.0.1:{serving.port}", "--secret", f"file:{secret}"]
    words += ["--ca-file", str(serving.authority), "--key", str(tmp_path / "key"), "--ssh-port", "2222"]
    words += ["--guest-address", "10.99.0.50/16"]
    assert main(["init", *words]) == 0
    text = (tmp_path / "lab.toml").read_text()
    assert PASSWORD not in text
    (found,) = load_lab(tmp_path / "lab.toml").hosts
    assert isinstance(found.hypervisor, ProxmoxSpec)
    assert (found.name, found.hypervisor.api.node, found.hypervisor.api.port) == ("127-0-0-1", "pve", serving.port)
    assert found.ssh is not None
    assert (found.ssh.key, found.ssh.port) == (tmp_path / "key", 2222)
    assert (found.hypervisor.guest.network, str(found.hypervisor.guest.address)) == ("static", "10.99.0.50/16")
    assert found.stored == (
        DiskByStorage("local", key="storage", at="local"),
        DiskByStorage("local-lvm", key="storage", at="local-lvm"),
    )
    (tmp_path / "lab.toml").write_text(re.sub("^## ", "", text, flags=re.M))
    (found,) = load_lab(tmp_path / "lab.toml").hosts
    assert found.disks == (DiskById("sdb", LINK, "PVETEST_disk1", destroy=False),)


def test_the_command_writes_a_file_that_loads_and_replaces_none(serving: Serving, tmp_path: Path) -> None:
    def init(*words: str) -> subprocess.CompletedProcess[str]:
        given = ["--proxmox", f"127.0.0.1:{serving.port}", "--secret", "env:PVE_PASSWORD"]
        given += ["--ca-file", str(serving.authority), *words]
        environment = os.environ | {"PVE_PASSWORD": PASSWORD, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [sys.executable, "-m", "harness.cli", "init", *given],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    done = init()
    assert done.returncode == 0, done.stderr
    assert "storage local-lvm: storage local-lvm, offers lvm-thin\n" in done.stdout
    assert "not offered: /dev/sdb (" in done.stdout
    written = (tmp_path / "lab.toml").read_text()
    assert PASSWORD not in written + done.stdout
    (found,) = load_lab(tmp_path / "lab.toml").hosts
    assert [each.at for each in found.stored] == ["local", "local-lvm"]

    again = init()
    assert again.returncode == 2
    assert "lab.toml exists already" in again.stderr
    assert (tmp_path / "lab.toml").read_text() == written
    printed = init("--json")
    assert [each["layouts"] for each in json.loads(printed.stdout)["storages"]] == [["raw", "qcow2"], ["lvm-thin"]]


PIN = ":".join(["0a"] * 32)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ssh", "root@192.0.2.7"], "--ssh needs --key"),
        (["--ssh", "root@", "--key", "/k"], "--ssh root@: allowed: USER@HOST or USER@HOST:PORT"),
        (["--ssh", "h:99999", "--key", "/k"], "--ssh h:99999: allowed: USER@HOST or USER@HOST:PORT"),
        (["--key", "/k"], "--key needs --ssh or --proxmox"),
        (["--ca-file", "/ca.pem"], "--ca-file needs --proxmox"),
        (["--guest-address", "10.0.0.5/8"], "--guest-address needs --proxmox"),
        (["--proxmox", "h", "--secret", "env:P", "--guest-address", "x"], '--guest-address = "x": '),
        (["--proxmox", "h"], "--proxmox needs --secret env:VARIABLE"),
        (["--proxmox", "h", "--secret", "hunter2"], "--proxmox needs --secret env:VARIABLE"),
        (["--proxmox", "h:99999", "--secret", "env:P"], "--proxmox h:99999: allowed: HOST or HOST:PORT"),
        (["--proxmox", "h", "--secret", "env:P", "--ssh-port", "2222"], "--ssh-port needs --proxmox and --key"),
        (["--ssh-port", "2222"], "--ssh-port needs --proxmox and --key"),
        (["--proxmox", "root@h", "--secret", "env:P"], "--proxmox root@h: allowed: HOST or HOST:PORT"),
        (["--proxmox", "h", "--secret", "env:P", "--user", "root"], ': --user = "root": allowed: a name with'),
        (
            ["--proxmox", "h", "--secret", "env:P", "--ca-file", "/c", "--fingerprint", PIN],
            "--fingerprint: cannot be used with --ca-file",
        ),
        (["--ssh", "a/b", "--key", "/k"], ': --ssh = "a/b": allowed: only a name or an address'),
    ],
)
def test_a_mistake_on_the_command_line_is_a_usage_error(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "host." not in error, "the lab file with such keys does not exist yet"
    assert "hunter2" not in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "name", "address", "port", "user"),
    [
        ("root@192.0.2.7", "192-0-2-7", "192.0.2.7", 22, "root"),
        ("node1.example.org:2222", "node1", "node1.example.org", 2222, "root"),
        ("me@[2001:db8::1]:22", "2001-db8-1", "2001:db8::1", 22, "me"),
    ],
)
def test_a_host_over_ssh_is_written_as_it_was_reached(  # noqa: PLR0917 - the parts of an address
    words: str, name: str, address: str, port: int, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[HostSpec] = []

    def connect(spec: HostSpec) -> Any:
        reached.append(spec)
        raise ConfigError("not reached")

    monkeypatch.setattr(lab_file, "connect", connect)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--ssh", words, "--key", "key"]) == 2
    (spec,) = reached
    assert spec.name == name
    assert spec.ssh is not None
    assert (spec.ssh.address, spec.ssh.port, spec.ssh.user) == (address, port, user)
    assert spec.ssh.key == tmp_path / "key"
