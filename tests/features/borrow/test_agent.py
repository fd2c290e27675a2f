"""Commands in a VM through its guest agent, by both ways to it: a real qemu-ga, or what stands in for it, runs them."""

from __future__ import annotations

import base64
import gzip
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import libvirt
import libvirt_qemu
import pytest

from harness.errors import HostError, Unsupported
from harness.features.borrow import agent as transport
from harness.features.borrow.agent import AgentOfVm, AgentRunner, AgentSilent, EndedProgram
from harness.features.borrow.libvirt import LibvirtAgent
from harness.features.borrow.proxmox import ProxmoxAgent
from harness.features.proxmox.machine import VirtualMachine
from harness.guest.libvirt.connection import Connection
from harness.measure.platform import Clocks
from pve_double.executor import guest, sockets
from tests.features.borrow.guest_agents import AGENTS, INSTALLED, stand_in
from tests.features.proxmox.proxmox_nodes import double
from tests.unit.processes import ends

NAME = "VM shop on node1"
WAYS = ("libvirt", "proxmox")


def refused(code: int, text: str) -> libvirt.libvirtError:
    error = libvirt.libvirtError(text)
    error.err = (code, 0, text, 2, None, None, None, 0, 0)
    return error


class Domain:
    """What libvirt has of the VM: the socket of its agent."""

    def __init__(self, path: Path | None) -> None:
        self.path = path


def libvirt_asks(domain: Domain, text: str, _seconds: int, _flags: int) -> str:
    """As libvirt's function, on the agent's socket."""
    asked = json.loads(text)
    if domain.path is None:
        raise refused(libvirt.VIR_ERR_ARGUMENT_UNSUPPORTED, "QEMU guest agent is not configured")
    try:
        found = sockets.agent(domain.path, asked["execute"], asked["arguments"])
    except sockets.Silent:
        text = "Guest agent is not responding: QEMU guest agent is not connected"
        raise refused(libvirt.VIR_ERR_AGENT_UNRESPONSIVE, text) from None
    except sockets.Refused as error:
        text = f"internal error: unable to execute QEMU agent command '{asked['execute']}': {error}"
        raise refused(libvirt.VIR_ERR_INTERNAL_ERROR, text) from None
    return json.dumps({"return": found})


