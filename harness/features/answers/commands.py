"""`virt-overhead advise`: what to change, as commands; and, measured on fresh blocks, whether it holds."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.cli import PYTEST, REPORTS, add_json, add_run_argument, number_from, print_json, pytest_arguments
from harness.errors import ConfigError, HarnessError

NOT_HELD = 3
"""The exit status if an advice did not hold."""
UNDECIDED = 4
"""The exit status if none failed to hold, and one is undecided."""


def add_commands(commands: Any) -> None:
    """Add the verb `advise` to the subparsers."""
    parser = commands.add_parser(
        "advise",
        help="say which mode to use for what, as libvirt's XML or a line of qm set; measure it again with --verify",
        example="virt-overhead advise latest --verify",
        epilog="Exit status: 0 (with --verify: all held), 1 failed, 2 the run recommends nothing, 3 an advice did not "
        "hold, 4 undecided.",
    )
    add_run_argument(parser)
    parser.add_argument("--use", metavar="NAME", help="only for this use: general, database, sequential, latency")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="measure the two modes of each advice again on the same host and disk, with a new seed",
    )
    parser.add_argument(
        "--rounds", type=number_from(1), metavar="N", help="with --verify: rounds to measure (default: as many)"
    )
    parser.add_argument("--lab", type=Path, metavar="FILE", help="with --verify: the lab file, or `embedded`")
    parser.add_argument(
        "--scenarios", type=Path, action="append", default=[], metavar="DIR", help="with --verify: as for a run"
    )
    add_json(parser, "the advice, or whether it held,")
    parser.set_defaults(run=_advise)


def _advise(options: argparse.Namespace) -> int:
    from harness.features.answers.advice import describe_settings, list_advice
    from harness.results import RunStore

    store = RunStore.named(options.path, REPORTS)
    run = store.read_results()
    views = [view for view in list_advice(run) if options.use in (None, view.answer.use.name)]
    if not any(view.answer.mode for view in views):
        raise ConfigError(
            f"run {run.run.id} recommends nothing{f' for {options.use}' if options.use else ''}",
            hint=f"virt-overhead report {run.run.id} says why; measure at least two modes in several rounds",
        )
    if options.verify:
        return _verify(options, store, run, [view for view in views if view.advice is not None])
    if options.json:
        print_json([view.record for view in views])
        return 0
    for view in views:
        print("\n".join(view.lines))
    print("\n".join(describe_settings(views)))
    if any(view.advice for view in views):
        print(f"to measure it again on fresh blocks: virt-overhead advise {run.run.id} --verify")
    return 0


def _verify(options: argparse.Namespace, store: Any, run: Any, views: list[Any]) -> int:
    from harness.features.answers.advice import (
        AdviceOutcome,
        describe_verified,
        make_verified_record,
        map_results,
        verify,
    )

    if not views:
        raise ConfigError(
            f"run {run.run.id} compares its recommended modes with no other",
            hint="measure at least two modes in several rounds",
        )
    again = _measure_again(
        options, store, run, list(dict.fromkeys(cell for view in views for cell in view.advice.cells))
    )
    fresh = map_results(again)
    verified = [(view, verify(view.advice, fresh)) for view in views]
    if options.json:
        print_json(
            {"run": run.run.id, "fresh": again.run.id, "advice": [make_verified_record(*advice) for advice in verified]}
        )
    else:
        for advice in verified:
            print("\n".join(describe_verified(*advice)))
    held = {outcome.held for _, outcome in verified}
    return NOT_HELD if AdviceOutcome.NOT_HELD in held else UNDECIDED if AdviceOutcome.UNDECIDED in held else 0


def _measure_again(options: argparse.Namespace, store: Any, run: Any, cells: list[str]) -> Any:
    """The run that measures these cells again. Raises HarnessError if it has no results."""
    from harness.results import RunStore

    reports = store.path.parent
    rounds = options.rounds or max(len(set(cell.rounds)) for cell in run.cells if cell.id in cells)
    arguments = [f"--host={run.lab.host}", f"--profile={run.run.profile}", f"--rounds={rounds}"]
    arguments += [f"--reports={reports}", *(f"--scenarios={path}" for path in options.scenarios)]
    arguments += [f"--lab={options.lab}"] if options.lab else []
    before = {path.parent for path in reports.glob("*/results.json")}
    command = [*PYTEST, *pytest_arguments(Path.cwd(), arguments, cells)]
    sys.stdout.flush()
    # Budgets do not matter here, so neither does the exit status. Only the differences between the modes do.
    status = subprocess.run(command, check=False, stdout=sys.stderr if options.json else None).returncode
    new = [path.parent for path in reports.glob("*/results.json") if path.parent not in before]
    stores = [RunStore(path) for path in new if not path.is_symlink()]
    if not stores:
        raise HarnessError(
            f"nothing was measured again on host {run.lab.host}: pytest ended with status {status}",
            hint="see its output above; --lab and --scenarios must be those of the run",
        )
    return max((measured.read_results() for measured in stores), key=lambda run: run.run.started)
