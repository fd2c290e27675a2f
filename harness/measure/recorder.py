"""The records of a run, also of what it was measured on, and its results.json.

The journal has every measurement as soon as it is made. The file has all of them when the run ends, also by Ctrl-C. In
between it is written at most so often that this takes WRITING_SHARE of the time, because it is written as a whole.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from itertools import chain
from typing import Any

from pydantic import JsonValue

from harness.analysis import CONFIDENCE
from harness.errors import NotReached, ResultsError
from harness.events import Events, Note
from harness.feature import DiskPrograms, FeatureRecords, feature_records, features, find_brought, is_asked
from harness.image import Image, ImageSet
from harness.lab.facts import Described, HealthFound
from harness.lab.hosts import Host
from harness.lab.inventory import AnyDisk, DiskById, DiskByStorage, array_of, class_known
from harness.measure.phases import MEASURE, Phases
from harness.measure.series import CampaignSpec, LabFound
from harness.measure.session import Guests, Session, read_health
from harness.model.disk import ArrayFacts, DiskFacts, DiskRecord, merge_disk_records
from harness.model.mode import Budget, Cell, LabKind
from harness.results import (
    SCHEMA_VERSION,
    CellContext,
    CellRecord,
    Efficiency,
    GroupRecord,
    Journal,
    LabInfo,
    Measurement,
    RoundEvent,
    Run,
    RunInfo,
    RunStatus,
    RunStore,
    assemble,
    correct_records,
    make_judged_record,
)
from harness.results.assemble import AssembledRun
from harness.results.records import CarryOverRecord, DiskWrites

NOT_EXAMINED = "the host was not examined"
WRITING_SHARE = 0.02
"""The share of the time that writing results.json may take before the run ends."""


class Recorder:
    """Measurements, cell records and group records of one run. `earlier` is the journal of a resumed run."""

    def __init__(self, spec: CampaignSpec, store: RunStore, phases: Phases, earlier: Journal) -> None:
        self._spec = spec
        self._store = store
        self._phases = phases
        self._earlier = earlier
        self._lab = LabInfo(spec.host.name, spec.host.kind, "unknown", representative=False, why=NOT_EXAMINED)
        self._lab_kind: LabKind | None = None
        planned = (cell for plan in spec.plans for cell in plan.cells)
        left_out = (cell for plan in spec.plans for part in plan.left_out for cell in part.cells)
        self._every_cell = {cell.id: cell for cell in (*planned, *left_out)}
        """The cells of the plans, then those that the plans leave out, by id."""
        self._family = 0
        self._cause: str | None = None
        self._fio_seconds = 0.0
        self._provenance: dict[str, JsonValue] = {}
        self._disks: dict[str, DiskRecord] = {}
        self._groups: dict[str, GroupRecord] = {}
        self._records: dict[str, CellRecord] = {}
        self._of_features: dict[str, dict[str, Any]] = {}
        """Records of features by their key in results.json and by id."""
        self._writes: tuple[DiskWrites, ...] = ()
        self._measurements: dict[str, list[Measurement]] = {}
        """Those that count, by group."""
        self._ran: dict[str, list[Measurement]] = {}
        """Those of this part of the run, by group."""
        self._numbers: dict[str, set[int]] = {}
        self._abandoned: dict[str, set[int]] = {}
        self._started = time.time()
        self._written: tuple[dict[str, JsonValue], set[str]] | None = None
        """The provenance and the names of the disks in results.json; None if it is not from this part of the run."""
        self._next_write = 0.0
        """When results.json is due, on the monotonic clock."""

    @property
    def fio_seconds(self) -> float:
        """Seconds in which fio ran, including ramps and an earlier part of the run."""
        return self._fio_seconds

    @property
    def family(self) -> int:
        """The number of budgets that the run judges, whether measured already or not."""
        return self._family

    def budgets(self, cell: Cell) -> dict[str, Budget]:
        """The budgets of the cell in this lab, by their keys. Empty until the host was examined."""
        return self._spec.budgets(cell, self._lab_kind) if self._lab_kind else {}

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        """Versions and settings of the measurement, as plain JSON values."""
        return self._provenance

    def record_lab(self, lab: LabFound) -> None:
        """Record the properties of the host."""
        self._lab = lab.info
        self._lab_kind = lab.kind
        self._family = self._spec.family(lab.kind)
        self.describe(lab.provenance)

    def describe(self, provenance: Mapping[str, JsonValue]) -> None:
        self._provenance |= provenance

    def disks(self, disks: Iterable[DiskRecord]) -> None:
        """Record disks and their health. What is known from before is kept."""
        self._disks |= {disk.name: merge_disk_records(self._disks.get(disk.name), disk) for disk in disks}

    def failed(self, error: Exception) -> None:
        """Record why measuring stopped. The first cause counts."""
        if self._cause is None:
            self._cause = str(error) or type(error).__name__
            if isinstance(error, NotReached) and self._lab.why == NOT_EXAMINED:
                self._lab = replace(self._lab, why=f"the host was never reached: {error.message}")

    def group(self, record: GroupRecord) -> None:
        self._groups[record.id] = record

    def add_record(self, record: Any) -> None:
        """Record the current state of what a feature measures. Its class must be the record of a feature.

        If the journal does not have it, results.json is due.
        """
        of = _find_kind(type(record))
        self._of_features.setdefault(of.key, {})[record.id] = record
        if not of.in_journal:
            self._next_write = 0.0

    def has_record(self, kind: type, record_id: str) -> bool:
        """Whether there is a record of this class of a feature with this id."""
        return record_id in self._of_features.get(_find_kind(kind).key, {})

    def writes(self, records: Iterable[DiskWrites]) -> None:
        """Record what was written to each disk so far, of a run with a limit."""
        self._writes = tuple(records)

    def carry_over(self, group: str) -> tuple[CarryOverRecord, ...]:
        """What the jobs of a group show about carry-over, by the group's current state."""
        return self._groups[group].carry_over

    def add(self, measurements: Sequence[Measurement], *, fio_seconds: float) -> None:
        """Record new measurements. fio ran for `fio_seconds` in them, including ramps."""
        self.take_over(measurements)
        for measurement in measurements:
            self._ran.setdefault(measurement.group, []).append(measurement)
        self._fio_seconds += fio_seconds

    def take_over(self, measurements: Sequence[Measurement]) -> None:
        """Count a whole round of an earlier part of the run."""
        for measurement in measurements:
            self._measurements.setdefault(measurement.group, []).append(measurement)

    def ran(self, group: str, before: float = math.inf) -> list[Measurement]:
        """Everything that ran of a group in rounds below `before`, also in rounds that do not count (yet)."""
        every = (*self._earlier.of_group(group), *self._ran.get(group, ()))
        return [measurement for measurement in every if measurement.round < before]

    def next_round(self, group: str) -> int:
        """A number that no round of the group has used, also no abandoned one."""
        return max(self._used(group), default=0) + 1

    @contextmanager
    def rounds(self, begun: Sequence[RoundEvent]) -> Iterator[None]:
        """Rounds that are measured together. If that fails or is interrupted, they are abandoned."""
        for begin in begun:
            self._used(begin.group).add(begin.round)
        self._store.append(*begun)
        try:
            yield
        except BaseException as error:
            # If even this cannot be written, --resume abandons the rounds, because they are not complete.
            with suppress(ResultsError):
                for begin in begun:
                    self.abandon(begin.group, begin.round, str(error).partition("\n")[0] or "interrupted")
            raise

    def abandon(self, group: str, number: int, why: str) -> None:
        """Drop a round that was not finished. The journal has its measurements, and records that it is abandoned."""
        self._measurements[group] = [
            measurement for measurement in self._measurements.get(group, ()) if measurement.round != number
        ]
        self.abandoned(group).add(number)
        self._store.append(RoundEvent("abandoned", group, number, None, why))

    def abandoned(self, group: str) -> set[int]:
        """The numbers of the group's rounds that were begun and not finished."""
        return self._abandoned.setdefault(group, self._earlier.abandoned(group))

    def resume(self, stored: Run) -> None:
        """Begin with the records of a run that is resumed. A group keeps them until it is assembled again.

        Rounds in which the earlier process ended are abandoned. The earlier time counts.
        """
        self._fio_seconds += stored.run.efficiency.fio_s
        self._phases.add(stored.run.phases)
        self._disks |= {disk.name: merge_disk_records(disk, self._disks.get(disk.name, disk)) for disk in stored.disks}
        self._groups |= {group.id: group for group in stored.groups}
        self._records |= {cell.id: cell for cell in stored.cells if cell.id in self._every_cell}
        for of in feature_records():
            if of.compute is None:
                records = stored.of_features.get(of.key, ())
                self._of_features.setdefault(of.key, {}).update({record.id: record for record in records})
        self._writes = self._writes or stored.writes
        for begun in self._earlier.unfinished:
            self.abandon(begun.group, begun.round, "the run ended before the end of the round")

    def records_of(self, cells: Iterable[Cell]) -> dict[str, CellRecord]:
        """The records of these cells by id, as far as there are some.

        Their verdicts are corrected for the number of budgets of the run.
        """
        records = {cell.id: self._records[cell.id] for cell in cells if cell.id in self._records}
        if not any(record.budget for record in records.values()):
            return records
        return self._correct_verdicts(self._records.values(), only=records)

    def of_group(self, group: str) -> list[Measurement]:
        return sorted(self._measurements.get(group, ()), key=lambda measurement: measurement.started)

    def assemble(self, cells: Iterable[Cell], contexts: Mapping[str, CellContext]) -> dict[str, CellRecord]:
        """Make the records of `cells` from all measurements so far. Returns them by id, without the correction."""
        groups = dict.fromkeys(context.group for context in contexts.values())
        measurements = [measurement for group in groups for measurement in self._measurements.get(group, ())]
        made = {record.id: record for record in assemble(tuple(cells), measurements, contexts)}
        self._records |= made
        return made

    def write_if_due(self) -> None:
        """Write the current state, unless results.json has all that --resume needs and writing took long enough."""
        # The journal does not have the provenance, and the first health of a disk.
        if self._written != (self._provenance, set(self._disks)) or time.monotonic() >= self._next_write:
            self.write("running")

    def write(self, status: RunStatus) -> Run:
        """Write the current state to results.json, with cells in the order of the plan."""
        begun = time.monotonic()
        spec, phases = self._spec, self._phases.seconds
        info = RunInfo(
            id=spec.run_id,
            started=self._started,
            finished=None if status == "running" else time.time(),
            command=spec.command,
            profile=spec.profile,
            seed=spec.seed,
            status=status,
            scenarios={name: scenario.title for name, scenario in spec.scenarios.items()},
            phases={name: round(seconds, 3) for name, seconds in phases.items()},
            efficiency=Efficiency.of(self._fio_seconds, phases.get(MEASURE, 0.0)),
            cause=self._cause if status == "failed" else None,
            published={name: scenario.published for name, scenario in spec.scenarios.items() if scenario.published},
            max_writes=spec.max_writes,
        )
        planned = tuple(group for plan in spec.plans for group in plan.groups)
        groups = tuple(self._groups[group.id] for group in planned if group.id in self._groups)
        records = self._correct_verdicts(
            self._records[cell_id] for cell_id in self._every_cell if cell_id in self._records
        )
        disks = tuple(self._disks.values())
        measured = (*self._earlier.measurements, *chain(*self._measurements.values()))
        cells = tuple(cell for group in planned for cell in group.cells)
        assembled = AssembledRun(cells, records, measured, disks, tuple(spec.scenarios.values()), planned)
        guests = sum(cell.mode.attach is not None for cell in self._every_cell.values())
        run = Run(
            SCHEMA_VERSION,
            info,
            self._lab,
            dict(self._provenance),
            groups,
            tuple(records.values()),
            self._writes,
            make_judged_record(records.values(), self._lab_kind, planned=guests),
            disks,
            self._collect_feature_records(assembled),
        )
        self._store.write_results(run)
        ended = time.monotonic()
        self._written = dict(self._provenance), set(self._disks)
        self._next_write = ended + (ended - begun) / WRITING_SHARE
        return run

    def _collect_feature_records(self, assembled: AssembledRun) -> dict[str, tuple[Any, ...]]:
        planned = [follow_up.id for plan in self._spec.plans for follow_up in plan.follow_ups]
        by_key: dict[str, tuple[Any, ...]] = {}
        asked = {
            records.key
            for feature in features()
            if any(is_asked(feature, scenario) for scenario in assembled.scenarios)
            for records in feature.load_records()
        }
        for of in feature_records():
            recorded = self._of_features.get(of.key, {})
            if of.compute is not None:
                by_key[of.key] = tuple(of.compute(assembled)) if of.key in asked else ()
            elif of.in_journal:
                by_key[of.key] = tuple(recorded[name] for name in planned if name in recorded)
            else:
                by_key[of.key] = tuple(recorded.values())
        return by_key

    def _used(self, group: str) -> set[int]:
        return self._numbers.setdefault(group, self._earlier.numbers(group))

    def _correct_verdicts(
        self, records: Iterable[CellRecord], only: Collection[str] | None = None
    ) -> dict[str, CellRecord]:
        judged = correct_records(records, family=self._family, error_rate=(1 - CONFIDENCE) / 2, only=only)
        return {record.id: record for record in judged}


