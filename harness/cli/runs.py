"""Commands on stored runs: report, advise and watch; and, without a command, what comes next in this directory."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.cli.common import REPORTS, add_json, add_run, number_from, print_json
from harness.cli.labs import pytest_arguments
from harness.errors import ConfigError, HarnessError
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


NOT_HELD = 3
"""The exit status if an advice did not hold."""
UNDECIDED = 4
"""The exit status if none failed to hold, and one is undecided."""


def add_advise(commands: Any) -> None:
    """Add the verb `advise` to the subparsers."""
    parser = commands.add_parser(
        "advise",
        help="say which mode to use for what, as libvirt's XML or a line of qm set; measure it again with --verify",
        example="virt-overhead advise latest --verify",
        epilog="Exit status: 0 (with --verify: all held), 1 failed, 2 the run recommends nothing, 3 an advice did not "
        "hold, 4 undecided.",
    )
    add_run(parser)
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
    from harness.report.advice import advice_of_uses, setting_lines
    from harness.results import RunStore

    store = RunStore.named(options.path, REPORTS)
    run = store.read_results()
    views = [view for view in advice_of_uses(run) if options.use in (None, view.answer.use.name)]
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
    print("\n".join(setting_lines(views)))
    if any(view.advice for view in views):
        print(f"to measure it again on fresh blocks: virt-overhead advise {run.run.id} --verify")
    return 0


def _verify(options: argparse.Namespace, store: Any, run: Any, views: list[Any]) -> int:
    from harness.report.advice import fresh_results, verified_lines, verified_record
    from harness.results.verifying import Held, verify

    if not views:
        raise ConfigError(
            f"run {run.run.id} compares its recommended modes with no other",
            hint="measure at least two modes in several rounds",
        )
    again = _measured(options, store, run, list(dict.fromkeys(cell for view in views for cell in view.advice.cells)))
    fresh = fresh_results(again)
    found = [(view, verify(view.advice, fresh)) for view in views]
    if options.json:
        print_json({"run": run.run.id, "fresh": again.run.id, "advice": [verified_record(*each) for each in found]})
    else:
        for each in found:
            print("\n".join(verified_lines(*each)))
    held = {each.held for _, each in found}
    return NOT_HELD if Held.NOT_HELD in held else UNDECIDED if Held.UNDECIDED in held else 0


def _measured(options: argparse.Namespace, store: Any, run: Any, cells: list[str]) -> Any:
    """The run that measures these cells again. Raises HarnessError if it has no results."""
    from harness.results import RunStore

    reports = store.path.parent
    rounds = options.rounds or max(len(set(cell.rounds)) for cell in run.cells if cell.id in cells)
    arguments = [f"--host={run.lab.host}", f"--profile={run.run.profile}", f"--rounds={rounds}"]
    arguments += [f"--reports={reports}", *(f"--scenarios={path}" for path in options.scenarios)]
    arguments += [f"--lab={options.lab}"] if options.lab else []
    before = {path.parent for path in reports.glob("*/results.json")}
    command = [sys.executable, "-P", "-m", "pytest", *pytest_arguments(Path.cwd(), arguments, cells)]
    sys.stdout.flush()
    # Budgets do not matter here, so neither does the exit status. Only the differences between the modes do.
    status = subprocess.run(command, check=False, stdout=sys.stderr if options.json else None).returncode
    new = [path.parent for path in reports.glob("*/results.json") if path.parent not in before]
    run_stores = [RunStore(path) for path in new if not path.is_symlink()]
    if not run_stores:
        raise HarnessError(
            f"nothing was measured again on host {run.lab.host}: pytest ended with status {status}",
            hint="see its output above; --lab and --scenarios must be those of the run",
        )
    return max((run_store.read_results() for run_store in run_stores), key=lambda each: each.run.started)


PAUSE = 5.0
"""Seconds between two looks. A look reads what is new, and takes little time from the machine that measures."""


def add_watch(commands: Any) -> None:
    """Add the verb `watch` to the subparsers."""
    parser = commands.add_parser(
        "watch",
        help="follow a run that is measuring, from another shell",
        epilog="It ends with the run. Without a terminal, it prints a line for each round.",
        example="virt-overhead watch latest",
    )
    add_run(parser)
    parser.add_argument("--once", action="store_true", help="print the state and exit")
    add_json(parser, "the state, once,")
    parser.set_defaults(run=_watch)


def _watch(options: argparse.Namespace) -> int:
    from harness.report.watched import watch_lines
    from harness.results import RunStore

    states = looks(RunStore.named(options.path, REPORTS))
    if options.json:
        print_json(asdict(next(states)))
    elif options.once:
        print("\n".join(watch_lines(next(states))))
    elif sys.stdout.isatty():
        _live(states)
    else:
        sys.stdout.writelines(f"{line}\n" for line in log_lines(states))
    return 0


def looks(store: Any, pause: Callable[[float], object] = time.sleep) -> Iterator[Any]:
    """The state of the run again and again; the last one is of the run that has ended."""
    from harness.report.watched import watched
    from harness.results.store import JournalTail

    tail = JournalTail(store)
    seen, run = None, None
    while True:
        if run is None or seen != (seen := store.results_path.stat().st_mtime_ns):
            run = store.read_results()
        state = watched(run, tail.read(), time.time())
        yield state
        if state.ended:
            return
        pause(PAUSE)


def log_lines(states: Iterator[Any]) -> Iterator[str]:
    """Few lines for a log: one for each finished round, and the state at the end."""
    from harness.report.watched import watch_lines

    rounds = None
    for state in states:
        if state.ended:
            yield from watch_lines(state)
        elif state.rounds != rounds:
            rounds = state.rounds
            yield "; ".join(line.strip() for line in watch_lines(state))


def _live(states: Iterator[Any]) -> None:
    """Lines that are replaced in place."""
    from rich.live import Live
    from rich.text import Text

    from harness.console import CleanConsole
    from harness.report.watched import watch_lines

    with Live(console=CleanConsole(), auto_refresh=False) as live:
        for state in states:
            live.update(Text("\n".join(watch_lines(state))), refresh=True)


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and what it is for."""

    command: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Situation:
    """What was found, a sentence each, and what to do next, the most useful step first."""

    found: tuple[str, ...]
    steps: tuple[Step, ...]


