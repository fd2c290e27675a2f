"""The client and its VMs at the double, with all that goes wrong on the way: survived or told, and nothing is left."""

from __future__ import annotations

import hashlib
import itertools
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import GuestError, LabUnavailable
from harness.guest.proxmox.client import Client, PveError
from harness.guest.proxmox.machine import Machine, exists, ours
from harness.guest.proxmox.new_machine import create
from harness.guest.proxmox.secrets import Secret
from harness.guest.proxmox.stores import made_stores, remove_store
from harness.guest.proxmox.vm import shell_parameters
from harness.lab.proxmox import GuestRules
from tests.pve_double.faults import Fault, Kind
from tests.pve_double.server import Serving, serve
from tests.pve_double.state import Node
from tests.pve_double.testing import memory_node
from tests.unit.proxmox_nodes import api_spec, connected

RUN = "20261121-101500-ab12"
WRONG = "not-the-one"
RULES = GuestRules(vmids=(9000, 9003))
ISO = "local:iso/mini.iso"
DRIVE = {"scsi0": "local-lvm:1,cache=none,aio=native,iothread=1,discard=ignore,detect_zeroes=0,serial=lvm"}
CREATE, CONFIG, START, STOP, DESTROY = (
    "POST .*/qemu$",
    "POST .*/config",
    "POST .*/status/start",
    "POST .*/status/stop",
    "DELETE .*/qemu/",
)


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    monkeypatch.setattr("harness.guest.proxmox.client.SETTLE_SECONDS", 3.0)
    with serve(memory_node()) as found:
        yield found


@pytest.fixture
def node(serving: Serving) -> Node:
    return serving.node


@pytest.fixture
def client(serving: Serving) -> Iterator[Client]:
    with connected(serving) as found:
        yield found


def made(client: Client) -> Machine:
    return create(client, RULES, shell_parameters(RULES, RUN, ISO, 1))


def whole_life(client: Client) -> None:
    """What the backend does with a VM."""
    machine = made(client)
    try:
        machine.set(DRIVE)
        machine.start()
        assert machine.transferred("scsi0").read >= 0
    finally:
        machine.destroy()


@pytest.mark.parametrize("call", [CREATE, CONFIG, START, STOP, DESTROY])
@pytest.mark.parametrize("kind", ["gone", "cut-after", "ticket-expired", "slow"])
def test_a_lost_answer_is_survived_and_nothing_is_done_twice(node: Node, client: Client, kind: Kind, call: str) -> None:
    node.faults.add(Fault(kind, call, seconds=1.0))
    whole_life(client)
    assert node.faults.listing() == []
    assert node.machines == {}
    tasks = [each["type"] for each in client.get("nodes/pve/tasks", {"source": "all"})]
    assert sorted(tasks) == ["qmconfig", "qmcreate", "qmdestroy", "qmstart", "qmstop"]


@pytest.mark.parametrize("call", [CREATE, CONFIG, START])
@pytest.mark.parametrize("kind", ["cut-before", "task-fails", "warnings"])
def test_what_went_wrong_is_told_and_nothing_is_left(node: Node, client: Client, kind: Kind, call: str) -> None:
    node.faults.add(Fault(kind, call, text="injected failure"))
    with pytest.raises((PveError, GuestError)) as error:
        whole_life(client)
    said = {"cut-before": "not known whether it was done", "task-fails": "injected failure", "warnings": "not as asked"}
    assert said[kind] in error.value.message
    assert "node1" in error.value.message
    assert node.machines == {}


@pytest.mark.parametrize("call", [CONFIG, START, STOP])
def test_a_lock_that_somebody_holds_is_waited_for(node: Node, client: Client, call: str) -> None:
    machine = made(client)
    machine.set(DRIVE)
    steps = {CONFIG: lambda: machine.set({"description": "x"}), START: machine.start, STOP: machine.stop}
    node.faults.add(Fault("lock-held", vmid=machine.vmid))
    steps[call]()
    assert node.faults.listing() == []
    node.machines[machine.vmid].config.pop("lock", None)
    machine.destroy()


def test_an_id_that_another_client_takes_first_is_left_to_it(node: Node, client: Client) -> None:
    node.faults.add(Fault("vmid-taken", CREATE))
    machine = made(client)
    assert machine.vmid == 9001
    assert [each.vmid for each, _ in ours(client)] == [9001]
    machine.destroy()
    assert list(node.machines) == [9000]


def test_ids_are_taken_from_the_range_of_the_lab_alone(client: Client) -> None:
    machines = [made(client) for _ in range(4)]
    assert [each.vmid for each in machines] == [9000, 9001, 9002, 9003]
    with pytest.raises(LabUnavailable, match="no VM id from 9000 to 9003 is free"):
        made(client)


def test_a_vm_of_ours_is_found_again_by_its_run_and_no_other_is(client: Client) -> None:
    machine = made(client)
    look_alike = {"name": "voh-mine", "description": "my own VM", "tags": "voh"}
    create(client, GuestRules(vmids=(9100, 9100)), look_alike)
    assert ours(client) == [(machine, RUN)]


def test_a_vm_that_a_dead_client_left_locked_is_removed(node: Node, client: Client) -> None:
    machine = made(client)
    node.machines[machine.vmid].config["lock"] = "create"
    machine.destroy()
    assert node.machines == {}


