"""The commands of the embedded lab: quickstart and lab."""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING, Any

from harness.cli import add_json, measure, print_json, terminal_events
from harness.units import format_duration

if TYPE_CHECKING:
    from harness.features.embedded.lab_host import LabMachine

_NOT_RUNNING = 3
"""The exit status of `lab status` without a lab host."""


def add_commands(commands: Any) -> None:
    """Add `quickstart` and `lab`."""
    commands.add_parser(
        "quickstart",
        help="measure the simulated Optane disk in the embedded lab",
        epilog="All further options go to pytest, as with `run`.",
        example="virt-overhead quickstart",
        takes_rest=True,
    ).set_defaults(run=_quickstart)
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


def _lab_up(options: argparse.Namespace) -> int:
    from harness.features.embedded import lab_host
    from harness.image import ensure_images

    machine = lab_host.up(ensure_images(terminal_events(options)), terminal_events(options))
    if options.json:
        print_json(_described(machine))
        return 0
    print(
        f"lab host is running under {machine.accel}: SSH on 127.0.0.1:{machine.port}; "
        "stop it with: virt-overhead lab down"
    )
    return 0


def _lab_down(options: argparse.Namespace) -> int:
    from harness.features.embedded import lab_host

    stopped = lab_host.down()
    if options.json:
        print_json({"running": False, "stopped": stopped})
        return 0
    print("lab host stopped" if stopped else "no lab host was running")
    return 0


def _lab_status(options: argparse.Namespace) -> int:
    from harness.features.embedded import lab_host

    machine = lab_host.state().running()
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
    from harness.features.embedded import lab_host
    from harness.files import write_atomically

    machine = lab_host.running()
    known = lab_host.state().known_hosts
    write_atomically(known, f"lab {machine.host_key}\n")
    settings = ["HostKeyAlias=lab", f'UserKnownHostsFile="{known}"', "IdentitiesOnly=yes", "LogLevel=ERROR"]
    flags = [part for setting in settings for part in ("-o", setting)]
    os.execvp("ssh", ["ssh", *flags, "-i", machine.key, "-p", str(machine.port), "root@127.0.0.1", *options.rest])
