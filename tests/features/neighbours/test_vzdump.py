"""Backups by vzdump while a VM of Proxmox VE runs: begun, watched, stopped, and never left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from harness.errors import GuestError, Unsupported
from harness.features.neighbours import make_backup_mode
from harness.features.neighbours.proxmox import CreatedBackups, Vzdump, end_backups
from harness.features.proxmox import GuestRules
from harness.features.proxmox.client import Client
from harness.features.proxmox.creation import create_vm
from harness.features.proxmox.guest import ProxmoxGuest
from harness.features.proxmox.machine import VirtualMachine
from harness.features.proxmox.vm_config import CreatedVm, build_shell_parameters, format_drive
from harness.guest.booting import Booted
from harness.guest.protocol import GuestDisk
from harness.lab.transport.ssh import SshRunner
from harness.layout import BlockSource
from harness.model.attach import Attach
from harness.model.job import Job
from harness.model.mode import Arm, Place
from harness.scenario.timetable import VZDUMP_LEAD, waiting
from pve_double.executor.memory import MemoryExecutor
from pve_double.state import Node
from pve_double.storage.volumes import Storage
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_shell import NodeShell
from tests.features.proxmox.test_proxmox_backend import (
    HOST,
    RULES,
    RUN,
    SPAN,
    STORED,
    THIN,
    guest_with,
    hypervisor,
    iso,
    left,
    reaped,
)
from tests.features.proxmox.test_proxmox_privileges import ACLS, ROLES, token_with
from tests.unit.played_shell import PlayedShell

__all__ = ["client", "iso", "node", "serving", "shell"]

WITH_STORAGE = replace(RULES, backup_storage="local")
BACKED_UP = make_backup_mode(replace(THIN, name="thin"))


@dataclass
class Running:
    """A VM that runs with two drives of the run."""

    guest: ProxmoxGuest
    machine: VirtualMachine
    backups: CreatedBackups


@contextmanager
def running(client: Client, shell: NodeShell) -> Iterator[Running]:
    parameters = build_shell_parameters(RULES, "local:iso/mini.iso", 1)
    log = shell.log(RUN)
    with create_vm(client, log, RULES, parameters) as (machine, vm):
        machine.set({f"scsi{n}": format_drive("local-lvm:1", Attach(), name) for n, name in enumerate(("thin", "b"))})
        machine.start()
        backups = made_of(vm)
        with log.making(backups, partial(end_backups, client, backups)):
            disk = GuestDisk("thin", BlockSource("/dev/pve/x", "block", 0, SPAN), Attach())
            up = Booted(machine, cast("SshRunner", guest_with("thin")), 1.0)
            yield Running(
                ProxmoxGuest(
                    up,
                    threads=None,
                    node=PlayedShell({}),
                    disks=[disk],
                    keys={"thin": "scsi0", "b": "scsi1"},
                    back_up=lambda key, keys: Vzdump(machine, key, keys, backups),
                ),
                machine,
                backups,
            )
        machine.stop()
        for number in (0, 1):
            machine.free([f"scsi{number}"], f"local-lvm:vm-{machine.vmid}-disk-{number}")


def made_of(vm: CreatedVm) -> CreatedBackups:
    return CreatedBackups(node=vm.node, storage="local", vmid=vm.vmid, token=vm.token)


def stored(client: Client) -> list[str]:
    return [each["volid"] for each in client.get("nodes/pve/storage/local/content", {"content": "backup"})]


@pytest.fixture
def slow(node: Node) -> MemoryExecutor:
    """A backup of 1 GiB takes half a minute."""
    executor = node.executor
    assert isinstance(executor, MemoryExecutor)
    executor.backup_rate = 32 << 20
    return executor


def test_a_backup_is_begun_watched_and_stopped(
    client: Client, node: Node, slow: MemoryExecutor, shell: NodeShell
) -> None:
    with running(client, shell) as vm:
        backup = vm.guest.backup("thin", "")
        backup.begin()
        first = backup.copied()
        time.sleep(0.2)
        second = backup.copied()
        assert first is not None
        assert second is not None
        assert 0 <= first < second < 1 << 30
        assert vm.machine.config()["lock"] == "backup"
        (task,) = (task for task in node.tasks if task.kind == "vzdump")
        assert any("include disk 'scsi0'" in line for line in task.log.lines)
        assert any("exclude disk 'scsi1'" in line for line in task.log.lines)
        # Nothing of others is removed, and nobody gets a message.
        assert "--remove 0" in task.log.lines[0]
        assert "--notification-mode legacy-sendmail" in task.log.lines[0]
        backup.cancel()
        assert task.exitstatus == "job errors"
        assert "lock" not in vm.machine.config()
        assert stored(client) == []
        assert slow.backed_up(vm.machine.vmid) is None
    assert left(client) == []
    assert shell.logged == []


def test_a_complete_backup_is_removed_and_those_of_others_stay(client: Client, node: Node, shell: NodeShell) -> None:
    node.store.add_backup("local", "vzdump-qemu-9000-2020_01_01-00_00_00.vma", 1 << 20, 9000, "mine")
    with running(client, shell) as vm:
        backup = vm.guest.backup("thin", "")
        backup.begin()
        deadline = time.monotonic() + 600
        while backup.copied() is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(stored(client)) == 2
        backup.cancel()
        assert stored(client) == ["local:backup/vzdump-qemu-9000-2020_01_01-00_00_00.vma"]


def test_a_failed_backup_is_an_error_with_the_end_of_its_log(
    client: Client, node: Node, slow: MemoryExecutor, shell: NodeShell
) -> None:
    with running(client, shell) as vm:
        backup = vm.guest.backup("thin", "")
        backup.begin()
        (task,) = (task for task in node.tasks if task.kind == "vzdump")
        # The administrator stops it.
        task.log.stop.set()
        assert task.done.wait(600)
        with pytest.raises(GuestError, match=r"the backup of scsi0 failed: job errors") as error:
            backup.copied()
        assert "Backup job finished with errors" in error.value.message
        assert slow.backed_up(vm.machine.vmid) is None


@pytest.mark.usefixtures("slow")
def test_a_killed_run_leaves_no_backup_and_no_task(client: Client, node: Node, shell: NodeShell, iso: Path) -> None:
    held = running(client, shell)
    vm = held.__enter__()
    vm.guest.backup("thin", "").begin()
    node.store.add_backup("local", "vzdump-qemu-9000-2020_01_01-00_00_01.vma", 1 << 20, 9000, vm.backups.token)
    for key in ("scsi0", "scsi1"):
        # This test has put them there, not a run.
        node.machine(9000).config.pop(key)
    ended = reaped(hypervisor(client, iso, shell), shell)
    assert ended == {"pve-backups": ["removed"], "pve-vm": ["removed"]}
    assert all(task.exitstatus is not None for task in node.tasks)
    assert stored(client) == []
    assert shell.logged == []


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (RULES, "names no storage for backups: name one as host.node1.guest.backup_storage"),
        (replace(RULES, backup_storage="local-lvm"), "storage local-lvm does not accept backups"),
        (replace(RULES, backup_storage="tape"), "storage tape does not exist there"),
    ],
    ids=["none", "of disks", "missing"],
)
def test_without_a_storage_for_backups_the_mode_is_skipped_with_the_remedy(
    *, client: Client, iso: Path, shell: NodeShell, rules: GuestRules, said: str
) -> None:
    ours = hypervisor(client, iso, shell, rules)
    assert said in (ours.unsupported_by_host(BACKED_UP, STORED) or "")
    assert hypervisor(client, iso, shell, WITH_STORAGE).unsupported_by_host(BACKED_UP, STORED) is None


def test_a_proxmox_backup_server_is_refused_with_the_storages_that_can_be_used(
    client: Client, node: Node, iso: Path, shell: NodeShell
) -> None:
    node.store.storages["pbs"] = Storage("pbs", "pbs", frozenset({"backup"}), 1 << 40)
    ours = hypervisor(client, iso, shell, replace(RULES, backup_storage="pbs"))
    assert ours.unsupported_by_host(BACKED_UP, STORED) == (
        "storage pbs is of type pbs, on which the node does not show the free space: name one of type dir, nfs, cifs, "
        "cephfs, btrfs as host.node1.guest.backup_storage"
    )


@pytest.mark.parametrize("lacking", ["VM.Backup", "Datastore.AllocateSpace"])
def test_a_token_without_a_privilege_is_refused_by_its_name(tmp_path: Path, iso: Path, lacking: str) -> None:
    own = {"VohBackup": [name for name in ("VM.Backup",) if name != lacking] or ["VM.Audit"]}
    own["VohCopies"] = [name for name in ("Datastore.AllocateSpace",) if name != lacking] or ["Datastore.Audit"]
    acls = [*ACLS, ("/vms", "VohBackup", ""), ("/storage/local", "VohCopies", "")]
    roles = {name: given for name, given in ROLES.items() if name != "VohStorages"}
    with token_with(roles | own, tmp_path, acls) as (root, token, shell):
        ours = hypervisor(token, iso, shell, WITH_STORAGE)
        why = ours.unsupported_by_host(BACKED_UP, STORED) or ""
        where = "/vms" if lacking == "VM.Backup" else "/storage/local"
        assert f"bench@pve!voh lacks {lacking} on {where}, which vzdump needs" in why
        with (
            pytest.raises(Unsupported, match=lacking),
            ours.layouts(shell.log(RUN), [STORED], [HOST, THIN, BACKED_UP], span=SPAN),
        ):
            pass
        assert root.get("nodes/pve/tasks", {"source": "all"}) == []


def test_a_backup_that_does_not_fit_is_refused_before_anything_is_created(
    client: Client, iso: Path, shell: NodeShell
) -> None:
    ours = hypervisor(client, iso, shell, WITH_STORAGE)
    with (
        pytest.raises(Unsupported, match="storage local"),
        ours.layouts(shell.log(RUN), [STORED], [HOST, THIN, BACKED_UP], span=4096 << 30),
    ):
        pass
    assert left(client) == []


def test_a_backup_of_proxmox_ve_has_more_time_to_begin() -> None:
    mode = BACKED_UP.on(THIN.guest, one_guest=True)
    arm = Arm(Place.GUEST, mode)
    job = Job(rw="randread", bs=4096, iodepth=1, ramp=0, seconds=1)
    assert waiting(job, arm, [arm]) > VZDUMP_LEAD
    assert mode == BACKED_UP
