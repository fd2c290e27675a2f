"""`virt-overhead reap`: lists and removes what killed runs left on the hosts of a lab."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import FAILED, add_json, chosen_inventory, print_json, terminal_events
from harness.events import Events, Note
from harness.feature import embedded_lab

if TYPE_CHECKING:
    from harness.lab.inventory import HostSpec, Inventory


def add_commands(commands: Any) -> None:
    """Add the verb `reap` to the subparsers."""
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