class Ways:
    """Makes agents, each reached by its way."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self._stack = stack
        self._patch = monkeypatch

    def agent(self, way: str, path: Path | None) -> AgentOfVm:
        """The agent at this socket. Without one, the VM is not configured to have an agent."""
        if way == "libvirt":
            self._patch.setattr(libvirt_qemu, "qemuAgentCommand", libvirt_asks)
            return LibvirtAgent(Connection(None, "node1"), Domain(path), "shop")
        node, client = self._stack.enter_context(double())
        vm: dict[str, Any] = {"vmid": 100, "name": "shop"} | ({"agent": "1"} if path else {})
        client.task("post", "nodes/pve/qemu", vm, is_done=lambda: False, deadline=30)
        client.task("post", "nodes/pve/qemu/100/status/start", {}, is_done=lambda: False, deadline=30)
        if path is not None:
            self._patch.setattr(node.executor, "agent", lambda _, *asked: guest.ask(path, *asked))
        found = ProxmoxAgent(VirtualMachine(client, 100))
        booted = node.pace.boot_seconds * node.pace.factor
        time.sleep(2 * booted)
        return found


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ways]:
    with ExitStack() as stack:
        yield Ways(stack, monkeypatch)


@pytest.fixture(params=AGENTS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "qemu-ga" and INSTALLED is None:
        pytest.skip("qemu-ga is not installed: apt-get install qemu-guest-agent")
    return str(request.param)


@pytest.fixture(params=WAYS)
def runner(request: pytest.FixtureRequest, kind: str, ways: Ways, tmp_path: Path) -> Iterator[AgentRunner]:
    with AGENTS[kind](tmp_path) as path:
        agent = ways.agent(request.param, path)
        agent.require_usable()
        yield AgentRunner(agent, name=NAME)


def test_a_command_has_its_input_and_both_outputs_and_its_status_come_back(runner: AgentRunner) -> None:
    script = 'cat; echo "$LC_ALL" "$1" >&2; exit 3'
    done = runner.run(["sh", "-c", script, "sh", "two words"], stdin="Übergröße\n", deadline=20, check=False)
    assert (done.status, done.stdout, done.stderr) == (3, "Übergröße\n", "C two words\n")
    assert runner.run(["cat"], deadline=20).stdout == ""
    done = runner.run(["sh", "-c", "kill -9 $$"], deadline=20, check=False)
    assert done.status == -9
    assert runner.alive


def test_inputs_and_outputs_larger_than_a_message_are_whole(runner: AgentRunner) -> None:
    jobs = "".join(f"[{number}-guest:lvm]\nstartdelay={number * 1.1:.3f}\nbs=4096\n" for number in range(4000))
    assert len(jobs) > 2 * transport.MOST_SENT_BYTES
    assert runner.run(["cat"], stdin=jobs, deadline=20).stdout == jobs
    printed = runner.run(["sh", "-c", "yes 0123456 | head -c 2097152"], deadline=20).stdout
    assert len(printed) == 2 << 20


def test_a_failure_quotes_stderr_and_a_missing_program_is_named(runner: AgentRunner) -> None:
    with pytest.raises(HostError, match=rf"{NAME}: no disk \(`sh -c 'echo no disk >&2; exit 5'` ended with status 5"):
        runner.run(["sh", "-c", "echo no disk >&2; exit 5"], deadline=20)
    with pytest.raises(HostError, match=f"{NAME}: the program `no-such-fio` is missing") as caught:
        runner.run(["no-such-fio"], deadline=20)
    assert caught.value.hint == f"install `no-such-fio` on {NAME}"


def test_a_command_that_passes_its_deadline_is_ended_with_its_children(runner: AgentRunner, tmp_path: Path) -> None:
    script = f"sleep 100 & echo $! >{tmp_path}/pid; setsid sh -c 'sleep 100' & wait"
    with pytest.raises(HostError, match=r"was not done after 300 ms; it was ended there"):
        runner.run(["sh", "-c", script], deadline=0.3)
    assert ends(int((tmp_path / "pid").read_text()))


def test_a_file_is_copied_in_pieces(runner: AgentRunner, tmp_path: Path) -> None:
    data = os.urandom(100_000)
    (tmp_path / "source").write_bytes(data)
    runner.put(tmp_path / "source", str(tmp_path / "target"), deadline=20)
    assert (tmp_path / "target").read_bytes() == data
    assert not list(tmp_path.glob("*.part"))


def test_the_bound_on_the_error_of_the_clock_holds(runner: AgentRunner) -> None:
    # The agent's machine is this one, so the true offset is known.
    clock = Clocks().read(runner)
    true = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    assert abs(clock.offset - true) <= clock.error
    assert clock.error < 60, "half the time of the quickest answer"


def test_an_input_that_the_agent_cannot_take_is_not_cut_off(runner: AgentRunner) -> None:
    with pytest.raises(
        HostError, match=r"standard input .* has .* bytes, also compressed, but the guest agent accepts"
    ):
        runner.run(["cat"], stdin=os.urandom(100_000), deadline=20)


@pytest.mark.parametrize("way", WAYS)
def test_commands_that_the_distribution_disables_are_named_with_the_remedy(
    *, way: str, kind: str, ways: Ways, tmp_path: Path
) -> None:
    with AGENTS[kind](tmp_path, blocked=["guest-exec", "guest-exec-status"]) as path:
        agent = ways.agent(way, path)
        with pytest.raises(Unsupported, match="does not run guest-exec and guest-exec-status: they are dis") as caught:
            agent.require_usable()
        assert caught.value.hint is not None
        assert "/etc/sysconfig/qemu-ga" in caught.value.hint
        with pytest.raises(HostError, match="disabled"):
            AgentRunner(agent, name=NAME).run(["true"], deadline=5)


@pytest.mark.parametrize("way", WAYS)
def test_the_agent_of_a_windows_is_refused_with_the_remedy(way: str, ways: Ways, tmp_path: Path) -> None:
    with stand_in(tmp_path, os_info={"id": "mswindows"}) as path:
        agent = ways.agent(way, path)
        with pytest.raises(Unsupported, match="runs Windows, in which commands run only over SSH"):
            agent.require_usable()


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_of_another_form_is_an_error_that_names_the_agent(way: str, ways: Ways, tmp_path: Path) -> None:
    with stand_in(tmp_path, os_info=["debian"]) as path:
        agent = ways.agent(way, path)
        with pytest.raises(HostError, match=r"the guest agent of VM .*: its answer to (guest-)?get-osinfo cannot be"):
            agent.require_usable()


@pytest.mark.parametrize("way", WAYS)
def test_an_agent_that_does_not_run_is_reported_with_the_remedy(way: str, ways: Ways, tmp_path: Path) -> None:
    agent = ways.agent(way, tmp_path / "nobody")
    with pytest.raises(Unsupported, match=r"the guest agent of VM .* does not answer: ") as caught:
        agent.require_usable()
    assert caught.value.hint is not None
    assert "install qemu-guest-agent and start it" in caught.value.hint


@pytest.mark.parametrize(
    ("way", "remedy"), [("libvirt", "name='org.qemu.guest_agent.0'"), ("proxmox", "qm set 100 --agent enabled=1")]
)
def test_a_vm_without_a_channel_for_the_agent_is_reported_with_the_remedy(way: str, remedy: str, ways: Ways) -> None:
    with pytest.raises(Unsupported, match=r"the guest agent of VM .* is not configured") as caught:
        ways.agent(way, None).require_usable()
    assert remedy in str(caught.value.hint)


class Moody:
    """An agent that is silent for a while, as one in a busy guest, and reports a program that ended."""

    def __init__(self, silent: int) -> None:
        self._silent = silent

    def execute(self, path: str, arguments: object, stdin: bytes) -> int:  # noqa: ARG002 - an Agent
        return 7

    def ended(self, pid: int) -> EndedProgram | None:
        assert pid == 7
        self._silent -= 1
        if self._silent >= 0:
            raise AgentSilent("it does not answer")
        return EndedProgram(0, b"done\n")


def test_a_running_program_survives_the_silence_of_its_agent_but_not_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    assert AgentRunner(Moody(3), name=NAME).run(["fio"], deadline=20).stdout == "done\n"
    monkeypatch.setattr(transport, "SILENCE_SECONDS", 0.05)
    lost = AgentRunner(Moody(10_000), name=NAME)
    with pytest.raises(AgentSilent, match="it does not answer"):
        lost.run(["fio"], deadline=20)
    assert not lost.alive


def test_an_output_that_the_agent_cut_off_is_an_error() -> None:
    class Cut(Moody):
        def ended(self, pid: int) -> EndedProgram | None:  # noqa: ARG002
            return EndedProgram(0, b"x" * 1000, truncated=True)

    with pytest.raises(HostError, match="printed more than 16 MiB on its outputs; it has ended there"):
        AgentRunner(Cut(0), name=NAME).run(["yes"], deadline=5)


def test_packed_input_is_what_gzip_and_base64_make_of_it() -> None:
    # The VM unpacks it with `base64 -d | gzip -dc`, which busybox and coreutils have.
    asked: list[bytes] = []

    class Listening(Moody):
        def execute(self, path: str, arguments: object, stdin: bytes) -> int:  # noqa: ARG002
            asked.append(stdin)
            return 7

    AgentRunner(Listening(0), name=NAME).run(["cat"], stdin="ä" * 10, deadline=5)
    assert gzip.decompress(base64.b64decode(asked[0])).decode() == "ä" * 10
