"""Commands that measure, and those on images, hosts and the embedded lab. `run` is pytest with the plugin."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from harness.cli.common import FAILED, add_json, chosen_inventory, print_json, terminal_events
from harness.events import Events, Note
from harness.files import shipped
from harness.units import format_duration

if TYPE_CHECKING:
    from harness.lab.embedded import LabMachine
    from harness.lab.inventory import HostSpec, Inventory


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
    command = [sys.executable, "-P", "-m", "pytest", *pytest_arguments(Path.cwd(), arguments)]
    sys.stdout.flush()
    os.execv(sys.executable, command)


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


_NOT_RUNNING = 3
"""The exit status of `lab status` without a lab host."""


def add_quickstart(commands: Any) -> None:
    commands.add_parser(
        "quickstart",
        help="measure the simulated Optane disk in the embedded lab",
        epilog="All further options go to pytest, as with `run`.",
        example="virt-overhead quickstart",
        takes_rest=True,
    ).set_defaults(run=_quickstart)


def add_images(commands: Any) -> None:
    images = commands.add_parser(
        "images", help="build the missing images, and print where they are", example="virt-overhead images --verify"
    )
    images.add_argument("--rebuild", action="store_true", help="build all images again with today's packages")
    images.add_argument("--verify", action="store_true", help="compare every file with its checksum")
    add_json(images, "where they are")
    images.set_defaults(run=_images)


def add_lab(commands: Any) -> None:
    lab = commands.add_parser(
        "lab", help="the embedded lab: a KVM host in QEMU on this machine", example="virt-overhead lab up"
    )
    actions = lab.add_subparsers(required=True, metavar="ACTION")
    for name, action, text in (
        ("up", _lab_up, "start the lab host, and leave it running"),
        ("down", _lab_down, "stop the lab host"),
        ("status", _lab_status, "print whether the lab host runs; exit status 3 if not"),
    ):
        parser = actions.add_parser(name, help=text, example=f"virt-overhead lab {name}")
        add_json(parser, "the state of the lab host")
        parser.set_defaults(run=action)
    actions.add_parser(
        "ssh",
        help="log in to the lab host, or run the command that follows",
        example="virt-overhead lab ssh lsblk",
        takes_rest=True,
    ).set_defaults(run=_lab_ssh)


def _quickstart(options: argparse.Namespace) -> int:
    measure(["-k", "optane", "--lab=embedded", "--profile=smoke", *options.rest])


def _images(options: argparse.Namespace) -> int:
    from harness.image import ensure_images

    images = ensure_images(terminal_events(options), rebuild=options.rebuild, verify=options.verify).all
    if options.json:
        print_json([{"name": image.name, "path": image.path} for image in images])
        return 0
    for image in images:
        print(f"{image.name:6} {image.path}")
    return 0


def _lab_up(options: argparse.Namespace) -> int:
    from harness.image import ensure_images
    from harness.lab import embedded

    machine = embedded.up(ensure_images(terminal_events(options)), terminal_events(options))
    if options.json:
        print_json(_described(machine))
        return 0
    print(
        f"lab host is running under {machine.accel}: SSH on 127.0.0.1:{machine.port}; "
        "stop it with: virt-overhead lab down"
    )
    return 0


def _lab_down(options: argparse.Namespace) -> int:
    from harness.lab import embedded

    stopped = embedded.down()
    if options.json:
        print_json({"running": False, "stopped": stopped})
        return 0
    print("lab host stopped" if stopped else "no lab host was running")
    return 0


def _lab_status(options: argparse.Namespace) -> int:
    from harness.lab import embedded

    machine = embedded.state().running()
    if options.json:
        print_json({"running": False} if machine is None else _described(machine))
    elif machine is None:
        print("not running")
    else:
        up = format_duration(time.time() - machine.started)
        print(f"running for {up} under {machine.accel} (process {machine.pid}), SSH on 127.0.0.1:{machine.port}")
        print(f"{machine.accel}, because {machine.why}")
    return _NOT_RUNNING if machine is None else 0


def _described(machine: LabMachine) -> dict[str, object]:
    return {
        "running": True,
        "pid": machine.pid,
        "port": machine.port,
        "accel": machine.accel,
        "why": machine.why,
        "started": machine.started,
    }


def _lab_ssh(options: argparse.Namespace) -> int:
    from harness.files import write_atomically
    from harness.lab import embedded

    machine = embedded.running()
    known = embedded.state().known_hosts
    write_atomically(known, f"lab {machine.host_key}\n")
    settings = ["HostKeyAlias=lab", f'UserKnownHostsFile="{known}"', "IdentitiesOnly=yes", "LogLevel=ERROR"]
    flags = [part for setting in settings for part in ("-o", setting)]
    os.execvp("ssh", ["ssh", *flags, "-i", machine.key, "-p", str(machine.port), "root@127.0.0.1", *options.rest])


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
    from harness.lab import embedded

    return [host for host in inventory.hosts if host.kind != "embedded" or embedded.state().running()]


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
