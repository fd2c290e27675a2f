"""The command line: its parser, the commands run, report and images, and what commands share. Features add theirs.

Each command has one example, `--debug`, and a suggestion for a word that it does not know. `run` is pytest with the
plugin.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from gettext import gettext
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from harness.config.names import choices, near
from harness.errors import ConfigError, HarnessError, ResultsError
from harness.events import Events
from harness.feature import load_verbs
from harness.files import shipped
from harness.signals import ended_like_ctrl_c
from harness.terminal import clean_json, cleaned_output, quoted, unfiltered, write_error

if TYPE_CHECKING:
    from harness.lab.inventory import Inventory

REPORTS = Path("reports")
"""The directory of runs, unless an option names another."""

FAILED = 1
USAGE = 2

_START = "import harness, sys; sys.argv[0] = 'pytest'; sys.exit(harness.main('pytest', 'console_main'))"
PYTEST = (sys.executable, "-P", "-c", _START)  # Ctrl-C ends it with one line also while it is imported


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. A failure is printed as one message; `--debug` adds the traceback."""
    with cleaned_output():
        return _run_command(sys.argv[1:] if arguments is None else arguments)


def _run_command(arguments: Sequence[str]) -> int:
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not getattr(options, "takes_rest", False):
        parser.unknown(rest)
    options.rest = rest
    options.parser = parser
    options.words = arguments
    try:
        with ended_like_ctrl_c():
            status: int = options.run(options)
            sys.stdout.flush()
    except KeyboardInterrupt:
        write_error("virt-overhead: interrupted")
        return 130
    except Exception as error:
        if getattr(options, "debug", False):
            write_error(traceback.format_exc().rstrip())
        return _failed(error)
    return status


def _failed(error: Exception) -> int:
    """Print the message of a failure, and return the exit status."""
    # Errors of the output itself are among these: a full disk, or a reader (`| head`) that has ended.
    if not isinstance(error, HarnessError | OSError):
        name = type(error).__name__
        error = HarnessError(f"internal error: {name}: {error}", hint="report it with the output of --debug")
    if not isinstance(error, BrokenPipeError):
        about = (error.filename, error.strerror) if isinstance(error, OSError) and error.strerror else (error,)
        write_error(": ".join(str(part) for part in ("virt-overhead", *about) if part))
    if isinstance(error, OSError):
        _drop_output()
    return USAGE if isinstance(error, ConfigError) else FAILED


def _drop_output() -> None:
    """Discard what is not printed yet. Otherwise Python tries again when it exits, and fails with a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Version(argparse.Action):
    """Prints the installed version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_arguments: object) -> None:
        print(parser.prog, version(parser.prog))
        parser.exit()


def make_parser() -> Command:
    """The parser of all commands."""
    parser = Command(
        prog="virt-overhead",
        description="Measure how much disk performance a virtual machine loses in each attach mode, and why. "
        "Without a command: what to do next on this machine.",
        epilog="To measure: virt-overhead run -k optane; in a checkout also: pytest -k optane",
        example="virt-overhead quickstart",
    )
    add_json(parser, "what to do next (without a command)")
    parser.set_defaults(run=lambda _options: parser.error("a command is missing"))
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(metavar="COMMAND")
    for add in (add_run, add_images, add_report):
        add(commands)
    for of_feature in load_verbs():
        of_feature.add_commands(commands)
        if hasattr(of_feature, "show_overview"):
            parser.set_defaults(run=of_feature.show_overview)
    return parser


class Command(argparse.ArgumentParser):
    """A command, or a group of them. `example` is a command line that its help shows; it must be valid.

    `takes_rest`: unknown words go to another program. Then `--debug` is that program's, too.
    """

    def __init__(self, *arguments: Any, example: str = "", takes_rest: bool = False, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.example = example
        if takes_rest:
            self.set_defaults(takes_rest=True)
        else:
            self.add_argument(
                "--debug",
                action="store_true",
                default=argparse.SUPPRESS,
                help="after a failure, print Python's traceback, too",
            )

    def format_help(self) -> str:
        """The help, and below it the example."""
        shown = super().format_help()
        return f"{shown}\nexample:\n  {self.example}\n" if self.example else shown

    def error(self, message: str) -> NoReturn:
        """Print one message with the remedy and exit. Python prints the whole usage before it."""
        self.exit(2, f"{self.prog}: {message}\n  -> {self.prog} --help\n")

    def unknown(self, words: Sequence[str]) -> NoReturn:
        """Refuse words that no command takes."""
        known = [option for command in commands(self) for option in command._option_string_actions]
        told = (word + near("--lab" if word.endswith(".toml") else word.partition("=")[0], known) for word in words)
        self.error(gettext("unrecognized arguments: %s") % " ".join(told))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            allowed = choices(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"invalid choice: {quoted(str(value))}; {allowed}")


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser and all its commands, each before its actions."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from commands(command)


def add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="measure: pytest with all its options, from any directory (`run -- --help` lists them)",
        epilog="All further options go to pytest: -k optane, --collect-only, --profile=standard, --scenarios=DIR",
        example="virt-overhead run -k optane --profile=standard",
        takes_rest=True,
    )
    run.set_defaults(run=_measure)


def _measure(options: argparse.Namespace) -> NoReturn:
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


def terminal_events(options: argparse.Namespace) -> Events:
    """Progress as lines on standard output, or on standard error if that one is for JSON."""
    from harness.events import Progress, StandardOutput

    return Events(Progress(StandardOutput(errors=wants_json(options))))


def wants_json(options: argparse.Namespace) -> bool:
    """Whether the command prints JSON for programs instead of text."""
    return bool(getattr(options, "json", False))


def print_json(value: object) -> None:
    """Print what the command found as one JSON document."""
    print(clean_json(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False, default=str)))


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument RUN as `path`: the run that the command reads, by default the newest one."""
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        default=Path("latest"),
        metavar="RUN",
        help="a run: reports/RUN-ID, or `latest` for the newest (%(default)s)",
    )


def add_json(parser: Any, what: str) -> None:
    """Add `--json`, which prints `what` as JSON, to a parser or to a group of options."""
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON")


def chosen_inventory(options: argparse.Namespace) -> Inventory:
    """The hosts of `--lab`, else those that a run measures in this directory; or only the one of `--host`."""
    from harness.lab.inventory import withdraw_secrets
    from harness.lab.lab_file import choose_inventory

    inventory = choose_inventory(options.lab, Path.cwd())
    withdraw_secrets(inventory.hosts)
    return inventory.only(options.host) if options.host else inventory


def number_from(least: int, most: int = 10_000) -> Callable[[str], int]:
    """A type of argparse: a whole number from `least` to `most`."""

    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{quoted(text)}: allowed: a whole number from {least} to {most}")
        return int(text)

    return parse
