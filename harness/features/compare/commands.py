"""`virt-overhead compare`, `virt-overhead baseline`, and `virt-overhead history`: adds runs, and shows trends."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from harness.analysis import MARGIN, METRICS
from harness.cli import REPORTS, add_json, number_from, print_json
from harness.errors import ConfigError
from harness.features.compare import Quantity
from harness.terminal import quoted

if TYPE_CHECKING:
    from harness.features.compare.command import Form


_ADD = "add"
_SHOW = "show"


def add_commands(commands: Any) -> None:
    """Add the verbs `compare`, `baseline` and `history` to the subparsers."""
    _add_compare(commands)
    _add_baseline(commands)
    _add_history(commands)


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


def _add_history(commands: Any) -> None:
    parser = commands.add_parser(
        "history",
        help="add runs to a history, or show the trend of each cell with its change points",
        example="virt-overhead history show randread-4k --html trends.html",
        usage="virt-overhead history add RUN [RUN ...] [--store URL] [--label NAME=VALUE ...] [--json]\n"
        "       virt-overhead history [show] [CELL] [--store URL] [--value WHAT] [--metric NAME] [--runs N]\n"
        "                                    [--html FILE] [--openmetrics FILE] [--json]",
    )
    parser.add_argument(
        "what", nargs="*", metavar="[show] CELL | add RUN", help="the cells to show, by a part of their id"
    )
    parser.add_argument(
        "--store",
        default=str(REPORTS / "history"),
        metavar="URL",
        help="the directory of the history, or a URL of fsspec, for example s3://bucket/history (%(default)s)",
    )
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="with add: a further fact of these runs, for example commit=4f1c2a",
    )
    parser.add_argument(
        "--value",
        choices=get_args(Quantity),
        default="overhead",
        help="what to show (default: the overhead; for the bare host, its own values)",
    )
    parser.add_argument("--metric", choices=tuple(METRICS), help="show this metric (default: the main one of each job)")
    parser.add_argument(
        "--runs", type=number_from(1), default=200, metavar="N", help="the newest runs of each cell (%(default)s)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with charts")
    parser.add_argument(
        "--openmetrics",
        type=Path,
        metavar="FILE",
        help="also write newest values and change points as gauges, for node_exporter's textfile collector",
    )
    add_json(parser, "the trends, or what was added,")
    parser.set_defaults(run=_history)


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


def _history(options: argparse.Namespace) -> int:
    from harness.features.compare.history_store import HistoryStore

    store = HistoryStore.at(options.store)
    if options.what[:1] == [_ADD]:
        return _add(options, store)
    cells = options.what[1:] if options.what[:1] == [_SHOW] else options.what
    if len(cells) > 1:
        raise ConfigError(
            f"history takes one CELL, not {len(cells)}", hint="to add runs: virt-overhead history add RUN"
        )
    return _show(options, store, "".join(cells))


def _add(options: argparse.Namespace, store: Any) -> int:
    from harness.features.compare.command import choose_store

    labels = dict(map(_label, options.label))
    if len(options.what) == 1:
        raise ConfigError("history add: no run", hint="name the runs, for example: virt-overhead history add latest")
    results = []
    refused: list[ConfigError] = []
    for run in [choose_store(Path(word), REPORTS) for word in options.what[1:]]:
        try:
            added = store.add(run, labels)
        except ConfigError as error:
            refused.append(error)
            continue
        results.append({"run": run.path.name, "added": added})
        if not options.json:
            print(f"{run.path.name}: {'added to' if added else 'is already in'} {store.url}")
    if options.json:
        print_json(results)
    if refused:
        # The runs of the other hosts are added although one host was lost.
        first, *others = refused
        raise ConfigError("\n".join([first.message, *map(str, others)]), hint=first.hint)
    return 0


def _show(options: argparse.Namespace, store: Any, cell: str) -> int:
    from harness.features.compare.page import describe_trends, render_history
    from harness.features.compare.trends import find_trends
    from harness.files import write_page

    shown = find_trends(
        store,
        cell=cell,
        metric=options.metric,
        quantity=options.value,
        most=options.runs,
    )
    if options.json:
        print_json([asdict(trend) for trend in shown])
    else:
        sys.stdout.writelines(f"{line}\n" for line in describe_trends(shown))
    if options.openmetrics is not None:
        from harness.features.compare.trends import make_trend_gauges
        from harness.features.export_formats import format_openmetrics

        write_page(options.openmetrics, format_openmetrics(make_trend_gauges(shown)), option="--openmetrics")
    if options.html is not None:
        write_page(options.html, render_history(shown, store.url))
        sys.stderr.write(f"page: {options.html}\n") if options.json else print(f"page: {options.html}")
    return 0


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name) or not value:
        raise ConfigError(f"--label {text}: it must be NAME=VALUE", hint="for example --label commit=4f1c2a")
    return name, value