def _find_kind(record: type) -> FeatureRecords:
    return next(of for of in feature_records() if issubclass(record, of.record))


_NOT_SHOWN = "not shown by the kernel"
BUILT_AT = "built_at"
"""When an image was built: it may have the same files as before, whose digests are compared."""


def examine(host: Host, images: ImageSet) -> LabFound:
    representative, why = host.representative
    info = LabInfo(host.name, host.spec.kind, host.acceleration.accel, representative, why)
    return LabFound(info, host.lab_kind, describe_host(host, images))


def describe_host(host: Host, images: ImageSet) -> dict[str, JsonValue]:
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


def describe_disks(at: Session, disks: Sequence[DiskRecord], first: str) -> dict[str, JsonValue]:
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
            **({"network": str(disk.facts.network)} if disk.facts.network else {}),
        }
        for disk in disks
    }


def describe_guests(guests: Guests | None) -> dict[str, JsonValue]:
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
        BUILT_AT: manifest.built_at,
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
        health_now = read_health(at.host, [disk.facts for disk in self._current]) if at is not None else {}
        return tuple(
            replace(disk, after=health_now[disk.facts.device].health)
            for disk in self._current
            if disk.facts.device in health_now
        )


def find_class_notes(disk: AnyDisk, facts: DiskFacts) -> Iterator[str]:
    """A class in the lab file, or assumed from the link, that the host contradicts. It cannot contradict `array`: some
    controllers show the system a volume like a disk."""
    known = class_known(disk)
    if known in (None, "array", facts.disk_class) or facts.disk_class is None or isinstance(disk, DiskByStorage):
        return
    origin = f'the lab file says class = "{known}"'
    if isinstance(disk, DiskById) and disk.disk_class is None:
        origin = f"its class was assumed to be {known} from its link {disk.id.rpartition('/')[2]}"
    yield f'{origin}, but the host reports class {facts.disk_class}: set class = "{facts.disk_class}" in the lab file'


