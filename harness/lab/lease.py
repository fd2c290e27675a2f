"""One run at a time on a host: two would measure each other, and each would remove what the other built.

The lease is a lock of the host's kernel on LEASE_DIRECTORY. A process on the host holds it (see `lease_holder`), at the
end of an open channel from this process. It ends with the channel, or when it has heard nothing for a time, and the
kernel then releases the lock. So the lease ends with the run, however the run ends, and nothing has to be taken over.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import repeat
from pathlib import Path

from harness.errors import HostError, LabUnavailable
from harness.events import Events, Note
from harness.lab.identity import this_process, utc
from harness.lab.lease_holder import END, FENCE, HOLD, PROGRAMS, START
from harness.lab.paths import LEASE_DIRECTORY
from harness.lab.transport.base import Completed, HoldingRunner, Runner
from harness.lab.transport.held import Held
from harness.units import format_duration
from harness.waiting import Deadline, attempts

BEAT_SECONDS = 5.0
"""How often the host hears of a run that holds its lease."""
SILENCE_SECONDS = 30.0
"""How long the host hears nothing before it releases the lease."""

_PROVEN_SECONDS = 1.0
_LAST_WORDS_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_POLL_SECONDS = 1.0
# Time goes on in it while the machine is suspended.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Lease:
    """A host's lease while it is held. Threads may share it.

    `runner` runs commands on the host, and none once the lease is lost: what the run would write may be written over
    another run's data from then on. `fence` is a shell condition, true on the host only while this run has it: a script
    that destroys data asks it right before it does, for this process may be suspended just after it was answered.
    """

    def __init__(self, runner: HoldingRunner, host: str, held: Held, directory: str, silence: float) -> None:
        _, pid, start = held.lines[0].split()
        self.fence = FENCE.format(process=f"{pid} {start}", pid=pid, directory=shlex.quote(directory))
        self.runner: HoldingRunner = _LeasedRunner(runner, self)
        self._host = host
        self._held = held
        self._silence = silence
        self._lost = ""
        self._sending = threading.Lock()

    def require_held(self, *, proven_within: float = 0.0) -> None:
        """Return when the process that holds the lease on the host has answered; HostError when the lease is lost.

        An answer to a question of at most `proven_within` seconds ago is enough. A lost lease stays lost.
        """
        age = (_now() - _proven(self._held.lines)) / 1e9
        if not self._lost and (age > proven_within or not self._held.alive):
            self._lost = self._ask()
        if self._lost:
            raise HostError(
                f"host {self._host}: this run has lost its lease: {self._lost}",
                hint="another run may have the host now, so this one stops; start it again when the host is free",
            )

    @contextmanager
    def beating(self, seconds: float) -> Iterator[None]:
        """Let the host hear of this run every `seconds` while the block lasts."""
        stop = threading.Event()
        thread = threading.Thread(target=self._beat, args=(stop, seconds), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(seconds)

    def _ask(self) -> str:
        """Why the lease is lost; empty when its holder answers."""
        try:
            asked = self._send()
        except HostError:
            return self._why_ended()
        if self._held.wait(lambda lines: _proven(lines) >= asked, self._silence):
            return ""
        if self._held.alive:
            return f"its holder on the host did not answer within {format_duration(self._silence)}"
        return self._why_ended()

    def _why_ended(self) -> str:
        # Its last words may still be on their way when nothing can be sent to it any more.
        if self._held.wait(lambda lines: lines[-1].startswith("over "), _LAST_WORDS_SECONDS):
            return self._held.lines[-1].removeprefix("over ")
        return "its holder on the host, or the connection to it, has ended"

    def _send(self) -> int:
        with self._sending:
            now = _now()
            self._held.send(str(now))
        return now

    def _beat(self, stop: threading.Event, seconds: float) -> None:
        while not stop.wait(seconds):
            try:
                self._send()
            except HostError:
                return


class _LeasedRunner:
    """The Runner of a host, which runs nothing more once the lease is lost."""

    def __init__(self, runner: HoldingRunner, lease: Lease) -> None:
        self.name = runner.name
        self.fence = lease.fence
        self._runner = runner
        self._lease = lease

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        self._lease.require_held(proven_within=_PROVEN_SECONDS)
        return self._runner.run(argv, deadline=deadline, stdin=stdin, check=check)

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        self._lease.require_held(proven_within=_PROVEN_SECONDS)
        self._runner.put(source, target, deadline=deadline)

    def hold(self, argv: Sequence[str], *, what: str, deadline: float) -> AbstractContextManager[Held]:
        self._lease.require_held(proven_within=_PROVEN_SECONDS)
        return self._runner.hold(argv, what=what, deadline=deadline)

    def close(self) -> None:
        self._runner.close()


@contextmanager
def lease(
    runner: HoldingRunner,
    host: str,
    run_id: str,
    events: Events,
    *,
    wait: float = 0.0,
    directory: str = LEASE_DIRECTORY,
    beat: float = BEAT_SECONDS,
    silence: float = SILENCE_SECONDS,
) -> Iterator[Lease]:
    """Hold the host for this run; wait at most `wait` seconds for another one.

    The host hears of this run every `beat` seconds, and releases the lease after `silence` seconds without. Raises
    LabUnavailable naming the holder, or what the host lacks.
    """
    start = (*START, HOLD, " ".join(PROGRAMS), directory, f"{silence:g}", f"{run_id} of {this_process()}")
    with ExitStack() as stack:
        for attempt in attempts(Deadline.after(wait), repeat(_POLL_SECONDS)):
            what = f"the lease of host {host}"
            held = stack.enter_context(runner.hold((*start, utc(time.time())), what=what, deadline=_ANSWER_SECONDS))
            word, _, rest = held.lines[0].partition(" ")
            if word == "held":
                break
            stack.pop_all().close()
            if word != "busy":
                raise _not_leased(host, held.lines)
            if attempt.deadline.passed:
                raise _measured_by_another(host, rest)
            if attempt.number == 1:
                events(Note(f"host {host}: waiting for the run that has it to end: {rest}"))
        lease = Lease(runner, host, held, directory, silence)
        stack.enter_context(lease.beating(beat))
        yield lease


def end_holder(runner: Runner, host: str, *, directory: str = LEASE_DIRECTORY) -> str | None:
    """End the process on the host that holds its lease, so that its run stops; who held it, or None for nobody.

    Raises LabUnavailable if the holder cannot be ended from there.
    """
    said = runner.run(("sh", "-c", END, "sh", directory), deadline=_ANSWER_SECONDS).stdout.strip()
    word, _, holder = said.partition(" ")
    if word == "ended":
        return holder
    if word == "free":
        return None
    raise LabUnavailable(
        f"host {host}: the holder of its lease cannot be ended: {said}",
        hint="end that run where it was started",
    )


def _measured_by_another(host: str, holder: str) -> LabUnavailable:
    return LabUnavailable(
        f"host {host} is being measured by another run ({holder})",
        hint=f"wait for it, or end it where it was started; to take the host from it: "
        f"virt-overhead reap --host {host} --force",
    )


def _not_leased(host: str, said: Sequence[str]) -> LabUnavailable:
    word, _, rest = said[0].partition(" ")
    if word == "missing":
        return LabUnavailable(
            f"host {host}: its lease needs `{rest}`, which is not installed there", hint=f"install `{rest}` on the host"
        )
    reason = rest if word == "refused" else "; ".join(said)
    return LabUnavailable(
        f"host {host} cannot be leased: {reason}",
        hint="nobody but root may own or write what the lease needs: look at it, and remove it if it is not needed",
    )


def _now() -> int:
    """Nanoseconds: also the text of a beat, which the holder prints again."""
    return time.clock_gettime_ns(_CLOCK)


def _proven(lines: Sequence[str]) -> int:
    """When the newest beat that was answered was sent."""
    return next((int(line) for line in reversed(lines) if line.isdecimal()), 0)
