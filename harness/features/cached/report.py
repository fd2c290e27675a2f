"""Cells that the host's memory serves: a table of their own, in no comparison with other modes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.analysis import METRICS, Estimate
from harness.feature import FeatureReport, ReportPlace, Subject
from harness.features.cached import is_partial
from harness.model.mode import Place
from harness.report.blocks import (
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
    percent_cell,
)
from harness.report.modes import Headline
from harness.report.numbers import NONE, confidence_words, count, percent, percent_with_interval, say_loss, significant
from harness.report.section import Section
from harness.report.verdicts import link_cell
from harness.results import CellRecord
from harness.results.cells import CachedRecord, MemoryShare
from harness.results.contrasts import loss_over_jobs
from harness.units import format_size

TITLE = "Served from memory"
WARNING = (
    "Memory serves these cells while their working set fits into it. A larger one is read from the disk, at "
    "the speed of the direct modes. What is written is on the disk later. A power loss loses what the guest did not "
    "flush."
)


def cached_cells(section: Section) -> tuple[CellRecord, ...]:
    """The cells of a section that memory serves, in the order of the plan."""
    return tuple(cell for cell in section.all_cells if cell.is_cached)


def cached_blocks(section: Section) -> Iterator[Block]:
    """What memory served of a disk's cached cells, and what their guests lose against their twins."""
    cells = cached_cells(section)
    if not cells:
        return
    yield Heading(TITLE)
    yield Aside(
        f"{WARNING} The overhead is against a twin: fio on the host on the same volume or file, in the same state of "
        "the cache, in the same blocks. The last figure, against the disk with direct I/O, is what the memory does. It "
        "is not a gain of the guest over its disk, and these cells are in no comparison with other modes."
    )
    yield Sentence((Mark(f"{section.name}: {TITLE[0].lower()}{TITLE[1:]}.", "strong"), f" {WARNING}"), on=On.MARKDOWN)
    yield make_table(
        cells,
        f"Cells of {section.name} that memory serves",
        (Column("job", "mode"), lambda cell: TableCell(cell.job.id, link=link_cell(cell))),
        (Column("mode", "name"), lambda cell: cell.mode),
        (Column("read from memory, %"), lambda cell: _format_shares(cell, "reads")),
        (Column("written to memory, %"), lambda cell: _format_shares(cell, "writes")),
        (Column("working set", "text"), lambda cell: _format_memory(cell.cached)),
        (Column("twin"), lambda cell: _format_mean(cell, "host")),
        (Column("guest"), lambda cell: _format_mean(cell, "guest")),
        (Column("unit", "text"), lambda cell: cell.headline_unit),
        (
            Column("loss against the twin, %", "strong", interval=confidence_words(cells)),
            lambda cell: percent_cell(cell.overhead if cell.usable else None),
        ),
        (Column("times the disk with direct I/O", interval=confidence_words(cells)), _direct_field),
        (Column("verdict", "verdict"), lambda cell: TableCell(cell.outcome, tone=cell.outcome)),
        row=lambda cell: Row(
            (),
            sentence=describe_cell(cell),
            doubtful=not cell.usable,
            remark="; ".join(cell.remarks),
            of=f"{cell.id} {cell.outcome}",
            tone=cell.outcome,
        ),
        style="cells cached",
    )
    yield Sentence(WARNING, on=On.TERMINAL, indent=2)
    for mode in dict.fromkeys(cell.mode for cell in cells):
        if usable := [cell for cell in cells if cell.mode == mode and cell.usable]:
            yield Sentence(_summarize(usable), on=On.BRIEF)


def describe_cell(cell: CellRecord) -> str:
    """For example "optane-raw-cached-randread-4k-qd32, served from memory: 99.8 % of the bytes read (twin 99.9 %),
    working set 64 MiB of 1.9 GiB available; 12 300 IOPS, 62.1 [60.0, 64.1] % lost against the twin with the same cache;
    1.50 [1.41, 1.60] times the disk with direct I/O, by memory"."""
    cached = cell.cached
    if cached is None or not cell.usable:
        return f"{cell.id}, served from memory: {'; '.join((cell.outcome, *cell.remarks))}"
    directions = (("read from memory", cached.reads), ("written only to memory", cached.writes))
    words = [_describe_share(what, of) for what, of in directions if of]
    served = " and ".join(words) or "share not known"
    lost = f"{percent_with_interval(cell.overhead)} % lost against the twin with the same cache"
    if cell.overhead is not None and cell.overhead.high is not None and cell.overhead.high < 0:
        lost = f"better than the twin by {percent(-cell.overhead.point)} %, which memory does not explain: find out why"
    parts = [
        f"{cell.id}, served from memory: {served}, working set {_format_memory(cached)}",
        f"{_format_mean(cell, 'guest')} {cell.headline_unit}, {lost}",
    ]
    if (times := _times_direct(cached)) is not None:
        parts.append(f"{times[0]} {times[1]} times the disk with direct I/O, by memory")
    return "; ".join(parts)