def find_array_notes(disk: AnyDisk, facts: DiskFacts) -> Iterator[str]:
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


def find_link_notes(facts: DiskFacts) -> Iterator[str]:
    """Links that were negotiated below what the device can do: the figures are then those of the slot or cable."""
    if facts.link is not None and facts.link.is_reduced:
        yield f"its link is {facts.link}: another slot, port or cable may be faster"
    if facts.controller is not None and facts.controller.link is not None and facts.controller.link.is_reduced:
        yield f"the link of its controller {facts.path} is {facts.controller.link}: another slot may be faster"


def find_network_notes(facts: DiskFacts) -> Iterator[str]:
    """What every figure of a disk of another machine contains."""
    if facts.network is not None:
        yield (
            f"it is reached by {facts.network}: each figure, also of the bare host, contains the network and the "
            "target, and what other machines do with that disk is not visible on this host"
        )


def _make_records(at: Session) -> Iterator[DiskRecord]:
    host = at.host
    programs = find_brought(DiskPrograms)
    with_tool = programs.describe_arrays(host.runner, host.facts, at.disks) if programs else Described(at.disks)
    members = with_tool.disks
    for device, name in at.names.items():
        facts = members.get(device, DiskFacts(device=device))
        health = at.health.get(device, HealthFound())
        facts = replace(facts, model=health.model or facts.model, firmware=health.firmware or facts.firmware)
        below = tuple(_find_below(facts, members))
        disk = host.spec.target(name)
        notes = [*find_class_notes(disk, facts), *find_array_notes(disk, facts), *find_link_notes(facts)]
        notes += find_network_notes(facts)
        if (stated := array_of(disk)) is not None:
            array = facts.array.completed(stated.facts) if facts.array else stated.facts
            facts = replace(facts, disk_class="array", array=array)
        notes += [note for disk in below for note in find_link_notes(disk)]
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
