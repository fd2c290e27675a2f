"""The commands run, report, images and reap, and, without a command, what comes next in this directory.

`run` is pytest with the plugin.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from harness.cli.common import (
    FAILED,
    REPORTS,
    add_json,
    add_run_argument,
    chosen_inventory,
    print_json,
    terminal_events,
)
from harness.errors import ConfigError, HarnessError, ResultsError
from harness.events import Events, Note
from harness.feature import embedded_lab
from harness.files import shipped
from harness.terminal import unfiltered

if TYPE_CHECKING:
    from harness.lab.inventory import HostSpec, Inventory

_START = "import harness, sys; sys.argv[0] = 'pytest'; sys.exit(harness.main('pytest', 'console_main'))"
PYTEST = (sys.executable, "-P", "-c", _START)  # Ctrl-C ends it with one line also while it is imported


def add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="measure: pytest with all its options, from any directory (`run -- --help` lists them)",
        epilog="All further options go to pytest: -k optane, --collect-only, --profile=standard, --scenarios=DIR",
        example="virt-overhead run -k optane --profile=standard",
        takes_rest=True,
    )
    run.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> NoReturn:
    measure([word for word in options.rest if word != "--"])


def measure(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by pytest on the shipped test body. The user's project is the current directory."""
    sys.stdout.flush()
    os.execv(sys.executable, [*PYTEST, *pytest_arguments(Path.cwd(), arguments)])


def pytest_arguments(project: Path, arguments: Sequence[str], cells: Sequence[str] = ()) -> list[str]:
    """What pytest gets to measure for the directory `project`; only the cells with these ids, if there are some.

    pytest's configuration files in that directory do not apply: they are for the user's own tests.
    """
    from harness.pytest_entry import PLUGIN

    bodies = shipped("scenarios")
    # With this rootdir, the ids of cells are the same here and in a checkout: scenarios/test_overhead.py::...
    root = bodies.parent
    body = str(bodies / "test_overhead.py")
    return [
        *("-p", PLUGIN),
        *("-c", os.devnull),
        f"--rootdir={root}",
        f"--confcutdir={root}",
        *("-o", f"cache_dir={project / '.pytest_cache'}"),
        "-rfEs",
        f"--project={project}",
        *([f"{body}::test_overhead[{cell}]" for cell in cells] or [body]),
        *arguments,
    ]


def add_report(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="rebuild the HTML report of a run and print its answers",
        example="virt-overhead report latest --verbose",
    )
    add_run_argument(report)
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


def add_images(commands: Any) -> None:
    images = commands.add_parser(
        "images", help="build the missing images, and print where they are", example="virt-overhead images --verify"
    )
    images.add_argument("--rebuild", action="store_true", help="build all images again with today's packages")
    images.add_argument("--verify", action="store_true", help="compare every file with its checksum")
    add_json(images, "where they are")
    images.set_defaults(run=_images)


def _images(options: argparse.Namespace) -> int:
    from harness.image import ensure_images

    images = ensure_images(terminal_events(options), rebuild=options.rebuild, verify=options.verify).all
    if options.json:
        print_json([{"name": image.name, "path": image.path} for image in images])
        return 0
    for image in images:
        print(f"{image.name:6} {image.path}")
    return 0


def add_reap(commands: Any) -> None:
    reaper = commands.add_parser(
        "reap",
        help="list what killed runs left on the lab's hosts, and remove it",
        example="virt-overhead reap --lab lab.toml --yes",
    )
    reaper.add_argument("--lab", type=Path, metavar="FILE", help="the lab file (default: as for a run)")
    reaper.add_argument("--host", metavar="NAME", help="only this host")
    reaper.add_argument(
        "--yes", action="store_true", help="remove it (default: only list it; in the embedded lab: remove it)"
    )
    reaper.add_argument("--force", action="store_true", help="first stop the run that holds the host")
    add_json(reaper, "what was left")
    reaper.set_defaults(run=_reap)


def _reap(options: argparse.Namespace) -> int:
    inventory = chosen_inventory(options)
    events = terminal_events(options)
    lines_left: list[dict[str, object]] = []
    damaged = False
    for spec in _reachable(inventory):
        # Only this harness creates things on the disposable lab host.
        remove = options.yes or spec.kind == "embedded"
        lines, is_damaged = _reap_host(spec, events, remove=remove, force=options.force)
        damaged = damaged or is_damaged
        lines_left += [{"host": spec.name, "left": line, "removed": remove} for line in lines]
        if not options.json:
            sys.stdout.writelines(f"host {spec.name}: {line}\n" for line in lines)
    if options.json:
        print_json(lines_left)
    elif not lines_left:
        print("nothing was left")
    elif not all(each["removed"] for each in lines_left):
        print("nothing was removed; `virt-overhead reap --yes` removes only what is listed here")
    return FAILED if damaged else 0


def _reachable(inventory: Inventory) -> list[HostSpec]:
    """The hosts to check. A lab host that does not run is left out: its data was lost when it stopped."""
    return [host for host in inventory.hosts if host.kind != "embedded" or embedded_lab().is_running()]


def _reap_host(spec: HostSpec, events: Events, *, remove: bool, force: bool) -> tuple[list[str], bool]:
    """One line for each thing that killed runs left on the host; with `remove`, the line says what was done with it.

    And whether a record of the creation log is damaged, which only a person can deal with.
    """
    from harness.guest import open_remover
    from harness.lab.created import read_log
    from harness.lab.hosts import reach_host
    from harness.lab.lease import end_holder, lease
    from harness.measure.reap import describe_entry, reap

    with reach_host(spec) as host:
        if force and (holder := end_holder(host.runner, host.name)):
            events(Note(f"host {host.name}: stopped the run that held it: {holder}"))
        with lease(host.runner, host.name, "reap", events) as held:
            leased = replace(host, runner=held.runner)
            with open_remover(leased) as remover:
                entries = read_log(leased.runner)
                if remove:
                    return reap(leased.runner, remover, entries), False
                return [describe_entry(entry) for entry in entries], not all(entry.kind for entry in entries)


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
