"""Commands on stored runs: report, advise and watch; and, without a command, what comes next in this directory."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.cli.common import REPORTS, add_json, add_run, print_json
from harness.errors import ConfigError, HarnessError
from harness.terminal import unfiltered


def add_report(commands: Any) -> None:
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
    from harness.feature import features
    from harness.report import write_report
    from harness.report.markdown import annotation_lines, markdown_table
    from harness.report.terminal import answers_json, print_run
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
        draw = next((feature.draw_card for feature in features() if feature.draw_card is not None), None)
        if draw is None:
            raise ConfigError("no installed feature draws cards", hint="install virt-overhead with all of its features")
        picture, text = draw(store, run)
        print(text, end="")
        print(f"picture: {picture}", file=sys.stderr)
        return 0
    page = write_report(store)
    if options.json:
        print_json(answers_json(run, page) | {"left_out": options.left_out})
        return 0
    print_run(run, page, verbose=options.verbose)
    return 0


PAUSE = 5.0
"""Seconds between two looks. A look reads what is new, and takes little time from the machine that measures."""


def add_watch(commands: Any) -> None:
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
    from harness.report.terminal import watch_lines
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
    from harness.report.terminal import watched
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
    from harness.report.terminal import watch_lines

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
    from harness.report.terminal import watch_lines

    with Live(console=CleanConsole(), auto_refresh=False) as live:
        for state in states:
            live.update(Text("\n".join(watch_lines(state))), refresh=True)


@dataclass(frozen=True, slots=True)
class Next:
    """A command, and what it is for."""

    command: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Situation:
    """What was found, a sentence each, and what to do next, the most useful step first."""

    found: tuple[str, ...]
    steps: tuple[Next, ...]


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


def _describe_lab(directory: Path, environment: Mapping[str, str]) -> tuple[str, tuple[Next, ...]]:
    from harness.lab.lab_file import load_lab
    from harness.plugin.options import EMBEDDED_LAB, LAB_FILE, LAB_VARIABLE

    of_environment = environment.get(LAB_VARIABLE)
    path = Path(of_environment) if of_environment else directory / LAB_FILE
    if of_environment == EMBEDDED_LAB or not (of_environment or path.exists()):
        missing = f"${LAB_VARIABLE} names it" if of_environment else f"there is no {LAB_FILE} here"
        return (
            f"Lab: {missing}, so the embedded lab with its simulated disks is measured",
            (
                Next("virt-overhead quickstart", "measure a simulated disk; needs no spare disk"),
                Next("virt-overhead init", "find the disks of this machine, or of --ssh or --proxmox, for lab.toml"),
            ),
        )
    try:
        inventory = load_lab(path)
    except HarnessError as error:
        doctor = Next(
            f"virt-overhead doctor --lab {path.name}", "check the file again, and its hosts, when it is right"
        )
        return f"Lab: {error.message}", (doctor,)
    disks = [disk.name for host in inventory.hosts for disk in host.measured]
    hosts = ", ".join(host.name for host in inventory.hosts)
    return (
        f"Lab: {path.name} has the disks {', '.join(disks) or 'none'} on {hosts}",
        (
            Next(
                f"virt-overhead doctor --lab {_word(path, directory)}", "check whether the hosts are fit for measuring"
            ),
            Next("virt-overhead run --collect-only -q", "list the cells, and measure nothing"),
            Next(
                f"virt-overhead run -k {disks[0] if disks else 'any_disk'}", "measure; this erases disks that allow it"
            ),
        ),
    )


def _word(path: Path, directory: Path) -> Path:
    return path.relative_to(directory) if path.is_relative_to(directory) else path


def _newest_run(directory: Path) -> tuple[str, tuple[Next, ...]]:
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
            return told, (Next("virt-overhead watch", "follow the run"),)
        case "interrupted" | "failed":
            resume = Next(f"virt-overhead run --resume={REPORTS / run.id}", "measure the rest, with the same selection")
            return told, (resume, Next("virt-overhead report", "what was measured so far"))
    others = {path.parent.name for path in reports.glob("*/results.json")} - {run.id, "latest"}
    then = Next("virt-overhead baseline set NAME", "name the run, to compare later runs with it")
    if others:
        then = Next(f"virt-overhead compare {max(others)} latest", "what changed between two runs")
    return told, (Next("virt-overhead report", "its answers, and the page"), then)
