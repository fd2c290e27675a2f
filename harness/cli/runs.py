"""Commands on stored runs: report, compare, import and export."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness.analysis import METRICS
from harness.exchange import command as exchange
from harness.exchange.exporting import export_run
from harness.exchange.importing import import_run

REPORTS = Path("reports")


def add_report(commands: Any) -> None:
    """Add the verb `report` to the subparsers."""
    report = commands.add_parser("report", help="rebuild the HTML report of a run and print its table")
    report.add_argument("path", nargs="?", type=Path, default=REPORTS / "latest", metavar="RUN")
    report.add_argument("--markdown", action="store_true", help="print Markdown, for example for a CI job summary")
    report.set_defaults(run=_report)


def add_compare(commands: Any) -> None:
    """Add the verb `compare` to the subparsers."""
    parser = commands.add_parser("compare", help="compare two runs of different disks, or before and after a change")
    for side in ("before", "after"):
        name = side.upper()
        parser.add_argument(side, type=Path, metavar=name, help="a run: reports/RUN-ID, or `latest` for the newest")
        parser.add_argument(f"--{side}-scenario", metavar="NAME", help=f"only this scenario of {name}")
    parser.add_argument("--metric", choices=tuple(METRICS), help="show this metric (default: the main one of each job)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print Markdown, for example for a CI job summary")
    form.add_argument("--json", action="store_true", help="print the comparison of all metrics as JSON")
    parser.set_defaults(run=_compare)


def add_import(commands: Any) -> None:
    """Add the verb `import` to the subparsers."""
    exchange.add_import(commands).set_defaults(run=_import)


def add_export(commands: Any) -> None:
    """Add the verb `export` to the subparsers."""
    exchange.add_export(commands).set_defaults(run=_export)


def _report(options: argparse.Namespace) -> int:
    from harness.report import write_report  # noqa: PLC0415 - plotly takes a second to load
    from harness.report.markdown import markdown_table  # noqa: PLC0415
    from harness.report.terminal import print_run  # noqa: PLC0415
    from harness.results import RunStore  # noqa: PLC0415

    store = RunStore.open(options.path)
    run = store.read_results()
    if options.markdown:
        print(markdown_table(run))
        return 0
    print_run(run)
    print(f"report: {write_report(store)}")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from harness.report.compare_command import Form, chosen_run, print_compared  # noqa: PLC0415 - as for the report

    before = chosen_run(options.before, REPORTS, options.before_scenario)
    after = chosen_run(options.after, REPORTS, options.after_scenario)
    form = Form.JSON if options.json else Form.MARKDOWN if options.markdown else Form.TERMINAL
    print_compared(before, after, form, options.metric)
    return 0


def _import(options: argparse.Namespace) -> int:
    store, left_out = import_run(exchange.import_request(options, options.words), options.reports)
    for message in left_out:
        print(f"left out: {message}")
    return _report(argparse.Namespace(path=store.path, markdown=False))


def _export(options: argparse.Namespace) -> int:
    print("\n".join(export_run(exchange.export_request(options))))
    return 0
