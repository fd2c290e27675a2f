"""`virt-overhead compare` and `virt-overhead baseline`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis import MARGIN, METRICS
from harness.cli.common import REPORTS, add_json, print_json
from harness.terminal import quoted

if TYPE_CHECKING:
    from harness.features.compare.command import Form


def add_commands(commands: Any) -> None:
    """Add the verbs `compare` and `baseline` to the subparsers."""
    _add_compare(commands)
    _add_baseline(commands)


def _add_compare(commands: Any) -> None:
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
        metavar="RUN",
        help="a run: reports/RUN-ID, `latest` for the newest, or the URL of a results.json. The others are compared "
        "with the first one",
    )
    parser.add_argument("--baseline", metavar="NAME", help="compare with this baseline instead of the first run")
    parser.add_argument("--before-scenario", metavar="NAME", help="only this scenario of the first run or the baseline")
    parser.add_argument("--after-scenario", metavar="NAME", help="only this scenario of the other runs")
    parser.add_argument("--metric", choices=tuple(METRICS), help="show this metric (default: the main one of each job)")
    parser.add_argument(
        "--margin",
        type=_parse_margin,
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


def _add_baseline(commands: Any) -> None:
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
    setter.add_argument(
        "path",
        nargs="?",
        default="latest",
        metavar="RUN",
        help="a run: reports/RUN-ID, `latest` for the newest, or the URL of a results.json (%(default)s)",
    )
    lister = actions.add_parser("list", help="print the baselines", example="virt-overhead baseline list")
    for action, run in ((setter, _set_baseline), (lister, _list_baselines)):
        _add_reports(action)
        add_json(action, "the baselines" if action is lister else "the baseline")
        action.set_defaults(run=run)


def _add_reports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reports", type=Path, default=REPORTS, metavar="DIR", help="the directory of runs and baselines (%(default)s)"
    )


def _parse_margin(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%?", text)
    if match is None or not 0 < float(match[1]) <= 100:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: allowed: percent above 0, up to 100, for example 5 or 2.5%")
    return float(match[1]) / 100


def _compare(options: argparse.Namespace) -> int:
    from harness.features.compare.command import decide_status, open_runs, show_comparison
    from harness.features.compare.comparison import compare, select_scenario

    runs = open_runs(options.runs, options.reports, options.baseline)
    scenarios = [options.before_scenario, *[options.after_scenario] * (len(runs) - 1)]
    comparison = compare(
        *(run if name is None else select_scenario(run, name) for run, name in zip(runs, scenarios, strict=True)),
        margin=options.margin,
        metric=options.metric,
        same_machine=options.baseline is not None,
    )
    form: Form = "json" if options.json else "markdown" if options.markdown else "terminal"
    show_comparison(comparison, options.metric, form, options.html)
    return decide_status(comparison, options.inconclusive)


def _set_baseline(options: argparse.Namespace) -> int:
    from harness.features.compare.command import open_run, set_baseline

    run = set_baseline(options.reports, options.name, open_run(options.path, options.reports))
    if options.json:
        print_json({"name": options.name, "run": run.run.id, "host": run.lab.host})
        return 0
    print(f"baseline {options.name}: run {run.run.id} on {run.lab.host}")
    return 0


def _list_baselines(options: argparse.Namespace) -> int:
    from harness.features.compare.command import list_baselines
    from harness.report.background import moment
    from harness.results import RunStore

    paths_by_name = list_baselines(options.reports)
    named = [(name, RunStore.open(path).read_results()) for name, paths in paths_by_name.items() for path in paths]
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
