"""The charts of a workload and the heat-maps: plotly's data and layout by the id of the element that shows them."""

from __future__ import annotations

from typing import Any

from harness.report import charts
from harness.report.heatmap import colour_limit, heat_map, heat_maps
from harness.report.model import ReportView
from harness.report.section import Section
from harness.report.workload import WorkloadView

Figures = dict[str, Any]


def figures(view: ReportView) -> Figures:
    """A figure for each chart; for a chart of a single iodepth, one per depth."""
    found: Figures = {}
    for section in view.sections:
        if section.has_overhead:
            limit = colour_limit(section.heat_map.values)
            for number, part in enumerate(heat_maps(section), start=1):
                found[f"{section.key}-heat{number}"] = heat_map(part, limit).document
        for number, workload in enumerate(section.workloads, start=1):
            if any(cell.measured for cell in workload.cells):
                found |= _of_workload(section, workload, f"{section.key}-w{number}")
    return found


def _of_workload(section: Section, workload: WorkloadView, key: str) -> Figures:
    draw = charts.over_iodepth if len(workload.depths) > 1 else charts.at_one_depth
    quantities = {} if workload.rated else {f"{key}-throughput": draw(section, workload, "throughput").document}
    splits = {str(depth): charts.split(section, workload, depth).document for depth in workload.depths}
    return {
        **quantities,
        f"{key}-latency": draw(section, workload, "latency").document,
        f"{key}-split": {"depths": splits},
    }
