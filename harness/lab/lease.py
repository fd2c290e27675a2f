"""One run at a time on a host: two would measure each other."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import HostError, LabUnavailable
from harness.events import Events, Note
from harness.lab.paths import LEASE_DIRECTORY
from harness.lab.transport.base import Runner

# With -C the shell makes the file or fails: two runs cannot both get it. One that ends while it is read is free.
_TAKE = """
take() { (set -C; echo "$2" >"$1/lease") 2>/dev/null && echo taken; }
mkdir -p "$1" && { take "$@" || cat "$1/lease" 2>/dev/null || take "$@" || cat "$1/lease"; }
"""
# Only what is still that lease: another run may have taken the host over in the meantime.
_DROP = 'if [ "$(cat "$1/lease" 2>/dev/null)" = "$2" ]; then rm -f "$1/lease"; fi'
_POLL_SECONDS = 1.0


@contextmanager
def lease(
    runner: Runner, host: str, run_id: str, events: Events, *, wait: float = 0.0, directory: str = LEASE_DIRECTORY
) -> Iterator[None]:
    """Hold the host for this run; wait at most `wait` seconds for another one.

    A lease whose process on this machine has died is taken over. Raises LabUnavailable naming the holder.
    """
    mine = f"{run_id} {socket.gethostname()} {os.getpid()}"
    end = time.monotonic() + wait
    waiting = False
    while (holder := _take(runner, directory, mine)) is not None:
        if is_gone(holder):
            events(Note(f"host {host}: the lease of run {holder.split()[0]} is taken over, its process is gone"))
            _drop(runner, directory, holder)
            continue
        if time.monotonic() >= end:
            raise LabUnavailable(
                f"host {host} is being measured by another run ({holder})",
                hint=f"wait for it; if it is gone for good: virt-overhead reap --host {host} --force",
            )
        if not waiting:
            events(Note(f"host {host}: waiting for run {holder.split()[0]} to end"))
            waiting = True
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        # On the way out of a lost connection the first error is the one to tell.
        with suppress(HostError):
            _drop(runner, directory, mine)


def _take(runner: Runner, directory: str, mine: str) -> str | None:
    """None where the lease is ours now, else who holds it."""
    said = runner.run(["sh", "-c", _TAKE, "sh", directory, mine], deadline=20).stdout.strip()
    return None if said == "taken" else said or "unknown unknown 0"


def _drop(runner: Runner, directory: str, holder: str) -> None:
    runner.run(["sh", "-c", _DROP, "sh", directory, holder], deadline=20)


def is_gone(holder: str) -> bool:
    """Whether the lease was taken by a process of this machine that has ended. Of another machine nobody knows."""
    fields = holder.split()
    if len(fields) != 3 or fields[1] != socket.gethostname() or not fields[2].isdigit():
        return False
    return not Path("/proc", fields[2]).exists()
