"""The records of the disks that a session measures on: what they are, and their health before and afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.events import Events, Note
from harness.lab.disk_health import HealthFound, read_health
from harness.lab.inventory import AnyDisk, DiskById, array_of, class_known
from harness.lab.raid_tool import described
from harness.lab.storage import DiskByStorage
from harness.measure.session import Session
from harness.model.disk import ArrayFacts, DiskFacts, DiskRecord


class DiskRecords:
    """The disks of a run on one host. Each note is reported once, also if it applies to several disks."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._reported: set[str] = set()
        self._at: Session | None = None
        self._current: tuple[DiskRecord, ...] = ()

    def of(self, at: Session) -> tuple[DiskRecord, ...]:
        """The disks of this session. What is new about them is reported."""
        if self._at is not at:
            self._at, self._current = at, (*_records(at), *(_records(at.reference) if at.reference else ()))
            for disk in self._current:
                for note in disk.notes:
                    if note not in self._reported:
                        self._reported.add(note)
                        self._events(Note(f"disk {disk.name}: {note}"))
        return self._current

    def afterwards(self) -> tuple[DiskRecord, ...]:
        """The disks of the current session with their health now as that afterwards."""
        at = self._at
        if at is None or at.host.spec.simulated:
            return ()
        found = [(disk, read_health(at.host.runner, at.host.facts, disk.facts).health) for disk in self._current]
        return tuple(replace(disk, after=health) for disk, health in found)


def class_notes(disk: AnyDisk, facts: DiskFacts) -> Iterator[str]:
    """A class in the lab file, or assumed from the link, that the host contradicts. It cannot contradict `array`: some
    controllers show the system a volume like a disk."""
    known = class_known(disk)
    if known in (None, "array", facts.disk_class) or facts.disk_class is None or isinstance(disk, DiskByStorage):
        return
    origin = f'the lab file says class = "{known}"'
    if isinstance(disk, DiskById) and disk.disk_class is None:
        origin = f"its class was assumed to be {known} from its link {disk.id.rpartition('/')[2]}"
    yield f'{origin}, but the host reports class {facts.disk_class}: set class = "{facts.disk_class}" in the lab file'


def array_notes(disk: AnyDisk, facts: DiskFacts) -> Iterator[str]:
    """What the lab file says of an array that the host contradicts, and what is not known of it."""
    stated = array_of(disk)
    if stated is None:
        return
    found = facts.array or ArrayFacts()
    if wrong := ", ".join(found.contradictions(stated.facts)):
        yield f"the lab file says {wrong}, as its host reports: correct `array` in the lab file"
    if stated.reference and found.completed(stated.facts).shape is None:
        yield (
            f"how it scales against {stated.reference} is not known, because its host does not report its level and "
            "number of disks: set `level` and `disks` of `array` in the lab file"
        )


def link_notes(facts: DiskFacts) -> Iterator[str]:
    """Links that were negotiated below what the device can do: the figures are then those of the slot or cable."""
    if facts.link is not None and facts.link.is_reduced:
        yield f"its link is {facts.link}: another slot, port or cable may be faster"
    if facts.controller is not None and facts.controller.link is not None and facts.controller.link.is_reduced:
        yield f"the link of its controller {facts.path} is {facts.controller.link}: another slot may be faster"


def _records(at: Session) -> Iterator[DiskRecord]:
    host = at.host
    with_tool = described(host.runner, host.facts, at.disks)
    found = with_tool.disks
    for device, name in at.names.items():
        facts = found.get(device, DiskFacts(device=device))
        health = at.health.get(device, HealthFound())
        facts = replace(facts, model=health.model or facts.model, firmware=health.firmware or facts.firmware)
        below = tuple(_below(facts, found))
        disk = host.spec.target(name)
        notes = [*class_notes(disk, facts), *array_notes(disk, facts), *link_notes(facts)]
        if (stated := array_of(disk)) is not None:
            array = facts.array.completed(stated.facts) if facts.array else stated.facts
            facts = replace(facts, disk_class="array", array=array)
        notes += [note for disk in below for note in link_notes(disk)]
        notes += [why for why in (with_tool.notes.get(device), health.why) if why is not None]
        yield DiskRecord(name=name, facts=facts, below=below, before=health.health, notes=tuple(notes))


def _below(disk: DiskFacts, found: Mapping[str, DiskFacts]) -> Iterator[DiskFacts]:
    """The disks at the bottom, on which the disk is, each once. Volumes between them are left out."""
    waiting, seen = list(disk.members), {disk.device}
    for name in waiting:
        if name in seen or name not in found:
            continue
        seen.add(name)
        if not found[name].members:
            yield found[name]
        waiting += found[name].members
