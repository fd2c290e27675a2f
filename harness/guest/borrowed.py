"""A running VM of others as the guest, on any hypervisor: the login to it, and what measuring needs of its system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from platformdirs import user_state_path

from harness.errors import GuestError, HarnessError, SafetyError
from harness.events import Events, Note
from harness.guest.agent import UsableAgent
from harness.guest.booting import GuestRunner, logging_in
from harness.guest.inside import look_inside_linux
from harness.guest.system import Inside, System, block_devices, plugged_in
from harness.guest.windows.facts import notes_of
from harness.guest.windows.system import look_inside_windows
from harness.lab.hosts import Host
from harness.lab.hypervisor import BorrowedVm
from harness.lab.transport.agent import AgentRunner
from harness.lab.transport.ssh import SshRunner, SshTarget
from harness.model.attach import Attach, Attachment
from harness.model.guest import GuestOptions
from harness.model.mode import Mode

LOGIN_SECONDS = 30.0
_PLUGGABLE = ("virtio-blk", "virtio-scsi")
"""The buses that disks can be plugged into."""


def words_of(vm: BorrowedVm) -> str:
    """The VM in messages."""
    return f"the borrowed VM {vm.name}"


def log_in(host: Host, vm: BorrowedVm, agent: UsableAgent) -> GuestRunner:
    """A runner in the VM, over SSH or through its `agent`.

    Raises GuestError, with the remedy, if the VM does not answer, and Unsupported if its agent cannot run commands.
    """
    login, name = vm.login, f"VM {vm.name} on {host.name}"
    if login is None:
        agent.require_usable()
        return AgentRunner(agent, name=name)
    known_hosts = user_state_path("virt-overhead") / "known_hosts"
    target = SshTarget(login.address, login.port, login.user, login.key, login.host_key, known_hosts)
    hint = f"check address, port, user and key in host.{host.name}.guest of the lab file"
    with logging_in(f"host {host.name}: {words_of(vm)}", hint=hint):
        via = host.ssh if login.through_host else None
        return SshRunner.connect(target, name=name, via=via, deadline=LOGIN_SECONDS)


def look_inside(runner: GuestRunner) -> Inside:
    """What the system in the VM has. Raises HostError, GuestError."""
    if runner.windows:
        return look_inside_windows(runner)
    return look_inside_linux(runner)


def never_plugged(vm: str, attach: Attachment, options: GuestOptions) -> str | None:
    """Why no hypervisor can plug a disk in like this, or give a running VM these options; None if one may."""
    if options.requested:
        keys = ", ".join(options.requested)
        return f"{vm} has the size and placement that its owner gave it: leave out {keys} of [guest] in the scenario"
    if not isinstance(attach, Attach):
        return f"a device that is passed through to {vm} may come back only when the VM ends: leave out borrow for VFIO"
    if attach.bus not in _PLUGGABLE:
        allowed = ", ".join(_PLUGGABLE)
        return f'no disk can be plugged into bus = "{attach.bus}" of {vm} while it runs; allowed: {allowed}'
    return None


def alone(vm: str, mode: Mode) -> str | None:
    """Why the VM cannot be measured beside other guests; None if the mode has no others."""
    if mode.backup:
        return f"{vm} belongs to others, who may back it up at any time: measure backups without borrow in the lab file"
    if not mode.runs_with_others:
        return None
    return f"{vm} runs alone: measure several guests, or a neighbour, without borrow in the lab file"


def in_words(error: HarnessError) -> str:
    """An error as the reason why a mode is skipped, with the remedy."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


def require_distinct(host: str, vm: str, system: System, serials: Sequence[str], clashes: Sequence[str]) -> None:
    """Raises SafetyError if the VM has disks with these serial numbers, or if there are `clashes` of another kind."""
    own = block_devices(system, [], host)
    found = [*(serial for serial in serials if serial in own), *clashes]
    if found:
        raise SafetyError(
            f"host {host}: {vm} has a disk of its own with the serial number or alias of {', '.join(found)}, so a run "
            "cannot tell them apart",
            hint="give the mode another name; if a killed run left the disk: virt-overhead reap",
        )


def require_same(system: System, disk: str, serial: str, known: str) -> None:
    """Raises GuestError if the disk is no longer at the path `known`: somebody changed the VM's devices."""
    if (now := system.paths().get(serial)) != known:
        raise GuestError(
            f"{system.runner.name}: {disk} was {known} there, and is now {now or 'not there'}",
            hint="somebody changed the devices of the VM during the run; run it again",
        )


@contextmanager
def opened(host: str, vm: str, system: System, disks: Mapping[str, Attachment], events: Events) -> Iterator[None]:
    """The disks that were plugged in, by serial number, take fio's I/O until the end of the block."""
    for serial in disks:
        plugged_in(system, serial, host)
    writes = {serial: not attach.read_only for serial, attach in disks.items()}
    with system.opened(writes, lambda text: events(Note(f"{vm}: {text}"))):
        yield


def notes(vm: str, system: System, evidence: Mapping[str, str], of_host: str) -> Iterator[Note]:
    """What makes the figures of the VM differ from those of its host, beside virtualisation."""
    if (own := evidence.get("fio", "")) != of_host:
        yield Note(f"{vm} has {own}, its host has {of_host}: the overhead includes what differs")
    for text in notes_of(evidence) if system.windows else ():
        yield Note(f"{vm}: {text}")


def changed_by_others(vm: str, changed: Sequence[str]) -> Note:
    """The note on `changed`, what is different after the run has unplugged everything. Only the owner knows why."""
    return Note(f"{vm} was changed by others during the run: {', '.join(changed)}")
