"""`virt-overhead history`: adds runs to a history, and shows its trends."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from harness.analysis import METRICS
from harness.cli.common import REPORTS, add_json, number_from, print_json
from harness.errors import ConfigError
from harness.features.history import Quantity

_ADD = "add"
_SHOW = "show"


def add_commands(commands: Any) -> None:
    """Add the verb `history` to the subparsers."""
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


def _history(options: argparse.Namespace) -> int:
    from harness.features.history.store import HistoryStore

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
    from harness.cli.common import chosen_store

    labels = dict(map(_label, options.label))
    if len(options.what) == 1:
        raise ConfigError("history add: no run", hint="name the runs, for example: virt-overhead history add latest")
    results = []
    refused: list[ConfigError] = []
    for run in [chosen_store(Path(word), REPORTS) for word in options.what[1:]]:
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
    from harness.features.history.page import describe_trends, render_history
    from harness.features.history.trends import find_trends
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
        from harness.export_formats import format_openmetrics
        from harness.features.history.trends import make_trend_gauges

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
