"""`virt-overhead watch`."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.cli import REPORTS, add_json, add_run_argument, print_json

PAUSE = 5.0
"""Seconds between two looks. A look reads what is new, and takes little time from the machine that measures."""


KILLED_SECONDS = 60.0
"""For so long, a run may be without a measurement before it is checked whether a process still measures it."""


def add_commands(commands: Any) -> None:
    """Add the verb `watch` to the subparsers."""
    parser = commands.add_parser(
        "watch",
        help="follow a run that is measuring, from another shell",
        epilog="It ends with the run. Without a terminal, it prints a line for each round.",
        example="virt-overhead watch latest",
    )
    add_run_argument(parser)
    parser.add_argument("--once", action="store_true", help="print the state and exit")
    add_json(parser, "the state, once,")
    parser.set_defaults(run=_watch)


def _watch(options: argparse.Namespace) -> int:
    from harness.features.watch.progress import watch_lines
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
    from harness.features.watch.progress import KILLED, read_progress
    from harness.results.store import JournalTail

    tail = JournalTail(store)
    seen, run = None, None
    while True:
        if run is None or seen != (seen := store.results_path.stat().st_mtime_ns):
            run = store.read_results()
        state = read_progress(run, tail.read(), time.time())
        quiet = time.time() - run.run.started if state.silent_s is None else state.silent_s
        if not state.ended and quiet > KILLED_SECONDS and not _is_measured(store.path):
            state = replace(state, status=KILLED)
        yield state
        if state.ended:
            return
        pause(PAUSE)


def _is_measured(directory: Path) -> bool:
    """Whether a process has locked the run, as each one does that measures it; also if that cannot be found out."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(opened)
    return False


def log_lines(states: Iterator[Any]) -> Iterator[str]:
    """Few lines for a log: one for each finished round, and the state at the end."""
    from harness.features.watch.progress import watch_lines

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
    from harness.features.watch.progress import watch_lines

    with Live(console=CleanConsole(), auto_refresh=False) as live:
        for state in states:
            live.update(Text("\n".join(watch_lines(state))), refresh=True)
