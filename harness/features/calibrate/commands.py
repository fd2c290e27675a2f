"""`virt-overhead calibrate`."""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

from harness.cli import FAILED, add_json, chosen_inventory, number_from, print_json, terminal_events
from harness.features.calibrate.noise import LEAST_MEANS


def add_commands(commands: Any) -> None:
    """Add the verb `calibrate` to the subparsers."""
    parser = commands.add_parser(
        "calibrate",
        help="measure how small a difference a lab's hosts can show, and store the result",
        example="virt-overhead calibrate --lab lab.toml --host node1",
    )
    parser.add_argument("--lab", type=Path, metavar="FILE", help="the lab file (default: as for a run)")
    parser.add_argument("--host", metavar="NAME", help="only this host")
    parser.add_argument("--disk", metavar="NAME", help="the disk to use (default: the host's first)")
    parser.add_argument(
        "--groups", type=number_from(1), default=40, help="groups that compare a device with itself (%(default)s)"
    )
    parser.add_argument("--rounds", type=number_from(2), default=3, help="blocks of each group (%(default)s)")
    parser.add_argument(
        "--repetitions", type=number_from(1), default=5, help="measurements of each known delay (%(default)s)"
    )
    parser.add_argument("--seconds", type=number_from(1), default=1, help="seconds of each slice (%(default)s)")
    parser.add_argument(
        "--slices",
        type=number_from(2 * LEAST_MEANS),
        default=120,
        help="short slices of each series that finds their length (%(default)s)",
    )
    parser.add_argument(
        "--boots", type=number_from(2), default=5, help="boots of the guest that are compared (%(default)s)"
    )
    parser.add_argument(
        "--seed", type=number_from(0, 2**31 - 1), help="the seed of all orders, to repeat a calibration"
    )
    add_json(parser, "the calibration of each host")
    parser.set_defaults(run=_calibrate)


def _calibrate(options: argparse.Namespace) -> int:
    from harness.features.calibrate.command import calibrate, choose_disk, list_doubts, summarise
    from harness.features.calibrate.measuring import CalibrationSpec
    from harness.image import ensure_images

    inventory = chosen_inventory(options)
    disks = {host: choose_disk(host, options.disk) for host in inventory.hosts}
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
    calibrations: list[dict[str, object]] = []
    for host, disk in disks.items():
        calibration, path = calibrate(host, disk, spec, seed=seed, images=images, events=events)
        lines = summarise(calibration)
        doubts = list_doubts(calibration.false_alarms, calibration.groups, calibration.delay)
        calibrations.append({"host": host.name, "disk": disk, "summary": lines, "not_reliable": doubts, "path": path})
        if not options.json:
            print("\n".join((*lines, *(f"  not reliable: {doubt}" for doubt in doubts), f"calibration: {path}")))
    if options.json:
        print_json(calibrations)
    return FAILED if any(calibration["not_reliable"] for calibration in calibrations) else 0
