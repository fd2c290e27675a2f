"""One offline HTML page: the template with the view model, charts as JSON, and plotly.js embedded once."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from harness.feature import ReportPlace
from harness.report import background, budgets, numbers, packing
from harness.report.blocks import slug
from harness.report.cells import confidence_words
from harness.report.contents import blocks_at, further_charts, further_tables, headline_of
from harness.report.evidence import evidence_blocks, shown_value
from harness.report.figures import figures
from harness.report.groups import conditioning_blocks, find_unsteady_disks, group_blocks
from harness.report.heatmap import colour_limit, heat_maps
from harness.report.intervals import Scale
from harness.report.model import report_view
from harness.report.order import order_blocks
from harness.report.packing import compact_json, packed, packed_plotly
from harness.report.page import Page, typographic, words
from harness.report.section import Section
from harness.report.terminal import efficiency_line
from harness.report.theme import HOST, LAYER, VIRTUALISATION, mode_colours, mode_symbols, templates
from harness.report.verdicts import verdict_blocks
from harness.results import Run
from harness.terminal import visible
from harness.units import format_duration

_TEMPLATES = Path(__file__).parent / "templates"


def render_html(run: Run) -> str:
    """The report as one page that loads no other file."""
    view = report_view(run)
    page = environment().get_template("report.html.j2")
    blocks = Page(len(run.cells))
    parts = blocks.parts
    return page.render(
        view=view,
        run=run,
        part=parts.part,
        parts=parts.script,
        blocks=lambda place, section: blocks.render(blocks_at(ReportPlace(place), section)),
        drawn=lambda: packed(compact_json(figures(view) | blocks.figures)),
        most_inline=packing.MOST_INLINE,
        templates=packed(compact_json(templates())),
        plotly_js=packed_plotly(),
        about=blocks.render(background.run_blocks(run)),
        verdicts=blocks.render(verdict_blocks(view.verdicts)),
        configuration=lambda section: blocks.render(background.configuration_blocks(section)),
        evidence=lambda cell: blocks.render(evidence_blocks(cell)),
        phases=background.phases(run),
        efficiency=efficiency_line(run),
        unsteady=find_unsteady_disks(run),
        measuring=blocks.render((*conditioning_blocks(run), *group_blocks(run))),
        further_charts=lambda *workload: blocks.render(further_charts(*workload)),
        more=lambda section, workload, key: blocks.render(
            (*further_tables(section, workload, key), *order_blocks(section, workload, key))
        ),
    )


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
        finalize=_cleaned,
    )
    environment.filters |= {
        "code": words,
        "num": typographic,
        "number": lambda value: typographic(numbers.significant(value)),
        "percent": lambda estimate: typographic(numbers.percent(estimate.point if estimate else None)),
        "interval": lambda estimate: typographic(numbers.percent_interval(estimate)),
        "both": lambda estimate: typographic(numbers.percent_with_interval(estimate)),
        "us": lambda estimate: typographic(numbers.microseconds(estimate.point if estimate else None)),
        "us_interval": lambda estimate: typographic(numbers.microseconds_interval(estimate)),
        "up": lambda percent: f"{math.ceil(percent * 10) / 10:g}",
        "duration": format_duration,
        "moment": background.moment,
        "slug": slug,
    }
    environment.globals |= {
        "headline_of": headline_of,
        "metric_value": lambda estimate, unit: typographic(shown_value(estimate, unit)),
        "scale_of": _scale_of,
        "confidence_words": confidence_words,
        "gravest_first": budgets.gravest_first,
        "colour_limit": colour_limit,
        "heat_maps": heat_maps,
        "mode_colours": mode_colours,
        "mode_symbols": mode_symbols,
        "HOST": HOST,
        "LAYER": LAYER,
        "VIRTUALISATION": VIRTUALISATION,
    }
    return environment


def _cleaned(value: Any) -> Any:
    """What a template shows: texts of hosts and files without control characters."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _scale_of(section: Section) -> Scale:
    return Scale.around([mode.overhead for mode in section.comparison.modes])