def _summarize(cells: Sequence[CellRecord]) -> str:
    """The usable cells of a mode in one sentence. Jobs at a fixed rate count only if there are no others.

    For example "raw-cached is served from memory, not by the disk: 35.2 % less throughput (24.0 to 44.7) than its host
    from the same cache, over 4 jobs."
    """
    full_speed = [cell for cell in cells if METRICS[cell.headline_name].higher_is_better]
    if full_speed:
        cells, metric, loss_names = full_speed, None, ("less throughput", "more throughput")
    else:
        metric = cells[0].headline_name
        cells = [cell for cell in cells if cell.headline_name == metric]
        loss_names = (f"higher {METRICS[metric].label}", f"lower {METRICS[metric].label}")
    loss = say_loss(loss_over_jobs(cells, metric=metric), *loss_names)
    jobs = f"over {len(cells)} jobs" if len(cells) > 1 else f"in {cells[0].job.id}"
    return f"{cells[0].mode} is served from memory, not by the disk: {loss} than its host from the same cache, {jobs}."


def answer(section: Section) -> Headline | None:
    """The answer for a disk of which only cached cells were measured."""
    cells = [cell for cell in cached_cells(section) if cell.usable]
    if any(not cell.is_baseline for cell in section.cells) or not cells:
        return None
    modes = ", ".join(f"`{mode}`" for mode in dict.fromkeys(cell.mode for cell in cells))
    sentence = f"{section.name}: {modes} was measured as served from memory, in {count(len(cells), 'job')}"
    return Headline(f"{sentence}: no figure is about the disk", (WARNING,))


def section_json(section: Section) -> Mapping[str, Any]:
    """The cached cells of a disk for `virt-overhead report --json`; nothing without any."""
    cells = cached_cells(section)
    return {"cached": [_cell_json(cell) for cell in cells]} if cells else {}


def _cell_json(cell: CellRecord) -> dict[str, Any]:
    cached = cell.cached
    return {
        "id": cell.id,
        "outcome": str(cell.outcome),
        "read_from_memory": {arm: share.share for arm, share in cached.reads.items()} if cached else {},
        "written_to_memory": {arm: share.share for arm, share in cached.writes.items()} if cached else {},
        "working_set_bytes": cached.working_set_bytes if cached else None,
        "available_bytes": cached.available_bytes if cached else None,
        "sentence": describe_cell(cell),
    }


def _describe_share(what: str, of: Mapping[str, MemoryShare]) -> str:
    guest, twin = of.get(Place.GUEST), of.get(Place.HOST)
    if guest is None:
        return f"{percent(twin.share)} % of the bytes {what} by the twin" if twin else f"bytes {what} not known"
    beside = f" (twin {percent(twin.share)} %)" if twin else ""
    return f"{percent(guest.share)} % of the bytes {what}{beside}"


def _format_shares(cell: CellRecord, direction: str) -> str:
    """The guest's share with the range of its slices, then that of the twin."""
    of: Mapping[str, MemoryShare] = getattr(cell.cached, direction) if cell.cached else {}
    shares = [f"{percent(share.share)} [{percent(share.low)}, {percent(share.high)}]" for share in _in_order(of)]
    return "; twin ".join(shares) or NONE


def _in_order(of: Mapping[str, MemoryShare]) -> Iterator[MemoryShare]:
    return (of[arm] for arm in (Place.GUEST, Place.HOST) if arm in of)


def _format_memory(cached: CachedRecord | None) -> str:
    if cached is None:
        return NONE
    size = format_size(cached.working_set_bytes)
    if cached.available_bytes is None:
        return size
    partly = ", partly cached" if is_partial(cached) else ""
    return f"{size} of {format_size(cached.available_bytes)} available{partly}"


def _format_mean(cell: CellRecord, arm: Any) -> str:
    mean = cell.mean(cell.headline, arm)
    return significant(mean.point / cell.headline_scale if mean else None)


def _direct_field(cell: CellRecord) -> TableCell | str:
    times = _times_direct(cell.cached) if cell.cached is not None and cell.usable else None
    return NONE if times is None else TableCell(times[0], interval=times[1])


def _times_direct(cached: CachedRecord) -> tuple[str, str] | None:
    """How many times the value of the disk with direct I/O the guest's is, and the interval."""
    loss = cached.against_direct
    if loss is None:
        return None
    return significant(_ratio(cached, loss.point)), _interval(cached, loss)


def _ratio(cached: CachedRecord, loss: float) -> float:
    return 1 - loss if METRICS[cached.metric].higher_is_better else 1 + loss


def _interval(cached: CachedRecord, loss: Estimate) -> str:
    if loss.low is None or loss.high is None:
        return ""
    ends = sorted((_ratio(cached, loss.low), _ratio(cached, loss.high)))
    return f"[{', '.join(map(significant, ends))}]"


REPORT = FeatureReport(
    subject=Subject(in_record=lambda cell: cell.is_cached),
    headline=answer,
    contents={ReportPlace.FINDINGS: cached_blocks},
    section_json=section_json,
)
