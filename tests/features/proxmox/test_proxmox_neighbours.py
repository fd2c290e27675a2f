"""Several guests of a run at the double at the same time: a VM and an address for each, and nothing is left of them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import HarnessError, Unsupported
from harness.features.proxmox import GuestRules
from harness.features.proxmox.backend import ProxmoxHypervisor
from harness.features.proxmox.client import Client
from harness.features.proxmox.machine import VirtualMachine
from harness.features.proxmox.vm_config import parse_drive
from harness.guest.protocol import GuestDisk
from harness.lab.hosts import Host
from harness.layout.build import Layouts
from harness.model.attach import Attach
from harness.model.guest import GuestOptions
from harness.model.layout import LvmThin
from harness.model.mode import Mode
from harness.scenario.setups import by_guest, stored_volumes
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_shell import NodeShell
from tests.features.proxmox.test_proxmox_backend import (
    HOST,
    RULES,
    RUN,
    SPAN,
    STORED,
    guest_with,
    hypervisor,
    left,
    reaped,
)
from tests.unit.played_shell import PlayedShell

__all__ = ["client", "node", "serving", "shell"]

GIB = 1 << 30
THREE = Mode("three", LvmThin(), Attach(), guests=3)
ADDRESSES = ("192.0.2.50/24", "192.0.2.51/24", "192.0.2.52/24")
STATIC = replace(RULES, vmids=(9000, 9002), network="static", address=ADDRESSES[0], further_addresses=ADDRESSES[1:])
LOGGED_IN = "harness.features.proxmox.backend.log_in"


@pytest.fixture
def ours(client: Client, shell: NodeShell, tmp_path: Path) -> ProxmoxHypervisor:
    return with_rules(client, shell, tmp_path, STATIC)


def with_rules(client: Client, shell: NodeShell, directory: Path, rules: GuestRules, **facts: str) -> ProxmoxHypervisor:
    iso = directory / "guest.iso"
    iso.write_bytes(b"\0" * 4096)
    return hypervisor(client, iso, shell, rules, facts=facts)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str | None]]:
    """The VMs that were logged in to, and the address of each: they show the disk that they have."""
    asked: list[tuple[int, str | None]] = []

    def log_in(machine: VirtualMachine, _host: Host, rules: GuestRules) -> PlayedShell:
        asked.append((machine.vmid, rules.address))
        return guest_with(parse_drive(str(machine.config()["scsi0"]))["serial"])

    monkeypatch.setattr(LOGGED_IN, log_in)
    return asked


def boot(ours: ProxmoxHypervisor, shell: NodeShell, layouts: Layouts, name: str) -> ExitStack:
    """The guest of this name runs until the stack is closed."""
    disks = [GuestDisk(mode.name, layouts.guest(mode), mode.attach) for mode in by_guest([THREE])[name] if mode.attach]
    stack = ExitStack()
    stack.enter_context(ours.guest(shell.log(RUN), disks, variant=name))
    return stack


def test_each_guest_is_a_vm_with_its_own_volume_and_address_also_after_another_boot(
    client: Client, ours: ProxmoxHypervisor, shell: NodeShell, asked: list[tuple[int, str | None]]
) -> None:
    assert ours.unsupported_by_host(THREE, STORED) is None
    with (
        ours.layouts(shell.log(RUN), [STORED], [HOST, *stored_volumes([THREE])], span=SPAN) as layouts,
        ExitStack() as up,
    ):
        for name in ("", "g2", "g3"):
            up.enter_context(boot(ours, shell, layouts, name))
        vmids = sorted(each["vmid"] for each in client.get("nodes/pve/qemu") if each["status"] == "running")
        assert vmids == [9000, 9001, 9002]
        drives = [client.get(f"nodes/pve/qemu/{vmid}/config")["scsi0"].partition(",")[0] for vmid in vmids]
        # One VM owns all volumes, and each guest has the one of its mode.
        assert drives == [f"local-lvm:vm-9000-voh-{number}" for number in (1, 3, 5)]
        assert asked == list(zip(vmids, ADDRESSES, strict=True))
        up.close()
        assert [each["vmid"] for each in client.get("nodes/pve/qemu")] == [9000]
        for name in ("", "g2", "g3"):
            up.enter_context(boot(ours, shell, layouts, name))
        assert asked[3:] == asked[:3]
    assert left(client) == []
    assert shell.logged == []


@pytest.mark.usefixtures("asked")
def test_reap_removes_all_guests_of_a_killed_run_and_their_volumes(
    client: Client, ours: ProxmoxHypervisor, shell: NodeShell
) -> None:
    client.task("post", "nodes/pve/qemu", {"vmid": 100, "name": "mine"}, is_done=lambda: False, deadline=30)
    killed = ExitStack()
    modes = [HOST, *stored_volumes([THREE])]
    layouts = killed.enter_context(ours.layouts(shell.log(RUN), [STORED], modes, span=SPAN))
    for name in ("", "g2"):
        killed.enter_context(boot(ours, shell, layouts, name))
    assert {"VM 9000", "VM 9001"} <= set(left(client))
    volumes = len([each for each in left(client) if ":" in each])
    assert reaped(ours, shell) == {"pve-vm": ["removed", "removed"], "pve-volume": ["removed"] * volumes}
    killed.pop_all()
    assert left(client) == ["VM 100"]


@pytest.mark.parametrize(
    ("rules", "facts", "said"),
    [
        (
            replace(STATIC, vmids=(9000, 9001)),
            {},
            "3 guests need 3 VM ids, but only 2 from 9000 to 9001 are free: widen host.node1.guest.vmids",
        ),
        (
            replace(STATIC, further_addresses=ADDRESSES[1:2]),
            {},
            "3 guests need 3 addresses, but host.node1.guest.address has 2: list 3 free ones there",
        ),
        (STATIC, {"memory_bytes": str(3 * GIB // 2)}, "3 guests need 1.5 GiB, but the host has 1.5 GiB"),
    ],
    ids=["ids", "addresses", "memory"],
)
def test_a_node_without_room_for_all_guests_skips_the_mode_with_the_remedy(
    *, client: Client, shell: NodeShell, tmp_path: Path, rules: GuestRules, facts: dict[str, str], said: str
) -> None:
    ours = with_rules(client, shell, tmp_path, rules, **facts)
    three = replace(THREE, guest=GuestOptions(memory=GIB // 2))
    shell.prints["/sys/devices/system/cpu/online"] = "cpus 0-3\nnodes 0\n"
    assert said in (ours.unsupported_by_host(three, STORED) or "")
    assert ours.unsupported_by_host(replace(three, guests=1), STORED) is None


def test_the_volumes_of_all_guests_count_before_anything_is_created(
    client: Client, ours: ProxmoxHypervisor, shell: NodeShell
) -> None:
    # One of 60 GiB would fit on the 200 GiB of local-lvm, as would the baseline's; three do not.
    modes = [HOST, *stored_volumes([THREE])]
    with (
        pytest.raises(Unsupported, match=r"storage local-lvm \(.*\): the run needs .*, 200 GiB are free"),
        ours.layouts(shell.log(RUN), [STORED], modes, span=60 * GIB),
    ):
        pass
    assert left(client) == []


@pytest.mark.usefixtures("asked")
def test_a_guest_that_does_not_boot_takes_its_vm_with_it_and_leaves_the_others(
    *, client: Client, ours: ProxmoxHypervisor, shell: NodeShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        ours.layouts(shell.log(RUN), [STORED], [HOST, *stored_volumes([THREE])], span=SPAN) as layouts,
        boot(ours, shell, layouts, ""),
    ):

        def fail(*_: object) -> None:
            raise HarnessError("no login")

        monkeypatch.setattr(LOGGED_IN, fail)
        with pytest.raises(HarnessError, match="no login"):
            boot(ours, shell, layouts, "g2")
        assert [(each["vmid"], each["status"]) for each in client.get("nodes/pve/qemu")] == [(9000, "running")]
    assert left(client) == []
