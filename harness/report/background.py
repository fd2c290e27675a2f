"""The background of the figures: configuration, provenance, where the time went, how each group was measured."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import JsonValue

from harness.feature import find_conditioner
from harness.model.attach import Attachment
from harness.model.base import Kind
from harness.model.guest import GuestOptions
from harness.model.option import DEFINITIONS, NOTHING
from harness.model.values import format_field, names_of
from harness.report.blocks import (
    Aside,
    Block,
    Column,
    Fold,
    Heading,
    Inline,
    Mark,
    Row,
    Sentence,
    Table,
    TableCell,
    make_table,
)
from harness.report.contents import guests_of
from harness.report.numbers import count, percent_with_interval
from harness.report.section import Section
from harness.results import FIO_FILES, CellRecord, ConditioningRecord, DriftRecord, GroupRecord, Run
from harness.results.records import PLAN
from harness.terminal import hide_passwords
from harness.units import format_duration, format_size


@dataclass(frozen=True, slots=True)
class Facts:
    """Rows of text under a header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def table(self, caption: str) -> Table:
        """The rows as a block."""
        columns = (Column(self.header[0], "head"), *(Column(name, "text") for name in self.header[1:]))
        return Table(columns, tuple(map(Row, self.rows)), caption, style="facts")


def configuration_blocks(section: Section) -> Iterator[Block]:
    """What was requested and read back of each mode: first what differs between the modes."""
    yield Heading("Effective configuration")
    apart, same = differing(configuration(section.all_cells))
    if apart.rows:
        yield apart.table("Configuration requested and read back in which the modes differ")
    if same.rows:
        table = same.table("Configuration requested and read back that is the same in every mode")
        yield Fold(f"{len(same.rows)} settings are the same in every mode that has them", (table,))


def run_blocks(run: Run) -> Iterator[Block]:
    """The facts of the run, and the versions and settings behind its figures."""
    yield Heading("The run")
    yield about_run(run).table("Facts of the run")
    facts, checksums = provenance(run)
    if facts.rows:
        yield Heading("Provenance")
        yield facts.table("Versions and settings behind the figures")
        if checksums.rows:
            table = checksums.table("Checksums of images and files")
            yield Fold(f"{len(checksums.rows)} checksums", (table,))


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run's time. `share` is its share of the whole run."""

    name: str
    seconds: float
    share: float


def configuration(cells: Sequence[CellRecord]) -> Facts:
    """One column per mode: what was requested (layout, attach) and what was read back (effective), key by key."""
    by_mode: dict[str, list[CellRecord]] = {}
    for cell in cells:
        if not cell.is_baseline:
            by_mode.setdefault(cell.mode, []).append(cell)
    columns: dict[str, dict[str, str]] = {}
    for mode, mode_cells in by_mode.items():
        detail = mode_cells[0].mode_detail
        requested = dict(_options("layout", detail.layout)) | dict(_options("attach", detail.attach))
        requested |= dict(_options("guest", detail.guest, only=detail.guest.requested))
        effective = [
            {
                f"effective.{name}": _text(value)
                for name, value in record.effective.settings()
                if name not in DEFINITIONS
            }
            for record in mode_cells
            if record.effective != NOTHING
        ]
        keys = dict.fromkeys(key for settings in effective for key in settings)
        read_back = {key: _agreed([settings.get(key, "not reported") for settings in effective]) for key in keys}
        columns[mode] = requested | read_back
    names = dict.fromkeys(key for column in columns.values() for key in column)
    keys_in_order = sorted(names, key=lambda key: ("layout", "attach", "guest", "effective").index(key.split(".")[0]))
    rows = tuple((_heading(key), *(columns[mode].get(key, "") for mode in by_mode)) for key in keys_in_order)
    return Facts(("", *by_mode), rows)


def differing(table: Facts) -> tuple[Facts, Facts]:
    """The rows in which the columns differ, and those in which all are the same, with one column for all.

    A disk that is passed through as a PCI device has none of the options of QEMU's disks. That it is passed through is
    one difference, so each option counts as the same if the other modes agree.
    """
    apart, same = [], []
    for heading, *values in table.rows:
        agreed = set(values) - ({""} if heading.startswith(_heading("attach.")) else set())
        if len(agreed) > 1:
            apart.append((heading, *values))
        else:
            same.append((heading, *agreed))
    return Facts(table.header, tuple(apart)), Facts(("", "every mode"), tuple(same))


