"""The page of a run: its header, a section for each disk, the evidence of each cell, and how it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from harness.analysis import METRICS, Estimate, Unit
from harness.analysis.metrics import SHOWN
from harness.feature import ReportPlace
from harness.report import background
from harness.report.background import conditioning_blocks, find_unsteady_disks, group_blocks
from harness.report.blocks import (
    Aside,
    AtDepth,
    Block,
    Box,
    Chart,
    Column,
    Fold,
    Heading,
    Inline,
    Key,
    Legend,
    Link,
    Listing,
    Mark,
    Navigation,
    Panels,
    Part,
    Row,
    Scale,
    Sentence,
    Table,
    TableCell,
    Tally,
    Words,
    join_words,
    make_table,
    microseconds_cell,
    percent_cell,
)
from harness.report.charts import (
    draw_at_one_depth,
    draw_over_iodepth,
    draw_split,
)
from harness.report.contents import blocks_at, find_banners, further_charts, further_tables, headline_of, lab_sentences
from harness.report.draw import LAYER, VIRTUALISATION
from harness.report.numbers import (
    NONE,
    confidence_words,
    count,
    format_pooled,
    microseconds,
    microseconds_interval,
    percent,
    percent_interval,
    percent_with_interval,
    round_up,
    sample_words,
    significant,
)
from harness.report.page import MOST_INLINE, render_page
from harness.report.section import Quantity, Section, WorkloadCells, find_sections, outcome_counts
from harness.report.terminal import efficiency_line
from harness.report.verdicts import (
    describe_finding,
    find_verdicts,
    format_limit,
    format_p_value,
    gravest_first,
    link_cell,
    verdict_blocks,
)
from harness.results import CellRecord, MetricRecord, Run, RunStore

_DOUBTS = {
    "void": "Void: the figures below are evidence and not a result.",
    "faster": "The guest is faster than its host by more than 5 %, also as one of all cells. This needs an explanation "
    "and is not a gain. The notes say what explains it, if that is known.",
}


def evidence_blocks(cell: CellRecord) -> Iterator[Block]:
    """Everything that is stored of a cell."""
    if cell.doubt:
        yield Sentence(_DOUBTS[cell.doubt], style="doubt")
    if cell.budget:
        yield _budget_table(cell)
    if cell.metrics:
        yield _metric_table(cell)
    if percentiles := {name: metric for name, metric in cell.metrics.items() if metric.pooled}:
        yield _percentile_table(cell, percentiles)
    if cell.validity:
        ok, failed = TableCell("ok", tone="within"), TableCell("failed", tone="void")
        yield make_table(
            cell.validity,
            f"Checks of {cell.id}",
            (Column("check", "head"), lambda check: check.check),
            (Column("passed", "text"), lambda check: ok if check.ok else failed),
            (Column("detail", "text"), lambda check: check.detail),
            style="facts",
        )
    if cell.notes:
        yield Listing(cell.notes)
    if cell.skipped:
        yield Sentence(f"Skipped: {cell.skipped}")
    if cell.raw:
        outputs: list[Inline] = [", "] * (2 * len(cell.raw) - 1)
        outputs[::2] = [_output(raw) for raw in cell.raw]
        yield Sentence(("fio's outputs: ", *outputs), style="raw")
    else:
        yield Sentence("No output of fio.")


def shown_value(estimate: Estimate | None, unit: Unit) -> str:
    """A stored value in the shown unit: IOPS, MB/s or us."""
    return NONE if estimate is None else significant(estimate.point / SHOWN[unit].scale)


def _budget_table(cell: CellRecord) -> Table:
    return make_table(
        gravest_first(cell.budget),
        f"Budgets of {cell.id}",
        (Column("budget in", "head"), lambda budget: budget.metric),
        (Column("at most", "sentence"), format_limit),
        (Column("found", "sentence"), lambda budget: describe_finding(cell, budget)),
        (Column("p", "text"), lambda budget: format_p_value(budget.p_value)),
        (Column("verdict", "text"), lambda budget: TableCell(str(budget.verdict), tone=str(budget.verdict))),
        style="facts",
    )


def _metric_table(cell: CellRecord) -> Table:
    names = ("unit", "host", "twin", "guest", f"overhead %, {confidence_words([cell])}", "added us")
    rows = (
        Row(
            (
                _metric_cell(name),
                SHOWN[metric.unit].unit,
                *(shown_value(cell.mean(metric, arm), metric.unit) for arm in ("host", "twin", "guest")),
                percent_with_interval(metric.overhead),
                f"{microseconds(metric.added.point)} {microseconds_interval(metric.added)}" if metric.added else NONE,
            )
        )
        for name, metric in cell.metrics.items()
    )
    columns = (Column("metric", "head"), *map(Column, names))
    return Table(columns, tuple(rows), f"Metrics of {cell.id}", style="facts numbers")


def _percentile_table(cell: CellRecord, percentiles: dict[str, MetricRecord]) -> Table:
    names = ("I/Os of the guest", "host", "twin", "guest", f"overhead %, {confidence_words([cell])}", "from")
    rows = (
        Row(
            (
                _metric_cell(name),
                f"{metric.pooled['guest'].ios:,}".replace(",", " ") if "guest" in metric.pooled else "",
                *(format_pooled(metric.pooled.get(arm)) for arm in ("host", "twin", "guest")),
                percent_with_interval(metric.overhead),
                sample_words(cell) if metric.overhead else "",
            )
        )
        for name, metric in percentiles.items()
    )
    return Table(
        (Column("percentile", "head"), *map(Column, names)),
        tuple(rows),
        "Percentiles, us: of all blocks' I/Os together, with the interval from the sampling of I/Os. The interval of "
        "the overhead is different: it comes from what each block contributes to these percentiles, in pairs.",
        style="facts numbers",
        caption_shown=True,
    )


def _metric_cell(name: str) -> TableCell:
    return TableCell(name, title=METRICS[name].label if name in METRICS else "")


def _output(raw: str) -> Inline:
    """A link to a raw output, relative to the page. A path that leads outside of the run is no link."""
    parts = raw.split("/")
    return Link(raw.removeprefix("raw/"), quote(raw)) if parts[0] == "raw" and ".." not in parts else raw


_FIRST = ("status", "judged")
"""The kinds of banners above the headline."""


def write_report(store: RunStore) -> Path:
    """Write index.html from results.json alone, and return its path. ResultsError if a file cannot be used."""
    return store.write_page(store.report_path.name, render_html(store.read_results()))


def render_html(run: Run) -> str:
    """The report as one page that loads no other file."""
    sections = find_sections(run)
    names = ", ".join(section.name for section in sections) or "no disk"
    return render_page(
        f"{names} \N{MIDDLE DOT} virt-overhead {run.run.id}",
        ("virt-overhead", run.run.id),
        _header_blocks(run, sections),
        _main_blocks(run, sections),
        scripted=True,
        cells=len(run.cells),
    )


def _header_blocks(run: Run, sections: Sequence[Section]) -> Iterator[Block]:
    banners = find_banners(run)
    yield from (banner for banner in banners if banner.kind in _FIRST)
    for number, section in enumerate(sections):
        headline = headline_of(section)
        yield Sentence(headline.sentence, style="headline") if number else Heading(headline.sentence, level=1)
        if headline.details:
            yield Sentence(" ".join(headline.details), style="basis")
        yield from blocks_at(ReportPlace.ANSWERS, section)
    if not sections:
        yield Heading("This run has no cells", level=1)
    yield Sentence(" ".join(lab_sentences(run)), style="basis")
    yield Sentence(_origin(run), style="basis meta")
    yield from (banner for banner in banners if banner.kind not in _FIRST)
    if run.cells:
        yield Tally({str(outcome): number for outcome, number in outcome_counts(run.cells).items()})
    if len(sections) > 1:
        disks = (Link(section.name, f"#{section.key}") for section in sections)
        yield Navigation("Disks", (Link("verdicts", "#verdicts"), *disks, Link("how it was measured", "#background")))


def _origin(run: Run) -> Words:
    """When and where the run was measured."""
    started, efficiency = background.moment(run.run.started), efficiency_line(run)
    if run.lab.imported:
        return f"Results of fio from elsewhere, imported; the first is from {started}. {efficiency}."
    host, profile = Mark(run.lab.host, "bold"), Mark(run.run.profile, "bold")
    where = f" ({run.lab.kind}, {run.lab.accel}), profile "
    return join_words(f"{started} on ", host, where, profile, f", {run.run.status}. {efficiency}.")


def _main_blocks(run: Run, sections: Sequence[Section]) -> Iterator[Block]:
    yield Box((*verdict_blocks(find_verdicts(run.cells)),), key="verdicts")
    unsteady = find_unsteady_disks(run)
    for section in sections:
        state = Mark("not steady", "verdict", "exceeds") if section.all_cells[0].disk in unsteady else None
        title = Mark(f"{section.title}; " if state else section.title, "small")
        heading = Heading(join_words(section.name, " ", title, *([state] if state else [])), level=2)
        yield Box((heading, *_section_blocks(section)), key=section.key, style="disk")
    yield Box((Heading("How it was measured", level=2), *_background_blocks(run)), key="background")


def _section_blocks(section: Section) -> Iterator[Block]:
    yield from blocks_at(ReportPlace.FACTS, section)
    yield from blocks_at(ReportPlace.DIFFERENCES, section)
    yield from _mode_blocks(section)
    if general := section.notes.general:
        yield Heading("What to know about these figures")
        yield Listing(tuple(join_words(f"{note.text} ", Mark(f"({note.about})", "small")) for note in general))
    yield from blocks_at(ReportPlace.OVERVIEW, section)
    yield Box((*_workloads(section), *blocks_at(ReportPlace.FINDINGS, section)), style="workloads")
    yield from blocks_at(ReportPlace.COSTS, section)
    yield from background.configuration_blocks(section)
    yield Heading("Evidence")
    yield Aside("Each cell with every metric, the checks of its measurement and fio's outputs exactly as printed.")
    style = "proofs many" if len(section.cells) > MOST_INLINE else "proofs"
    yield Box((Box(tuple(map(_evidence, section.all_cells)), lazy=f"{section.key}-proofs"),), style=style)


def _mode_blocks(section: Section) -> Iterator[Block]:
    """What each mode loses over the same jobs, and the two parts of it."""
    comparison = section.comparison
    if not comparison.modes:
        return
    yield make_table(
        comparison.modes,
        f"Throughput lost by mode, over {'the same ' * (comparison.jobs > 1)}{count(comparison.jobs, 'job')}",
        (Column("mode", "head"), lambda mode: mode.mode),
        (
            Column("lost, %", "strong", interval=comparison.confidence),
            lambda mode: TableCell(percent(mode.overhead.point), interval=percent_interval(mode.overhead) or "none"),
        ),
        (Column("n"), lambda mode: str(mode.overhead.n)),
        (
            Column("drawing", "drawing", scale=Scale.around([mode.overhead for mode in comparison.modes]), hidden=True),
            lambda mode: TableCell("", drawn=mode.overhead),
        ),
        (Column((Key("storage layer, %", LAYER),)), lambda mode: percent_with_interval(mode.layer)),
        (Column((Key("virtualisation, %", VIRTUALISATION),)), lambda mode: percent_with_interval(mode.virtualisation)),
        style="glance",
        caption_shown=True,
    )
    yield Aside(
        "Storage layer: the host on the mode's own volume or file (the twin) against the bare device. Virtualisation: "
        "the guest against the twin. The parts multiply: 1 \N{MINUS SIGN} overhead = (1 \N{MINUS SIGN} storage layer) "
        "\N{MULTIPLICATION SIGN} (1 \N{MINUS SIGN} virtualisation)."
    )


def _workloads(section: Section) -> Iterator[Block]:
    yield Heading("By workload")
    if any(cell.measured for cell in section.cells):
        yield Legend(section.key, section.modes, section.depths, section.split_depth)
    for number, workload in enumerate(section.workloads, start=1):
        key = f"{section.key}-w{number}"
        yield Part(workload.name, (*_workload_blocks(section, workload, key),), key, lazy=True)


def _workload_blocks(section: Section, workload: WorkloadCells, key: str) -> Iterator[Block]:
    """The charts of a workload, its cells, and what is known beside these."""
    if any(cell.measured for cell in workload.cells):
        charts = _workload_charts(section, workload, key)
        yield Panels((*charts, *further_charts(section, workload, key)))
    yield _cell_table(section, workload)
    yield from further_tables(section, workload, key)


def _workload_charts(section: Section, workload: WorkloadCells, key: str) -> Iterator[Chart]:
    several = len(workload.depths) > 1
    draw = draw_over_iodepth if several else draw_at_one_depth
    quantities: list[tuple[Quantity, str, str]] = [
        (
            "latency",
            "Mean completion latency, us" + ("" if several else ", with intervals"),
            "Mean completion latency of each arm by iodepth, as in the table of latencies",
        )
    ]
    if not workload.rated:
        name = "IOPS" if workload.cells[0].job.is_random else "Bandwidth, MB/s"
        over = "over iodepth" if several else f"at iodepth {workload.depths[0]}, with intervals"
        label = f"{workload.unit} of each arm by iodepth, as in the table"
        quantities.insert(0, ("throughput", f"{name} {over}", label))
    for quantity, caption, label in quantities:
        marks = f"; {'dotted' if several else 'vertical marks'}: what budgets allow"
        yield Chart(
            f"{key}-{quantity}",
            lambda quantity=quantity: draw(section, workload, quantity),  # type: ignore[misc]
            caption + marks * bool(workload.allowances(quantity)),
            label,
            style="",
        )
    doubt = ["; hatched: not a result"] if any(cell.doubt for cell in workload.cells) else []
    yield Chart(
        f"{key}-split",
        {depth: lambda depth=depth: draw_split(section, workload, depth) for depth in workload.depths},  # type: ignore[misc]
        join_words(Key("Storage layer and ", LAYER), Key("virtualisation, %", VIRTUALISATION), AtDepth(), *doubt),
        "Overhead of storage layer and virtualisation by mode, as in the table",
        style="split",
    )


def _cell_table(section: Section, workload: WorkloadCells) -> Table:
    unit = workload.unit
    columns = (
        Column("iodepth", "depth"),
        Column("mode", "mode"),
        *(Column(f"{arm} {unit}") for arm in ("host", "twin", "guest")),
        Column("overhead %", "strong", interval=confidence_words(workload.cells)),
        *map(Column, ("n", "layer %", "virt. %")),
        Column("added us", "strong", interval=""),
        Column("verdict", "verdict"),
        Column("evidence", "evidence", hidden=True),
    )
    rows = []
    for depth in workload.depths:
        cells = [cell for cell in workload.cells if cell.iodepth == depth]
        for number, cell in enumerate(cells):
            remarks = (cell.remarks if cell.measured else ()) + section.notes.own[cell.id]
            rows.append(
                Row(
                    (
                        TableCell(str(depth), repeated=number > 0),
                        cell.mode,
                        *_figures(cell),
                        TableCell(cell.outcome, tone=cell.outcome, notes=tuple(_verdict_notes(cell))),
                        TableCell((Link("evidence", link_cell(cell), f"evidence of {cell.id}"),)),
                    ),
                    doubtful=bool(cell.doubt),
                    remark="; ".join(remarks),
                    group=str(depth),
                    of=f"{cell.id} {cell.outcome}",
                    tone=cell.outcome,
                )
            )
    return Table(columns, tuple(rows), f"Cells of {workload.name} on {section.name}")


def _figures(cell: CellRecord) -> tuple[TableCell | str, ...]:
    """The fields of a cell between its mode and its verdict, or why there are none."""
    metric = cell.headline
    if not cell.measured or metric is None:
        return (TableCell("; ".join(cell.remarks), columns=8),)
    overhead, added = cell.overhead, cell.added
    return (
        *(shown_value(cell.mean(metric, arm), metric.unit) for arm in ("host", "twin", "guest")),
        percent_cell(overhead),
        str(cell.n),
        *(percent(part.point if part else None) for part in (metric.layer, metric.virtualisation)),
        microseconds_cell(added),
    )


def _verdict_notes(cell: CellRecord) -> Iterator[str]:
    if cell.usable and cell.doubt:
        yield "faster than its host: find out why"
    if cell.usable and len(cell.budget) > 1:
        yield from (f"{budget.metric} {budget.verdict}" for budget in gravest_first(cell.budget))
    if cell.proven_below is not None:
        yield f"proven below {round_up(cell.proven_below)} %"


def _evidence(cell: CellRecord) -> Fold:
    return Fold(
        join_words(f"`{cell.id}`", " ", Mark(cell.outcome, "verdict", cell.outcome)),
        (*evidence_blocks(cell),),
        key=f"proof-{cell.id}",
        anchor=link_cell(cell).removeprefix("#"),
        of=f"{cell.id} {cell.outcome}",
    )


def _background_blocks(run: Run) -> Iterator[Block]:
    if not run.lab.imported:
        yield Heading("Where the run's time went")
        rest = "The rest is starting guests, building and filling layouts, and reading counters."
        yield Aside(f"{efficiency_line(run)}. {rest}")
        if phases := background.find_phases(run):
            yield background.phase_table(phases)
    yield from conditioning_blocks(run)
    yield from group_blocks(run)
    yield from background.run_blocks(run)
    yield Heading("Reading the figures")
    yield Listing(tuple(_explanations(run)))


def _explanations(run: Run) -> Iterator[Words]:
    imported = run.lab.imported
    yield (
        "Overhead is how much worse the guest is: 1 \N{MINUS SIGN} guest/host for IOPS and bandwidth. Below zero, the "
        "guest was faster. This needs an explanation and is not a gain."
    )
    unit = "pairs" if imported else "blocks"
    what = (
        "A sample is a block: one short slice of every arm, in random order, seconds apart. If the guest was booted "
        "several times, the samples are the means of the boots."
    )
    looks = (
        " If there were interim looks at the data, each interval is wider, and the intervals of all looks together "
        "hold with 95 %."
    )
    if imported:
        what = (
            "A sample is a pair of imported results: the n-th of the host and the n-th of the guest, in the order of "
            "time. The page calls it a block of round n. Who measured them, and how, is not known."
        )
        looks = ""
    yield (
        f"{what} n is the number of samples. Estimates are the geometric mean of the {unit}' ratios. Intervals are "
        f"Student's t on the logarithms.{looks}"
    )
    one_boot = not imported and any(cell.measured and cell.boot_count == 1 for cell in run.cells)
    boot = " or another boot of a guest, of which some cells had only one," if one_boot else ""
    yield f"An interval is about this run. It does not say what another day{boot} would give."
    yield join_words(
        "A verdict needs the whole interval on one side of the budget. An ",
        Mark("exceeds"),
        " is also corrected for all budgets of the run (Benjamini-Hochberg): of 40 of them, at most one is expected to "
        "be a false alarm.",
    )
    yield join_words(
        "Added latency is guest minus host of the mean completion latency, or of the latency in the columns beside it. "
        "us is microseconds, MB is 10",
        Mark("6", "raised"),
        " bytes.",
    )
    yield (
        "Values have three significant digits. Void cells are grey and left out of all means and comparisons. Guests "
        "faster than their host are marked."
    )
