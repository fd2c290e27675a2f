"""Which host key a VM has to show: a real SSH server stands for the guest, the double for the node and its agent."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness.errors import GuestError
from harness.features.proxmox import GuestRules
from harness.features.proxmox.client import Client
from harness.features.proxmox.machine import KEY_FILE, VirtualMachine, build_address_script, log_in
from harness.features.proxmox.session import Secret
from harness.features.proxmox.vm_config import build_shell_parameters
from harness.lab.facts import Acceleration, HostFacts
from harness.lab.hosts import GuestFiles, Host
from harness.lab.inventory import HostSpec
from harness.lab.transport.local import LocalRunner
from pve_double.executor.memory import MemoryExecutor, Ran
from pve_double.faults import Fault, Kind
from pve_double.server import Serving, serve
from pve_double.state import Node
from pve_double.testing import memory_node
from tests.features.proxmox.proxmox_fixtures import impatient
from tests.features.proxmox.proxmox_nodes import connected
from tests.unit.transport_servers import USER, Server, make_key, sshd

DIRECT = GuestRules(
    vmids=(9000, 9001),
    kvm=False,
    cpu="max",
    network="cloud-init",
    address="127.0.0.1/8",
    reach="direct",
    template=900,
)


@dataclass
class Started:
    """A VM that runs, whose SSH server is `server`, with the files that its agent reads."""

    node: Node
    machine: VirtualMachine
    host: Host
    server: Server

    @property
    def files(self) -> dict[str, str]:
        assert isinstance(self.node.executor, MemoryExecutor)
        return self.node.executor.guests[self.machine.vmid].files


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if USER != "root":
        pytest.skip("guests are logged in to as root, so root is needed")
    with sshd(tmp_path_factory.mktemp("guest")) as found:
        yield found


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    impatient(monkeypatch)
    with serve(memory_node(cpus=4)) as found:
        yield found


@pytest.fixture
def started(serving: Serving, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    monkeypatch.setattr("harness.features.proxmox.machine._SSH_PORT", server.port)
    monkeypatch.setattr("harness.features.proxmox.machine._LOGIN_POLL_SECONDS", 0.05)
    with connected(serving) as client:
        yield start(serving.node, client, server)


def start(node: Node, client: Client, server: Server) -> Started:
    machine = VirtualMachine(client, 9000)
    settings = {"vmid": 9000, **build_shell_parameters(DIRECT, "local:iso/mini.iso", 2)}
    client.task("post", "nodes/pve/qemu", settings, is_done=lambda: False, deadline=30)
    machine.start()
    host = Host(
        spec=HostSpec("node1", "proxmox", ssh=None, disks=()),
        runner=LocalRunner("host node1"),
        ssh=None,
        target=None,
        facts=HostFacts({}),
        guest_files=GuestFiles("", "", server.user_key, ""),
        acceleration=Acceleration("tcg", "kvm = false"),
    )
    return Started(node, machine, host, server)


def test_a_clone_is_known_by_the_host_key_that_its_agent_reads(started: Started) -> None:
    started.files[KEY_FILE] = f"{started.server.host_key.strip()} root@clone\n"
    runner = log_in(started.machine, started.host, DIRECT)
    try:
        assert runner.run(["echo", "here"], deadline=20).stdout == "here\n"
    finally:
        runner.close()


def test_a_machine_that_answers_in_the_place_of_the_clone_is_refused(started: Started, tmp_path: Path) -> None:
    started.files[KEY_FILE] = make_key(tmp_path / "of_the_clone")
    with pytest.raises(GuestError, match=r"the host key of 127.0.0.1:\d+ is not the expected one"):
        log_in(started.machine, started.host, DIRECT)


def test_a_key_that_is_made_late_is_waited_for(started: Started) -> None:
    # cloud-init makes the keys when the agent is up already.
    made = threading.Timer(0.5, lambda: started.files.update({KEY_FILE: started.server.host_key}))
    made.start()
    log_in(started.machine, started.host, DIRECT).close()
    made.join()


def test_a_key_that_is_replaced_in_the_first_boot_is_read_again(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = iter([make_key(tmp_path / "of_the_template"), started.server.host_key])
    read = VirtualMachine.read_file

    def replaced(machine: VirtualMachine, path: str) -> str | None:
        started.files[path] = next(keys)
        return read(machine, path)

    monkeypatch.setattr(VirtualMachine, "read_file", replaced)
    log_in(started.machine, started.host, DIRECT).close()


@pytest.mark.parametrize("content", [None, "", "-----BEGIN", "ssh-rsa AAAA"])
def test_a_clone_that_does_not_report_its_key_is_refused_with_the_remedy(
    started: Started, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.setattr("harness.features.proxmox.machine.BOOT_SECONDS", {"tcg": 0.5})
    if content is not None:
        started.files[KEY_FILE] = content
    with pytest.raises(GuestError, match="its agent does not report its host key") as caught:
        log_in(started.machine, started.host, DIRECT)
    assert 'set reach = "node"' in (caught.value.hint or "")


def test_a_clone_without_an_agent_is_refused_with_the_remedy(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.features.proxmox.machine.BOOT_SECONDS", {"tcg": 0.5})
    process = started.node.machine(started.machine.vmid).process
    assert process is not None
    process.answers_from = time.monotonic() + 3600
    with pytest.raises(GuestError, match="its agent does not report its host key") as caught:
        log_in(started.machine, started.host, DIRECT)
    assert "install qemu-guest-agent" in (caught.value.hint or "")


def test_a_missing_privilege_is_named(serving: Serving, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.features.proxmox.machine._SSH_PORT", server.port)
    with connected(serving) as root:
        started = start(serving.node, root, server)
    serving.node.access.add_token("root@pam", "t1", privsep=True, value="a-value")
    with connected(serving, token="t1", secret=Secret("a-value")) as client:
        machine = replace(started.machine, client=client)
        with pytest.raises(GuestError) as caught:
            log_in(machine, started.host, DIRECT)
    assert "VM.GuestAgent.FileRead" in str(caught.value)


def test_through_the_node_a_clone_needs_no_agent(started: Started) -> None:
    log_in(started.machine, started.host, replace(DIRECT, reach="node")).close()


STATIC = replace(DIRECT, network="static", template=None, gateway="127.0.0.254")


def of_our_image(started: Started) -> Host:
    return replace(started.host, guest_files=replace(started.host.guest_files, host_key=started.server.host_key))


def agent_answers(started: Started, exitcode: int, err: str) -> None:
    """What the script that sets the address does in the guest."""
    assert isinstance(started.node.executor, MemoryExecutor)
    answers = started.node.executor.guests[started.machine.vmid].answers
    answers[build_address_script(STATIC)] = Ran(0.0, exitcode, "", err)


def test_a_static_address_is_set_by_the_agent_before_the_login(started: Started) -> None:
    agent_answers(started, 0, "")
    log_in(started.machine, of_our_image(started), STATIC).close()
    assert isinstance(started.node.executor, MemoryExecutor)
    assert started.node.executor.guests[started.machine.vmid].asked == [["/bin/sh", "-c", build_address_script(STATIC)]]


def test_an_address_that_the_guest_refuses_is_an_error_with_its_words(started: Started) -> None:
    agent_answers(started, 2, "RTNETLINK answers: Network is unreachable")
    with pytest.raises(GuestError, match="failed in the guest: RTNETLINK answers: Network is unreachable"):
        log_in(started.machine, of_our_image(started), STATIC)


def test_an_agent_that_never_answers_gets_no_address(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.features.proxmox.machine.BOOT_SECONDS", {"tcg": 0.5})
    process = started.node.machine(started.machine.vmid).process
    assert process is not None
    process.answers_from = time.monotonic() + 3600
    with pytest.raises(GuestError, match="booted, but its agent does not answer"):
        log_in(started.machine, of_our_image(started), STATIC)


@pytest.mark.parametrize("kind", ["gone", "cut-after"])
def test_a_lost_answer_of_the_agent_does_not_end_the_login(started: Started, kind: Kind) -> None:
    started.node.faults.add(Fault(kind, "POST .*/agent/exec$"))
    agent_answers(started, 0, "")
    log_in(started.machine, of_our_image(started), STATIC).close()
    assert started.node.faults.listing() == []


def test_our_own_image_shows_the_key_of_its_build(started: Started, tmp_path: Path) -> None:
    ours = replace(DIRECT, template=None)
    files = replace(started.host.guest_files, host_key=started.server.host_key)
    log_in(started.machine, replace(started.host, guest_files=files), ours).close()
    wrong = replace(files, host_key=make_key(tmp_path / "other"))
    with pytest.raises(GuestError, match="is not the expected one"):
        log_in(started.machine, replace(started.host, guest_files=wrong), ours)
