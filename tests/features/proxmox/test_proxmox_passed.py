"""A device that a VM of Proxmox VE gets (`hostpciN`): requested, read back, refused, and the node's again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.errors import GuestError, SafetyError, Unsupported
from harness.features.proxmox.beyond_drives import find_mapping, read_passed
from harness.features.proxmox.client import Client
from harness.features.proxmox.guest import find_device
from harness.features.vfio.passing import PciDisk
from harness.guest.protocol import GuestDisk
from harness.model.attach import Vfio
from harness.model.base import Device
from harness.model.guest import ANY_GUEST
from harness.model.mode import Mode
from harness.results.validity import configuration_check
from pve_double import nodeshell
from pve_double.executor.memory import MemoryExecutor
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_shell import DISK, LINK, NodeShell
from tests.features.proxmox.test_proxmox_backend import HOST, RUN, SPAN, hypervisor, iso, left, reaped
from tests.features.proxmox.test_proxmox_privileges import ACLS, ROLES, token_with
from tests.unit.played_shell import PlayedShell

__all__ = ["client", "iso", "node", "serving", "shell"]

ADDRESS = "0000:41:00.0"
VFIO = Mode("vfio", Device(), Vfio())
SEEN = f"device\t{ADDRESS} nvme\ngroup\t23\nmember\t{ADDRESS} 0x010802 nvme\ndisk\tnvme0n1\n"
SEEN += "serial\tPHMB7514\nvfio\tyes\n"
PCI = PciDisk(LINK, ADDRESS, "nvme", "PHMB7514", "23", (), ("nvme0n1",), has_vfio=True)


def have_device(shell: NodeShell) -> MemoryExecutor:
    """The disk is an NVMe of the node, with a driver."""
    executor = shell.node.executor
    assert isinstance(executor, MemoryExecutor)
    executor.pci = {ADDRESS: "nvme", "0000:41:00.1": "ixgbe"}
    shell.prints |= {"vfio\\tyes": SEEN, "drivers_probe": "removed\n"}
    return executor


@pytest.fixture
def device(shell: NodeShell) -> MemoryExecutor:
    return have_device(shell)


@contextmanager
def bench(directory: Path, *privileges: str) -> Iterator[tuple[Client, Client, NodeShell]]:
    """Root, and a token with the roles of the docs, which has these privileges on the resource mapping `fast`."""
    acls = [*ACLS, ("/mapping/pci/fast", "VohMapping", "")]
    with token_with({**ROLES, "VohMapping": list(privileges)}, directory, acls) as (root, token, shell):
        have_device(shell)
        yield root, token, shell


def test_the_vm_gets_the_device_and_the_node_gets_it_back(
    *, client: Client, device: MemoryExecutor, iso: Path, monkeypatch: pytest.MonkeyPatch, shell: NodeShell
) -> None:
    seen: list[dict[str, str]] = []

    def look(*_: object) -> None:
        seen.append(client.get("nodes/pve/qemu/9000/config"))
        command = nodeshell.run(shell.node, ["qm", "showcmd", "9000"]).text.split()
        found = find_device(command, "hostpci0")
        played = PlayedShell({"readlink": "../../../bus/pci/drivers/vfio-pci\n"})
        effective = read_passed(played, PCI, "hostpci0", seen[-1], found)
        assert (effective.qemu_device, effective.qemu_host, effective.host_driver) == ("vfio-pci", ADDRESS, "vfio-pci")
        assert effective.pve_drive == f"hostpci0: {ADDRESS},pcie=1"
        check = configuration_check(Vfio(), effective)
        assert check is not None
        raise GuestError("that is enough")

    monkeypatch.setattr("harness.features.proxmox.backend.log_in", look)
    ours = hypervisor(client, iso, shell)
    assert ours.unsupported_by_host(VFIO, DISK) is None
    # It is booted for its slices alone: the host has the disk only without it.
    assert VFIO.on(ANY_GUEST, one_guest=True).alternating
    assert not VFIO.on(ANY_GUEST).alternating
    with ours.layouts(shell.log(RUN), [DISK], [HOST, VFIO], span=SPAN) as layouts:
        disk = GuestDisk("vfio", layouts.by_mode["vfio"], Vfio())
        with pytest.raises(GuestError, match="enough"), ours.guest(shell.log(RUN), [disk]):
            pass
        # Proxmox VE leaves it with the driver of VFIO; a command on the node returns it.
        assert device.pci[ADDRESS] == "vfio-pci"
        assert any("drivers_probe" in asked and f"{ADDRESS} nvme {LINK}" in asked for asked in shell.asked)
        assert left(client) == []
    assert shell.logged == []
    assert len(seen) == 2


@pytest.mark.usefixtures("device")
def test_a_killed_run_is_reaped_and_the_device_returned(
    *, client: Client, iso: Path, monkeypatch: pytest.MonkeyPatch, shell: NodeShell
) -> None:
    class Killed(BaseException):
        pass

    kinds: list[str] = []

    def die(*_: object) -> None:
        kinds.extend(entry.kind for entry in shell.logged)
        raise Killed

    monkeypatch.setattr("harness.features.proxmox.backend.log_in", die)
    ours = hypervisor(client, iso, shell)
    held = ours.layouts(shell.log(RUN), [DISK], [HOST, VFIO], span=SPAN)
    layouts = held.__enter__()
    with pytest.raises(Killed), ours.guest(shell.log(RUN), [GuestDisk("vfio", layouts.by_mode["vfio"], Vfio())]):
        pass
    # The device is in the log before the VM that gets it, so that reap returns it after it has removed the VM.
    assert kinds[-2:] == ["passed-through", "pve-vm"]
    reaped(ours, shell)
    assert left(client) == []


def test_a_token_needs_a_mapping_of_the_device_and_the_right_to_use_it(tmp_path: Path, iso: Path) -> None:
    with bench(tmp_path, "Mapping.Audit") as (root, token, shell):
        ours = hypervisor(token, iso, shell)
        why = ours.unsupported_by_host(VFIO, DISK) or ""
        assert "the address of a PCI device only from root@pam with a password, and bench@pve!voh sees no" in why
        assert "give Mapping.Use on it" in why
        with (
            pytest.raises(Unsupported, match="no resource mapping"),
            ours.layouts(shell.log(RUN), [DISK], [HOST, VFIO], span=SPAN),
        ):
            pass
        shell.node.pci_mappings["fast"] = [f"node=pve,path={ADDRESS},id=8086:2700"]
        why = ours.unsupported_by_host(VFIO, DISK) or ""
        assert "bench@pve!voh may not use the resource mapping fast" in why
        assert "give it Mapping.Use on /mapping/pci/fast" in why
        assert root.get("nodes/pve/tasks", {"source": "all"}) == []
        assert shell.logged == []


def test_a_token_with_a_mapping_passes_the_device_through(
    tmp_path: Path, iso: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    with bench(tmp_path, "Mapping.Use") as (root, token, shell):
        node = shell.node

        def look(*_: object) -> None:
            seen.append(root.get("nodes/pve/qemu/9000/config")["hostpci0"])
            raise GuestError("that is enough")

        monkeypatch.setattr("harness.features.proxmox.backend.log_in", look)
        node.pci_mappings["fast"] = [f"node=other,path={ADDRESS}", f"node=pve,path={ADDRESS},id=8086:2700"]
        ours = hypervisor(token, iso, shell)
        assert ours.unsupported_by_host(VFIO, DISK) is None
        assert find_mapping(token, "0000:42:00.0") is None
        with ours.layouts(shell.log(RUN), [DISK], [HOST, VFIO], span=SPAN) as layouts:
            disk = GuestDisk("vfio", layouts.by_mode["vfio"], Vfio())
            with pytest.raises(GuestError, match="enough"), ours.guest(shell.log(RUN), [disk]):
                pass
        assert left(root) == []
    assert seen == ["mapping=fast,pcie=1"] * 2


@pytest.mark.usefixtures("device")
def test_a_device_that_another_vm_has_is_not_taken(client: Client, iso: Path, shell: NodeShell) -> None:
    shell.prints["at=/sys/block/$name/device"] = f"{ADDRESS}\n"
    ours = hypervisor(client, iso, shell)
    with ours.layouts(shell.log(RUN), [DISK], [HOST, VFIO], span=SPAN) as layouts:
        client.task("post", "nodes/pve/qemu", {"vmid": 100, "hostpci0": ADDRESS}, is_done=lambda: False, deadline=30)
        disk = GuestDisk("vfio", layouts.by_mode["vfio"], Vfio())
        with pytest.raises(SafetyError, match=f"VM 100 has its controller {ADDRESS} as hostpci0"):
            ours.guest(shell.log(RUN), [disk]).__enter__()


@pytest.mark.usefixtures("device")
def test_others_in_its_group_are_refused(client: Client, iso: Path, shell: NodeShell) -> None:
    shell.prints["vfio\\tyes"] = SEEN + "member\t0000:41:00.1 0x020000 ixgbe\n"
    why = hypervisor(client, iso, shell).unsupported_by_host(VFIO, DISK) or ""
    assert "shares IOMMU group 23 with 0000:41:00.1 (ixgbe)" in why