def about_run(run: Run) -> Facts:
    """The facts of the run: when, by which command, where, with which seed."""
    info, lab = run.run, run.lab
    unknown = lab.accel == "unknown"
    spans = sorted({cell.span_bytes for cell in run.cells})
    rounds = sorted({len(set(cell.rounds)) for cell in run.cells if cell.rounds})
    blocks = sorted({len(cell.rounds) for cell in run.cells if cell.rounds})
    times = sorted({(cell.job.seconds, cell.job.ramp) for cell in run.cells})
    rows = (
        ("run", info.id),
        ("status", info.status),
        ("started", moment(info.started)),
        ("finished", moment(info.finished) if info.finished is not None else "not finished"),
        ("command", hide_passwords(info.command)),
        ("profile", info.profile),
        ("rounds", _from_to(rounds)),
        ("blocks of a cell", _from_to(blocks)),
        ("fio per slice", ", ".join(f"{seconds:g} s after {ramp:g} s of ramp" for seconds, ramp in times)),
        ("span of each arm", ", ".join(format_size(span) if span else "not known" for span in spans)),
        ("seed", str(info.seed)),
        ("host", lab.host),
        ("lab", lab.kind if unknown else f"{lab.kind}, guests under {lab.accel}"),
        ("represents real hardware", f"{'not known' if unknown else 'yes' if lab.representative else 'no'}: {lab.why}"),
        *guests_of(run.cells),
    )
    unknown_of_imports = ("fio per slice", "span of each arm", "seed", "host", "lab") if lab.imported else ()
    return Facts(("", ""), tuple(row for row in rows if row[0] not in unknown_of_imports))


def _from_to(numbers: Sequence[int]) -> str:
    """ "6", "3 to 12" or "none", for sorted numbers."""
    return " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1])))) if numbers else "none"


def provenance(run: Run) -> tuple[Facts, Facts]:
    """Every recorded version and setting, and apart from them the checksums of images and files. Dots join nested keys.

    It leaves out the requested settings and the fio files, which the page shows above, and the settings of the
    evaluation.
    """
    internal = ("asked", "evaluation", FIO_FILES, PLAN)
    shown = {key: value for key, value in run.provenance.items() if key not in internal}
    apart: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
    for name, value in _flat(shown):
        apart[".sha256." in name or name.endswith(".sha256")].append((name, value))
    header = ("what", "value")
    return Facts(header, tuple(apart[False])), Facts(header, tuple(apart[True]))


def find_phases(run: Run) -> tuple[Phase, ...]:
    """Where the wall time went, the longest phase first. The time outside of all phases comes last."""
    wall = run.run.efficiency.wall_s or sum(run.run.phases.values())
    if wall <= 0:
        return ()
    phases = [Phase(name, seconds, seconds / wall) for name, seconds in run.run.phases.items()]
    phases.sort(key=lambda phase: -phase.seconds)
    rest = wall - sum(run.run.phases.values())
    if rest > wall * 0.005:
        phases.append(Phase("not in a phase", rest, rest / wall))
    return tuple(phases)


def phase_table(phases: Sequence[Phase]) -> Table:
    """The phases with a bar for the share of each."""
    return make_table(
        phases,
        "Phases of the run",
        (Column("phase", "head", hidden=True), lambda phase: phase.name),
        (Column("share", "bar", hidden=True), lambda phase: TableCell("", bar=phase.share)),
        (Column("time", hidden=True), lambda phase: format_duration(phase.seconds)),
        (Column("percent", hidden=True), lambda phase: f"{phase.share * 100:.1f} %"),
        style="phases",
    )


