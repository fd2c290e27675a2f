"""What a feature adds to the kernel, and the features that are installed. The kernel never imports one of them by name.

Each feature is a package of `harness/features`. Its types may be of any package, so they are imported for mypy only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from harness.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from threading import Event
    from xml.etree.ElementTree import Element

    import pytest
    from pydantic import JsonValue

    from harness.analysis import Samples
    from harness.events import Events
    from harness.guest.booting import GuestRunner, Started
    from harness.guest.libvirt.connection import Connection
    from harness.guest.libvirt.guest import ToStart
    from harness.guest.protocol import Backend, Backup, GuestDisk, Hypervisor, System
    from harness.image import ImageSet
    from harness.lab.counters import CycleCounting, Cycles
    from harness.lab.created import CreationLog, Entry, Removal, Thing
    from harness.lab.facts import Described, HealthFound, HostFacts
    from harness.lab.guard import Writable
    from harness.lab.hosts import Host
    from harness.lab.inventory import BorrowedVm, HostSpec, HypervisorSpec, Inventory, StorageKind
    from harness.lab.lab_file import HostKeys, KindRules
    from harness.lab.storages import FoundStorage
    from harness.lab.transport.base import Runner
    from harness.layout import BlockSource, NetworkDisk
    from harness.layout.build import Rebuild
    from harness.layout.layers import LayerKind
    from harness.layout.regions import Need, Region
    from harness.layout.storage import VolumeKind
    from harness.measure.platform import Platform
    from harness.measure.prepare import FilledRegions
    from harness.measure.rounds import FollowingSeries, RunContext, SeriesContext
    from harness.measure.series import PreparedGroup, StepLimit
    from harness.measure.session import Session
    from harness.model.base import Md
    from harness.model.counters import Counters
    from harness.model.disk import DiskFacts
    from harness.model.guest import GuestOptions
    from harness.model.job import Job
    from harness.model.layout import Layout
    from harness.model.mode import Arm, Cell, HostSetting, Mode
    from harness.model.option import Effective
    from harness.report.blocks import Banner, Block, Chart
    from harness.report.modes import Headline
    from harness.report.section import Section, WorkloadCells
    from harness.results import CellRecord, ConditioningRecord, CostRecord, Measurement, Run, RunStore, ValidityCheck
    from harness.results.assemble import AssembledRun
    from harness.results.contrasts import Blocks
    from harness.results.journal import BackupCounts
    from harness.scenario.legality import ShownKey
    from harness.scenario.plan import FollowUp, Plan
    from harness.scenario.scenario import Scenario, WorkloadFiles
    from harness.scenario.setups import Group
    from harness.scenario.timetable import Slice, Timetable

_PACKAGE = "harness.features"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SessionRuns:
    """The complete runs of one session of pytest, one of each host."""

    paths: tuple[Path, ...]
    reports: Path
    """The directory of all runs."""
    undecided_fails: bool
    """Whether what is undecided is a failure (`--inconclusive=fail`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRuns:
    """What a session of pytest is about to measure, by name of the scenario."""

    plans: Mapping[str, Plan]
    scenarios: Mapping[str, Scenario]
    hosts: Mapping[str, HostSpec]
    profile: str
    reports: Path
    """The directory of all runs."""
    lab: str
    """The lab file in words."""
    verbose: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedLab:
    """The lab that is measured without a lab file, on this machine."""

    list_hosts: Callable[[], Inventory]
    run: Callable[[ImageSet, Events], AbstractContextManager[HostSpec]]
    """Its only host, of the kind `embedded`, for the duration of a block. Raises LabUnavailable."""
    read_running_host: Callable[[], HostSpec]
    """The host, if it runs already. Raises LabUnavailable if it does not."""
    is_running: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureHypervisor:
    """A hypervisor other than libvirt, for the hosts of one kind."""

    kind: str
    """The value of `kind` in the tables `[host.NAME]`."""
    rules: KindRules
    host_keys: type[HostKeys]
    """The table of such a host, with the keys of the hypervisor."""
    make_spec: Callable[[str, Any, BorrowedVm | None, list[str]], HypervisorSpec | None]
    """The hypervisor of the host with this table, whose key is the text. A message for each key that is not valid goes
    to the list; then the result may be None."""
    load_backend: Callable[[Any], Backend]
    """The backend for the result of `make_spec`. Imports its libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOption:
    """An option of a measurement with one value, for example `--history URL`, which does something with its runs."""

    flag: str
    metavar: str
    help: str
    check: Callable[[str, Path], object]
    """Raises ConfigError for a mistake in the value, before hours of measuring. Gets the directory of all runs, too."""
    judge: Callable[[str, SessionRuns], Iterable[tuple[str, str]]] = lambda _value, _runs: ()
    """The name of a failed test for each failure of the runs, and why it fails."""
    print: Callable[[str, SessionRuns, pytest.TerminalReporter], None]
    """Prints the result after the answers of the runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSwitch:
    """An option of a measurement without a value, for example `--breakdown`, with which it measures more."""

    flag: str
    """It is in `CampaignSpec.switches` of a run that has it."""
    help: str
    estimate_seconds: Callable[[Plan], float]
    """For how long that is measured in a plan at most, with the pauses."""


class ServedDisk(Protocol):
    """A disk of a guest that another program than the guest's QEMU serves."""

    @property
    def socket(self) -> str:
        """Where the guest's QEMU connects to it."""

    @property
    def pid_file(self) -> str:
        """The file on the host with the id of the program's process."""

    def set_up(self, guest: Runner, device: str) -> None:
        """What the guest, in which the disk is this device, needs to do with it. Raises HostError."""

    def read_effective(self, runner: Runner) -> Effective:
        """How the program serves the disk, as its host shows it. Raises HostError or GuestError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskServer:
    """A program that serves disks to guests by vhost-user-blk."""

    name: str
    """The value of `server` of an attachment."""
    program: str
    package: str
    """The package of Debian that has the program."""
    serial: str
    """The serial number of each of its disks."""
    serve: Callable[[CreationLog, GuestDisk, int], AbstractContextManager[ServedDisk]]
    """Serves a disk with at most so many queues. Raises HostError."""


class PassedDevice(Protocol):
    """A PCI device of a host that guests get as a whole, with the disk behind it."""

    @property
    def address(self) -> str: ...

    @property
    def serial(self) -> str:
        """The serial number of the disk, which the guest sees, too."""

    def lent(self, log: CreationLog, grant: Writable, /) -> AbstractContextManager[None]:
        """The host does without it until the end of the block. Raises SafetyError, HostError."""

    def plugged(
        self, connection: Connection, domain: Any, log: CreationLog, grant: Writable, /, *, bus: int, alias: str
    ) -> AbstractContextManager[None]:
        """The same, and a running domain has it on this PCIe bus. Raises SafetyError, GuestError, HostError."""

    def read_effective(self, host: Runner, /) -> Effective:
        """The device as its host has it now. Raises HostError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsHolder:
    """Changes settings of a host's kernel for a while, also those of modes (`Mode.settings`)."""

    refuse: Callable[[Runner, Sequence[HostSetting]], str | None]
    """Which of them the host does not have, with the remedy; None if it has all. Raises HostError."""
    hold: Callable[[Runner, Sequence[HostSetting]], AbstractContextManager[None]]
    """They have these values until the end of the block. Raises HostError."""


@dataclass(frozen=True, slots=True)
class DevicePasser:
    """Passes whole PCI devices through to guests."""

    find: Callable[[Runner, str], PassedDevice | str]
    """The device behind the disk at this path; or why no guest can get it, with the remedy. Raises HostError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayMaker:
    """Makes the arrays over several disks on which layouts lie."""

    find_conflicts: Callable[[Md, ShownKey], Iterable[str]]
    """What conflicts within the table of an array, whose keys are named so; a line each."""
    find_problems: Callable[[Mode, Scenario], Iterable[str]]
    """What conflicts between an array of a mode and the rest of the scenario, in the form of the schema's messages."""
    compute_need: Callable[[Md, Iterable[Need]], Need]
    """What an array with room for these regions and their partition table needs of each of its disks."""
    compute_alignment: Callable[[Md], int]
    """Regions on it begin at multiples of so many bytes."""
    create: Callable[[CreationLog, Md, str, Sequence[Region], Events], AbstractContextManager[Writable]]
    """A new array of this name over these partitions, in sync, until the end of the block."""
    rebuild: Callable[[Writable, Writable], Rebuild]
    """How the spare of an array is rebuilt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupMaker:
    """Makes backups of guests' disks while the guests are measured (`Mode.backup`)."""

    find_no_room: Callable[[Runner, HostSpec, int], str | None]
    """Why so many bytes of backups cannot be written on a host, with the remedy; None if they can. Raises HostError."""
    open_files: Callable[[CreationLog, Host, Mapping[str, BlockSource]], AbstractContextManager[Mapping[str, str]]]
    """A file on the host for the backup of each of these disks, by the disk's name, until the end of the block."""
    by_libvirt: Callable[[Connection, Any, str, str], Backup]
    """The backup of the disk that libvirt calls so in a domain, to a file. It has not begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStorage:
    """What a node, a host whose hypervisor has storages of its own, needs for those of one type, which is `kind.space`.
    An entry is that of a storage in the node's configuration."""

    refuse: Callable[[Mapping[str, Any], Mode], str | None]
    """Why the volumes of a storage cannot have the layout of a mode, with the remedy; None if they can."""
    locate: Callable[[Mapping[str, Any]], str] = lambda _entry: ""
    """The value AT of the key on the node; empty if the kernel knows where its volumes are. With AT,
    `identify_volume_KEY AT NAME` prints what no other volume has, and `release_volume_KEY AT NAME` ends its use."""
    open: Callable[[Runner, str, str, str], tuple[str, NetworkDisk | None]] | None = None
    """The device of the node for a volume, by AT, its name, and the path that the node reports; with it, how QEMU
    opens the volume if it does not use the device. Raises HostError."""


@dataclass(frozen=True, slots=True)
class FeatureLayer:
    """A kind of layer that a run builds on a disk. What it creates is also in `Feature.list_things`."""

    load: Callable[[], type[LayerKind]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureStorage:
    """A kind of storage in use, on which runs create volumes. `[host.NAME.storage.X]` names one by a key of its own."""

    key: str
    kind: StorageKind
    check: Callable[[str], str]
    """The value of the key, as it is then. Raises ValueError with what is allowed."""
    script: str
    """Shell functions for the value AT of the key. `inspect_KEY AT` prints lines FACT=VALUE (lab/storages.py), or
    calls `refuse WHY`. `identify_KEY AT` prints what no other storage has. `space_SPACE STORAGE AT`, named after
    `kind.space`, prints a line for each place from which it takes space, with `put` (lab/read_storage_space.sh)."""
    load_volumes: Callable[[], VolumeKind]
    """How volumes are created on it, and removed. Their class is also in `Feature.list_things`."""
    find: Callable[[Runner], Iterable[str]] = lambda _runner: ()
    """The values of the key that name what a host has, for `virt-overhead init`. Raises HostError."""
    refuse: Callable[[Mode, FoundStorage], str | None] = lambda _mode, _storage: None
    """Why the storage cannot have the layout of a mode, which it offers, with the remedy; None if it can."""
    describe: Callable[[Mode], str | None] = lambda _mode: None
    """What a reader of the mode's cells must know about its volume."""
    on_node: NodeStorage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPrograms:
    """Programs of a host that know more of its disks than its kernel. None of them fails a run."""

    names: tuple[str, ...]
    read_health: Callable[[Runner, HostFacts, DiskFacts], HealthFound]
    """Temperature and wear of a disk now."""
    describe_arrays: Callable[[Runner, HostFacts, Mapping[str, DiskFacts]], Described]
    """The disks by their kernel names, with what is known of the array that one is."""


class CountedCycles(Protocol):
    """The cycles of a host's CPUs over some time."""

    def between(self, begun: float, ended: float) -> Cycles:
        """The cycles between two moments of the host's uptime, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleCounter:
    """Counts the cycles of a host's CPUs while slices run."""

    probe: Callable[[Runner, HostFacts], CycleCounting]
    """Whether they can be counted. Raises HostError."""
    count: Callable[[Runner, float], CountedCycles]
    """Counts for so many seconds. Raises HostError."""


class Companion(Protocol):
    """What a feature runs beside the slices of a timetable. Moments are of this process's monotonic clock."""

    def run(self, stopped: Event) -> None:
        """Runs until the end of the timetable, or until the event is set. Raises HostError or GuestError."""

    def find_left_over(self, planned: Slice, first: float, ended: float) -> str:
        """In a word, what still ran for another slice between these moments of a slice; empty if nothing did."""

    def count(self, planned: Slice, begun: float, ended: float) -> BackupCounts | None:
        """What was done beside a slice between these moments; None if nothing was to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestImages:
    """Guests of libvirt that boot from a disk image on the host."""

    refuse: Callable[[GuestOptions, Runner], str | None]
    """Why the host cannot boot guests from the requested image, with the remedy; None if it can."""
    start: Callable[[ToStart], AbstractContextManager[Started[Any]]]
    read: Callable[[Element], Effective]
    """Image and firmware of a running guest, by its domain XML. Nothing for other guests."""
    tries: int
    """How often a boot is tried."""
    expected_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditioner:
    """A way to prepare the regions of a disk before they are measured: fills, then what `run` does."""

    name: str
    """The value of `conditioning` in a profile."""
    fills: int = 1
    block: int = 1024**2
    """Bytes per write of a fill."""
    rounds: tuple[int, int] = (0, 0)
    """The fewest and the most rounds in which a job runs on each region after the fills."""
    seconds: float = 0.0
    """The time of the job in such a round."""
    run: Callable[[FilledRegions], ConditioningRecord] | None = None
    contents: Callable[[str, ConditioningRecord, str], Iterable[Block]] = lambda _disk, _record, _key: ()
    """What a report says of the regions of a disk. Ids begin with the key."""
    banners: Callable[[Run], Iterable[Banner]] = lambda _run: ()
    """Warnings above the figures of a run with such regions."""


class RunLimit(Protocol):
    """A limit that a user set for a run."""

    @property
    def text(self) -> str:
        """As the user wrote it."""

    def fit_plans(self, host: HostSpec, plans: Mapping[str, Plan]) -> tuple[dict[str, Plan], dict[str, int]]:
        """The plans of one host that keep the limit in their fewest rounds, and the limit of each disk in bytes.

        Raises ConfigError.
        """

    def describe(self, scenario: str, plan: Plan, host: HostSpec) -> list[str]:
        """The lines before the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLimit:
    """A limit that a run keeps, and its option."""

    flag: str
    metavar: str
    help: str
    parse: Callable[[str], RunLimit]
    """The value of the option. Raises ValueError."""
    keep: Callable[[RunContext], StepLimit]
    """The limit of a run on one host that has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureTables:
    """The tables `[KEY.NAME]` of a scenario file with which a scenario asks for something."""

    key: str
    table: type
    """A pydantic dataclass: the table of the file, and what the scenario then has (`Scenario.requests_of`)."""
    what: str
    """What a table is, as in "not a valid name of a search". With `in_lab`, what they are together."""
    name_type: Any = None
    """The pydantic type of the names of the tables; None for lower case letters, digits and single hyphens."""
    in_lab: bool = False
    """Whether a lab file may have them too, for scenarios without any."""
    sets: tuple[str, ...] = ()
    """Its keys with a list in which each value may be only once."""
    check_tables: Callable[[Mapping[str, Any]], Iterable[str]] = lambda _tables: ()
    """What is wrong with the tables of a file by themselves, a line each, in the form of the schema's messages."""
    adapt: Callable[[Scenario], tuple[Scenario, list[str]]] | None = None
    """The scenario with what its tables change, and what they cannot change, in the same form."""
    find_problems: Callable[[Scenario], Iterable[str]] = lambda _scenario: ()
    """The conflicts of the tables with the rest of the scenario, a line each, in the form of the schema's messages."""
    rename_arms: Callable[[Any, Mapping[str, str]], Any] = lambda table, _names: table
    """A table of a scenario whose arms got other names; gets the new names by the old ones."""
    shares_rounds: bool = False
    """Whether it needs the same rounds of all cells of the scenario, so that none of them ends before the others."""
    evaluated: str | None = None
    """The key in results.json (`provenance.evaluation`) under which a run stores the tables: if they were changed, a
    resumed run is evaluated again. None if the rounds depend on them in another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeKeys:
    """Further keys of the tables `[mode.NAME]` of a scenario file."""

    table: type[Any]
    """A pydantic model: the keys with their defaults."""
    find_problems: Callable[[Mode, Any], Iterable[str]]
    """What conflicts within a table, a line each. Gets it as a mode and as these keys."""
    adapt: Callable[[Scenario, Mapping[str, Any]], tuple[Scenario, list[str]]]
    """The scenario with what the keys ask for, by the name of the mode; and conflicts, as the schema writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRecords:
    """The records of a feature, under a key of their own in results.json."""

    key: str
    record: type
    """A frozen dataclass. Records of what is measured after the rounds of a group have the `id` of their `FollowUp`."""
    place: int
    """Where the key stands among the others."""
    description: str
    """One sentence for the JSON Schema of results.json."""
    compute: Callable[[AssembledRun], Iterable[Any]] | None = None
    """Makes the records from the cells of a run, whenever results.json is written. None: series record them."""
    in_journal: bool = True
    """Whether the journal has what they are made from, for all follow-ups of the plan. Others are written at once."""
    ends_follow_up: Callable[[Any], bool] = lambda _record: False
    """Whether nothing more is measured for the follow-up with the `id` of a record."""


_OfRuns = RunOption | RunSwitch | FeatureLimit | FeatureTables | ModeKeys | Conditioner
_OfDisks = DevicePasser | DiskPrograms | DiskServer | FeatureLayer | FeatureStorage
_OfHosts = CycleCounter | EmbeddedLab | FeatureHypervisor | GuestImages | SettingsHolder
Brought = _OfRuns | _OfDisks | _OfHosts | ArrayMaker | BackupMaker
"""What the kernel finds by its type (`list_brought`)."""


class ReportPlace(StrEnum):
    """Where content of a disk stands in a report.

    In a terminal, the differences come before the table of the run, the others after it.
    """

    ANSWERS = "answers"
    """Below the headline of a disk."""
    FACTS = "facts"
    """What the disk is."""
    DIFFERENCES = "differences"
    """Guests against each other."""
    OVERVIEW = "overview"
    """All cells at a glance, before the workloads of the page."""
    PARTS = "parts"
    """What a figure is made of, before the findings: steps, the disks of an array, the parts of an I/O."""
    FINDINGS = "findings"
    """Below the workloads of the page."""
    COSTS = "costs"
    """Below all findings of the page."""


class CostPerIo(Protocol):
    """Figures per I/O by name."""

    def __call__(self, counters: Counters, /, *, in_guest: bool) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a feature is about: cheap questions, asked before its hooks. None: the question excludes nothing."""

    in_scenario: Callable[[Scenario], bool] | None = None
    """Whether a scenario may have something of it. Without this question, that is one with its tables."""
    in_cell: Callable[[Cell, Sequence[Measurement]], bool] | None = None
    """The same of a cell with its slices."""
    in_record: Callable[[CellRecord], bool] | None = None
    """The same of a stored cell, for a report. Records of the feature in the run always are something of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """What one feature adds. Every hook but the name may be left out.

    The package imports what reads a scenario file. What works with hosts or results is in modules that are imported
    when a hook is called (`import_later`), so reading a scenario stays quick. `FeatureReport` has what is reported.
    """

    name: str
    """The name of its package."""
    subject: Subject = Subject()
    brings: tuple[Brought, ...] = ()
    make_plugin: Callable[[pytest.Config], object | None] = lambda _config: None
    """A plugin for this session of pytest, with further hooks; None if it needs none."""
    announce: Callable[[PlannedRuns], Iterable[str]] = lambda _runs: ()
    """What the user reads before anything is measured, in lines."""
    print_runs: Callable[[SessionRuns, pytest.TerminalReporter], None] = lambda _runs, _reporter: None
    """Prints more about the runs after the answers of all of them."""
    provenance: Callable[[Host, ImageSet], Mapping[str, JsonValue]] = lambda _host, _images: {}
    """What a run records of its host, by key of `provenance` in results.json."""
    about_lab: Callable[[Run], Iterable[str]] = lambda _run: ()
    """What a report says about the lab of a run, in sentences."""
    hypervisor: Callable[[Host, Events], AbstractContextManager[Hypervisor] | None] = lambda _host, _events: None
    """What makes guests on a host instead of the host's own backend; None for all other hosts."""
    extend_hypervisor: Callable[[Host, Hypervisor, Events], Hypervisor] = lambda _host, hypervisor, _events: hypervisor
    """The hypervisor of a host, with guests of another kind beside its own."""
    read_volume: Callable[[Runner, Layout, str], Effective | None] = lambda _runner, _layout, _path: None
    """What a host reports of a volume at this path; None for a layout that it is not about. Raises HostError."""
    read_session: Callable[[Session, Sequence[Mode], Sequence[Job]], Mapping[str, Effective]] = lambda *_arguments: {}
    """What else is read back of the modes on a prepared disk for these jobs, by the mode's name. Raises HostError."""
    read_workloads: Callable[[Path, Sequence[str]], WorkloadFiles] | None = None
    """The workloads in files that a scenario names: gets the scenario's folder, and the paths relative to it."""
    find_problems: Callable[[Scenario], Iterable[str]] = lambda _scenario: ()
    """What is wrong in a scenario, a line each, in the form of the schema's messages."""
    follow_ups: Callable[[Scenario, Group], Iterable[FollowUp]] = lambda _scenario, _group: ()
    """What is measured after the rounds of a group, with its cost."""
    follow: Callable[[SeriesContext, PreparedGroup], Iterable[FollowingSeries]] = lambda _context, _prepared: ()
    """The series that measure these follow-ups of a group. Records go to the recorder."""
    remove_from_libvirt: Callable[[Connection, Runner, Entry], Removal | None] = lambda _libvirt, _runner, _entry: None
    """Removes what it has created by libvirt, after a killed run; None for other entries."""
    list_things: Callable[[], tuple[type[Thing], ...]] = tuple
    """What it creates, for lists. After a killed run, the kernel itself removes each HostThing."""
    load_records: Callable[[], tuple[FeatureRecords, ...]] = tuple
    refuse_job: Callable[[Session, Arm, Job], str | None] = lambda _session, _arm, _job: None
    """Why a job cannot run on an arm of a prepared disk; None if it can. The cell is skipped."""
    counts: Callable[[Measurement, Cell], bool] = lambda _slice, _cell: True
    """Whether a slice, and with it its block, is a sample of the cell."""
    find_checks: Callable[[Sequence[Measurement], Cell], Iterable[ValidityCheck]] = lambda _slices, _cell: ()
    """Checks of the slices of a cell, in the order of time."""
    measure: Callable[[Cell, Blocks, Samples, float, int], Mapping[str, Any]] = lambda *_arguments: {}
    """Further values of the record of a cell, from its blocks that count. The last arguments are the confidence and the
    bytes that each arm uses."""
    find_notes: Callable[[Sequence[Measurement], Cell], Iterable[str]] = lambda _slices, _cell: ()
    """What a reader of the cell must know."""
    annotate: Callable[[Sequence[CellRecord]], Iterable[tuple[str, str]]] = lambda _cells: ()
    """The same, if it follows from several cells of a run: the id of a cell and its note."""
    cost_per_io: CostPerIo = lambda _counters, *, in_guest: {}  # noqa: ARG005
    """What an I/O of a slice costs the host: figures by name, from its counters."""
    account_blocks: Callable[[Blocks, float], Mapping[str, CostRecord]] = lambda _blocks, _confidence: {}
    """The same of the blocks of a cell, as the cell stores it, with intervals of this confidence."""
    explain_faster: Callable[[CellRecord], str | None] = lambda _cell: None
    """Why the guest of a cell without a failed check is faster than its host."""
    accompany: Callable[[Session, Timetable, float], Companion | None] = lambda *_arguments: None
    """What runs beside a timetable that begins at this moment; None if nothing is to run."""
    platforms: Mapping[str, Callable[[], Platform]] = field(default_factory=dict)
    """How fio runs on other operating systems of guests than Linux, by the system's name."""
    systems: Mapping[str, Callable[[GuestRunner], System]] = field(default_factory=dict)
    """What reads facts and disks of these systems, by the same names, for the login to a guest."""

    def of(self, kind: type[T]) -> tuple[T, ...]:
        """What it brings of this type."""
        return tuple(value for value in self.brings if isinstance(value, kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureReport:
    """What one feature adds to the report of a run. Every hook may be left out.

    It is loaded when a run is reported: `report.py` imports what it needs.
    """

    records: tuple[type, ...] = ()
    """The classes of the feature's records."""
    subject: Subject = Subject()
    headline: Callable[[Section], Headline | None] = lambda _section: None
    """The answer for a disk in place of the mode that loses least; None for no other answer."""
    leads: Callable[[Section], Iterable[str]] = lambda _section: ()
    """The first sentences below the headline of a disk."""
    details: Callable[[Section], Iterable[str]] = lambda _section: ()
    """Sentences below the answer for a disk."""
    contents: Mapping[ReportPlace, Callable[[Section], Iterable[Block]]] = field(default_factory=dict)
    """What a report has of a disk: a function that yields blocks, by their place."""
    workload_charts: Callable[[Section, WorkloadCells, str], Iterable[Chart]] = lambda _section, _workload, _key: ()
    """Further charts of a workload. Their ids begin with the key."""
    workload_tables: Callable[[Section, WorkloadCells, str], Iterable[Block]] = lambda _section, _workload, _key: ()
    """Further content below the cells of a workload."""
    section_json: Callable[[Section], Mapping[str, Any]] = lambda _section: {}
    """What `virt-overhead report --json` has of a disk, by key."""
    draw_card: Callable[[RunStore, Run], tuple[Path, str]] | None = None
    """Draws a picture of a run for a forum post. Returns its path, and the same in Markdown."""


class _LaterModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


def import_later(package: str, *names: str) -> tuple[Any, ...]:
    """Stand-ins for modules of a package, which are imported when something of them is used for the first time.

    Python then puts the module itself into the package, in place of its stand-in.
    """
    return tuple(_LaterModule(f"{package}.{name}") for name in names)


FILL = Conditioner(name="fill")
"""Writes each region once."""


@cache
def features() -> tuple[Feature, ...]:
    """The features that add something to the kernel, in the order of the list."""
    packages = (import_module(f"{_PACKAGE}.{name}") for name in import_module(_PACKAGE).NAMES)
    return tuple(package.FEATURE for package in packages if hasattr(package, "FEATURE"))


def list_brought(kind: type[T]) -> tuple[T, ...]:
    """What the features bring of this type, in the order of the list."""
    return tuple(value for feature in features() for value in feature.of(kind))


def find_brought(kind: type[T], /, **values: str) -> T | None:
    """The first of this type that features bring, with these values of its fields; None if no feature brings one."""
    wanted = values.items()
    brought = (one for one in list_brought(kind) if all(getattr(one, name) == value for name, value in wanted))
    return next(brought, None)


def is_asked(feature: Feature, scenario: Scenario) -> bool:
    """Whether a scenario asks for a feature; True if a scenario cannot ask for it."""
    if feature.subject.in_scenario is not None:
        return feature.subject.in_scenario(scenario)
    return all(scenario.requests_of(tables.table) for tables in feature.of(FeatureTables))


def features_of_cell(cell: Cell, slices: Sequence[Measurement]) -> tuple[Feature, ...]:
    """The features that may have something of a cell with these slices."""
    subjects = ((feature, feature.subject.in_cell) for feature in features())
    return tuple(feature for feature, in_cell in subjects if in_cell is None or in_cell(cell, slices))


def feature_reports(run: Run, cells: Sequence[CellRecord]) -> tuple[FeatureReport, ...]:
    """What the features add to the report that may have something of these cells of a run."""

    def has_something(report: FeatureReport) -> bool:
        if any(map(run.of, report.records)):
            return True
        in_record = report.subject.in_record
        return any(map(in_record, cells)) if in_record is not None else not report.records

    return tuple(filter(has_something, all_reports()))


@cache
def all_reports() -> tuple[FeatureReport, ...]:
    """What the features add to reports, in the order of the list."""
    return tuple(module.REPORT for module in load_modules("report"))


def storage_scripts(*names: str) -> str:
    """The shell functions of the kinds of storage with one of these keys or types of space."""

    def is_needed(storage: FeatureStorage) -> bool:
        # The kernel itself reads the space of some types, as that of ZFS.
        return storage.key in names or (storage.kind.space in names and f"space_{storage.kind.space}" in storage.script)

    return "".join(f"{storage.script}\n" for storage in list_brought(FeatureStorage) if is_needed(storage))


def embedded_lab() -> EmbeddedLab:
    """The lab that is measured without a lab file. Raises ConfigError if no feature brings it."""
    if (lab := find_brought(EmbeddedLab)) is None:
        raise ConfigError(
            "this installation has no embedded lab", hint="name a lab file: virt-overhead init writes one"
        )
    return lab


def array_maker() -> ArrayMaker:
    """What makes arrays. Raises Unsupported if no feature does."""
    if (maker := find_brought(ArrayMaker)) is None:
        raise Unsupported(
            "this installation makes no arrays", hint="install the feature `arrays`, or select other modes"
        )
    return maker


def backup_maker() -> BackupMaker:
    """What makes backups. Raises Unsupported if no feature does."""
    if (maker := find_brought(BackupMaker)) is None:
        raise Unsupported("this installation makes no backups", hint="select modes without backup")
    return maker


def settings_holder() -> SettingsHolder:
    """What changes settings of hosts. Raises Unsupported if no feature does."""
    if (holder := find_brought(SettingsHolder)) is None:
        raise Unsupported(
            "this installation changes no settings of hosts", hint="install the feature `doctor`, or select other modes"
        )
    return holder


def find_passed_device(runner: Runner, path: str) -> PassedDevice | str:
    """The PCI device behind the disk at this path; or why no guest can get it, with the remedy. Raises HostError."""
    if (passer := find_brought(DevicePasser)) is None:
        return "this installation passes no devices through: install the feature `vfio`, or select other modes"
    return passer.find(runner, path)


def find_conditioner(name: str) -> Conditioner:
    """The conditioner with this name. Without it, the regions are filled once."""
    return find_brought(Conditioner, name=name) or FILL


def feature_records() -> tuple[FeatureRecords, ...]:
    """The records of all features that have some."""
    return tuple(record for feature in features() for record in feature.load_records())


CPU_TIME = "cpu"
"""The name of the CPU time among the costs of an I/O: the sum of its parts."""


def cost_per_io(counters: Counters, *, in_guest: bool) -> dict[str, float]:
    """What an I/O of a slice with these counters costs the host: the figures of all features by name."""
    figures: dict[str, float] = {}
    for feature in features():
        figures |= feature.cost_per_io(counters, in_guest=in_guest)
    return figures


def load_verbs() -> Iterator[Any]:
    """The `commands.py` of each feature with verbs: `add_commands` adds them to the subparsers of the command line.

    One of them may have `show_overview`, which is what runs without a command. Only these modules are imported: a help
    text waits for no other.
    """
    return load_modules("commands")


def load_modules(name: str) -> Iterator[Any]:
    """The module of this name of each feature that has one."""
    package = import_module(_PACKAGE)
    for feature in package.NAMES:
        if Path(package.__path__[0], feature, f"{name}.py").is_file():
            yield import_module(f"{_PACKAGE}.{feature}.{name}")
