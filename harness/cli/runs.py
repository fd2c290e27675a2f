"""The commands run, report and images. `run` is pytest with the plugin."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from harness.cli.common import (
    REPORTS,
    add_json,
    add_run_argument,
    print_json,
    terminal_events,
)
from harness.errors import ConfigError, ResultsError
from harness.files import shipped
from harness.terminal import unfiltered

if TYPE_CHECKING:
    pass

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
