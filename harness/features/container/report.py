"""VM or container: what the VM loses against the container on the same volume, in the same blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis import METRICS, Estimate
from harness.feature import FeatureReport, ReportPlace, Subject
from harness.model.mode import Place
from harness.report.blocks import (
    MOST_DIFFERENCES,
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
from harness.report.numbers import NONE, count, format_mean, percent_with_interval
from harness.report.section import Section
from harness.report.verdicts import judge_difference, link_cell
from harness.results import CellRecord
from harness.results.contrasts import loss_over_jobs

_TITLE = "VM or container?"
_SAME = "Both have the same volume, and take turns in the same blocks."
_CLOSE = 0.02
"""Below this share, the choice between the two does not decide the throughput."""


def _in_containers(section: Section) -> dict[str, list[CellRecord]]:
    """The cells in a container that are compared with a VM, by the name of the VM's mode."""
    by_vm: dict[str, list[CellRecord]] = {}
    for cell in section.cells:
        if cell.against is not None and cell.mode_detail.in_container:
            by_vm.setdefault(_name_vm(cell), []).append(cell)
    return by_vm


def _name_vm(cell: CellRecord) -> str:
    return (cell.against or "").removeprefix(f"{cell.scenario}-").removesuffix(f"-{cell.job.id}")


def container_blocks(section: Section) -> Iterator[Block]:
    """The VM against the container, job by job; nothing without containers."""
    for vm, cells in _in_containers(section).items():
        yield Heading(_TITLE)
        yield Aside(f"{_SAME} {_describe(cells)} A loss of the VM below 0 is a loss of the container.")
        yield Sentence((Mark(f"{section.name}: {_TITLE}", "strong"), f" {_SAME}"), on=On.MARKDOWN)
        yield Sentence(_answer(vm, cells), on=On.TERMINAL)
        yield make_table(
            cells,
            f"{_TITLE} {vm} on {section.name}",
            (Column("job", "mode"), lambda cell: TableCell(f"{_name_vm(cell)}-{cell.job.id}", link=link_cell(cell))),
            (Column("host"), lambda cell: format_mean(cell, "host")),
            (Column("container"), lambda cell: format_mean(cell, "guest")),
            (Column("VM"), lambda cell: format_mean(cell, "against")),
            (Column("unit"), lambda cell: cell.headline_unit),
            (Column("container loses, %"), lambda cell: percent_with_interval(_overhead(cell))),
            (Column("VM loses against it, %", "strong"), lambda cell: percent_with_interval(_loss_of_vm(cell))),
            (Column("latency, +%"), lambda cell: percent_with_interval(_latency_of_vm(cell))),
            (Column("n"), lambda cell: str(cell.n) if cell.usable else "-"),
            (Column("the container is", "reason"), _verdict),
            row=lambda cell: Row((), sentence=f"  {_sentence(cell)}", doubtful=not _is_compared(cell)),
            style="cells containers",
            most=MOST_DIFFERENCES,
        )
        yield Sentence(_answer(vm, cells), on=On.BRIEF)


def _lead(section: Section) -> Iterator[str]:
    return (f"{_answer(vm, cells)}." for vm, cells in _in_containers(section).items())


def _answer(vm: str, cells: Sequence[CellRecord]) -> str:
    """For example "VM or container? The VM (`vm`) loses 23.1 % [21.0, 25.2] of the container's throughput over 6 jobs;
    against the host, the VM loses 24.0 % [22.1, 26.0] and the container 1.2 % [-0.3, 2.6]"."""
    usable = [cell for cell in cells if _is_compared(cell)]
    if not usable:
        return f"{_TITLE} No cell of `{vm}` in a container is a result: {cells[0].outcome}"
    loss = loss_over_jobs(usable, of=Place.AGAINST, than=Place.GUEST)
    of_vm, of_container = (loss_over_jobs(usable, of=place) for place in (Place.AGAINST, Place.GUEST))
    words = f"{_TITLE} {_in_words(vm, loss)} over {count(len(usable), 'job')}"
    return (
        f"{words}; against the host, the VM loses {percent_with_interval(of_vm, ' %')} and the container "
        f"{percent_with_interval(of_container, ' %')}"
    )


def _in_words(vm: str, loss: Estimate) -> str:
    low, high = loss.low, loss.high
    value = percent_with_interval(loss, " %")
    if low is not None and high is not None:
        if low > -_CLOSE and high < _CLOSE:
            return f"The VM (`{vm}`) and the container are equal within {_CLOSE:.0%}: the VM loses {value}"
        if low <= 0 <= high:
            return f"Not decided: the VM (`{vm}`) loses {value} of the container's throughput"
        if high < 0:
            return f"The VM (`{vm}`) is faster than the container: it loses {value} of its throughput"
    return f"The VM (`{vm}`) loses {value} of the container's throughput"


def _describe(cells: Sequence[CellRecord]) -> str:
    """What the container is, as it was read back."""
    shown = next((cell.effective for cell in cells if cell.effective.container), None)
    if shown is None:
        return "What the container really has was not read back."
    version = f" {shown.container_version}" if shown.container_version else ""
    user = "unprivileged" if shown.container_unprivileged else "privileged"
    cpus = f" on the host's CPUs {shown.container_cpus}" if shown.container_cpus else ""
    return f"The container is {user}, of LXC{version}{cpus}; confinement: {shown.container_confinement or 'unknown'}."


def _is_compared(cell: CellRecord) -> bool:
    metric = cell.metrics.get(cell.throughput_name)
    return cell.usable and metric is not None and bool(metric.samples("against"))


def _overhead(cell: CellRecord) -> Estimate | None:
    metric = cell.metrics.get(cell.headline_name)
    return metric.overhead if metric is not None and cell.usable else None


def _loss_of_vm(cell: CellRecord) -> Estimate | None:
    return loss_over_jobs([cell], of=Place.AGAINST, than=Place.GUEST) if _is_compared(cell) else None


def _latency_of_vm(cell: CellRecord) -> Estimate | None:
    has_latency = "lat_mean" in cell.metrics and bool(cell.metrics["lat_mean"].samples("against"))
    if not cell.usable or not has_latency:
        return None
    return loss_over_jobs([cell], of=Place.AGAINST, than=Place.GUEST, metric="lat_mean")


def _verdict(cell: CellRecord) -> str:
    difference = cell.metrics[cell.headline_name].difference if _is_compared(cell) else None
    if difference is None:
        return str(cell.outcome)
    return judge_difference(cell, difference, known=cell.headline_name)


def _sentence(cell: CellRecord) -> str:
    """For example "vm-randread-4k-qd1: the VM loses 23.1 % [21.0, 25.2] of the container's IOPS"."""
    job, loss = f"{_name_vm(cell)}-{cell.job.id}", _loss_of_vm(cell)
    if loss is None:
        return f"{job} in a container: {cell.outcome}"
    unit = METRICS[cell.throughput_name].shown.unit
    return f"{job}: the VM loses {percent_with_interval(loss, ' %')} of the container's {unit or NONE}"


REPORT = FeatureReport(
    subject=Subject(in_record=lambda cell: cell.mode_detail.in_container),
    leads=_lead,
    contents={ReportPlace.DIFFERENCES: container_blocks},
)
