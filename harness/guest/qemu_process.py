"""The QEMU process of a guest, as its host shows it."""

from __future__ import annotations

from harness.errors import HostError
from harness.events import Events, Note
from harness.lab.transport.base import Runner
from harness.lab.vm_threads import VmThreads, find_threads


def qemu_threads(runner: Runner, pid_file: str, events: Events) -> VmThreads | None:
    """The threads of the guest's process on its host; None, with a note, where the host does not show them.

    Without them a run reports CPU time as a whole, and all the rest.
    """
    try:
        return find_threads(runner, pid_file)
    except HostError as error:
        events(Note(f"CPU time is not reported by QEMU's threads: {error.message}"))
        return None
