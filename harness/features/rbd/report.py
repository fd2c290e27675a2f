"""Ceph RBD in a report: krbd or librbd, and whether the bytes of the OSDs' disks are those of the replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.analysis.estimate import Change
from harness.feature import FeatureReport, ReportPlace, Subject
from harness.model.counters import Transferred
from harness.model.layout import Rbd
from harness.model.values import RecordValue
from harness.report.blocks import (
    MOST_DIFFERENCES,
    MOST_LISTED,
    Aside,
    Block,
    Column,
    Heading,
    Mark,
    On,
    Row,
    Sentence,
    TableCell,
    make_table,
)
from harness.report.numbers import count, percent_with_interval, short, significant
from harness.report.section import Section
from harness.report.verdicts import link_cell
from harness.results import ArmName, CellRecord, Measurement
from harness.results.assemble import AssembledRun
from harness.results.contrasts import CellPair, compare_guests

_TITLE = "krbd or librbd?"
TOLERANCE = 0.02
"""The largest difference between the bytes on the disks and those of the replicas, as a share of the latter."""
METADATA_BYTES = 8 * 1024
"""The most that an OSD writes for its log and its database for each write. 3.5 KiB were seen with Ceph 18.2.7."""
DEFERRED_BYTES = 64 * 1024
"""Smaller writes may go to the log first, and to their place later: `bluestore_prefer_deferred_size_hdd` of Ceph."""


@dataclass(frozen=True, slots=True)
class OsdBytes(RecordValue):
    """The bytes of one arm over all slices: by fio, and on the disks of all OSDs together."""

    fio: Transferred
    """By fio."""
    disks: Transferred
    """On the disks, also for others."""

    @property
    def copies(self) -> float | None:
        """Bytes written to the disks for each byte that fio wrote; None if it wrote nothing."""
        return self.disks.written / self.fio.written if self.fio.written else None


@dataclass(frozen=True, slots=True)
class RbdRecord(RecordValue):
    """What the disks of the cluster moved in the job of a cell. Only of a cluster whose OSDs are all on the host."""

    cell: str
    """The id of the cell."""
    arms: Mapping[ArmName, OsdBytes]
    """By arm; without arms whose disks were not counted."""


def account_cells(run: AssembledRun) -> tuple[RbdRecord, ...]:
    """A record for each cell on an image with an arm whose disks were counted, in the order of the cells."""
    return tuple(RbdRecord(cell, arms) for cell, arms in run.account_arms(Rbd, _account))


def _account(slices: Iterable[Measurement]) -> OsdBytes | None:
    """The bytes of these slices of one arm; None if the disks were not counted."""
    counted = [(slice_.counters.fio, disks) for slice_ in slices if (disks := slice_.counters.storage) is not None]
    if not counted:
        return None
    return OsdBytes(
        fio=sum((Transferred(fio.read, fio.written) for fio, _ in counted), Transferred()),
        disks=sum((disks for _, disks in counted), Transferred()),
    )


@dataclass(frozen=True, slots=True)
class Clients:
    """A mode with krbd and one with librbd that do not differ otherwise, and the cells of the jobs that both have."""

    krbd: str
    librbd: str
    pairs: tuple[CellPair, ...]

    @property
    def change(self) -> Change:
        """The throughput with librbd as a multiple of that with krbd, over all jobs."""
        return _compare(self.pairs)


def _compare(pairs: Sequence[CellPair]) -> Change:
    confidence = max(cell.confidence for pair in pairs for cell in pair)
    return compare_guests({"librbd": pairs}, "iops", confidence)["librbd"].change


def find_clients(section: Section) -> list[Clients]:
    """The pairs of modes that differ in the client alone. librbd has no `aio`, and a cache of its own."""
    of_mode: dict[str, dict[str, CellRecord]] = {}
    for cell in section.cells:
        if isinstance(cell.mode_detail.layout, Rbd) and cell.mode_detail.attach is not None and cell.usable:
            of_mode.setdefault(cell.mode, {})[cell.job.id] = cell
    clients = []
    for krbd, cells in of_mode.items():
        for librbd, others in of_mode.items():
            jobs = [job for job in cells if job in others]
            if jobs and _differ_in_client(cells[jobs[0]], others[jobs[0]]):
                clients.append(Clients(krbd, librbd, tuple((cells[job], others[job]) for job in jobs)))
    return clients


def _differ_in_client(krbd: CellRecord, librbd: CellRecord) -> bool:
    one, other = krbd.mode_detail, librbd.mode_detail
    if not isinstance(one.layout, Rbd) or not isinstance(other.layout, Rbd):
        return False
    if (one.layout.client, other.layout.client) != ("krbd", "librbd"):
        return False
    return replace(one, layout=other.layout, attach=other.attach) == other


def _show_change(change: Change) -> str:
    """For example "+23.1 % [20.0, 26.3]"."""
    return percent_with_interval(change.share, " %", signed=True)


def answer(clients: Clients) -> str:
    """For example "krbd or librbd? `librbd` delivers +23.1 % [20.0, 26.3] against `krbd`, over 4 jobs"."""
    change, jobs = clients.change, count(len(clients.pairs), "job")
    if not change.excludes_one:
        return (
            f"{_TITLE} Not decided: `{clients.librbd}` delivers {_show_change(change)} against `{clients.krbd}`, over "
            f"{jobs}"
        )
    better = clients.librbd if change.ratio > 1 else clients.krbd
    return (
        f"{_TITLE} `{better}`: `{clients.librbd}` delivers {_show_change(change)} against `{clients.krbd}`, over {jobs}"
    )


def client_blocks(section: Section) -> Iterator[Block]:
    """Both clients job by job; nothing without both."""
    for clients in find_clients(section):
        yield Heading(f"{_TITLE} {clients.krbd} against {clients.librbd}")
        yield Aside(
            "Both are images of the same pool, and take turns in the same blocks. With krbd, the host's kernel "
            "is the client of the cluster, with librbd QEMU."
        )
        yield Sentence((Mark(f"{section.name}: {answer(clients)}", "strong"),), on=On.MARKDOWN)
        yield Sentence(answer(clients), on=On.TERMINAL)
        yield make_table(
            clients.pairs,
            f"{_TITLE} {clients.krbd} against {clients.librbd} on {section.name}",
            (Column("job", "mode"), lambda pair: TableCell(pair[1].job.id, link=link_cell(pair[1]))),
            (Column(clients.krbd), lambda pair: _mean(pair[0])),
            (Column(clients.librbd), lambda pair: _mean(pair[1])),
            (Column("unit"), lambda pair: pair[0].headline_unit),
            (Column("librbd delivers", "strong"), lambda pair: _show_change(_compare([pair]))),
            row=lambda pair: Row((), sentence=f"  {pair[1].job.id}: librbd delivers {_show_change(_compare([pair]))}"),
            style="cells clients",
            most=MOST_DIFFERENCES,
        )


def _mean(cell: CellRecord) -> str:
    mean = cell.mean(cell.headline, "guest")
    return short(mean.point / cell.headline_scale if mean else None)


def _lead(section: Section) -> Iterator[str]:
    return (f"{answer(clients)}." for clients in find_clients(section))


@dataclass(frozen=True, slots=True)
class Replicated:
    """An arm of a cell: what the disks of the OSDs wrote for it, and what its replicas are."""

    cell: CellRecord
    arm: str
    moved: OsdBytes
    replicas: int

    @property
    def reconciles(self) -> bool:
        """Whether the disks wrote each byte as often as the pool has replicas, and not more than metadata beside it."""
        wanted = self.moved.fio.written * self.replicas
        block = min(self.cell.job.block_sizes)
        beside = METADATA_BYTES + (block if block < DEFERRED_BYTES else 0)
        most = wanted * (1 + TOLERANCE + beside / block)
        return wanted * (1 - TOLERANCE) <= self.moved.disks.written <= most


def list_replicated(section: Section) -> list[Replicated]:
    """The arms that wrote to images whose OSDs are all on the host."""
    replicas = read_replicas(section.run.provenance)
    cells = {cell.id: cell for cell in section.cells}
    return [
        Replicated(cells[record.cell], arm, moved, replicas[cells[record.cell].disk])
        for record in section.run.of(RbdRecord)
        if record.cell in cells and cells[record.cell].disk in replicas
        for arm, moved in record.arms.items()
        if moved.fio.written
    ]


def read_replicas(provenance: Mapping[str, object]) -> dict[str, int]:
    """The replicas of the pools of a run, by the name of the storage in the lab."""
    pools = ((key, value) for key, value in provenance.items() if key.startswith("disk.") and isinstance(value, dict))
    return {
        key.removeprefix("disk."): int(replicas)
        for key, value in pools
        if isinstance(replicas := value.get("replicas"), str) and replicas.isdigit()
    }


def replica_blocks(section: Section) -> Iterator[Block]:
    """Whether the disks of the OSDs wrote what the replicas are; nothing if they are on other hosts."""
    arms = list_replicated(section)
    if not arms:
        return
    yield Heading("What the disks of the cluster write")
    yield Aside(
        "All OSDs are on this host. Their disks write each byte as often as the pool has replicas, and metadata: a log "
        f"and a database, at most {METADATA_BYTES // 1024} KiB per replica of a write. Small writes to "
        "rotating disks are in the log as well. The bytes of others count, too."
    )
    yield Sentence(_sum_up(arms))
    yield make_table(
        arms,
        f"Bytes on the disks of the OSDs for each byte of fio on {section.name}",
        (Column("cell", "mode"), lambda arm: arm.cell.id),
        (Column("arm"), lambda arm: arm.arm),
        (Column("written", "strong"), lambda arm: significant(arm.moved.copies)),
        (Column("replicas"), lambda arm: str(arm.replicas)),
        (Column("reconciles"), lambda arm: "yes" if arm.reconciles else "no"),
        row=lambda arm: Row((), sentence="" if arm.reconciles else f"  {_describe(arm)}", doubtful=not arm.reconciles),
        style="cells replicas",
        most=MOST_LISTED,
    )


def _sum_up(arms: Sequence[Replicated]) -> str:
    wrong, of = [arm for arm in arms if not arm.reconciles], count(len(arms), "arm")
    if not wrong:
        return f"The disks of the OSDs wrote the replicas of fio's bytes in all {of}"
    return f"The disks of the OSDs did not write the replicas of fio's bytes in {len(wrong)} of {of}"


def _describe(arm: Replicated) -> str:
    return f"{arm.cell.id}, {arm.arm}: {significant(arm.moved.copies)} bytes on the disks for each byte of fio"


REPORT = FeatureReport(
    records=(RbdRecord,),
    subject=Subject(in_record=lambda cell: isinstance(cell.mode_detail.layout, Rbd)),
    leads=_lead,
    contents={ReportPlace.DIFFERENCES: client_blocks, ReportPlace.PARTS: replica_blocks},
)
