"""Unplugs devices from a running VM of others. Only the running VM changes, never its definition."""

from __future__ import annotations

from functools import partial
from typing import Any
from xml.etree import ElementTree as ET

from harness.errors import HostError
from harness.features.borrow.hypervisor import AddedThread, PluggedIn, find_plugged, list_threads
from harness.guest.libvirt.binding import libvirt
from harness.guest.libvirt.connection import Connection, LibvirtRefusal
from harness.guest.libvirt.effective import PID_FILE, live_xml
from harness.lab.created import Entry, Removal
from harness.lab.transport.base import Runner
from harness.signals import wait_until
from harness.units import format_duration

LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
PLUG_SECONDS = 120.0
RELEASE_SECONDS = 60.0
_POLL_SECONDS = 0.2

# $1: the file with the id of a QEMU process. Prints the id, and the start of the process in ticks since the boot.
_PROCESS = r"""pid=$(cat "$1") && echo "$pid $(sed 's/^.*) //' "/proc/$pid/stat" | cut -d ' ' -f 20)" """


def remove_from_libvirt(connection: Connection, runner: Runner, entry: Entry) -> Removal | None:
    """Remove what a killed run has plugged in; None for other entries. Raises HostError."""
    if (made := entry.parsed((PluggedIn,))) is not None:
        return unplug(connection, made)
    thread = entry.parsed((AddedThread,))
    return remove_thread(connection, runner, thread) if thread is not None else None


def unplug(connection: Connection, made: PluggedIn) -> Removal:
    """Unplug the device if the VM has it. Raises HostError if the VM does not release it, or if that is not known yet.

    A VM that was saved still has it: its saved state refers to what is below the device.
    """
    _require_quiet(connection, made)
    domain, live = _find_running(connection, made)
    if live is None or (current := find_plugged(live, made.alias)) is None:
        return Removal("absent")
    if current != (made.target, made.source):
        return Removal(
            "foreign", f"{made.alias} of the VM {made.name} is now {current[0]} with {current[1] or 'no source'}"
        )
    refused = ""
    try:
        detach = partial(domain.detachDeviceAlias, made.alias, LIVE)
        connection.call(f"unplug {made.alias} from the VM {made.name}", detach, deadline=PLUG_SECONDS)
    except LibvirtRefusal as error:
        # An earlier request may still be pending. Then libvirt refuses another one.
        refused = f" ({error.message})"

    def released() -> bool:
        _, now = _find_running(connection, made)
        return now is None or find_plugged(now, made.alias) is None

    if not wait_until(released, deadline=RELEASE_SECONDS, every=_POLL_SECONDS):
        raise HostError(
            f"host {connection.host}: the VM {made.name} did not release {made.target or made.alias} within "
            f"{format_duration(RELEASE_SECONDS)}{refused}",
            hint=f"end what uses it in {made.name} (lsblk, fuser), and run: virt-overhead reap",
        )
    return Removal("removed")


def remove_thread(connection: Connection, runner: Runner, made: AddedThread) -> Removal:
    """Remove the iothread if the same QEMU process still has it. Raises HostError if a disk uses it."""
    _require_quiet(connection, made)
    domain, live = _find_running(connection, made)
    if live is None or made.thread not in list_threads(live):
        return Removal("absent")
    if identify_process(runner, domain.name()) != made.process:
        return Removal("foreign", f"{made.name} was started anew, and has an iothread {made.thread} of its own")
    delete = partial(domain.delIOThread, made.thread, LIVE)
    connection.call(f"remove iothread {made.thread} of the VM {made.name}", delete, deadline=PLUG_SECONDS)
    return Removal("removed")


def _find_running(connection: Connection, made: PluggedIn | AddedThread) -> tuple[Any, ET.Element | None]:
    """libvirt's handle of the VM with this UUID and how it runs; None if it is gone or does not run.

    Raises HostError if it does not run here now, but may run on with the device.
    """
    try:
        domain: Any = _look_up(connection, made)
        if connection.call(f"report whether the VM {made.name} runs", domain.isActive):
            return domain, live_xml(connection, domain)
        _require_ended(connection, domain, made)
        return domain, None
    except LibvirtRefusal as error:
        if not error.gone:
            raise
        if not made.persistent:
            raise HostError(
                f"host {connection.host}: the VM {made.name} is gone, and libvirt has no definition of it that says "
                "how it ended: if it was saved to a file or migrated, it still has this device",
                hint=f"restore or start {made.name} and run: virt-overhead reap",
            ) from error
        return None, None


def _require_quiet(connection: Connection, made: PluggedIn | AddedThread) -> None:
    """Return when no change of the VM goes on. Raises HostError: the device may still be plugged in, after a deadline
    or after the end of its run."""
    connection.require_settled(deadline=RELEASE_SECONDS)
    try:
        # libvirt answers this only between two changes of a VM.
        connection.call(f"read the state of the VM {made.name}", _look_up(connection, made).memoryStats)
    except LibvirtRefusal as error:
        if error.busy:
            raise


def _require_ended(connection: Connection, domain: Any, made: PluggedIn | AddedThread) -> None:
    """Raise HostError if the VM, which does not run, was not ended for certain."""
    name = made.name
    saved = connection.call(f"report whether it has a saved state of the VM {name}", domain.hasManagedSaveImage)
    _, reason = connection.call(f"report how the VM {name} ended", domain.state)
    if saved:
        why, hint = "is saved (virsh managedsave, or a shutdown of its host)", f"start it (virsh start {name})"
    elif reason == libvirt.VIR_DOMAIN_SHUTOFF_SAVED:
        why, hint = "was saved to a file (virsh save)", "restore it (virsh restore FILE)"
    elif reason == libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED:
        why, hint = "was migrated to another host", "migrate it back, or detach the device there"
    elif reason == libvirt.VIR_DOMAIN_SHUTOFF_UNKNOWN:
        why = "does not run, and libvirt was restarted since it ended, so it may have been saved to a file"
        hint = f"restore it, or start it (virsh start {name})"
    else:
        return
    raise HostError(
        f"host {connection.host}: the VM {name} {why}, and still has this device",
        hint=f"{hint}, and run: virt-overhead reap",
    )


def _look_up(connection: Connection, made: PluggedIn | AddedThread) -> Any:
    look = partial(connection.handle.lookupByUUIDString, made.uuid)
    return connection.call(f"look for the VM {made.name}", look)


def identify_process(runner: Runner, name: str) -> str:
    return runner.run(["sh", "-c", _PROCESS, "sh", PID_FILE.format(name=name)], deadline=20).stdout.strip()
