"""The part of the report: the cost of each step from the bare host to the guest, as a waterfall."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis import CONFIDENCE, Estimate
from harness.feature import FeatureReport, ReportPlace
from harness.features.decompose.records import DecompositionRecord
from harness.report.blocks import (
    Aside,
    AtDepth,
    Block,
    Chart,
    Column,
    Heading,
    Key,
    Listing,
    Mark,
    On,
    Part,
    Row,
    Sentence,
    Table,
    TableCell,
    join_words,
    make_table,
    microseconds_cell,
    percent_cell,
)
from harness.report.draw import HOST, LAYER, VIRTUALISATION, Bar, Figure, draw_bars, find_starts, safe
from harness.report.numbers import count, microseconds, percent_interval, signed_percent, significant
from harness.report.section import Section

ALL = "all steps"


@dataclass(frozen=True, slots=True)
class StepChange:
    """What one step changes, or all of them together."""

    change: str
    arm: str
    added: Estimate
    """In seconds."""
    overhead: Estimate
    """As a share of the arm before; of the host for all steps."""
    so_far: Estimate
    """As a share of the host."""
    beyond_chance: bool | None
    """Whether the step differs from zero, corrected for the number of steps; None if that is not judged."""
    doubt: str
    """The failed checks of the arm, or of the one before, because of which this is not a result; else empty."""
    exits: str = ""
    """How it changes the exits to KVM for an I/O, if both arms are guests and the change is large; else empty."""

    @property
    def remark(self) -> str:
        """Why the step is not a finding; empty if it is one."""
        if self.doubt:
            return f"not a result: {self.doubt}"
        return "not beyond chance" if self.beyond_chance is False else ""


_Depths = dict[int, DecompositionRecord]
"""The decompositions of one workload, by iodepth."""
_Exits = Mapping[str, Mapping[str, float]]
"""The exits to KVM for an I/O of an arm, all (`exits`) and those by HLT (`halt_exits`), by the arm's id."""
_LARGE = 0.1
"""A smaller change of the exits, as a share, explains no step."""


def waterfall_blocks(section: Section) -> Iterator[Block]:
    """The decompositions of a disk; nothing without any. Text has the smallest depth: there, an I/O waits for no other
    and pays each step once."""
    groups = _group_decompositions(section)
    if not groups:
        return
    yield Heading("Step by step")
    yield Aside(
        join_words(
            "The cost of each step, as mean latency of one I/O from submission to completion. The first arm is the "
            "bare host, and each step changes one thing. Within a block, the steps add up to the whole, and so do "
            "their means. Percentages are relative to the arm before, and multiply. Each interval is for its step "
            "alone. ",
            f"Each arm, also the bare host, contains the network: {section.network}. " if section.network else "",
            Mark("Beyond chance"),
            " is judged over all steps of a waterfall together (Holm).",
        )
    )
    for number, ((name, workload), by_depth) in enumerate(groups.items(), start=1):
        changes = {depth: list_changes(record, _count_exits(section, record.job)) for depth, record in by_depth.items()}
        yield from _describe_waterfall(f"{section.key}-fall{number}", f"{name}, {workload}", by_depth, changes)


def _group_decompositions(section: Section) -> dict[tuple[str, str], _Depths]:
    """By the name of the decomposition and of the workload: those of each depth, the smallest first."""
    jobs = {cell.job.id: cell for cell in section.cells}
    groups: dict[tuple[str, str], _Depths] = {}
    for record in section.own(section.run.of(DecompositionRecord)):
        if (cell := jobs.get(record.job)) is not None:
            groups.setdefault((record.name, cell.workload), {})[cell.iodepth] = record
    return {names: dict(sorted(by_depth.items())) for names, by_depth in groups.items()}


def _count_exits(section: Section, job: str) -> _Exits:
    """The exits of the guests that ran this job, as far as they were counted."""
    exits: dict[str, dict[str, float]] = {}
    for cell in section.cells:
        costs = {name: cell.accounting.get(name) for name in ("exits", "halt_exits")}
        if cell.job.id == job:
            exits[f"guest:{cell.mode}"] = {
                name: fmean(cost.guest) for name, cost in costs.items() if cost and cost.guest
            }
    return exits


