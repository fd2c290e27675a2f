"""Commands on stored runs: report, compare and baseline."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from harness.analysis import MARGIN, METRICS
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


def add_compare(commands: Any) -> None:
    """Add the verb `compare` to the subparsers."""
    parser = commands.add_parser(
        "compare",
        help="compare runs of different disks, or before and after a change",
        example="virt-overhead compare 20260901-101500-1f2e latest",
        epilog="Exit status: 0 nothing is worse, 1 a run cannot be read, 2 nothing can be compared, 3 something is "
        "worse, 4 undecided (with --inconclusive=fail), 5 a difference rules the comparison out.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run: reports/RUN-ID, or `latest` for the newest. The others are compared with the first one",
    )
    parser.add_argument("--baseline", metavar="NAME", help="compare with this baseline instead of the first run")
    parser.add_argument("--before-scenario", metavar="NAME", help="only this scenario of the first run or the baseline")
    parser.add_argument("--after-scenario", metavar="NAME", help="only this scenario of the other runs")
    parser.add_argument("--metric", choices=tuple(METRICS), help="show this metric (default: the main one of each job)")
    parser.add_argument(
        "--margin",
        type=_margin,
        default=MARGIN,
        metavar="PERCENT",
        help=f"changes that are smaller do not matter: such figures are equal (default: {MARGIN * 100:g}%%)",
    )
    parser.add_argument(
        "--inconclusive", choices=("fail", "skip"), default="skip", help="whether undecided is a failure (%(default)s)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print Markdown, for example for a CI job summary")
    add_json(form, "the comparison of all metrics")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page")
    _add_reports(parser)
    parser.set_defaults(run=_compare)


def add_baseline(commands: Any) -> None:
    """Add the verb `baseline` and its actions to the subparsers."""
    parser = commands.add_parser(
        "baseline", help="name a run with which others are compared", example="virt-overhead baseline list"
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    setter = actions.add_parser(
        "set",
        help="make a run the baseline of this name; a copy of its results is stored",
        example="virt-overhead baseline set before-upgrade latest",
    )
    setter.add_argument("name", metavar="NAME")
    add_run(setter)
    lister = actions.add_parser("list", help="print the baselines", example="virt-overhead baseline list")
    for action, run in ((setter, _baseline_set), (lister, _baseline_list)):
        _add_reports(action)
        add_json(action, "the baselines" if action is lister else "the baseline")
        action.set_defaults(run=run)


def _add_reports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reports", type=Path, default=REPORTS, metavar="DIR", help="the directory of runs and baselines (%(default)s)"
    )


def _margin(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%?", text)
    if found is None or not 0 < float(found[1]) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed: percent above 0 and up to 100, for example 5 or 2.5%")
    return float(found[1]) / 100


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


def _compare(options: argparse.Namespace) -> int:
    from harness.report.compare_command import CompareRequest, Form, compare_runs

    return compare_runs(
        CompareRequest(
            runs=tuple(options.runs),
            baseline=options.baseline,
            reports=options.reports,
            before_scenario=options.before_scenario,
            after_scenario=options.after_scenario,
            metric=options.metric,
            margin=options.margin,
            form=Form.JSON if options.json else Form.MARKDOWN if options.markdown else Form.TERMINAL,
            html=options.html,
            inconclusive=options.inconclusive,
        )
    )


def _baseline_set(options: argparse.Namespace) -> int:
    from harness.report.compare_command import chosen_store
    from harness.results.baselines import set_baseline

    baseline = set_baseline(options.reports, options.name, chosen_store(options.path, options.reports))
    if options.json:
        print_json({"name": baseline.name, "run": baseline.run.run.id, "host": baseline.run.lab.host})
        return 0
    print(f"baseline {baseline.name}: run {baseline.run.run.id} on {baseline.run.lab.host}")
    return 0


def _baseline_list(options: argparse.Namespace) -> int:
    from harness.report.background import moment
    from harness.results import RunStore
    from harness.results.baselines import baselines

    found = baselines(options.reports)
    named = [(name, RunStore.open(path).read_results()) for name, paths in found.items() for path in paths]
    if options.json:
        print_json(
            [
                {
                    "name": name,
                    "run": run.run.id,
                    "started": run.run.started,
                    "host": run.lab.host,
                    "profile": run.run.profile,
                }
                for name, run in named
            ]
        )
        return 0
    for name, run in named:
        print(f"{name}: run {run.run.id} of {moment(run.run.started)} on {run.lab.host}, profile {run.run.profile}")
    if not named:
        print(f"no baseline in {options.reports}; set one with: virt-overhead baseline set NAME RUN")
    return 0
