"""Commands that prepare measuring: quickstart, init, images and the embedded lab."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from harness.cli.common import FAILED, terminal_events
from harness.cli.measuring import measure
from harness.files import write_atomically
from harness.image import Cache, cache_root, ensure_images
from harness.image.bundle import export_images, import_images
from harness.init import request
from harness.init.command import init
from harness.lab.embedded import lab as embedded
from harness.model.disk_class import REQUESTED_CLASSES
from harness.shipped import shipped
from harness.units import format_duration


def add_quickstart(commands: Any) -> None:
    """Add the verb `quickstart` to the subparsers."""
    quickstart = commands.add_parser("quickstart", help="measure the simulated Optane disk in the embedded lab")
    quickstart.set_defaults(run=_quickstart, takes_rest=True)


def add_init(commands: Any) -> None:
    """Add the verb `init` to the subparsers."""
    request.add_init(commands).set_defaults(run=_init)


def add_images(commands: Any) -> None:
    """Add the verb `images` to the subparsers."""
    images = commands.add_parser("images", help="build the missing images, and print where they are")
    images.add_argument("--rebuild", action="store_true", help="build all images again with today's packages")
    images.add_argument("--verify", action="store_true", help="compare every file with its checksum")
    images.set_defaults(run=_images)
    actions = images.add_subparsers(metavar="ACTION")
    export = actions.add_parser("export", help="write all images and their private SSH key into one file")
    export.add_argument("file", nargs="?", type=Path, metavar="FILE", help="default: a name with the digest")
    export.set_defaults(run=_export_images)
    importing = actions.add_parser("import", help="use the images of such a file, instead of building them here")
    importing.add_argument("file", type=Path, metavar="FILE", help="what `images export` wrote")
    importing.add_argument("--digest", metavar="SHA256", help="refuse the file if its digest is another")
    importing.set_defaults(run=_import_images)


def add_lab(commands: Any) -> None:
    """Add the verb `lab` and its actions to the subparsers."""
    lab = commands.add_parser("lab", help="the embedded lab: a KVM host in QEMU on this machine")
    actions = lab.add_subparsers(required=True, metavar="ACTION")
    for name, action, text in (
        ("up", _lab_up, "start the lab host, and leave it running"),
        ("down", _lab_down, "stop the lab host"),
        ("status", _lab_status, "print whether the lab host runs; exit status 3 if not"),
    ):
        actions.add_parser(name, help=text).set_defaults(run=action)
    ssh = actions.add_parser("ssh", help="log in to the lab host, or run the command that follows")
    ssh.set_defaults(run=_lab_ssh, takes_rest=True)


def _quickstart(options: argparse.Namespace) -> int:
    measure(["-k", "optane", "--lab=embedded", "--profile=smoke", *options.rest])


def _init(options: argparse.Namespace) -> int:
    # A storage or disk with the name of a scenario would be measured by that scenario only.
    scenarios = [path.stem for path in shipped("scenarios").glob("*.toml")]
    inspected = init(request.init_request(options, (*scenarios, *REQUESTED_CLASSES)))
    print("\n".join(inspected.lines))
    return 0 if inspected.found_any else FAILED


def _images(options: argparse.Namespace) -> int:
    for image in ensure_images(terminal_events(), rebuild=options.rebuild, verify=options.verify).all:
        print(f"{image.name:6} {image.path}")
    return 0


def _export_images(options: argparse.Namespace) -> int:
    images = ensure_images(terminal_events(), rebuild=options.rebuild, verify=options.verify)
    path, digest = export_images(images.all, images.key, options.file)
    print(f"digest {digest}")
    print(f"{path}   (keep it private: who has its SSH key can log in to the guests and the labs)")
    return 0


def _import_images(options: argparse.Namespace) -> int:
    directories, digest = import_images(options.file, Cache(cache_root()), terminal_events(), digest=options.digest)
    print(f"digest {digest}")
    for directory in directories:
        print(directory)
    return 0


def _lab_up(_options: argparse.Namespace) -> int:
    machine = embedded.up(ensure_images(terminal_events()), terminal_events())
    print(
        f"lab host is running under {machine.accel}: SSH on 127.0.0.1:{machine.port}; "
        "stop it with: virt-overhead lab down"
    )
    return 0


def _lab_down(_options: argparse.Namespace) -> int:
    print("lab host stopped" if embedded.down() else "no lab host was running")
    return 0


def _lab_status(_options: argparse.Namespace) -> int:
    machine = embedded.state().running()
    if machine is None:
        print("not running")
        return 3
    up = format_duration(time.time() - machine.started)
    print(f"running for {up} under {machine.accel} (process {machine.pid}), SSH on 127.0.0.1:{machine.port}")
    print(f"{machine.accel}, because {machine.why}")
    return 0


def _lab_ssh(options: argparse.Namespace) -> int:
    machine = embedded.running()
    known = embedded.state().known_hosts
    write_atomically(known, f"lab {machine.host_key}\n")
    settings = ["HostKeyAlias=lab", f'UserKnownHostsFile="{known}"', "IdentitiesOnly=yes", "LogLevel=ERROR"]
    flags = [part for setting in settings for part in ("-o", setting)]
    os.execvp("ssh", ["ssh", *flags, "-i", machine.key, "-p", str(machine.port), "root@127.0.0.1", *options.rest])
