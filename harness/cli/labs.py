"""Commands that prepare measuring: quickstart, init, images and the embedded lab."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.common import FAILED, add_json, print_json, terminal_events
from harness.cli.measuring import measure
from harness.init import request
from harness.shipped import shipped
from harness.units import format_duration

if TYPE_CHECKING:
    from harness.lab.embedded import LabMachine

_NOT_RUNNING = 3
"""The exit status of `lab status` without a lab host."""


def add_quickstart(commands: Any) -> None:
    """Add the verb `quickstart` to the subparsers."""
    commands.add_parser(
        "quickstart",
        help="measure the simulated Optane disk in the embedded lab",
        epilog="All further options go to pytest, as with `run`.",
        example="virt-overhead quickstart",
        takes_rest=True,
    ).set_defaults(run=_quickstart)


def add_init(commands: Any) -> None:
    """Add the verb `init` to the subparsers."""
    request.add_init(commands).set_defaults(run=_init)


def add_images(commands: Any) -> None:
    """Add the verb `images` to the subparsers."""
    images = commands.add_parser(
        "images", help="build the missing images, and print where they are", example="virt-overhead images --verify"
    )
    images.add_argument("--rebuild", action="store_true", help="build all images again with today's packages")
    images.add_argument("--verify", action="store_true", help="compare every file with its checksum")
    add_json(images, "where they are")
    images.set_defaults(run=_images)
    actions = images.add_subparsers(metavar="ACTION")
    export = actions.add_parser(
        "export",
        help="write all images and their private SSH key into one file",
        example="virt-overhead images export images.tar",
    )
    add_json(export, "the file and its digest")
    export.add_argument("file", nargs="?", type=Path, metavar="FILE", help="default: a name with the digest")
    export.set_defaults(run=_export_images)
    importing = actions.add_parser(
        "import",
        help="use the images of such a file, instead of building them here",
        example="virt-overhead images import images.tar",
    )
    add_json(importing, "the directories and the digest")
    importing.add_argument("file", type=Path, metavar="FILE", help="what `images export` wrote")
    importing.add_argument("--digest", metavar="SHA256", help="refuse the file if its digest is another")
    importing.set_defaults(run=_import_images)


def add_lab(commands: Any) -> None:
    """Add the verb `lab` and its actions to the subparsers."""
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


def _init(options: argparse.Namespace) -> int:
    from harness.init.command import init
    from harness.model.disk import REQUESTED_CLASSES

    # A storage or disk with the name of a scenario would be measured by that scenario only.
    scenarios = [path.stem for path in shipped("scenarios").glob("*.toml")]
    inspected = init(request.init_request(options, (*scenarios, *REQUESTED_CLASSES)))
    print("\n".join(inspected.lines))
    return 0 if inspected.found_any else FAILED


def _images(options: argparse.Namespace) -> int:
    from harness.image import ensure_images

    images = ensure_images(terminal_events(options), rebuild=options.rebuild, verify=options.verify).all
    if options.json:
        print_json([{"name": image.name, "path": image.path} for image in images])
        return 0
    for image in images:
        print(f"{image.name:6} {image.path}")
    return 0


def _export_images(options: argparse.Namespace) -> int:
    from harness.image import ensure_images
    from harness.image.bundle import export_images

    images = ensure_images(terminal_events(options), rebuild=options.rebuild, verify=options.verify)
    path, digest = export_images(images.all, images.key, options.file)
    if options.json:
        print_json({"path": path, "digest": digest})
        return 0
    print(f"digest {digest}")
    print(f"{path}   (keep it private: who has its SSH key can log in to the guests and the labs)")
    return 0


def _import_images(options: argparse.Namespace) -> int:
    from harness.image import Cache, cache_root
    from harness.image.bundle import import_images

    events = terminal_events(options)
    directories, digest = import_images(options.file, Cache(cache_root()), events, digest=options.digest)
    if options.json:
        print_json({"paths": directories, "digest": digest})
        return 0
    print(f"digest {digest}")
    for directory in directories:
        print(directory)
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