def moment(seconds: float) -> str:
    """UTC, to the second: "2026-01-01 12:00:00 UTC"."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _agreed(values: Sequence[str]) -> str:
    different = list(dict.fromkeys(values))
    return different[0] if len(different) == 1 else f"differs: {' / '.join(different)}"


def _heading(key: str) -> str:
    origin, _, rest = key.partition(".")
    return f"{'read back' if origin == 'effective' else f'requested, {origin}'}: {rest}"


def _flat(value: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, Mapping) and inner:
            yield from _flat(inner, f"{name}.")
        else:
            yield name, _text(inner)


def _options(
    prefix: str, value: Kind | Attachment | GuestOptions | None, *, only: Collection[str] | None = None
) -> Iterator[tuple[str, str]]:
    """The options of a layout, an attachment or a guest. The hypervisor chooses what was not requested."""
    for name in names_of(value) if value is not None else ():
        if only is not None and name not in only:
            continue
        content = getattr(value, name)
        if isinstance(content, Kind):
            yield from _options(f"{prefix}.{name}", content)
        elif content is None:
            yield f"{prefix}.{name}", "the hypervisor's default"
        elif isinstance(content, bool):
            yield f"{prefix}.{name}", _text(content)
        else:
            yield f"{prefix}.{name}", format_field(value, name).strip('"')


def _text(value: JsonValue) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_IMPORTED = (
    "Round n has the n-th result of each arm and job, in the order of time. The results were measured one after the "
    "other; how is not known."
)
_MEASURED = (
    "The cells of a group are measured together: a round has some blocks of every job, and a block has one short slice "
    "of every arm, in a new random order. Writes of arms that use the host's page cache, and all arms of a disk that "
    "the guest has for itself, are measured one arm after the other."
)


def group_blocks(run: Run) -> Iterator[Block]:
    """The groups that were started, in the order of the plan."""
    if not run.groups:
        return
    yield Heading("Group by group")
    yield Aside(_IMPORTED if run.lab.imported else _MEASURED)
    for group in run.groups:
        yield Heading(group.id, level=4)
        yield Sentence(course_sentence(group))
        if orders := orders_of(group):
            rows = tuple(Row((str(number), ", ".join(order))) for number, order in orders)
            columns = (Column("round", "head"), Column("arms in the order of their first slices", "text"))
            table = Table(columns, rows, f"Order of arms of {group.id}", style="facts")
            yield Fold("Order of arms", (table,))
        if group.drift:
            yield _drift_fold(group)
        else:
            yield Aside("There are fewer than three values of the host, so its drift is not known.")


def _drift_fold(group: GroupRecord) -> Fold:
    too_much = any(drift.too_much for drift in group.drift)
    mark: tuple[Inline, ...] = (" ", Mark("too much", "verdict", "void")) if too_much else ()
    verdicts = {
        False: TableCell("ok", tone="within"),
        True: TableCell("too much: cells without alternating arms are void", tone="void"),
    }
    table = make_table(
        group.drift,
        f"Drift of the host in {group.id}",
        (Column("job", "head"), lambda drift: drift.job),
        (Column("throughput, first to last, %", "sentence"), change_words),
        (Column("values", "text"), lambda drift: str(drift.change.n)),
        (Column("verdict", "text", hidden=True), lambda drift: verdicts[drift.too_much]),
        style="facts",
    )
    return Fold(("Drift of the bare host", *mark), (table,), open=too_much)


def change_words(drift: DriftRecord) -> str:
    """In percent, with its sign and interval: "+3.1 [-1.2, 7.6]"."""
    return percent_with_interval(drift.change, signed=True)


def orders_of(record: GroupRecord) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The number of each whole round, and its arms in the order of their first slices."""
    return tuple(zip(record.rounds or range(1, len(record.orders) + 1), record.orders, strict=True))


def course_sentence(record: GroupRecord) -> str:
    """For example "5 rounds, with looks at 3 and 5 rounds (planned: 3, 5, 8, 12). Ended by: budget decided.".

    Abandoned rounds are named before the end.
    """
    done = len(record.orders)
    looks = [str(look) for look in record.looks if look <= done]
    words = count(done, "round")
    if looks:
        words += f", with looks at {_listed(looks)} rounds"
    else:
        words += ", without an interim look"
    if len(record.looks) > 1:
        words += f" (planned: {', '.join(map(str, record.looks))})"
    if abandoned := record.abandoned:
        numbers = _listed([*map(str, abandoned)])
        words += f". Abandoned and not counted: round{'s' * (len(abandoned) > 1)} {numbers}"
    return f"{words}. {f'Ended by: {record.stopped}' if record.stopped else 'The group was not finished'}."


def _listed(words: Sequence[str]) -> str:
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]


def conditioning_blocks(run: Run) -> Iterator[Block]:
    """How each disk was conditioned; nothing if none was."""
    conditionings = find_conditionings(run)
    if conditionings:
        yield Heading("Conditioning")
    for number, (disk, record, groups) in enumerate(conditionings, start=1):
        unsteady: tuple[Inline, ...] = (" ", Mark("not steady", "verdict", "exceeds")) if record.steady is False else ()
        group_names = Mark(f"({', '.join(groups)})", "small")
        yield Sentence((Mark(disk, "bold"), *unsteady, f": {_describe_conditioning(record)} ", group_names))
        if record.regions:
            yield from find_conditioner(record.method).contents(disk, record, f"conditioning{number}")


def find_conditionings(run: Run) -> list[tuple[str, ConditioningRecord, list[str]]]:
    """Each conditioning of a disk once: the disk, the record, and the groups that were measured after it."""
    shared: list[tuple[str, ConditioningRecord, list[str]]] = []
    for group in run.groups:
        if group.conditioning is None:
            continue
        for disk, record, names in shared:
            if (disk, record) == (group.disk, group.conditioning):
                names.append(group.id)
                break
        else:
            shared.append((group.disk, group.conditioning, [group.id]))
    return shared


def find_unsteady_disks(run: Run) -> frozenset[str]:
    """The disks that did not reach a steady state before they were measured."""
    return frozenset(disk for disk, record, _ in find_conditionings(run) if record.steady is False)


def _describe_conditioning(record: ConditioningRecord) -> str:
    """What was written before the disk was measured, and whether it became steady."""
    if record.method == "fill":
        return (
            "Every region was written once only. A new SSD writes faster than it will later, so compare modes with "
            "each other and not with data sheets."
        )
    steady = sum(region.steady for region in record.regions)
    reached = f"{steady} of {count(len(record.regions), 'region')} reached a steady state"
    return f"Purged, written twice at 128 KiB, then {record.job or 'a job'} was repeated: {reached}."
