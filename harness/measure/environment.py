"""Keeps the host open for a run, and one sitting on it ready: opened at the first need, closed in reverse order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
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
from harness.measure.session import Demand, Session, session
from harness.run_id import RunId

LEASE_WAIT_SECONDS = 900.0
MOST_RESTARTS = 2


class Environment:
    """One host and its current sitting. `host` and `session` are None until they were needed.

    `disks` are the names of the disks under test of this run: only on these is cleaned up what killed runs have left.

    `restarts` tells of each time that a simulated lab failed and was started again.
    """

    def __init__(
        self, spec: HostSpec, run_id: RunId, disks: Collection[str], *, seed: int, images: ImageSet, phases: Phases
    ) -> None:
        self.host: Host | None = None
        self.session: Session | None = None
        self.restarts: list[str] = []
        self._in_a_row = 0
        self._spec = spec
        self._run_id = run_id
        self._disks = frozenset(serial_of(disk) for disk in spec.disks if disk.name in disks)
        self._log: CreationLog | None = None
        self._seed = seed
        self._images = images
        self._phases = phases
        self._events = phases.events
        self._lease: Lease | None = None
        self._hypervisor: Hypervisor | None = None
        self._key: Hashable = None
        self._host_stack = ExitStack()
        self._disk_stack = ExitStack()

    def opened(self) -> Host:
        """The host: opened at the first need, and again after a restart."""
        return self._opened()[0]

    def ready(self, demand: Demand) -> Session:
        """The session that serves `demand`: kept while the demand stays the same, else built anew."""

        def make(host: Host, hypervisor: Hypervisor, log: CreationLog) -> AbstractContextManager[Session]:
            disks = [host.spec.target(disk) for disk in demand.disks]
            return session(host, hypervisor, disks, demand, log=log, seed=self._seed, phases=self._phases)

        return self.kept(demand, make)

    def kept(
        self, key: Hashable, make: Callable[[Host, Hypervisor, CreationLog], AbstractContextManager[Session]]
    ) -> Session:
        """The session of this `key`: made where another one is open, or none; what was open is closed before."""
        host, hypervisor, log = self._opened()
        if self.session is None or self._key != key:
            self._close_disk()
            self.session = self._disk_stack.enter_context(make(host, hypervisor, log))
            self._key = key
        return self.session

    def start_again(self, error: HostError | GuestError, note: str) -> None:
        """Take a simulated lab down that hung or crashed; who needs it next starts it anew. `restarts` keeps `note`.

        There it is the emulator's doing, and tells nothing of what is measured. On a real host it is a finding: `error`
        is raised, as it is after MOST_RESTARTS with nothing measured in between: see `went_well`.
        """
        if self.host is None or self.host.spec.simulated is None or self._in_a_row == MOST_RESTARTS:
            raise error
        self._in_a_row += 1
        self.restarts.append(note)
        self._events(Note(f"{error.message}; {note}"))
        # What cannot be taken down there goes with the machine.
        with suppress(HarnessError):
            self.close()

    def went_well(self) -> None:
        """A round was measured: what fails after it is another failure."""
        self._in_a_row = 0

    def close(self) -> None:
        """Take the disk's layouts and guest down, then let the host go, whatever fails on the way."""
        self.host = None
        self._lease = None
        with self._host_stack:
            self._close_disk()

    def _opened(self) -> tuple[Host, Hypervisor, CreationLog]:
        """The host, leased, with its hypervisor, and the log of what the run creates there.

        What killed runs have left on the disks of this run is removed. What they left on others stays, and is reported.
        """
        if self._lease is not None:
            self._lease.require_held()
        if self.host is None or self._hypervisor is None or self._log is None:
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
            self.host = host
        return self.host, self._hypervisor, self._log

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
        if self.session is not None:
            self.session = None
            with self._phases.timed("teardown"):
                self._disk_stack.close()