def _describe_exits(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    one, other = before.get("exits"), after.get("exits")
    if one is None or other is None or abs(other - one) < _LARGE * one:
        return ""
    words = f"{significant(one)} -> {significant(other)}"
    if "halt_exits" in before and "halt_exits" in after:
        words += f", by HLT {significant(before['halt_exits'])} -> {significant(after['halt_exits'])}"
    return words


def list_changes(record: DecompositionRecord, exits: _Exits | None = None) -> tuple[StepChange, ...]:
    """The steps in order, then the last arm against the first; none if the decomposition was skipped."""
    counted = exits or {}
    if record.added is None or record.overhead is None:
        return ()
    changes = []
    for before, step in zip(record.steps, record.steps[1:], strict=False):
        if step.added is None or step.overhead is None or step.so_far is None:
            continue
        judged = step.shown if step.p_value is not None else None
        doubt = _join_doubts(before.doubt, step.doubt)
        words = _describe_exits(counted.get(before.arm, {}), counted.get(step.arm, {}))
        changes.append(StepChange(step.change, step.arm, step.added, step.overhead, step.so_far, judged, doubt, words))
    first, last = record.steps[0], record.steps[-1]
    doubt = _join_doubts(first.doubt, last.doubt)
    return (*changes, StepChange(ALL, last.arm, record.added, record.overhead, record.overhead, None, doubt))


def _join_doubts(*doubts: str) -> str:
    return ", ".join(dict.fromkeys(filter(None, doubts)))


_Changes = Mapping[int, Sequence[StepChange]]
"""The steps of a decomposition by iodepth."""


def _describe_waterfall(key: str, title: str, by_depth: _Depths, changes: _Changes) -> Iterator[Block]:
    """One decomposition of one workload at all depths. Exits have a column if they explain a step."""
    with_exits = any(step.exits for steps in changes.values() for step in steps)
    drawn = {depth: record for depth, record in by_depth.items() if record.added is not None}
    early = any(record.confidence > CONFIDENCE for record in drawn.values())
    confidence = f"{CONFIDENCE * 100:.0f} % each{', over all looks' if early else ''}"
    table = Table(
        (
            Column("iodepth", "depth"),
            Column("step", "step"),
            Column("adds us", "strong", interval=confidence),
            Column("adds %", interval=""),
            Column("so far, % of host", interval=""),
            Column("beyond chance"),
            *((Column("KVM exits per I/O", "text"),) if with_exits else ()),
        ),
        tuple(
            row
            for depth, record in by_depth.items()
            for row in _make_rows(depth, record, changes[depth], with_exits=with_exits)
        ),
        f"Steps of {title}",
        style="cells steps",
    )
    chart = Chart(
        key,
        {depth: lambda record=record: draw_waterfall(record) for depth, record in drawn.items()},  # type: ignore[misc]
        (
            Key("storage layer, ", LAYER),
            Key("guest, ", VIRTUALISATION),
            Key("all steps", HOST),
            AtDepth(),
            "; hatched: not a result",
        ),
        f"Waterfall of {title}, as in the table",
    )
    yield Part(title, (chart, table) if drawn else (table,), key)
    yield from _describe_smallest_depth(title, by_depth, drawn, changes, confidence)


def _describe_smallest_depth(
    title: str, by_depth: _Depths, drawn: _Depths, changes_by_depth: _Changes, confidence: str
) -> Iterator[Block]:
    if not drawn:
        reason = next(iter(by_depth.values())).skipped
        yield Sentence(f"{title}: no decomposition: {reason}", on=On.TERMINAL)
        yield Sentence((Mark(title, "strong"), f": {reason or ''}"), on=On.MARKDOWN)
        return
    depth, record = next(iter(drawn.items()))
    changes, basis = changes_by_depth[depth], _describe_basis(record)
    yield Sentence(f"{title} qd{depth}, mean latency [{confidence}]. {basis}:", on=On.TERMINAL)
    yield Listing(tuple(_align_steps(changes)), on=On.TERMINAL, indent=2)
    if len(drawn) > 1:
        yield Sentence(f"and {count(len(drawn) - 1, 'larger depth')}: see the report", on=On.TERMINAL, indent=2)
    yield Sentence((Mark(f"{title} qd{depth}.", "strong"), f" {basis}."), on=On.MARKDOWN)
    yield make_table(
        changes,
        f"Steps of {title}",
        (Column("step", "text"), lambda step: step.change),
        (Column("adds us", interval=confidence), _format_added),
        (Column("adds %", interval=""), lambda step: _format_share(step.overhead)),
        (Column("", "text"), _remark_on),
        on=On.MARKDOWN,
    )


def _remark_on(step: StepChange) -> str:
    """Why the step is not a finding, and how it changes the exits; empty for neither."""
    return "; ".join(filter(None, (step.remark, f"KVM exits per I/O {step.exits}" if step.exits else "")))


def _make_rows(
    depth: int, record: DecompositionRecord, changes: Sequence[StepChange], *, with_exits: bool
) -> Iterator[Row]:
    """The rows of one depth: what they are based on, then each step."""
    if not changes:
        yield Row((str(depth), record.skipped or ""), group=str(depth))
        return
    yield Row((str(depth), _describe_basis(record)), group=str(depth), tone="remark")
    for step in changes:
        chance = "" if step.beyond_chance is None else "yes" if step.beyond_chance else "no"
        yield Row(
            (
                TableCell(str(depth), repeated=True),
                step.change,
                microseconds_cell(step.added),
                percent_cell(step.overhead),
                percent_cell(step.so_far),
                "not a result" if step.doubt else chance,
                *((step.exits,) if with_exits else ()),
            ),
            doubtful=bool(step.doubt),
            remark=step.remark if step.doubt else "",
            group=str(depth),
        )


def _describe_basis(record: DecompositionRecord) -> str:
    """For example "Host 80.1 us, 5 blocks; blocks of rounds 2 and 4 lack an arm and are not used"."""
    words = f"Host {microseconds(fmean(record.steps[0].values))} us, {count(len(record.rounds), 'block')}"
    if record.left_out:
        rounds = "round" if len(record.left_out) == 1 else "rounds"
        numbers = " and ".join(", ".join(map(str, record.left_out)).rsplit(", ", 1))
        words += f"; blocks of {rounds} {numbers} lack an arm and are not used"
    return words


def _align_steps(changes: Sequence[StepChange]) -> Iterator[str]:
    """The steps as lines whose figures are below each other."""
    figures = [(_join_cell(_format_added(step)), _join_cell(_format_share(step.overhead))) for step in changes]
    widths = [max(len(pair[column]) for pair in figures) for column in (0, 1)]
    for step, (added, overhead) in zip(changes, figures, strict=True):
        name = f"{ALL}, to {step.arm}" if step.change == ALL else step.change
        remark = f" ({words})" if (words := _remark_on(step)) else ""
        yield f"{added:<{widths[0]}} us  {overhead:<{widths[1]}} %  {name}{remark}"


def _format_added(step: StepChange) -> TableCell:
    return microseconds_cell(step.added, signed=True)


def _format_share(estimate: Estimate) -> TableCell:
    return TableCell(signed_percent(estimate.point), interval=percent_interval(estimate))


def _join_cell(cell: TableCell) -> str:
    return f"{cell.text} {cell.interval}".rstrip()


def draw_waterfall(record: DecompositionRecord) -> Figure:
    """Microseconds added to the host's mean latency, from top to bottom. Steps that are not a result are grey and
    hatched.

    Only for a decomposition that was not skipped.
    """
    *steps, whole = list_changes(record)
    starts = find_starts(step.added for step in steps)
    bars = [
        _make_bar(f"{number}. {step.change.partition(' (')[0]}", step, start)
        for number, (step, start) in enumerate(zip(steps, starts, strict=True), 1)
    ]
    return draw_bars([*bars, _make_bar(ALL, whole, 0.0)], blocks=len(record.rounds))


def _make_bar(label: str, step: StepChange, start: float) -> Bar:
    colour = HOST
    if not step.doubt and step.change != ALL:
        colour = LAYER if step.arm.startswith("twin:") else VIRTUALISATION
    remark = f"<br>{step.remark}" if step.remark else ""
    added, overhead = _join_cell(_format_added(step)), _join_cell(_format_share(step.overhead))
    hover = f"{safe(step.arm)}<br>{added} us, {overhead} %{remark}"
    return Bar(label, step.added, start, colour, hover, bool(step.doubt))


REPORT = FeatureReport(records=(DecompositionRecord,), contents={ReportPlace.PARTS: waterfall_blocks})
