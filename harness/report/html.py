"""One offline HTML page: the template with the view model, charts as JSON, and plotly.js embedded once."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from harness.analysis import METRICS, Estimate, Unit
from harness.analysis.metrics import SHOWN
from harness.report import background, budgets, charts, numbers, packing
from harness.report.best import BEST_HEAD
from harness.report.cells import CellView, confidence_words
from harness.report.cost_chart import cost_chart
from harness.report.costs import why_no_cycles
from harness.report.heatmap import colour_limit, heat_map, heat_maps
from harness.report.intervals import Scale
from harness.report.model import ReportView, Section, report_view
from harness.report.neighbours import NEIGHBOUR_COLUMNS, SHARED_COLUMNS
from harness.report.packing import Parts, packed, packed_plotly
from harness.report.search_chart import search_chart
from harness.report.steadiness import steadiness
from harness.report.terminal import efficiency_line
from harness.report.theme import HOST, LAYER, PART_COLOURS, VIRTUALISATION, mode_colours, mode_symbols, templates
from harness.report.verdicts import Judged
from harness.report.waterfall_chart import waterfall_chart
from harness.results import MetricRecord, PooledPercentile, Run
from harness.units import format_duration

_TEMPLATES = Path(__file__).parent / "templates"


def render_html(run: Run) -> str:
    """The report as one page that loads no other file."""
    view = report_view(run)
    page = environment().get_template("report.html.j2")
    parts = Parts(len(run.cells))
    facts, checksums = background.provenance(run)
    return page.render(
        view=view,
        run=run,
        part=parts.part,
        parts=parts.script,
        most_inline=packing.MOST_INLINE,
        figures=packed(compact_json(figures(view))),
        templates=packed(compact_json(templates())),
        plotly_js=packed_plotly(),
        about=background.about_run(run),
        provenance=facts,
        checksums=checksums,
        phases=background.phases(run),
        efficiency=efficiency_line(run),
        why_no_cycles=why_no_cycles(run),
    )


def figures(view: ReportView) -> dict[str, Any]:
    """plotly's data and layout by the id of the element that shows them. A split or waterfall has one per depth."""
    found: dict[str, Any] = {}
    for section in view.sections:
        if section.has_overhead:
            found |= _heat_maps(section)
        for number, workload in enumerate(section.workloads, start=1):
            key = f"{section.key}-w{number}"
            if not any(cell.measured for cell in workload.cells):
                continue
            if not workload.rated:
                found[f"{key}-throughput"] = plain_figure(charts.over_iodepth(section, workload, "throughput"))
            found[f"{key}-latency"] = plain_figure(charts.over_iodepth(section, workload, "latency"))
            by_depth = {depth: charts.split(section, workload, depth) for depth in workload.depths}
            found[f"{key}-split"] = {"depths": {str(depth): plain_figure(figure) for depth, figure in by_depth.items()}}
            costs = {depth: arms for depth in workload.depths if (arms := workload.costs(depth))}
            if costs:
                by_depth = {depth: cost_chart(arms) for depth, arms in costs.items()}
                found[f"{key}-costs"] = {
                    "depths": {str(depth): plain_figure(figure) for depth, figure in by_depth.items()}
                }
        for group in section.waterfalls:
            if group.drawn:
                drawn = {str(each.iodepth): plain_figure(waterfall_chart(each)) for each in group.drawn}
                found[group.key] = {"depths": drawn}
        for search in section.searches:
            found[search.key] = plain_figure(search_chart(search, section.modes))
    for conditioning in view.conditionings:
        for region in conditioning.regions:
            if not region.record.values:
                continue
            found[region.key] = plain_figure(steadiness(region))
    return found


def _heat_maps(section: Section) -> dict[str, Any]:
    limit = colour_limit(section.heat_map.values)
    parts = enumerate(heat_maps(section), start=1)
    return {f"{section.key}-heat{number}": plain_figure(heat_map(part, limit)) for number, part in parts}


def plain_figure(figure: go.Figure) -> Any:
    """The figure as JSON values, without a template: the page adds the one for light or dark."""
    figure.update_layout(template="none", dragmode=False)
    document = json.loads(figure.to_json())
    document["layout"].pop("template", None)
    return document