def show(options: argparse.Namespace) -> int:
    """Print the situation of the current directory."""
    situation = look_around(Path.cwd(), os.environ)
    if options.json:
        print_json(asdict(situation))
        return 0
    print("\n".join(f"{sentence}." for sentence in situation.found))
    print("next:")
    widest = max(len(step.command) for step in situation.steps)
    for step in situation.steps:
        print(f"  {step.command:{widest}}  {step.purpose}")
    print("all commands: virt-overhead --help")
    return 0


def look_around(directory: Path, environment: Mapping[str, str]) -> Situation:
    """The situation in `directory`: no file there is changed, and no host is asked."""
    lab, lab_steps = _describe_lab(directory, environment)
    runs, run_steps = _newest_run(directory)
    return Situation((lab, runs), (*run_steps, *lab_steps))


def _describe_lab(directory: Path, environment: Mapping[str, str]) -> tuple[str, tuple[Step, ...]]:
    from harness.lab.lab_file import load_lab
    from harness.plugin.options import EMBEDDED_LAB, LAB_FILE, LAB_VARIABLE

    of_environment = environment.get(LAB_VARIABLE)
    path = Path(of_environment) if of_environment else directory / LAB_FILE
    if of_environment == EMBEDDED_LAB or not (of_environment or path.exists()):
        missing = f"${LAB_VARIABLE} names it" if of_environment else f"there is no {LAB_FILE} here"
        return (
            f"Lab: {missing}, so the embedded lab with its simulated disks is measured",
            (
                Step("virt-overhead quickstart", "measure a simulated disk; needs no spare disk"),
                Step("virt-overhead init", "find the disks of this machine, or of --ssh or --proxmox, for lab.toml"),
            ),
        )
    try:
        inventory = load_lab(path)
    except HarnessError as error:
        doctor = Step(
            f"virt-overhead doctor --lab {path.name}", "check the file again, and its hosts, when it is right"
        )
        return f"Lab: {error.message}", (doctor,)
    disks = [disk.name for host in inventory.hosts for disk in host.measured]
    hosts = ", ".join(host.name for host in inventory.hosts)
    return (
        f"Lab: {path.name} has the disks {', '.join(disks) or 'none'} on {hosts}",
        (
            Step(
                f"virt-overhead doctor --lab {_word(path, directory)}", "check whether the hosts are fit for measuring"
            ),
            Step("virt-overhead run --collect-only -q", "list the cells, and measure nothing"),
            Step(
                f"virt-overhead run -k {disks[0] if disks else 'any_disk'}", "measure; this erases disks that allow it"
            ),
        ),
    )


def _word(path: Path, directory: Path) -> Path:
    return path.relative_to(directory) if path.is_relative_to(directory) else path


def _newest_run(directory: Path) -> tuple[str, tuple[Step, ...]]:
    from harness.results import RunStore

    reports = directory / REPORTS
    if not (reports / "latest").exists():
        return "Runs: nothing was measured here yet", ()
    try:
        run = RunStore.open(reports / "latest").read_results().run
    except HarnessError as error:
        return f"Runs: {error.message}", ()
    told = f"Runs: the newest is {run.id}, profile {run.profile}, status {run.status}"
    match run.status:
        case "running":
            return told, (Step("virt-overhead watch", "follow the run"),)
        case "interrupted" | "failed":
            resume = Step(f"virt-overhead run --resume={REPORTS / run.id}", "measure the rest, with the same selection")
            return told, (resume, Step("virt-overhead report", "what was measured so far"))
    others = {path.parent.name for path in reports.glob("*/results.json")} - {run.id, "latest"}
    then = Step("virt-overhead baseline set NAME", "name the run, to compare later runs with it")
    if others:
        then = Step(f"virt-overhead compare {max(others)} latest", "what changed between two runs")
    return told, (Step("virt-overhead report", "its answers, and the page"), then)
