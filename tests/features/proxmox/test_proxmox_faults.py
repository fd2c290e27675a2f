"""The client and its VMs at the double, with all that goes wrong on the way: survived or told, and nothing is left."""

from __future__ import annotations

import hashlib
import itertools
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness.config.names import RunId
from harness.errors import GuestError, LabUnavailable
from harness.features.proxmox import GuestRules
from harness.features.proxmox.client import Client, PveError
from harness.features.proxmox.creation import Store, Stores, create_vm
from harness.features.proxmox.machine import VirtualMachine
from harness.features.proxmox.session import Secret
from harness.features.proxmox.vm_config import build_shell_parameters
from pve_double.faults import Fault, Kind
from pve_double.server import Serving, serve
from pve_double.state import Node
from pve_double.testing import memory_node
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_nodes import api_spec, connected
from tests.features.proxmox.proxmox_shell import NodeShell

__all__ = ["client", "node", "serving", "shell"]

RUN = RunId("20261121-101500-ab12")
WRONG = "not-the-one"
RULES = GuestRules(vmids=(9000, 9003))
ISO = "local:iso/mini.iso"
OPTIONS = "cache=none,aio=native,iothread=1,discard=ignore,detect_zeroes=0,serial=lvm"
DRIVE = {"scsi0": f"/dev/disk/by-id/scsi-PVETEST_disk1,{OPTIONS}"}
CREATE, CONFIG, START, STOP, DESTROY = (
    "POST .*/qemu$",
    "POST .*/config",
    "POST .*/status/start",
    "POST .*/status/stop",
    "DELETE .*/qemu/",
)


@contextmanager
def made(client: Client, shell: NodeShell) -> Iterator[VirtualMachine]:
    with create_vm(client, shell.log(RUN), RULES, build_shell_parameters(RULES, ISO, 1)) as (machine, _):
        yield machine


def whole_life(client: Client, shell: NodeShell) -> None:
    """What the backend does with a VM."""
    with made(client, shell) as machine:
        machine.set(DRIVE)
        machine.start()
        assert machine.transferred(["scsi0"])["scsi0"].read >= 0


@contextmanager
def with_a_disk(client: Client, shell: NodeShell) -> Iterator[VirtualMachine]:
    """A VM with a volume of its own."""
    log = shell.log(RUN)
    with (
        create_vm(client, log, RULES, build_shell_parameters(RULES, ISO, 1)) as (machine, vm),
        Stores(client, log, vm).volume(Store("local-lvm"), 0, 1 << 30, "raw", file=False) as volume,
    ):
        machine.set({"scsi0": f"{volume.volid},{OPTIONS}"})
        yield machine


@pytest.mark.parametrize("call", [CREATE, CONFIG, START, STOP, DESTROY])
@pytest.mark.parametrize("kind", ["gone", "cut-after", "ticket-expired", "slow"])
def test_a_lost_answer_is_survived_and_nothing_is_done_twice(
    node: Node, client: Client, kind: Kind, call: str, shell: NodeShell
) -> None:
    node.faults.add(Fault(kind, call, seconds=1.0))
    whole_life(client, shell)
    assert node.faults.listing() == []
    assert node.machines == {}
    tasks = [each["type"] for each in client.get("nodes/pve/tasks", {"source": "all"})]
    assert sorted(tasks) == ["qmconfig", "qmcreate", "qmdestroy", "qmstart", "qmstop"]


@pytest.mark.parametrize("call", [CREATE, CONFIG, START])
@pytest.mark.parametrize("kind", ["cut-before", "task-fails", "warnings"])
def test_a_failure_is_reported_and_nothing_is_left(
    node: Node, client: Client, kind: Kind, call: str, shell: NodeShell
) -> None:
    node.faults.add(Fault(kind, call, text="injected failure"))
    with pytest.raises((PveError, GuestError)) as error:
        whole_life(client, shell)
    said = {
        "cut-before": "unknown whether it was done",
        "task-fails": "injected failure",
        "warnings": "not as requested",
    }
    assert said[kind] in error.value.message
    assert "node1" in error.value.message
    if (kind, call) == ("task-fails", CREATE):
        # It has a lock, and nothing yet by which it would be known as ours.
        assert "VM 9000 is locked (create) and has no notes yet, so its owner is unknown" in error.value.message
        assert [entry.record["vmid"] for entry in shell.logged] == [9000]
    else:
        assert node.machines == {}
        assert shell.logged == []


@pytest.mark.parametrize("call", [CONFIG, START, STOP])
def test_a_held_lock_is_waited_for(node: Node, client: Client, call: str, shell: NodeShell) -> None:
    with made(client, shell) as machine:
        machine.set(DRIVE)
        steps = {CONFIG: lambda: machine.set({"memory": "1024"}), START: machine.start, STOP: machine.stop}
        node.faults.add(Fault("lock-held", vmid=machine.vmid))
        steps[call]()
        assert node.faults.listing() == []
        node.machines[machine.vmid].config.pop("lock", None)
    assert node.machines == {}


def test_an_id_that_another_client_takes_first_is_not_used(node: Node, client: Client, shell: NodeShell) -> None:
    node.faults.add(Fault("vmid-taken", CREATE))
    with made(client, shell) as machine:
        assert machine.vmid == 9001
        assert [entry.record["vmid"] for entry in shell.logged] == [9001]
    assert list(node.machines) == [9000]


