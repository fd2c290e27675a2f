"""What a run records of its host, its guests, and its disks."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version

from pydantic import JsonValue

from harness.events import Events, Note
from harness.feature import features
from harness.image import Image, ImageSet
from harness.lab.disk_facts import HealthFound, describe_arrays, read_health
from harness.lab.hosts import Host
from harness.lab.inventory import AnyDisk, DiskById, DiskByStorage, array_of, class_known
from harness.measure.series import LabFound
from harness.measure.session import Guests, Session
from harness.measure.spec import CampaignSpec
from harness.model.disk import ArrayFacts, DiskFacts, DiskRecord
from harness.results import FIO_FILES, LabInfo

_NOT_SHOWN = "not shown by the kernel"


def examine(host: Host, images: ImageSet) -> LabFound:
    """The properties of the host."""
    return LabFound(lab_info(host), host.lab_kind, provenance(host, images))


def lab_info(host: Host) -> LabInfo:
    """The lab, and whether it represents real hardware."""
    representative, why = host.representative
    return LabInfo(host.name, host.spec.kind, host.acceleration.accel, representative, why)


def provenance(host: Host, images: ImageSet) -> dict[str, JsonValue]:
    """The provenance of host, images and virt-overhead, as plain JSON values by subject."""
    versions: dict[str, JsonValue] = {
        "harness": {"version": version("virt-overhead"), "python": platform.python_version()},
        "host": dict(host.facts.provenance),
        "acceleration": {"accel": host.acceleration.accel, "why": host.acceleration.why},
        "cycles": {"counted": host.cycles.counted, "why": host.cycles.why},
        "images": {image.name: _describe_image(image) for image in (images.guest, images.emulator, images.lab)},
    }
    for feature in features():
        versions |= feature.provenance(host, images)
    return versions


def fio_texts(spec: CampaignSpec) -> dict[str, JsonValue]:
    """The texts of the fio files among the workloads; empty without such files."""
    entries: dict[str, JsonValue] = {
        name: {file.path: dict(file.texts) for file in scenario.fio_files}
        for name, scenario in spec.scenarios.items()
        if scenario.fio_files
    }
    return {FIO_FILES: entries} if entries else {}


def disk_provenance(at: Session, disks: Sequence[DiskRecord], first: str) -> dict[str, JsonValue]:
    """Device, I/O scheduler and path of the disks under test, or the storage in use that the volumes are on.

    `first` is the name of the baseline's disk or storage in the lab. The records of the disks have everything else.
    """
    if (shared := at.layouts.shared) is not None:
        bytes_are = {"bytes": shared.how_counted(at.layouts.device)}
        below = {"disks": ", ".join(shared.disks) or "none of this host"}
        return {f"disk.{first}": {"storage": shared.words, **shared.facts, **below, **bytes_are}}
    return {
        f"disk.{disk.name}": {
            "device": disk.facts.device,
            "scheduler": disk.facts.scheduler or _NOT_SHOWN,
            "path": disk.facts.path or _NOT_SHOWN,
        }
        for disk in disks
    }


def guest_provenance(guests: Guests | None) -> dict[str, JsonValue]:
    """The provenance of the guest, or of the guest of each variant as `guest VARIANT`. Empty without a guest."""
    if guests is None:
        return {}
    return {
        f"guest {variant}".strip(): {**evidence, **_boot(guests.boot_seconds[variant])}
        for variant, evidence in guests.evidence.items()
    }


def _boot(seconds: float | None) -> dict[str, JsonValue]:
    return {} if seconds is None else {"boot_seconds": round(seconds, 1)}


def _describe_image(image: Image) -> dict[str, JsonValue]:
    manifest = image.manifest
    return {
        "recipe_digest": manifest.recipe_digest,
        "suite": manifest.suite,
        "built_at": manifest.built_at,
        "kernel": manifest.kernel,
        "fio": manifest.fio_version,
        "sha256": {name: record.sha256 for name, record in manifest.files.items()},
    }


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
            self._at, self._current = at, (*_make_records(at), *(_make_records(at.reference) if at.reference else ()))
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
        health_now = [(disk, read_health(at.host.runner, at.host.facts, disk.facts).health) for disk in self._current]
        return tuple(replace(disk, after=health) for disk, health in health_now)


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
    array = facts.array or ArrayFacts()
    if wrong := ", ".join(array.contradictions(stated.facts)):
        yield f"the lab file says {wrong}, as its host reports: correct `array` in the lab file"
    if stated.reference and array.completed(stated.facts).shape is None:
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


def _make_records(at: Session) -> Iterator[DiskRecord]:
    host = at.host
    with_tool = describe_arrays(host.runner, host.facts, at.disks)
    members = with_tool.disks
    for device, name in at.names.items():
        facts = members.get(device, DiskFacts(device=device))
        health = at.health.get(device, HealthFound())
        facts = replace(facts, model=health.model or facts.model, firmware=health.firmware or facts.firmware)
        below = tuple(_find_below(facts, members))
        disk = host.spec.target(name)
        notes = [*class_notes(disk, facts), *array_notes(disk, facts), *link_notes(facts)]
        if (stated := array_of(disk)) is not None:
            array = facts.array.completed(stated.facts) if facts.array else stated.facts
            facts = replace(facts, disk_class="array", array=array)
        notes += [note for disk in below for note in link_notes(disk)]
        notes += [why for why in (with_tool.notes.get(device), health.why) if why is not None]
        yield DiskRecord(name=name, facts=facts, below=below, before=health.health, notes=tuple(notes))


def _find_below(disk: DiskFacts, disks: Mapping[str, DiskFacts]) -> Iterator[DiskFacts]:
    """The disks at the bottom, on which the disk is, each once. Volumes between them are left out."""
    waiting, seen = list(disk.members), {disk.device}
    for name in waiting:
        if name in seen or name not in disks:
            continue
        seen.add(name)
        if not disks[name].members:
            yield disks[name]
        waiting += disks[name].members
