"""Containers on a node of Proxmox VE: on the volumes of its VMs, for every login, by the node's own LXC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from harness.events import Events
from harness.features.container import make_container_mode
from harness.features.container.lxc import ContainersBesideVms
from harness.features.proxmox import ProxmoxSpec
from harness.features.proxmox.backend import ProxmoxHypervisor
from harness.features.proxmox.client import Client
from harness.features.proxmox.creation import PveVolume
from harness.features.proxmox.session import Secret
from harness.image.manifest import sha256_of
from harness.lab.facts import Acceleration, HostFacts
from harness.lab.hosts import GuestFiles, Host
from harness.lab.inventory import HostSpec
from harness.model.guest import GuestOptions
from harness.scenario.setups import stored_volumes
from pve_double.server import Serving
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_nodes import connected
from tests.features.proxmox.proxmox_shell import DISK, NodeShell
from tests.features.proxmox.test_proxmox_backend import HOST, LVM, RULES, RUN, SPAN, left

__all__ = ["client", "node", "serving", "shell"]

INSIDE = make_container_mode(LVM)
HAS_LXC = "version=6.0.4\ngroups=cgroup2fs\ncommon=yes\n"


def host_of(shell: NodeShell, client: Client) -> Host:
    """The node as a host."""
    iso = shell.directory.parent / "guest.iso"
    iso.write_bytes(b"\0" * 64 * 1024)
    return Host(
        spec=HostSpec("node1", "proxmox", ssh=None, disks=(DISK,), hypervisor=ProxmoxSpec(client.spec, RULES)),
        runner=shell,
        ssh=None,
        target=None,
        facts=HostFacts({"cpus": "4", "memory_bytes": str(8 << 30), "os_id": "debian"}),
        guest_files=GuestFiles("", "", iso.parent / "key", "", iso, sha256_of(iso), "0123456789abcdef0123"),
        acceleration=Acceleration("tcg", "kvm = false"),
    )


def beside_vms(client: Client, shell: NodeShell) -> ContainersBesideVms:
    shell.prints["lxc-start --version"] = HAS_LXC
    host = host_of(shell, client)
    return ContainersBesideVms(host, ProxmoxHypervisor(host, client, RULES, Events()), Events())


@pytest.fixture
def token(serving: Serving) -> Iterator[Client]:
    serving.node.access.add_token("root@pam", "t1", privsep=False, value="a-value")
    with connected(serving, token="t1", secret=Secret("a-value")) as found:
        yield found


def test_the_container_gets_the_volume_that_the_node_made_for_the_vm(client: Client, shell: NodeShell) -> None:
    ours = beside_vms(client, shell)
    with ours.layouts(shell.log(RUN), [DISK], stored_volumes([HOST, LVM, INSIDE]), span=SPAN) as layouts:
        source = layouts.guest(INSIDE)
        assert isinstance(source, PveVolume)
        assert source is layouts.guest(LVM)
        assert source.volid == f"voh-{RUN}-lvm:vm-9000-voh-0"
    assert left(client) == []


def test_a_token_may_have_containers_also_with_pinned_cpus(token: Client, shell: NodeShell) -> None:
    ours = beside_vms(token, shell)
    pinned = GuestOptions(pin_vcpus=("2-3",))
    assert "pin_vcpus" in (ours.unsupported_by_host(replace(LVM, guest=pinned), DISK) or "")
    assert ours.unsupported_by_host(replace(INSIDE, guest=pinned), DISK) is None
    assert ours.unsupported_by_guest_os(shell.log(RUN), INSIDE) is None


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("version=\ngroups=cgroup2fs\n", "LXC is not installed there"),
        (HAS_LXC.replace("cgroup2fs", "tmpfs"), "control groups of version 1"),
    ],
)
def test_a_node_without_what_containers_need_is_skipped_with_the_remedy(
    client: Client, shell: NodeShell, printed: str, said: str
) -> None:
    ours = beside_vms(client, shell)
    shell.prints["lxc-start --version"] = printed
    assert said in (ours.unsupported_by_host(INSIDE, DISK) or "")
    assert ours.unsupported_by_host(LVM, DISK) is None


def test_a_container_with_more_cpus_than_the_node_is_skipped(client: Client, shell: NodeShell) -> None:
    ours = beside_vms(client, shell)
    assert "needs 5 CPUs, but the host has 4" in (
        ours.unsupported_by_host(replace(INSIDE, guest=GuestOptions(vcpus=5)), DISK) or ""
    )
