"""What the doctor says of a node of Proxmox VE, and that docs/proxmox.md names every check and every privilege."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.features.doctor.command import examine_hypervisor
from harness.features.doctor.machine import HostFinding, Level
from harness.features.doctor.node import NodeState, examine_node, needed, read_state
from harness.features.proxmox import ApiSpec, GuestRules, ProxmoxSpec, SecretSource
from harness.lab.inventory import LIBVIRT, DiskById, DiskByStorage, HostSpec, StoredLayout
from harness.lab.lab_file import load_lab
from harness.lab.transport.local import LocalRunner
from tests.features.proxmox.proxmox_nodes import double

DOCS = (Path(__file__).parents[3] / "docs" / "proxmox.md").read_text(encoding="utf-8")
DISK = DiskById("optane", "/dev/disk/by-id/absent", "PHM1", destroy=True)
STORAGES: Mapping[StoredLayout, str] = {"lvm-thin": "local-lvm"}
STORED = DiskByStorage("vmstore", STORAGES)
NODE = ProxmoxSpec(ApiSpec(url="https://192.0.2.9", node="pve", secret=SecretSource(env="X")), GuestRules())
TOKEN = replace(NODE, api=NODE.api.model_copy(update={"user": "bench@pve", "token": "voh"}))
HOST = HostSpec("node1", "proxmox", ssh=None, disks=(DISK,), hypervisor=NODE, stored=(STORED,))


def all_granted(host: HostSpec = HOST, spec: ProxmoxSpec = NODE) -> dict[str, frozenset[str]]:
    paths = {each.path for each in needed(host, spec)}
    return {path: frozenset(each.privilege for each in needed(host, spec) if each.path == path) for path in paths}


FIT = NodeState(
    version="9.2.11",
    granted=all_granted(),
    storages=(
        {"storage": "local", "type": "dir", "content": "iso,images", "active": 1, "avail": 1 << 30},
        {"storage": "local-lvm", "type": "lvmthin", "content": "images,rootdir", "active": 1, "avail": 1 << 30},
    ),
    bridges=("vmbr0",),
    hvm=True,
    free_ids=100,
    reached="pve",
    claims={"optane": []},
)


def found(state: NodeState, spec: ProxmoxSpec = NODE, host: HostSpec = HOST) -> dict[str, HostFinding]:
    """What is not fine, by its check."""
    return {each.check: each for each in examine_node(host, spec, state) if each.level is not Level.OK}


def test_a_node_that_has_all_that_is_needed_is_fit() -> None:
    assert found(FIT) == {}


@pytest.mark.parametrize(
    ("state", "check", "level", "said"),
    [
        (replace(FIT, version="8.4.1"), "Proxmox VE", Level.ADVICE, "8.4.1"),
        (replace(FIT, hvm=False), "virtualisation", Level.PROBLEM, "does not offer it"),
        (replace(FIT, bridges=("vmbr7",)), "bridge", Level.PROBLEM, "vmbr0 does not exist"),
        (replace(FIT, reached=""), "node", Level.PROBLEM, "commands run on a machine that is not a node of Proxmox VE"),
        (replace(FIT, reached="pve2"), "node", Level.PROBLEM, "the API is on pve, but SSH leads to pve2"),
        (replace(FIT, free_ids=0), "VM ids", Level.PROBLEM, "0 of 100 are free"),
        (replace(FIT, free_ids=None), "VM ids", Level.PROBLEM, "unknown: the login may not see all volumes"),
        (replace(FIT, claims={"optane": ["VM 7 has it as scsi0"]}), "optane: owner", Level.PROBLEM, "VM 7 has it"),
        (
            replace(FIT, claims={"optane": None}),
            "optane: owner",
            Level.PROBLEM,
            "may not see all guests and storages",
        ),
        (replace(FIT, storages=FIT.storages[1:]), "ISO storage", Level.PROBLEM, "local does not exist"),
        (replace(FIT, storages=FIT.storages[:1]), "vmstore: storage", Level.PROBLEM, "local-lvm does not exist"),
        (
            replace(FIT, storages=({**FIT.storages[0]}, {**FIT.storages[1], "type": "lvm"})),
            "vmstore: storage",
            Level.PROBLEM,
            "of type lvm, whose volumes do not have the layout lvm-thin",
        ),
        (
            replace(FIT, storages=({**FIT.storages[0]}, {**FIT.storages[1], "active": 0})),
            "vmstore: storage",
            Level.PROBLEM,
            "not active",
        ),
        (
            replace(FIT, granted={**FIT.granted, "/storage/local-lvm": frozenset()}),
            "privileges",
            Level.PROBLEM,
            "for volumes on local-lvm, root@pam lacks Datastore.AllocateSpace on /storage/local-lvm",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_the_doctor_reports_what_is_missing(state: NodeState, check: str, level: Level, said: str) -> None:
    (finding,) = found(state).values()
    assert (finding.check, finding.level) == (check, level)
    assert said in finding.value
    assert finding.advice


def test_a_storage_for_backups_needs_the_privileges_of_vzdump() -> None:
    spec = replace(TOKEN, guest=replace(NODE.guest, backup_storage="tape"))
    finding = found(FIT, spec)["privileges"]
    assert finding.level is Level.PROBLEM
    assert "for backups of guests, bench@pve!voh lacks VM.Backup on /vms" in finding.value
    assert "Datastore.AllocateSpace on /storage/tape" in finding.value
    assert "privileges" not in found(replace(FIT, granted=all_granted(HOST, spec)), spec)


def test_a_storage_for_containers_needs_one_for_their_templates() -> None:
    spec = replace(NODE, guest=replace(NODE.guest, container_storage="local-lvm"))
    finding = found(FIT, spec)["container storage"]
    assert (finding.level, finding.value) == (Level.PROBLEM, "local does not accept vztmpl")
    local, lvm = FIT.storages
    templates = {**local, "content": "iso,vztmpl"}
    assert "container storage" not in found(replace(FIT, storages=(templates, lvm)), spec)
    elsewhere = replace(NODE, guest=replace(NODE.guest, container_storage="tape"))
    said = found(replace(FIT, storages=(templates, lvm)), elsewhere)["container storage"].value
    assert said == "tape does not exist, or the login may not see it"


def test_a_token_gets_advice_that_it_may_not_attach_devices() -> None:
    (finding,) = found(replace(FIT, granted=all_granted(HOST, TOKEN)), TOKEN).values()
    assert (finding.check, finding.level) == ("passthrough", Level.ADVICE)
    assert "not with bench@pve!voh" in finding.value
    assert "root@pam" in finding.advice


def test_a_node_without_virtualisation_is_fit_for_emulated_guests() -> None:
    emulated = replace(NODE, guest=replace(NODE.guest, kvm=False, cpu="max"))
    assert found(replace(FIT, hvm=False), emulated) == {}


def test_the_checks_of_a_login_change_nothing() -> None:
    with double() as (node, client):
        state = read_state(HOST, NODE, client, LocalRunner("host node1"))
        assert node.machines == {}
        assert client.get("nodes/pve/tasks", {"source": "all"}) == []
    # Commands ran on this machine, as with a lab file that has no key.
    assert {check: each.level for check, each in found(replace(state, hvm=True)).items()} == {"node": Level.PROBLEM}
    assert found(replace(state, hvm=True, reached="pve")) == {}
    assert (state.version, state.bridges, state.free_ids) == ("9.2.11", ["vmbr0"], 100)


def test_an_unreachable_api_is_a_finding_in_addition_to_those_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("X", raising=False)
    (finding,) = examine_hypervisor(HOST, LocalRunner("host node1"))
    assert (finding.check, finding.level) == ("Proxmox VE", Level.PROBLEM)
    assert "the environment has no variable X" in finding.value
    assert not examine_hypervisor(replace(HOST, kind="ssh", hypervisor=LIBVIRT, stored=()), LocalRunner())


def test_what_the_login_may_not_read_is_unknown() -> None:
    (finding,) = found(replace(FIT, hvm=None)).values()
    assert (finding.check, finding.level) == ("virtualisation", Level.UNKNOWN)


def test_the_docs_name_every_check_and_no_other() -> None:
    table = DOCS.partition("| check | not fine |")[2].partition("\n\n")[0]
    named = set(re.findall(r"^\| ([^|]+?) \|", table, re.M)) - {"---"}
    every = replace(NODE, guest=replace(NODE.guest, container_storage="local-lvm"))
    checks = {re.sub(r"^(optane|vmstore): ", "DISK: ", each.check) for each in examine_node(HOST, every, FIT)}
    assert named == checks


def test_the_role_of_the_docs_has_exactly_what_is_needed() -> None:
    roles = {name: set(given.split()) for name, given in re.findall(r'pveum role add (\w+) --privs "([^"]+)"', DOCS)}
    static = replace(NODE, guest=replace(NODE.guest, network="static", address="192.0.2.5/24"))
    clones = replace(NODE, guest=replace(NODE.guest, template=900, reach="direct"))
    asked = [*needed(HOST, static), *needed(HOST, clones)]
    optional = {"VM.GuestAgent.Unrestricted", "VM.GuestAgent.FileRead", "VM.Clone", "VM.Config.Cloudinit"}
    wanted = {
        "VohGuests": {each.privilege for each in asked if each.path == "/vms"} - optional,
        "VohMedia": {each.privilege for each in asked if each.path == "/storage/local"},
        "VohVolumes": {each.privilege for each in asked if each.path == "/storage/local-lvm"},
        "VohDisks": {each.privilege for each in asked if each.path == "/"},
        "VohStorages": {each.privilege for each in asked if each.path == "/storage"},
    }
    assert roles == wanted
    assert all(f"`{privilege}`" in DOCS for privilege in optional)


def test_every_lab_file_of_the_docs_loads(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", DOCS, re.S)
    assert len(examples) >= 2
    for number, example in enumerate(examples):
        path = tmp_path / f"{number}.toml"
        path.write_text(example, encoding="utf-8")
        (host,) = load_lab(path).hosts
        assert host.kind == "proxmox"
        assert host.measured
