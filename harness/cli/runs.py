"""The command report, and, without a command, what comes next in this directory."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.cli.common import REPORTS, add_json, add_run, print_json
from harness.errors import ConfigError, HarnessError, ResultsError
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
    from harness.feature import all_reports
    from harness.report.html import write_report
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
        draw = next((report.draw_card for report in all_reports() if report.draw_card is not None), None)
        if draw is None:
            raise ConfigError("no installed feature draws cards", hint="install virt-overhead with all of its features")
        picture, text = draw(store, run)
        print(text, end="")
        print(f"picture: {picture}", file=sys.stderr)
        return 0
    page, failure = None, None
    try:
        page = write_report(store)
    except ResultsError as error:
        failure = error  # The answers need no page.
    if options.json:
        print_json(answers_json(run, page) | {"left_out": options.left_out})
    else:
        print_run(run, page, verbose=options.verbose)
    if failure is not None:
        raise failure
    return 0


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
    from harness.lab.lab_file import LAB_FILE, LAB_VARIABLE, find_lab, load_lab

    path = find_lab(None, directory, environment)
    if path is None:
        missing = f"${LAB_VARIABLE} names it" if environment.get(LAB_VARIABLE) else f"there is no {LAB_FILE} here"
        return (
            f"Lab: {missing}, so the embedded lab with its simulated disks is measured",
            (
                Next("virt-overhead quickstart", "measure a simulated disk; needs no spare disk"),
                Next("virt-overhead quick", "measure a storage of this machine in a few minutes; needs no lab.toml"),
                Next("virt-overhead init", "find the disks of this machine, or of --ssh or --proxmox, for lab.toml"),
            ),
        )
    try:
        inventory = load_lab(path)
    except HarnessError as error:
        doctor = Next(f"virt-overhead doctor --lab {path.name}", "check the corrected file and its hosts")
        return f"Lab: {error.message}", (doctor,)
    disks = [disk.name for host in inventory.hosts for disk in host.measured]
    hosts = ", ".join(host.name for host in inventory.hosts)
    measure = Next(
        f"virt-overhead run -k {disks[0] if disks else 'any_disk'}", "measure; this erases disks that allow it"
    )
    if disks and all(host.disks == () and all(storage.at for storage in host.stored) for host in inventory.hosts):
        measure = Next("virt-overhead run -k storage", "measure; this writes only to volumes that it creates")
    return (
        f"Lab: {path.name} has the disks {', '.join(disks) or 'none'} on {hosts}",
        (
            Next(f"virt-overhead doctor --lab {_word(path, directory)}", "are the hosts fit for measuring?"),
            Next("virt-overhead run --collect-only -q", "list the cells, and measure nothing"),
            measure,
        ),
    )


def _word(path: Path, directory: Path) -> Path:
    return path.relative_to(directory) if path.is_relative_to(directory) else path


def _newest_run(directory: Path) -> tuple[str, tuple[Next, ...]]:
    from harness.results import RunStore

    reports = directory / REPORTS
    if not os.path.lexists(reports / "latest"):
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