def compact_json(value: object) -> str:
    """JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@cache
def environment() -> Environment:
    """The templates of pages, with the filters that they use. All pages share it: nobody may change it."""
    # A run writes its report many times. To compile the templates takes longer than all the rest.
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "code": _code,
        "num": _typographic,
        "number": lambda value: _typographic(numbers.significant(value)),
        "percent": lambda estimate: _typographic(numbers.percent(estimate.point if estimate else None)),
        "interval": lambda estimate: _typographic(numbers.percent_interval(estimate)),
        "both": lambda estimate: _typographic(numbers.percent_with_interval(estimate)),
        "us": lambda estimate: _typographic(numbers.microseconds(estimate.point if estimate else None)),
        "plain": lambda estimate: _typographic(numbers.significant(estimate.point if estimate else None)),
        "us_interval": lambda estimate: _typographic(numbers.microseconds_interval(estimate)),
        "share": lambda share: _typographic(numbers.percent(share)),
        "up": lambda percent: f"{math.ceil(percent * 10) / 10:g}",
        "grouped": lambda number: _typographic(f"{number:,}".replace(",", " ")),
        "duration": format_duration,
        "moment": background.moment,
        "link": _link,
        "slug": lambda text: re.sub(r"[^A-Za-z0-9._-]+", "-", text),
    }
    environment.globals |= {
        "best_head": BEST_HEAD,
        "metric_value": _metric_value,
        "configuration": lambda cells: background.differing(background.configuration(cells)),
        "scale_of": _scale_of,
        "verdict_scale": _verdict_scale,
        "by_quantity": _by_quantity,
        "confidence_words": confidence_words,
        "budget_limit": budgets.limit,
        "budget_finding": budgets.finding,
        "p_value": budgets.p_value,
        "gravest_first": budgets.gravest_first,
        "batch_count": numbers.batch_count,
        "pooled": _pooled,
        "pooled_percentiles": _pooled_percentiles,
        "colour_limit": colour_limit,
        "heat_maps": heat_maps,
        "mode_colours": mode_colours,
        "mode_symbols": mode_symbols,
        "metrics": METRICS,
        "shown": SHOWN,
        "HOST": HOST,
        "LAYER": LAYER,
        "VIRTUALISATION": VIRTUALISATION,
        "part_colours": PART_COLOURS,
        "NEIGHBOUR_COLUMNS": NEIGHBOUR_COLUMNS,
        "SHARED_COLUMNS": SHARED_COLUMNS,
    }
    return environment


def _code(sentence: str) -> Markup:
    """Escaped text, with code between backticks. Figures do not break across lines and have proper minus signs."""
    whole = _FIGURE.sub(lambda figure: figure[0].replace(" ", "\N{NO-BREAK SPACE}"), _signed(sentence))
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(whole))))


_FIGURE = re.compile(r"[<>]?[\d.\N{MINUS SIGN}]+ %(?: \[[^\]]*\])?")


def _signed(text: str) -> str:
    return re.sub(r"(?<![\w-])-(?=\d)", "\N{MINUS SIGN}", text)


def _typographic(text: str) -> str:
    """A number of numbers.py with a minus sign and narrow spaces between thousands."""
    return re.sub(r"(?<=\d) (?=\d{3})", "\N{NARROW NO-BREAK SPACE}", text.replace("-", "\N{MINUS SIGN}"))


def _metric_value(estimate: Estimate | None, unit: Unit) -> str:
    """A stored value in the shown unit: IOPS, MB/s or us."""
    if estimate is None:
        return numbers.NONE
    return _typographic(numbers.significant(estimate.point / SHOWN[unit].scale))


def _scale_of(section: Section) -> Scale:
    return Scale.around([mode.overhead for mode in section.comparison.modes])


def _by_quantity(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """Throughput and latency separately: on the scale of a latency that is 400 % worse, a loss of 20 % is invisible."""
    tables: dict[str, list[Judged]] = {}
    for each in sorted(judged, key=lambda each: METRICS[each.budget.metric].is_latency):
        tables.setdefault("Latency" if METRICS[each.budget.metric].is_latency else "Throughput", []).append(each)
    return tables


def _verdict_scale(judged: Sequence[Judged]) -> Scale:
    """One scale for all rows of a table of verdicts, with room for their budgets."""
    limits = [share for each in judged if (share := each.budget.limit.share) is not None]
    return Scale.around([each.overhead for each in judged if each.overhead is not None], limits)


def _pooled_percentiles(cell: CellView) -> dict[str, MetricRecord]:
    return {name: metric for name, metric in cell.record.metrics.items() if metric.pooled or metric.batches}


def _pooled(percentile: PooledPercentile | None) -> str:
    """The percentile in us with its interval: "213 [210, 217]"."""
    if percentile is None:
        return numbers.NONE
    interval = numbers.microseconds_range(percentile.low, percentile.high)
    return _typographic(f"{numbers.microseconds(percentile.value)} {interval}")


def _link(raw: str) -> str:
    """The address of a raw output relative to the page; empty if the path leads outside of the run."""
    parts = raw.split("/")
    return quote(raw) if parts[0] == "raw" and ".." not in parts else ""
