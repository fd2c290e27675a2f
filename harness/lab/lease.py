"""The lease of a host: only one run uses it at a time.

The lease is a lock of the host's kernel on LEASE_DIRECTORY. A process on the host holds it (hold_lease.bash). This
process is connected to it by an open channel. The holder ends with the channel, or when it has received nothing for a
time, and then the kernel releases the lock. So the lease always ends with the run, even if the run is killed.

Two runs on a host would disturb each other and remove each other's data.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from harness.errors import HostError, LabUnavailable
from harness.events import Events, Note
from harness.files import read_script
from harness.lab.pin import LEASE_DIRECTORY
from harness.lab.transport.base import Completed, HeldCommand, HoldingRunner, Runner
from harness.signals import Deadline, attempts, growing, held_back
from harness.terminal import quoted
from harness.units import format_duration
from harness.untrusted import reading

_MACHINE_ID = Path("/etc/machine-id")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def this_process() -> str:
    """User, machine and process. A host name or a process id alone may also belong to another machine."""
    return (
        f"{_read_user()}@{socket.gethostname()}, process {os.getpid()} started {_read_start()}, "
        f"machine-id {_make_content(_MACHINE_ID)}, boot-id {_make_content(_BOOT_ID)}"
    )


def start_ticks(pid: int) -> str:
    """Field 22 of proc(5)'s stat, the start time in ticks since boot; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def utc(seconds: float) -> str:
    """A time since the epoch, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _read_start() -> str:
    ticks = start_ticks(os.getpid())
    if not ticks:
        return "at an unknown time"
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    return utc(time.time() - age)


def _read_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # The user of a container may have an id, but no name.
        return str(os.getuid())


def _make_content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip() or "unknown"
    except OSError:
        return "unknown"


PROGRAMS = ("bash", "flock", "stat")
"""The programs that HOLD needs on the host. Debian and its derivatives always have them."""

# bash, because its `read` has a timeout. So a heartbeat starts no process on a host that is being measured.
START = ("sh", "-c", read_script("harness.lab", "start_lease_holder.sh"))
"""Its arguments: HOLD, all names of PROGRAMS in one argument, and the arguments of HOLD."""

HOLD = read_script("harness.lab", "hold_lease.bash")

# The line in the file identifies the holder. A process that has the directory open as its lock shows that the file does
# not belong to a dead run.
FENCE = (
    "{{ {{ read -r holder && read -r process; }} 2>/dev/null <{directory}/lease"
    " && [ \"$process\" = '{process}' ] && [ /proc/{pid}/fd/9 -ef {directory} ]; }}"
)
"""A shell condition that is true on the host while the process holds the lease. `process`: its PID and START."""

END = read_script("harness.lab", "end_lease_holder.sh")

BEAT_SECONDS = 5.0
"""The pause between two heartbeats of the run that holds the lease."""
SILENCE_SECONDS = 30.0
"""The time without a heartbeat after which the host releases the lease."""

_PROVEN_SECONDS = 1.0
_LAST_LINE_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_POLL_SECONDS = 1.0
"""The pause after the first question whether the lease is free. It doubles, because each one disturbs the other run."""
_LONGEST_POLL_SECONDS = 30.0
_DIGITS = 20
# This clock also counts the time while the machine is suspended.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Lease:
    """A host's lease while it is held. Threads may share it.

    `runner` runs commands on the host. When the lease is lost, it runs no more commands, because a write could then
    overwrite another run's data. `fence` is a shell condition that is true on the host only while this run holds it.
    A script that destroys data checks `fence` right before that, because this process may be suspended at any time.
    """

    def __init__(self, runner: HoldingRunner, host: str, held: HeldCommand, directory: str, silence: float) -> None:
        with reading(f"host {host}: the answer of the process that holds its lease", LabUnavailable):
            pid, start = _read_holder(held.lines[0])
        self.fence = FENCE.format(process=f"{pid} {start}", pid=pid, directory=shlex.quote(directory))
        self.runner: HoldingRunner = _LeasedRunner(runner, self)
        self._host = host
        self._held = held
        self._silence = silence
        self._lost = ""
        self._sending = threading.Lock()

    def require_held(self, *, proven_within: float = 0.0) -> None:
        """Return when the process that holds the lease on the host has answered. HostError if the lease is lost.

        An answer to a heartbeat of at most `proven_within` seconds ago is sufficient. A lost lease stays lost.
        """
        age = (_format_now() - _parse_proof(self._held.lines)) / 1e9
        if not self._lost and (age > proven_within or not self._held.alive):
            self._lost = self._ask()
        if self._lost:
            raise HostError(
                f"host {self._host}: this run has lost its lease: {self._lost}",
                hint="another run may hold the host now, so this run stops; start it again when the host is free",
            )

    @contextmanager
    def beating(self, seconds: float) -> Iterator[None]:
        """Send a heartbeat to the host every `seconds` during the block."""
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
            sent = self._send()
        except HostError:
            return self._explain_end()
        if self._held.wait(lambda lines: _parse_proof(lines) >= sent, self._silence):
            return ""
        if self._held.alive:
            return f"its holder on the host did not answer within {format_duration(self._silence)}"
        return self._explain_end()

    def _explain_end(self) -> str:
        # Its last line may still arrive when nothing can be sent to it any more.
        if self._held.wait(lambda lines: lines[-1].startswith("over "), _LAST_LINE_SECONDS):
            return self._held.lines[-1].removeprefix("over ")
        return "its holder on the host, or the connection to it, has ended"

    def _send(self) -> int:
        with self._sending:
            now = _format_now()
            self._held.send(str(now))
        return now

    def _beat(self, stop: threading.Event, seconds: float) -> None:
        while not stop.wait(seconds):
            try:
                self._send()
            except HostError:
                return


class _LeasedRunner:
    """The Runner of a host. It runs no more commands when the lease is lost."""

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

    def hold(self, argv: Sequence[str], *, what: str, deadline: float) -> AbstractContextManager[HeldCommand]:
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
    """Hold the lease of the host for this run. Wait at most `wait` seconds for another run to end.

    This process sends a heartbeat every `beat` seconds. After `silence` seconds without one, the host releases the
    lease. Raises LabUnavailable, which names the holder or what is missing on the host.
    """
    start = (*START, HOLD, " ".join(PROGRAMS), directory, f"{silence:g}", f"{run_id} of {this_process()}")
    with held_back(), ExitStack() as stack:
        for attempt in attempts(Deadline.after(wait), growing(_POLL_SECONDS, _LONGEST_POLL_SECONDS)):
            what = f"the lease of host {host}"
            held = stack.enter_context(runner.hold((*start, utc(time.time())), what=what, deadline=_ANSWER_SECONDS))
            word, _, rest = held.lines[0].partition(" ")
            if word == "held":
                break
            stack.pop_all().close()
            if word != "busy":
                raise _explain_not_leased(host, held.lines)
            if attempt.deadline.passed:
                raise _explain_busy(host, rest)
            if attempt.number == 1:
                events(Note(f"host {host}: waiting for the end of the run that holds it: {rest}"))
        lease = Lease(runner, host, held, directory, silence)
        stack.enter_context(lease.beating(beat))
        yield lease


def end_holder(runner: Runner, host: str, *, directory: str = LEASE_DIRECTORY) -> str | None:
    """End the process on the host that holds its lease. Then its run stops.

    Returns the former holder, or None if nobody held the lease. Raises LabUnavailable if the holder cannot be ended.
    """
    printed = runner.run(("sh", "-c", END, "sh", directory), deadline=_ANSWER_SECONDS).stdout.strip()
    word, _, holder = printed.partition(" ")
    if word == "ended":
        return holder
    if word == "free":
        return None
    raise LabUnavailable(
        f"host {host}: the holder of its lease cannot be ended: {printed}",
        hint="end that run on the machine that started it",
    )


def _explain_busy(host: str, holder: str) -> LabUnavailable:
    return LabUnavailable(
        f"host {host} is being measured by another run ({holder})",
        hint=f"wait for it, or end it on the machine that started it; to stop it from here: "
        f"virt-overhead reap --host {host} --force",
    )


def _explain_not_leased(host: str, lines: Sequence[str]) -> LabUnavailable:
    word, _, rest = lines[0].partition(" ")
    if word == "missing":
        return LabUnavailable(
            f"host {host}: its lease needs `{rest}`, which is not installed there", hint=f"install `{rest}` on the host"
        )
    reason = rest if word == "refused" else "; ".join(lines)
    return LabUnavailable(
        f"host {host} cannot be leased: {reason}",
        hint="only root may own and write the files of the lease: check them, and remove them if nobody needs them",
    )


def _read_holder(line: str) -> tuple[str, str]:
    """Process id and start of the holder, which become words of a shell script. Raises ValueError."""
    match = re.fullmatch(r"held (\d{1,20}) (\d{1,20})", line, re.ASCII)
    if match is None:
        raise ValueError(f"it is {quoted(line)}")
    return match[1], match[2]


def _format_now() -> int:
    """Nanoseconds. They are also the text of a heartbeat, which the holder prints as its answer."""
    return time.clock_gettime_ns(_CLOCK)


def _parse_proof(lines: Sequence[str]) -> int:
    """The time at which the newest answered heartbeat was sent, in ns."""
    return next((int(line) for line in reversed(lines) if line.isdecimal() and len(line) <= _DIGITS), 0)
