"""The background of the figures: effective configuration, provenance, where the time went."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import JsonValue

from harness.model.attach import Attachment
from harness.model.base import Kind
from harness.model.effective import DEFINITIONS, NOTHING
from harness.model.guest import GuestOptions, describe_guest
from harness.model.values import format_field, names_of
from harness.report.blocks import Block, Cell, Column, Fold, Heading, Row, Table
from harness.results import FIO_FILES, CellRecord, Run
from harness.results.records import PLAN
from harness.terminal import hide_passwords
from harness.units import format_duration, format_size

if TYPE_CHECKING:
    from harness.report.section import Section


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
    apart, same = differing(configuration(section.cells))
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
    for mode, own in by_mode.items():
        detail = own[0].mode_detail
        requested = dict(_options("layout", detail.layout)) | dict(_options("attach", detail.attach))
        requested |= dict(_options("guest", detail.guest, only=detail.guest.requested))
        effective = [
            {
                f"effective.{name}": _text(value)
                for name, value in record.effective.settings()
                if name not in DEFINITIONS
            }
            for record in own
            if record.effective != NOTHING
        ]
        keys = dict.fromkeys(key for each in effective for key in each)
        read_back = {key: _agreed([each.get(key, "not reported") for each in effective]) for key in keys}
        columns[mode] = requested | read_back
    found = dict.fromkeys(key for column in columns.values() for key in column)
    keys_in_order = sorted(found, key=lambda key: ("layout", "attach", "guest", "effective").index(key.split(".")[0]))
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


def guests_of(cells: Iterable[CellRecord]) -> Iterator[tuple[str, str]]:
    """The size and placement of the guests, as they were read back: one row for all modes with the same."""
    modes: dict[str, dict[str, None]] = {}
    for cell in cells:
        if words := describe_guest(cell.effective):
            modes.setdefault(words, {})[cell.mode] = None
    for words, names in modes.items():
        yield "guest" if len(modes) == 1 else f"guest of {', '.join(names)}", words


def _from_to(numbers: Sequence[int]) -> str:
    """ "6", "3 to 12" or "none", for sorted numbers."""
    return " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1])))) if numbers else "none"


def provenance(run: Run) -> tuple[Facts, Facts]:
    """Every recorded version and setting, and apart from them the checksums of images and files. Dots join nested keys.

    It leaves out the requested settings and the fio files, which the page shows above, and the settings of the
    evaluation.
    """
    internal = ("asked", "evaluation", FIO_FILES, PLAN)
    found = {key: value for key, value in run.provenance.items() if key not in internal}
    apart: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
    for name, value in _flat(found):
        apart[".sha256." in name or name.endswith(".sha256")].append((name, value))
    header = ("what", "value")
    return Facts(header, tuple(apart[False])), Facts(header, tuple(apart[True]))


def find_phases(run: Run) -> tuple[Phase, ...]:
    """Where the wall time went, the longest phase first. The time outside of all phases comes last."""
    wall = run.run.efficiency.wall_s or sum(run.run.phases.values())
    if wall <= 0:
        return ()
    found = [Phase(name, seconds, seconds / wall) for name, seconds in run.run.phases.items()]
    found.sort(key=lambda phase: -phase.seconds)
    rest = wall - sum(run.run.phases.values())
    if rest > wall * 0.005:
        found.append(Phase("not in a phase", rest, rest / wall))
    return tuple(found)


def phase_table(phases: Sequence[Phase]) -> Table:
    """The phases with a bar for the share of each."""
    columns = (
        Column("phase", "head", hidden=True),
        Column("share", "bar", hidden=True),
        Column("time", hidden=True),
        Column("percent", hidden=True),
    )
    rows = (
        Row((phase.name, Cell("", bar=phase.share), format_duration(phase.seconds), f"{phase.share * 100:.1f} %"))
        for phase in phases
    )
    return Table(columns, tuple(rows), "Phases of the run", style="phases")


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
