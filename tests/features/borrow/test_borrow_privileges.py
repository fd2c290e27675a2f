"""A token with the role that docs/borrow.md gives may borrow a VM, and each privilege in it is needed and named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.events import Events
from harness.features.borrow import proxmox as borrowing
from harness.features.borrow.hypervisor import BorrowingHypervisor
from harness.features.doctor.machine import Level
from harness.features.doctor.node import examine_node, needed, read_state
from harness.features.proxmox import GuestRules, removal
from harness.features.proxmox.client import Client
from harness.guest.protocol import GuestDisk
from harness.lab.inventory import BorrowedVm, DiskByStorage
from harness.lab.transport.local import LocalRunner
from harness.lab.transport.ssh import SshRunner
from tests.features.borrow.test_proxmox_borrowed import ATTACH, BORROWED, HOST, RUN, THIN, VM, Inside, borrowing_host
from tests.features.proxmox.proxmox_fixtures import impatient
from tests.features.proxmox.proxmox_shell import NodeShell
from tests.features.proxmox.test_proxmox_backend import left
from tests.features.proxmox.test_proxmox_doctor import FIT, TOKEN
from tests.features.proxmox.test_proxmox_doctor import HOST as NODE
from tests.features.proxmox.test_proxmox_privileges import granted_by, token_with

DOCS = (Path(__file__).parents[3] / "docs" / "borrow.md").read_text(encoding="utf-8")
ROLES, ACLS = granted_by(DOCS)
STORED = DiskByStorage("vmstore", {"lvm-thin": "local-lvm"})
BY_AGENT = "VM.GuestAgent.Unrestricted"


@contextmanager
def borrower(
    roles: dict[str, list[str]], directory: Path, patch: pytest.MonkeyPatch, vm: BorrowedVm = BORROWED
) -> Iterator[tuple[Client, BorrowingHypervisor[Any], NodeShell]]:
    """Root's client, what borrows the running VM with a token that has these roles, and the node's shell."""
    impatient(patch)
    patch.setattr(removal, "CONFIGURATIONS", str(directory / "nodes"))
    with token_with(roles, directory, ACLS) as (root, client, shell):
        patch.setattr(SshRunner, "connect", lambda *_, **__: Inside(shell.node))
        root.task("post", "nodes/pve/qemu", VM, is_done=lambda: False, deadline=30)
        root.task("post", "nodes/pve/qemu/100/status/start", {}, is_done=lambda: False, deadline=30)
        rules = GuestRules(vmids=(9000, 9001))
        host = borrowing_host(shell, directory)
        yield root, borrowing.borrow_vm(host, client, rules, vm, Events()), shell


def measure(ours: BorrowingHypervisor[Any], shell: NodeShell) -> None:
    """The whole life of a run's drive."""
    log = shell.log(RUN)
    with (
        ours.layouts(log, [STORED], [HOST, THIN], span=64 << 20) as layouts,
        ours.guest(log, [GuestDisk("thin", layouts.guest(THIN), ATTACH)]) as guest,
    ):
        assert guest.device("thin")


def test_the_role_of_the_docs_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with borrower(ROLES, tmp_path, monkeypatch) as (root, ours, shell):
        before = left(root)
        assert ours.unsupported_by_host(THIN, STORED) is None
        measure(ours, shell)
        assert left(root) == before


@pytest.mark.parametrize("privilege", ROLES["VohBorrow"])
def test_each_privilege_is_needed_and_named_before_anything_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, privilege: str
) -> None:
    lacking = {name: [each for each in given if each != privilege] for name, given in ROLES.items()}
    with borrower(lacking, tmp_path, monkeypatch) as (root, ours, shell):
        before = left(root)
        why = ours.unsupported_by_host(THIN, STORED) or ""
        assert re.search(rf"to borrow VM 100, bench@pve!voh lacks .*{re.escape(privilege)} on /vms", why)
        assert "docs/borrow.md has one" in why
        assert left(root) == before
        # Without this check, Proxmox VE would refuse something in the middle of the run.
        monkeypatch.setattr(borrowing, "list_needed_to_borrow", lambda _: [])
        with pytest.raises(HarnessError):
            measure(ours, shell)


def test_the_agent_needs_one_privilege_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_agent = replace(BORROWED, login=None)
    with borrower(ROLES, tmp_path, monkeypatch, by_agent) as (_, ours, _):
        assert f"lacks {BY_AGENT} on /vms/100" in (ours.unsupported_by_host(THIN, STORED) or "")
    more = ROLES | {"VohBorrow": [*ROLES["VohBorrow"], BY_AGENT]}
    (tmp_path / "again").mkdir()
    with borrower(more, tmp_path / "again", monkeypatch, by_agent) as (_, ours, _):
        # The VM's configuration has no agent, which is found only with the privilege.
        assert "qm set 100 --agent enabled=1" in (ours.unsupported_by_host(THIN, STORED) or "")


def test_the_docs_have_exactly_what_the_doctor_asks_for(tmp_path: Path) -> None:
    spec = replace(TOKEN, borrowed=BORROWED)
    host = replace(NODE, disks=())
    asked = needed(host, spec)
    assert {each.privilege for each in asked if each.path.startswith("/vms")} == set(ROLES["VohBorrow"])
    assert {each.privilege for each in asked if each.path.startswith("/storage")} == set(ROLES["VohVolumes"])
    with token_with(ROLES, tmp_path, ACLS) as (_, client, _):
        state = read_state(host, spec, client, LocalRunner("host node1"))
    found = {each.check: each for each in examine_node(host, spec, replace(FIT, granted=state.granted))}
    assert found["privileges"].level is Level.OK
    # Nothing is booted.
    assert not {"bridge", "ISO storage"} & found.keys()
