"""`virt-overhead report`: the page of a run, its answers, and other forms of it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from harness.cli.common import REPORTS, add_json, add_run, print_json
from harness.terminal import unfiltered


def add_report(commands: Any) -> None:
    """Add the verb `report` to the subparsers."""
    report = commands.add_parser(
        "report",
        help="rebuild the HTML report of a run and print its answers",
        example="virt-overhead report latest --verbose",
    )
    add_run(report)
    report.add_argument("-v", "--verbose", action="store_true", help="also print the table of all cells")
    form = report.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print Markdown, for example for a CI job summary")
    form.add_argument("--annotations", action="store_true", help="print annotations for GitHub Actions")
    form.add_argument("--card", action="store_true", help="draw card.png for a forum post, and print its Markdown")
    add_json(form, "the answers and the path of the report")
    report.set_defaults(run=show_report, left_out=())


def show_report(options: argparse.Namespace) -> int:
    """Write the page of a run, and print what the options request of it."""
    from harness.report import write_report
    from harness.report.annotations import annotation_lines
    from harness.report.card import write_card
    from harness.report.markdown import markdown_table
    from harness.report.short import answers_json, print_run
    from harness.results import RunStore

    store = RunStore.named(options.path, REPORTS)
    run = store.read_results()
    if options.markdown:
        print(markdown_table(run))
        return 0
    if options.annotations:
        unfiltered(sys.stdout).writelines(f"{line}\n" for line in annotation_lines(run))
        return 0
    if options.card:
        picture, text = write_card(store, run)
        print(text, end="")
        print(f"picture: {picture}", file=sys.stderr)
        return 0
    page = write_report(store)
    if options.json:
        print_json(answers_json(run, page) | {"left_out": options.left_out})
        return 0
    print_run(run, page, verbose=options.verbose)
    return 0
