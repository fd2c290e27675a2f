"""Removes what killed runs left behind on a host: things in the creation log whose identity has not changed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from harness.errors import HarnessError, HostError
from harness.feature import features
from harness.guest.protocol import Remover
from harness.lab.created import REMEDY, Entry, HostThing, Processes, Removal, close, forget
from harness.lab.pin import TAG
from harness.lab.transport.base import Runner
from harness.layout.storage import CREATED
from harness.signals import remedy_of
from harness.terminal import quoted

FEATURE_THINGS = tuple(thing for feature in features() for thing in feature.list_things())
HOST_THINGS: tuple[type[HostThing], ...] = (
    *CREATED,
    Processes,
    *(thing for thing in FEATURE_THINGS if issubclass(thing, HostThing)),
)
"""Everything that runs create on a host with commands. A hypervisor removes the things that it created."""
_PROCESSES = Processes.model_fields["kind"].default


def split_by_disks(entries: Sequence[Entry], disks: Collection[str]) -> tuple[list[Entry], list[Entry]]:
    """Splits entries into those on one of these disks (serial numbers) and the others. Pure.

    A thing that is on no disk belongs to the first part if its run has used one of the disks, or none at all. Processes
    always belong to the first part, because they would disturb the measurement. A record that cannot be read belongs to
    the second part, because otherwise no later run could start.
    """
    runs = {entry.run_id for entry in entries if entry.disks & set(disks)}
    others = {entry.run_id for entry in entries if entry.disks or not entry.kind}

    def is_mine(entry: Entry) -> bool:
        if entry.disks or not entry.kind:
            return bool(entry.disks & set(disks))
        return entry.run_id in runs or entry.run_id not in others or entry.kind == _PROCESSES

    return [entry for entry in entries if is_mine(entry)], [entry for entry in entries if not is_mine(entry)]


def describe_entry(entry: Entry) -> str:
    """An entry of the log in words, for a list."""
    if not entry.kind:
        return f"a record that cannot be read ({entry.path}), of run {entry.run_id}"
    try:
        thing = entry.parsed((*HOST_THINGS, *FEATURE_THINGS))
    except HostError:
        return f"a record of the kind {entry.kind} that this version cannot read, of run {entry.run_id}"
    return f"{thing.words if thing else entry.record.get('name') or entry.kind}, of run {entry.run_id}"


def reap(runner: Runner, hypervisor: Remover, entries: Sequence[Entry]) -> list[str]:
    """Remove these things, the latest first. Returns a sentence for each of them.

    If a thing cannot be removed, or is no longer the thing that was created, everything that the same run created below
    it also stays. For example, a file may now have the data of somebody else. Call this only while holding the host's
    lease, because otherwise it ends a live run. Raises HostError at the end if something could not be removed.
    """
    done: list[str] = []
    left: list[tuple[str, Entry]] = []
    hints: list[str] = []
    entries, not_closed = _close_entries(runner, entries)
    for number, entry in reversed(list(enumerate(entries))):
        what = describe_entry(entry)
        if any(above.run_id == entry.run_id and above.disks & entry.disks for _, above in left):
            left.append((f"{what}: not removed, because something on it remains", entry))
            continue
        if entry.kind and (why := not_closed.get(entry.run_id)):
            left.append((f"{what}: {why}", entry))
            continue
        try:
            removal = _remove_entry(runner, hypervisor, entry)
        except HarnessError as error:
            left.append((f"{what}: {error.message}", entry))
            hints.append(remedy_of(error, REMEDY))
            continue
        if removal.outcome == "foreign":
            sentence = f"{what}: not removed, because it is no longer the thing that was created: {removal.why}"
            if any(below.run_id == entry.run_id and below.disks & entry.disks for below in entries[:number]):
                left.append((sentence, entry))
                continue
            done.append(sentence)
        elif removal.outcome == "replaced":
            done.append(f"{what}: not removed, because it is no longer the thing that was created: {removal.why}")
        elif removal.outcome == "removed":
            done.append(f"removed after a killed run: {what}" + (f"; {removal.why}" if removal.why else ""))
        forget(runner, entry)
    if left:
        files = ", ".join(entry.path for _, entry in left)
        raise HostError(
            f"{runner.name}: some things that killed runs left behind cannot be removed:\n  "
            + "\n  ".join([*(sentence for sentence, _ in left), *done]),
            hint=f"{'; '.join(dict.fromkeys(hints)) or REMEDY}; to keep a thing, or if you removed it yourself, delete "
            f"its file from the log: {files}",
        )
    return done


def _close_entries(runner: Runner, entries: Sequence[Entry]) -> tuple[list[Entry], dict[str, str]]:
    """Ends the creation of these things. Returns the entries as they are then, and why it did not end, by run."""
    closed: dict[str, Entry] = {}
    refused: dict[str, str] = {}
    for run_id in dict.fromkeys(entry.run_id for entry in entries):
        known = [entry for entry in entries if entry.run_id == run_id and entry.kind]
        try:
            closed.update(zip((entry.path for entry in known), close(runner, known), strict=True))
        except HarnessError as error:
            refused[run_id] = error.message
    return [closed.get(entry.path, entry) for entry in entries], refused


def _remove_entry(runner: Runner, hypervisor: Remover, entry: Entry) -> Removal:
    if not entry.kind:
        raise HostError(
            f"{entry.path} is damaged: find out what run {entry.run_id} left on the host (its names have {TAG}), "
            "remove that by hand, and then this file"
        )
    thing = entry.parsed(HOST_THINGS)
    if thing is not None:
        return thing.remove(runner)
    removal = hypervisor.remove(entry)
    if removal is None:
        raise HostError(
            f"the creation log has an entry {entry.run_id}/{entry.file} of the kind {quoted(entry.kind)}, but "
            "this version of virt-overhead, or this kind of host, does not support it"
        )
    return removal
