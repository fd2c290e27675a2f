"""All charts of the page: plotly's data and layout by the id of the element that shows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import plotly.graph_objects as go

from harness.analysis import METRICS
from harness.report import charts
from harness.report.cost_chart import cost_chart
from harness.report.heatmap import colour_limit, heat_map, heat_maps
from harness.report.latency_charts import histogram_chart, load_chart, percentiles_chart
from harness.report.model import ReportView
from harness.report.order import blocks_by_depth
from harness.report.order_chart import order_chart
from harness.report.section import Section
from harness.report.steadiness import steadiness
from harness.report.workload import WorkloadView

Figures = dict[str, Any]
T = TypeVar("T")


def figures(view: ReportView) -> Figures:
    """Every chart of the page. One that is of a single iodepth has a figure per depth."""
    found: Figures = {}
    for section in view.sections:
        if section.has_overhead:
            found |= _heat_maps(section)
        for number, workload in enumerate(section.workloads, start=1):
            if any(cell.measured for cell in workload.cells):
                found |= _of_workload(section, workload, f"{section.key}-w{number}", view.run.run.started)
    for conditioning in view.conditionings:
        for region in conditioning.regions:
            if not region.record.values:
                continue
            found[region.key] = plain_figure(steadiness(region))
    return found


def _of_workload(section: Section, workload: WorkloadView, key: str, started: float) -> Figures:
    modes = section.modes
    found: Figures = {}
    draw = charts.over_iodepth if len(workload.depths) > 1 else charts.at_one_depth
    if not workload.rated:
        found[f"{key}-throughput"] = plain_figure(draw(section, workload, "throughput"))
    found[f"{key}-latency"] = plain_figure(draw(section, workload, "latency"))
    found[f"{key}-split"] = _by_depth(
        {depth: depth for depth in workload.depths}, lambda depth: charts.split(section, workload, depth)
    )
    for of, distributions in workload.latencies.distributions.items():
        found[f"{key}-percentiles-{of}"] = _by_depth(distributions, lambda own: percentiles_chart(own, modes))
        found[f"{key}-histogram-{of}"] = _by_depth(distributions, lambda own: histogram_chart(own, modes))
    if workload.latencies.load:
        shown = METRICS[workload.cells[0].throughput_name].shown
        found[f"{key}-load"] = plain_figure(load_chart(workload.latencies.load, modes, shown))
    if blocks := blocks_by_depth(workload.cells, started):
        found[f"{key}-order"] = _by_depth(blocks, lambda own: order_chart(own, modes))
    if costs := {depth: arms for depth in workload.depths if (arms := workload.costs(depth))}:
        found[f"{key}-costs"] = _by_depth(costs, cost_chart)
    return found


def _by_depth(by_depth: Mapping[int, T], draw: Callable[[T], go.Figure]) -> Figures:
    """The figure of each iodepth, of which the page shows one."""
    return {"depths": {str(depth): plain_figure(draw(own)) for depth, own in by_depth.items()}}


def _heat_maps(section: Section) -> Figures:
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
