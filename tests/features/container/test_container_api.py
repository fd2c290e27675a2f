"""Containers by the API of Proxmox VE: created, started with the device, destroyed; refusals; reaped after a kill."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace

import pytest

from harness.errors import GuestError, HostError, Unsupported
from harness.events import Events
from harness.features.container import make_container_mode
from harness.features.container.lxc import ContainersBesideVms
from harness.features.container.proxmox import make_template
from harness.features.proxmox import ProxmoxSpec
from harness.features.proxmox.backend import ProxmoxHypervisor
from harness.features.proxmox.client import Client
from harness.features.proxmox.session import Secret
from harness.guest.protocol import GuestDisk
from harness.lab.hosts import Host
from harness.layout import BlockSource
from harness.measure.reap import reap
from harness.model.attach import InContainer
from harness.model.guest import GuestOptions
from harness.model.mode import Mode
from harness.scenario.setups import stored_volumes
from pve_double.faults import Fault
from pve_double.server import Serving
from pve_double.state import Container, Node
from tests.features.container.test_container_pve import HAS_LXC, host_of
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_nodes import connected
from tests.features.proxmox.proxmox_shell import DISK, NodeShell
from tests.features.proxmox.test_proxmox_backend import HOST, LVM, RAW, RULES, RUN, SPAN, left

__all__ = ["client", "node", "serving", "shell"]

INSIDE = make_container_mode(LVM)
OTHERS = 9005
WITH_STORAGE = replace(RULES, container_storage="local-lvm", vmids=(9000, 9009))
READ = "version=6.0.4\ncpuset.cpus.effective=2-3\nmemory.max=805306368\nroot=100000\nseccomp=2\n"


def beside_vms(client: Client, shell: NodeShell) -> ContainersBesideVms:
    """The hypervisor of a node whose lab file names a storage for containers."""
    shell.prints |= {
        "lxc-start --version) 2>": HAS_LXC,
        "lxc-info": "4711\n",
        'printf "%d:%d': "252:7\n",
        "uid_map": READ,
        "nproc": "2\n",
    }
    shell.prints["version=$(lxc-start --version 2>/dev/null)"] = HAS_LXC
    host = host_of(shell, client)
    spec = ProxmoxSpec(client.spec, WITH_STORAGE)
    host = replace(host, spec=replace(host.spec, hypervisor=spec))
    return ContainersBesideVms(host, ProxmoxHypervisor(host, client, WITH_STORAGE, Events()), Events())


@pytest.fixture
def token(serving: Serving) -> Iterator[Client]:
    serving.node.access.add_token("root@pam", "t1", privsep=False, value="a-value")
    with connected(serving, token="t1", secret=Secret("a-value")) as found:
        yield found


def of_others(node: Node) -> None:
    """A container of somebody else, and a template."""
    node.containers[OTHERS] = Container(
        {"hostname": "shop", "description": "mine", "rootfs": f"local-lvm:vm-{OTHERS}-disk-0"}
    )
    node.store.add_file("local", "vztmpl", "debian-13.tar.zst", 1000)


def templates(node: Node) -> list[str]:
    return [volume.id for volume in node.store.volumes.values() if volume.content == "vztmpl"]


def test_the_container_gets_the_volume_as_a_device_and_nothing_of_it_is_left(
    client: Client, shell: NodeShell, node: Node
) -> None:
    ours = beside_vms(client, shell)
    assert ours.unsupported_by_host(INSIDE, DISK) is None
    of_others(node)
    with ours.layouts(shell.log(RUN), [DISK], stored_volumes([HOST, LVM, INSIDE]), span=SPAN) as layouts:
        source = layouts.guest(INSIDE)
        disk = GuestDisk("lvm-container", source, InContainer())
        with ours.guest(shell.log(RUN), [disk], GuestOptions(vcpus=2)) as guest:
            (vmid,) = node.containers.keys() - {OTHERS}
            config = node.containers[vmid].config
            assert config["dev0"] == f"path={source.path},mode=0660"
            assert config["mp0"] == "/usr,mp=/usr,ro=1"
            assert (config["unprivileged"], config["cores"], config["memory"]) == ("1", "2", "768")
            assert config["rootfs"] == f"local-lvm:vm-{vmid}-disk-0,size=256M"
            assert node.executor.container_runs(vmid)
            assert guest.device("lvm-container") == source.path
            effective = guest.effective("lvm-container")
            assert effective.container_version == "6.0.4, started by Proxmox VE"
            assert (effective.container_unprivileged, effective.container_memory) == (True, 768 << 20)
            assert "lxc-attach --name" in shell.asked[-1]
        assert list(node.containers) == [OTHERS]
    assert (left(client), templates(node)) == ([], ["local:vztmpl/debian-13.tar.zst"])


def test_what_a_container_has_of_another_device_is_not_measured(client: Client, shell: NodeShell, node: Node) -> None:
    ours = beside_vms(client, shell)
    shell.prints['printf "%d:%d'] = "252:8\n"
    with (
        ours.layouts(shell.log(RUN), [DISK], stored_volumes([HOST, LVM, INSIDE]), span=SPAN) as layouts,
        pytest.raises(GuestError, match=r"has the device 252:8 as /dev/voh-.*, not 252:7"),
        ours.guest(shell.log(RUN), [GuestDisk("own", layouts.guest(INSIDE), InContainer())]),
    ):
        pass
    assert (node.containers, templates(node)) == ({}, [])


def test_reap_removes_the_container_of_a_killed_run_and_no_other(client: Client, shell: NodeShell, node: Node) -> None:
    ours = beside_vms(client, shell)
    of_others(node)
    entered = ours.layouts(shell.log(RUN), [DISK], stored_volumes([HOST, LVM, INSIDE]), span=SPAN)
    layouts = entered.__enter__()
    disk = GuestDisk("own", layouts.guest(INSIDE), InContainer())
    guest = ours.guest(shell.log(RUN), [disk])
    guest.__enter__()
    shell.lose_connection()
    # The run is killed here: nothing that it has entered is left.
    (vmid,) = node.containers.keys() - {OTHERS}
    done = reap(shell, ours, shell.logged)
    assert done[0].startswith(f"removed after a killed run: the container {vmid} of Proxmox VE")
    assert list(node.containers) == [OTHERS]
    assert vmid not in node.machines
    assert (left(client), templates(node), shell.logged) == ([], ["local:vztmpl/debian-13.tar.zst"], [])


def test_reap_leaves_a_container_that_got_something_of_others(client: Client, shell: NodeShell, node: Node) -> None:
    ours = beside_vms(client, shell)
    entered = ours.layouts(shell.log(RUN), [DISK], stored_volumes([HOST, LVM, INSIDE]), span=SPAN)
    guest = ours.guest(shell.log(RUN), [GuestDisk("own", entered.__enter__().guest(INSIDE), InContainer())])
    guest.__enter__()
    shell.lose_connection()
    ((vmid, container),) = node.containers.items()
    container.config["mp7"] = f"local-lvm:vm-{vmid}-disk-1,mp=/data"
    with pytest.raises(HostError, match=f"vm-{vmid}-disk-1 as mp7"):
        reap(shell, ours, shell.logged)
    assert node.executor.container_runs(vmid)
    del container.config["mp7"]
    notes, container.config["description"] = container.config["description"], "taken over"
    with pytest.raises(HostError, match="do not contain the run's token"):
        reap(shell, ours, shell.logged)
    container.config["description"] = notes
    reap(shell, ours, shell.logged)
    assert node.containers == {}


def test_an_id_that_somebody_takes_first_is_left_to_him(client: Client, shell: NodeShell, serving: Serving) -> None:
    ours, node = beside_vms(client, shell), serving.node
    with ours.layouts(shell.log(RUN), [DISK], stored_volumes([HOST, LVM, INSIDE]), span=SPAN) as layouts:
        serving.node.faults.add(Fault("vmid-taken", "POST .*/lxc$"))
        disk = GuestDisk("own", layouts.guest(INSIDE), InContainer())
        with ours.guest(shell.log(RUN), [disk]):
            assert list(node.containers) == [9002]
            assert len(templates(node)) == 1
        assert 9001 in node.machines
    assert (node.containers, templates(node)) == ({}, [])


@pytest.mark.parametrize(
    ("mode", "rules", "said"),
    [
        (make_container_mode(RAW), WITH_STORAGE, "raw is none: measure lvm, lvm-thin or zvol"),
        (replace(INSIDE, guest=GuestOptions(pin_vcpus=("1",))), WITH_STORAGE, "leave out pin_vcpus"),
        (replace(INSIDE, guest=GuestOptions(vcpus=9)), WITH_STORAGE, "but the host has 4"),
        (INSIDE, replace(RULES, container_storage="local"), "local does not accept rootdir: name another one"),
        (INSIDE, replace(RULES, container_storage="tape"), "tape does not exist there"),
        (INSIDE, replace(WITH_STORAGE, iso_storage="local-lvm"), "local-lvm does not accept vztmpl"),
    ],
)
def test_what_a_container_of_proxmox_cannot_have_is_refused(
    client: Client, shell: NodeShell, mode: Mode, rules: object, said: str
) -> None:
    ours = beside_vms(client, shell)
    host = ours._host
    ours._host = replace(host, spec=replace(host.spec, hypervisor=replace(host.spec.hypervisor, guest=rules)))  # type: ignore[type-var] # a ProxmoxSpec
    assert said in (ours.unsupported_by_host(mode, DISK) or "")


def test_a_token_is_refused_with_the_reason_before_anything_is_created(
    token: Client, shell: NodeShell, node: Node
) -> None:
    ours = beside_vms(token, shell)
    why = ours.unsupported_by_host(INSIDE, DISK) or ""
    assert "gets a volume as a device (dev0), which Proxmox VE accepts only from root@pam" in why
    assert "not from root@pam!t1" in why
    assert "or leave out host.node1.guest.container_storage" in why
    assert node.containers == {}


def test_only_volumes_become_devices(client: Client, shell: NodeShell) -> None:
    disk = GuestDisk("own", BlockSource("/dev/sdb", "block", 0, SPAN), InContainer())
    ours = beside_vms(client, shell)
    with (
        pytest.raises(Unsupported, match="/dev/sdb is no volume of Proxmox VE"),
        ours.guest(shell.log(RUN), [disk]),
    ):
        pass


def test_the_template_has_no_file_where_the_node_is_bound() -> None:
    with tarfile.open(fileobj=io.BytesIO(make_template())) as archive:
        members = {member.name: member for member in archive.getmembers()}
    assert not [name for name in members if name.startswith(("./usr/", "./opt/"))]
    assert members["./bin"].linkname == "usr/bin"
    assert members["./sbin/init"].mode == 0o755
    assert make_template() == make_template()


def test_the_host_of_a_lab_without_the_key_uses_the_lxc_of_the_node(token: Client, shell: NodeShell) -> None:
    ours = beside_vms(token, shell)
    host: Host = ours._host
    spec = ProxmoxSpec(token.spec, RULES)
    ours._host = replace(host, spec=replace(host.spec, hypervisor=spec))
    assert ours.unsupported_by_host(INSIDE, DISK) is None
