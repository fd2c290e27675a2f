"""Commands on the lab's hosts: doctor, calibrate and reap."""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.slices import LEAST_MEANS
from harness.cli.common import FAILED, add_json, chosen_inventory, number_from, print_json, terminal_events
from harness.events import Events, Note

if TYPE_CHECKING:
    from harness.lab.inventory import HostSpec, Inventory


def add_calibrate(commands: Any) -> None:
    """Add the verb `calibrate` to the subparsers."""
    calibrator = commands.add_parser(
        "calibrate",
        help="measure how small a difference a lab's hosts can show, and store the result",
        example="virt-overhead calibrate --lab lab.toml --host node1",
    )
    calibrator.add_argument("--lab", type=Path, metavar="FILE", help="the lab file (default: the embedded lab)")
    calibrator.add_argument("--host", metavar="NAME", help="only this host")
    calibrator.add_argument("--disk", metavar="NAME", help="the disk to use (default: the host's first)")
    calibrator.add_argument(
        "--groups", type=number_from(1), default=40, help="groups that compare a device with itself (%(default)s)"
    )
    calibrator.add_argument("--rounds", type=number_from(2), default=3, help="blocks of each group (%(default)s)")
    calibrator.add_argument(
        "--repetitions", type=number_from(1), default=5, help="measurements of each known delay (%(default)s)"
    )
    calibrator.add_argument("--seconds", type=number_from(1), default=1, help="seconds of each slice (%(default)s)")
    calibrator.add_argument(
        "--slices",
        type=number_from(2 * LEAST_MEANS),
        default=120,
        help="short slices of each series that finds their length (%(default)s)",
    )
    calibrator.add_argument(
        "--boots", type=number_from(2), default=5, help="boots of the guest that are compared (%(default)s)"
    )
    calibrator.add_argument(
        "--seed", type=number_from(0), help="the seed of all random orders, to repeat a calibration"
    )
    add_json(calibrator, "the calibration of each host")
    calibrator.set_defaults(run=_calibrate)


def add_reap(commands: Any) -> None:
    """Add the verb `reap` to the subparsers."""
    reaper = commands.add_parser(
        "reap",
        help="list what killed runs left on the lab's hosts, and remove it",
        example="virt-overhead reap --lab lab.toml --yes",
    )
    reaper.add_argument("--lab", type=Path, metavar="FILE", help="the lab file (default: the embedded lab)")
    reaper.add_argument("--host", metavar="NAME", help="only this host")
    reaper.add_argument(
        "--yes", action="store_true", help="remove it (default: only list it; in the embedded lab: remove it)"
    )
    reaper.add_argument("--force", action="store_true", help="first stop the run that holds the host")
    add_json(reaper, "what was left")
    reaper.set_defaults(run=_reap)


def _calibrate(options: argparse.Namespace) -> int:
    from harness.calibrate.assess import doubts
    from harness.calibrate.command import calibrate, disk_of, summary
    from harness.calibrate.trials import CalibrationSpec
    from harness.image import ensure_images

    inventory = chosen_inventory(options)
    disks = {host: disk_of(host, options.disk) for host in inventory.hosts}
    spec = CalibrationSpec(
        groups=options.groups,
        rounds=options.rounds,
        repetitions=options.repetitions,
        seconds=options.seconds,
        slices=options.slices,
        boots=options.boots,
    )
    seed = random.SystemRandom().getrandbits(31) if options.seed is None else options.seed
    events = terminal_events(options)
    images = ensure_images(events)
    found: list[dict[str, object]] = []
    for host, disk in disks.items():
        calibration, path = calibrate(host, disk, spec, seed=seed, images=images, events=events)
        lines, why_not = summary(calibration), doubts(calibration.false_alarms, calibration.groups, calibration.delay)
        found.append({"host": host.name, "disk": disk, "summary": lines, "not_reliable": list(why_not), "path": path})
        if not options.json:
            told = (*lines, *(f"  not reliable: {doubt}" for doubt in why_not), f"calibration: {path}")
            print("\n".join(told))
    if options.json:
        print_json(found)
    return FAILED if any(each["not_reliable"] for each in found) else 0


def _reap(options: argparse.Namespace) -> int:
    inventory = chosen_inventory(options)
    events = terminal_events(options)
    found: list[dict[str, object]] = []
    damaged = False
    for spec in _reachable(inventory):
        # Only this harness creates things on the disposable lab host.
        remove = options.yes or spec.kind == "embedded"
        lines, is_damaged = _reap_host(spec, events, remove=remove, force=options.force)
        damaged = damaged or is_damaged
        found += [{"host": spec.name, "left": line, "removed": remove} for line in lines]
        if not options.json:
            sys.stdout.writelines(f"host {spec.name}: {line}\n" for line in lines)
    if options.json:
        print_json(found)
    elif not found:
        print("nothing was left")
    elif not all(each["removed"] for each in found):
        print("nothing was removed; `virt-overhead reap --yes` removes only what is listed here")
    return FAILED if damaged else 0


def _reachable(inventory: Inventory) -> list[HostSpec]:
    """The hosts to check. A lab host that does not run is left out: its data was lost when it stopped."""
    from harness.lab import embedded

    return [host for host in inventory.hosts if host.kind != "embedded" or embedded.state().running()]


def _reap_host(spec: HostSpec, events: Events, *, remove: bool, force: bool) -> tuple[list[str], bool]:
    """One line for each thing that killed runs left on the host; with `remove`, the line says what was done with it.

    And whether a record of the creation log is damaged, which only a person can deal with.
    """
    from harness.guest import remover_of
    from harness.lab.created import read_log
    from harness.lab.hosts import reach_host
    from harness.lab.lease import end_holder, lease
    from harness.measure.reap import described, reap

    with reach_host(spec) as host:
        if force and (holder := end_holder(host.runner, host.name)):
            events(Note(f"host {host.name}: stopped the run that held it: {holder}"))
        with lease(host.runner, host.name, "reap", events) as held:
            leased = replace(host, runner=held.runner)
            with remover_of(leased) as remover:
                entries = read_log(leased.runner)
                if remove:
                    return reap(leased.runner, remover, entries), False
                return [described(entry) for entry in entries], not all(entry.kind for entry in entries)
