"""The roles that docs/proxmox.md gives to a token are enough, and each privilege in them is needed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError, LabUnavailable
from harness.features.proxmox import GuestRules
from harness.features.proxmox.client import Client
from harness.features.proxmox.creation import Store, Stores, create_vm
from harness.features.proxmox.session import Secret
from harness.features.proxmox.vm_config import build_shell_parameters
from harness.lab.pin import TAG
from pve_double.faults import Fault
from pve_double.server import serve
from pve_double.testing import memory_node
from tests.features.proxmox.proxmox_nodes import connected
from tests.features.proxmox.proxmox_shell import DISK, NodeShell
from tests.features.proxmox.test_proxmox_backend import (
    HOST,
    LVM,
    PASSTHROUGH,
    RAW,
    RUN,
    SPAN,
    STORED,
    THIN,
    hypervisor,
    left,
)

DOCS = (Path(__file__).parents[3] / "docs" / "proxmox.md").read_text(encoding="utf-8")


def granted_by(docs: str) -> tuple[dict[str, list[str]], list[tuple[str, str, str]]]:
    """The roles that a page creates, and where it gives them: path, role, and whether only there."""
    roles = {name: given.split() for name, given in re.findall(r'pveum role add (\w+) --privs "([^"]+)"', docs)}
    return roles, re.findall(r"pveum acl modify (\S+) --users bench@pve --roles (\w+)( --propagate 0)?", docs)


ROLES, ACLS = granted_by(DOCS)
ON_STORAGES = ("VohGuests", "VohMedia", "VohVolumes", "PVESDNUser")


def not_done() -> bool:
    return False


@contextmanager
def token_with(
    roles: dict[str, list[str]], directory: Path, acls: Sequence[tuple[str, str, str]] = ACLS
) -> Iterator[tuple[Client, Client, NodeShell]]:
    """Root's client, that of a token made as the docs say, with these roles alone, and the node's shell."""
    with serve(memory_node()) as serving, connected(serving) as root:

        def call(method: Any, path: str, /, **params: object) -> Any:
            return root.write(method, path, params, is_done=not_done)

        call("post", "access/users", userid="bench@pve")
        for role, privileges in roles.items():
            call("post", "access/roles", roleid=role, privs=",".join(privileges))
        for path, role, once in acls:
            if role in roles or role.startswith("PVE"):
                call("put", "access/acl", path=path, users="bench@pve", roles=role, propagate=int(not once))
        value = call("post", "access/users/bench@pve/token/voh", privsep=0)["value"]
        with connected(serving, user="bench@pve", token="voh", secret=Secret(value)) as client:
            yield root, client, NodeShell(serving, directory)


def life_of_a_vm(client: Client, shell: NodeShell) -> None:
    """What a guest needs beside its layouts: to be started, asked and removed."""
    rules = GuestRules(vmids=(9000, 9001), kvm=False, cpu="max")
    log = shell.log(RUN)
    with (
        create_vm(client, log, rules, build_shell_parameters(rules, "local:iso/mini.iso", 1)) as (machine, vm),
        Stores(client, log, vm).volume(Store("local-lvm"), 0, SPAN, "raw", file=False) as volume,
    ):
        machine.set({"scsi0": f"{volume.volid},aio=native,cache=none,iothread=1,serial=thin"})
        machine.start()
        while machine.interfaces() is None:
            time.sleep(0.1)
        assert machine.transferred(["scsi0"])["scsi0"].read >= 0


def whole_run(client: Client, iso: Path, shell: NodeShell) -> None:
    """Volumes on storages that are there, and a guest."""
    with hypervisor(client, iso, shell).layouts(shell.log(RUN), [STORED], [HOST, THIN], span=SPAN):
        pass
    life_of_a_vm(client, shell)


def test_the_docs_give_every_role_somewhere() -> None:
    assert {role for _, role, _ in ACLS} == {*ROLES, "PVESDNUser"}


def test_existing_storages_are_measured_with_these_privileges(tmp_path: Path) -> None:
    iso = tmp_path / "guest.iso"
    iso.write_bytes(b"\0" * 4096)
    with token_with({name: given for name, given in ROLES.items() if name in ON_STORAGES}, tmp_path) as (
        root,
        client,
        shell,
    ):
        whole_run(client, iso, shell)
        assert left(root) == []


def test_layouts_are_made_on_a_spare_disk_with_these_privileges(tmp_path: Path) -> None:
    iso = tmp_path / "guest.iso"
    iso.write_bytes(b"\0" * 4096)
    with token_with(ROLES, tmp_path) as (root, client, shell):
        with hypervisor(client, iso, shell).layouts(shell.log(RUN), [DISK], [HOST, LVM, RAW], span=SPAN):
            assert f"{TAG}-{RUN}-lvm" in {each["storage"] for each in root.get("storage")}
        life_of_a_vm(client, shell)
        assert left(root) == []


def test_a_user_other_than_root_may_log_in_with_a_password(tmp_path: Path) -> None:
    # With a password, writes need a ticket and a CSRF token, and the ticket is renewed in the middle of a run.
    iso = tmp_path / "guest.iso"
    iso.write_bytes(b"\0" * 4096)
    with token_with(ROLES, tmp_path) as (root, token, shell):
        shell.node.accounts.users["bench@pve"].password = "of the bench"
        changed = token.spec.model_copy(update={"token": None})
        client = Client(changed, Secret("of the bench"), "node1")
        try:
            shell.node.faults.add(Fault("ticket-expired", "POST .*/disks/lvm"))
            ours = hypervisor(client, iso, shell)
            with ours.layouts(shell.log(RUN), [DISK], [HOST, LVM, RAW], span=SPAN):
                assert f"{TAG}-{RUN}-lvm" in {each["storage"] for each in root.get("storage")}
            life_of_a_vm(client, shell)
            why = ours.unsupported_by_host(PASSTHROUGH, DISK)
        finally:
            client.close()
        assert why is not None
        assert "only from root@pam with a password, not from bench@pve" in why
        assert shell.node.faults.listing() == []
        assert left(root) == []
        with pytest.raises(LabUnavailable, match="refuses the login of bench@pve"):
            Client(changed, Secret("another"), "node1")


@pytest.mark.parametrize("privilege", [privilege for role in ON_STORAGES if role in ROLES for privilege in ROLES[role]])
def test_every_requested_privilege_is_necessary(tmp_path: Path, privilege: str) -> None:
    iso = tmp_path / "guest.iso"
    iso.write_bytes(b"\0" * 4096)
    lacking = {
        name: [each for each in given if each != privilege] for name, given in ROLES.items() if name in ON_STORAGES
    }
    with token_with(lacking, tmp_path) as (_, client, shell), pytest.raises(HarnessError):
        whole_run(client, iso, shell)
