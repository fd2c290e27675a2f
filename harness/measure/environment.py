"""Keeps the host open for a run, and one session on it ready: opened at the first need, closed in reverse order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace

from harness.errors import GuestError, HarnessError, HostError
from harness.events import Note
from harness.guest.hypervisors import hypervisor_of
from harness.guest.protocol import Hypervisor
from harness.image import ImageSet
from harness.lab.created import CreationLog, read_log
from harness.lab.facts import require_fio
from harness.lab.guard import serial_of
from harness.lab.hosts import Host, open_host
from harness.lab.inventory import HostSpec
from harness.lab.lease import Lease, lease
from harness.lab.paths import MARK
from harness.lab.processes import Processes
from harness.measure.phases import Phases
from harness.measure.reap import divided, reap
from harness.measure.restarts import Restarts
from harness.measure.session import Session
from harness.run_id import RunId

LEASE_WAIT_SECONDS = 900.0
MOST_RESTARTS = 2
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Environment:
    """One host and its current session. Both are None until they were needed.

    `disks` are the names of the disks under test of this run: only on these is cleaned up what killed runs have left.
    """

    def __init__(
        self, spec: HostSpec, run_id: RunId, disks: Collection[str], *, images: ImageSet, phases: Phases
    ) -> None:
        self._host: Host | None = None
        self._session: Session | None = None
        self._restarts = Restarts()
        self._in_a_row = 0
        self._spec = spec
        self._run_id = run_id
        self._disks = frozenset(serial_of(disk) for disk in spec.disks if disk.name in disks)
        self._log: CreationLog | None = None
        self._images = images
        self._phases = phases
        self._events = phases.events
        self._lease: Lease | None = None
        self._hypervisor: Hypervisor | None = None
        self._key: Hashable = None
        self._host_stack = ExitStack()
        self._disk_stack = ExitStack()

    @property
    def restarts(self) -> Sequence[str]:
        """One sentence for each time that a simulated lab failed: what failed, and what was done."""
        return self._restarts.sentences

    @property
    def current(self) -> Session:
        """The session that was made ready last."""
        if self._session is None:
            raise RuntimeError("nothing was made ready")
        return self._session

    def opened(self) -> Host:
        """The host: opened at the first need, and again after a restart."""
        return self._opened()[0]

    def reused(
        self, key: Hashable, make: Callable[[Host, Hypervisor, CreationLog], AbstractContextManager[Session]]
    ) -> Session:
        """The session of this `key`: made where another one is open, or none; what was open is closed before."""
        host, hypervisor, log = self._opened()
        if self._session is None or self._key != key:
            self._close_disk()
            self._session = self._disk_stack.enter_context(make(host, hypervisor, log))
            self._key = key
        return self._session

    def start_again(self, error: HostError | GuestError, what: str) -> None:
        """Take the guest and layouts of a simulated lab down after `what` failed; they are made anew at the next need.

        There it is the emulator's doing, and tells nothing of what is measured. On a real host it is a finding: `error`
        is raised, as it is after MOST_RESTARTS with nothing measured in between: see `went_well`.
        """
        if self._host is None or self._host.spec.simulated is None or self._in_a_row == MOST_RESTARTS:
            raise error
        self._in_a_row += 1
        self._restarts.failed(what)
        self._events(Note(f"{what}: {error.message}"))
        # What cannot be taken down there goes with the machine.
        with suppress(HarnessError):
            self.close()

    def went_well(self) -> None:
        """A round was measured: what fails after it is another failure."""
        self._in_a_row = 0

    def close(self) -> None:
        """Take the disk's layouts and guest down, then let the host go, whatever fails on the way."""
        self._host = None
        self._lease = None
        with self._host_stack:
            self._close_disk()

    def _opened(self) -> tuple[Host, Hypervisor, CreationLog]:
        """The host, leased, with its hypervisor, and the log of what the run creates there.

        What killed runs have left on the disks of this run is removed. What they left on others stays, and is reported.
        """
        if self._lease is not None:
            self._lease.require_held()
        if self._host is None or self._hypervisor is None or self._log is None:
            with self._phases.timed("lab"):
                stack = self._host_stack
                host = stack.enter_context(open_host(self._spec, self._images, self._events))
                require_fio(host.facts, host.name)
                held = lease(host.runner, host.name, self._run_id, self._events, wait=LEASE_WAIT_SECONDS)
                self._lease = stack.enter_context(held)
                host = replace(host, runner=self._lease.runner)
                self._hypervisor = stack.enter_context(hypervisor_of(host, self._events))
                self._clean(host, self._hypervisor)
                self._log = CreationLog(host.runner, self._run_id)
                stack.enter_context(self._log.making_here(Processes(mark=MARK)))
            self._host = host
            if host.spec.simulated is not None:
                boot = host.runner.run(["cat", BOOT_ID], deadline=20).stdout.strip()
                if done := self._restarts.opened(boot):
                    self._events(Note(done))
        return self._host, self._hypervisor, self._log

    def _clean(self, host: Host, hypervisor: Hypervisor) -> None:
        entries = read_log(host.runner)
        mine, others = divided(entries, self._disks)
        for what in reap(host.runner, hypervisor, mine):
            self._events(Note(f"host {host.name}: {what}"))
        if others:
            runs = ", ".join(dict.fromkeys(entry.run_id for entry in others))
            self._events(
                Note(
                    f"host {host.name}: killed runs have left something on other disks ({runs}); it is not touched. "
                    "`virt-overhead reap` lists it"
                )
            )

    def _close_disk(self) -> None:
        if self._session is not None:
            self._session = None
            with self._phases.timed("teardown"):
                self._disk_stack.close()