def test_ids_come_only_from_the_range_of_the_lab(client: Client, shell: NodeShell) -> None:
    with ExitStack() as stack:
        machines = [stack.enter_context(made(client, shell)) for _ in range(4)]
        assert [each.vmid for each in machines] == [9000, 9001, 9002, 9003]
        with pytest.raises(LabUnavailable, match="no VM id from 9000 to 9003 is free"), made(client, shell):
            pass


def test_a_vm_that_a_dead_client_left_locked_is_removed(node: Node, client: Client, shell: NodeShell) -> None:
    with made(client, shell) as machine:
        node.machines[machine.vmid].config["lock"] = "create"
    assert node.machines == {}


def test_a_vm_that_ends_right_after_its_start_is_an_error(client: Client, shell: NodeShell) -> None:
    with with_a_disk(client, shell) as machine:
        volume = machine.config()["scsi0"].partition(",")[0]
        machine.set({"scsi0": f"{volume},cache=writeback,aio=native"})
        with pytest.raises(PveError) as error:
            machine.start()
    assert "start failed: QEMU exited with code 1" in error.value.message
    assert "aio=native was specified" in error.value.message
    assert client.get("nodes/pve/storage/local-lvm/content") == []


def test_what_pve_ignores_is_not_measured(client: Client, shell: NodeShell) -> None:
    with with_a_disk(client, shell) as machine:
        machine.set({"scsihw": "virtio-scsi-pci"})
        with pytest.raises(GuestError, match="iothread is only valid with virtio disk or virtio-scsi-single"):
            machine.start()
    assert client.get("nodes/pve/storage/local-lvm/content") == []


def test_a_token_may_not_attach_a_device_and_the_error_names_who_may(serving: Serving, shell: NodeShell) -> None:
    serving.node.access.add_token("root@pam", "t1", privsep=False, value="a-value")
    with connected(serving, token="t1", secret=Secret("a-value")) as client:
        with made(client, shell) as machine, pytest.raises(PveError) as error:
            machine.set({"scsi0": "/dev/disk/by-id/scsi-PVETEST_disk1"})
        assert "Only root can pass arbitrary filesystem paths" in error.value.message
        assert "root@pam with a password, not to root@pam!t1" in (error.value.hint or "")


def test_a_read_is_repeated_until_it_is_answered(node: Node, client: Client) -> None:
    node.faults.add(Fault("gone", "GET .*/version", times=2))
    node.faults.add(Fault("cut-before", "GET .*/version", times=1))
    assert client.get("version")["release"] == "9.2"
    assert node.faults.listing() == []


def test_an_unreachable_node_is_reported_with_the_remedy(tmp_path: Path) -> None:
    with serve(memory_node()) as serving:
        port, authority = serving.port, tmp_path / "ca.pem"
        authority.write_bytes(serving.authority.read_bytes())
    with pytest.raises(LabUnavailable) as error:
        Client(api_spec(port, authority), Secret("x"), "node1")
    assert error.value.message.endswith(
        f"https://127.0.0.1:{port} cannot be reached: Failed to establish a new connection: Connection refused"
    )
    assert "pveproxy" in (error.value.hint or "")


def test_every_call_ends_by_its_deadline(node: Node, client: Client) -> None:
    node.faults.add(Fault("slow", "GET .*/version", times=99, seconds=3000))
    started = time.monotonic()
    with pytest.raises((LabUnavailable, PveError)):
        client.get("version", deadline=1)
    assert time.monotonic() - started < 1500, "it did not wait for the answer"


def test_a_foreign_certificate_is_refused(serving: Serving) -> None:
    with pytest.raises(LabUnavailable) as error:
        Client(api_spec(serving.port, None), Secret("x"), "node1")
    assert error.value.message.endswith(
        "is not trusted: certificate verify failed: unable to get local issuer certificate"
    )
    assert "pve-root-ca.pem" in (error.value.hint or "")


@pytest.mark.parametrize("token", [None, "t1"])
def test_only_the_pinned_certificate_is_accepted(serving: Serving, token: str | None, shell: NodeShell) -> None:
    serving.node.access.add_token("root@pam", "t1", privsep=False, value="a-value")
    secret = Secret("a-value") if token else None
    pinned = fingerprint(serving.port)
    with connected(serving, authority=None, fingerprint=pinned, token=token, secret=secret) as client:
        assert client.get("version")["release"] == "9.2"
        with made(client, shell):
            pass
    other = ":".join(itertools.repeat("00", 32))
    with (
        pytest.raises(LabUnavailable, match="shows another certificate than the pinned one"),
        connected(serving, authority=None, fingerprint=other, token=token, secret=secret) as client,
    ):
        client.get("version", deadline=2)


def fingerprint(port: int) -> str:
    pem = ssl.get_server_certificate(("127.0.0.1", port))
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, 64, 2))


def test_the_error_for_a_wrong_password_does_not_show_it(serving: Serving) -> None:
    with pytest.raises(LabUnavailable) as error, connected(serving, secret=Secret(WRONG)):
        pass
    assert "refuses the login of root@pam" in error.value.message
    assert WRONG not in str(error.getrepr(showlocals=True, chain=True))


def test_the_error_for_an_expired_token_does_not_show_its_value(serving: Serving) -> None:
    with pytest.raises(LabUnavailable) as error, connected(serving, token="t9", secret=Secret(WRONG)) as client:
        client.get("nodes/pve/qemu")
    assert "401" in error.value.message
    assert WRONG not in str(error.getrepr(showlocals=True, chain=True))