def test_destroying_a_vm_frees_its_volumes_also_those_that_were_never_attached(client: Client) -> None:
    machine = made(client)
    machine.set(DRIVE)
    content = "nodes/pve/storage/local-lvm/content"
    lonely = {"vmid": machine.vmid, "filename": f"vm-{machine.vmid}-disk-7", "size": "4M", "format": "raw"}
    client.write("post", content, lonely, seen=lambda: False)
    assert len(client.get(content)) == 2
    machine.destroy()
    assert client.get(content) == []
    assert not exists(client, machine.vmid)


def test_a_start_that_only_seems_to_succeed_is_an_error(client: Client) -> None:
    machine = made(client)
    machine.set({"scsi0": "local-lvm:1,cache=writeback,aio=native"})
    with pytest.raises(PveError) as error:
        machine.start()
    assert "start failed: QEMU exited with code 1" in error.value.message
    assert "aio=native was specified" in error.value.message
    machine.destroy()


def test_what_pve_ignores_is_not_measured(client: Client) -> None:
    machine = made(client)
    machine.set({**DRIVE, "scsihw": "virtio-scsi-pci"})
    with pytest.raises(GuestError, match="iothread is only valid with virtio disk or virtio-scsi-single"):
        machine.start()
    machine.destroy()


def test_a_token_may_not_pass_a_device_and_the_error_says_who_may(serving: Serving) -> None:
    serving.node.access.add_token("root@pam", "t1", privsep=False, value="a-value")
    with connected(serving, token="t1", secret=Secret("a-value")) as client:
        machine = made(client)
        with pytest.raises(PveError) as error:
            machine.set({"scsi0": "/dev/disk/by-id/scsi-PVETEST_disk1"})
        assert "Only root can pass arbitrary filesystem paths" in error.value.message
        assert "root@pam with a password, not to root@pam!t1" in (error.value.hint or "")
        machine.destroy()


def test_a_storage_is_made_of_a_disk_and_removed_with_it(client: Client) -> None:
    name = f"voh-{RUN}-lvm"
    client.task(
        "post",
        "nodes/pve/disks/lvm",
        {"name": name, "device": "/dev/sdb", "add_storage": 1},
        seen=lambda: False,
        deadline=30,
    )
    assert made_stores(client) == [("lvm", name)]
    remove_store(client, name)
    assert made_stores(client) == []
    assert name not in {each["storage"] for each in client.get("storage")}
    remove_store(client, name)


def test_a_read_is_repeated_until_it_is_answered(node: Node, client: Client) -> None:
    node.faults.add(Fault("gone", "GET .*/version", times=2))
    node.faults.add(Fault("cut-before", "GET .*/version", times=1))
    assert client.get("version")["release"] == "9.2"
    assert node.faults.listing() == []


def test_a_node_that_is_not_there_is_told_with_the_remedy(tmp_path: Path) -> None:
    with serve(memory_node()) as serving:
        port, authority = serving.port, tmp_path / "ca.pem"
        authority.write_bytes(serving.authority.read_bytes())
    with pytest.raises(LabUnavailable) as error:
        Client(api_spec(port, authority), Secret("x"), "node1")
    assert "cannot be reached" in error.value.message
    assert "pveproxy" in (error.value.hint or "")


def test_every_call_ends_by_its_deadline(node: Node, client: Client) -> None:
    node.faults.add(Fault("slow", "GET .*/version", times=99, seconds=3000))
    started = time.monotonic()
    with pytest.raises((LabUnavailable, PveError)):
        client.get("version", deadline=1)
    assert time.monotonic() - started < 12


def test_a_certificate_of_somebody_else_is_refused(serving: Serving) -> None:
    with pytest.raises(LabUnavailable) as error:
        Client(api_spec(serving.port, None), Secret("x"), "node1")
    assert "is not trusted" in error.value.message
    assert "pve-root-ca.pem" in (error.value.hint or "")


@pytest.mark.parametrize("token", [None, "t1"])
def test_the_pinned_certificate_is_taken_and_no_other(serving: Serving, token: str | None) -> None:
    serving.node.access.add_token("root@pam", "t1", privsep=False, value="a-value")
    secret = Secret("a-value") if token else None
    pinned = fingerprint(serving.port)
    with connected(serving, authority=None, fingerprint=pinned, token=token, secret=secret) as client:
        assert client.get("version")["release"] == "9.2"
        machine = made(client)
        machine.destroy()
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


def test_a_wrong_password_is_told_without_it(serving: Serving) -> None:
    with pytest.raises(LabUnavailable) as error, connected(serving, secret=Secret(WRONG)):
        pass
    assert "refuses the login of root@pam" in error.value.message
    assert WRONG not in str(error.getrepr(showlocals=True, chain=True))


def test_an_expired_token_is_told_without_its_value(serving: Serving) -> None:
    with pytest.raises(LabUnavailable) as error, connected(serving, token="t9", secret=Secret(WRONG)) as client:
        client.get("nodes/pve/qemu")
    assert "401" in error.value.message
    assert WRONG not in str(error.getrepr(showlocals=True, chain=True))
