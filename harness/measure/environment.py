"""Keeps one host and one session open for a run. Opens them at the first request, and closes them in reverse order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace

from harness.errors import GuestError, HarnessError, HostError
from harness.events import Note
from harness.guest.hypervisors import hypervisor_of
from harness.guest.protocol import Hypervisor
from harness.image import ImageSet
from harness.lab.created import CreationLog, Processes, read_log
from harness.lab.facts import require_fio
from harness.lab.guard import serial_of
from harness.lab.hosts import Host, open_host
from harness.lab.inventory import HostSpec
from harness.lab.lease import Lease, lease
from harness.lab.paths import MARK
from harness.measure.phases import Phases
from harness.measure.reap import reap, split_by_disks
from harness.measure.session import Session
from harness.run_id import RunId
from harness.signals import cleaning_up

STARTED_AGAIN = "the lab host was started again"
KEPT_RUNNING = "the lab host kept running; its layouts and guest were created again"


class Restarts:
    """The failures of a simulated lab. Whether its host was restarted is known only when the host is open again."""

    def __init__(self) -> None:
        self._sentences: list[str] = []
        self._failed: str | None = None
        self._boot: str | None = None

    @property
    def sentences(self) -> Sequence[str]:
        """One sentence for each failure: what failed, and what was done, if already known."""
        return [*self._sentences, *([self._failed] if self._failed else [])]

    def failed(self, what: str) -> None:
        """Record that the lab was taken down because of `what`."""
        self._failed = what

    def opened(self, boot: str) -> str | None:
        """Record that the host is open, with this boot id. Returns what was done after a failure, else None."""
        done = KEPT_RUNNING if boot == self._boot else STARTED_AGAIN
        self._boot = boot
        if self._failed is None:
            return None
        self._sentences.append(f"{self._failed}; {done}")
        self._failed = None
        return done


LEASE_WAIT_SECONDS = 900.0
MOST_RESTARTS = 2
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Environment:
    """One host and its current session. Both are None until the first request.

    `disks` are the names of the disks under test of this run. What killed runs left behind is removed only from these.
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
        self._disks = frozenset(serial_of(disk) for disk in spec.measured if disk.name in disks)
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
        """One sentence for each failure of a simulated lab: what failed, and what was done."""
        return self._restarts.sentences

    @property
    def current(self) -> Session:
        """The session that was opened last."""
        if self._session is None:
            raise RuntimeError("no session was opened")
        return self._session

    @property
    def is_open(self) -> bool:
        """Whether the host is open."""
        return self._host is not None

    def has(self, key: Hashable) -> bool:
        """Whether the session with this `key` is the open one."""
        return self._session is not None and self._key == key

    def opened(self) -> Host:
        """The host. It is opened at the first request, and again after a restart."""
        return self._opened()[0]

    @property
    def log(self) -> CreationLog:
        """The log of what the run creates on the host."""
        return self._opened()[2]

    def session_for(
        self, key: Hashable, make: Callable[[Host, Hypervisor, CreationLog], AbstractContextManager[Session]]
    ) -> Session:
        """The session with this `key`. If it is not the open one, the open one is closed and `make` opens a new one."""
        host, hypervisor, log = self._opened()
        if not self.has(key):
            self.close_session()
            self._session = self._disk_stack.enter_context(make(host, hypervisor, log))
            self._key = key
        return self.current

    def start_again(self, error: HostError | GuestError, what: str) -> None:
        """Take down the guest and layouts of a simulated lab after `what` failed. The next request opens new ones.

        In a simulated lab, the emulator causes such failures, so they say nothing about the disks. On a real host, a
        failure is a finding, so `error` is raised. It is also raised after MOST_RESTARTS without a round in between
        (see `round_measured`).
        """
        if self._host is None or self._host.spec.simulated is None or self._in_a_row == MOST_RESTARTS:
            raise error
        self._in_a_row += 1
        self._restarts.failed(what)
        self._events(Note(f"{what}: {error.message}"))
        # The end of the machine removes everything else.
        with suppress(HarnessError):
            self.close()

    def round_measured(self) -> None:
        """Note that a round was measured. A later failure is then a new one."""
        self._in_a_row = 0

    def close(self) -> None:
        """Take down the disk's layouts and guest, then close the host, also after an error."""
        self._host = None
        self._lease = None
        with cleaning_up(), self._host_stack:
            self.close_session()

    def _opened(self) -> tuple[Host, Hypervisor, CreationLog]:
        """The leased host, its hypervisor, and the log of what the run creates there.

        Removes what killed runs left behind on the disks of this run. What they left on other disks is only reported.
        """
        if self._lease is not None:
            self._lease.require_held()
        if self._host is None or self._hypervisor is None or self._log is None:
            with self._phases.timed("lab"):
                stack = self._host_stack
                host = stack.enter_context(open_host(self._spec, self._images, self._events))
                require_fio(host.facts, host.name, host.spec.fio)
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
        mine, others = split_by_disks(entries, self._disks)
        for what in reap(host.runner, hypervisor, mine):
            self._events(Note(f"host {host.name}: {what}"))
        if others:
            runs = ", ".join(dict.fromkeys(entry.run_id for entry in others))
            self._events(
                Note(
                    f"host {host.name}: killed runs left something behind on other disks ({runs}). This run does not "
                    "touch it. `virt-overhead reap` lists it"
                )
            )

    def close_session(self) -> None:
        """Take down the guest and the layouts, if there are any."""
        if self._session is not None:
            self._session = None
            with cleaning_up(), self._phases.timed("teardown"):
                self._disk_stack.close()
