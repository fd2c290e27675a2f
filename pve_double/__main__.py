"""python -m pve_double: a double that serves until it is ended."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
from collections.abc import Sequence

from pve_double.executor.choose import add_options, chosen
from pve_double.faults import Fault
from pve_double.formats import parse_size
from pve_double.pace import Pace
from pve_double.server import serve
from pve_double.state import RECORDED_DISK, RECORDED_FILES, Settings, make_node
from pve_double.storage.disks import Disk


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    pace = Pace(options.pace, options.boot_seconds)
    settings = Settings(cpus=options.cpus, kvm=options.kvm, zfs=options.zfs, pace=pace)
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(chosen(options, pace, settings.bridges))
        disks = options.disk or ([] if executor.real else [RECORDED_DISK])
        # Files of the recordings are only names: a guest that really runs could not boot them.
        files = {} if executor.real else RECORDED_FILES
        node = make_node(options.user, options.password, executor, settings, disks=disks, files=files)
        if executor.real:
            node.store.config("local-lvm").total_bytes = options.local_lvm_gib * 1024**3
        for fault in options.fault:
            node.faults.add(fault)
        for user, name, value in options.token:
            if user not in node.access.accounts.users:
                parser.error(f"argument --token: the only user at the start is {options.user}, not {user}")
            node.access.add_token(user, name, privsep=False, value=value)
        host, port = options.listen
        try:
            serving = stack.enter_context(serve(node, host=host, port=port, node_port=options.node_port))
        except OSError as error:
            parser.error(f"argument --listen: {host}:{port}: {error.strerror or error}; port 0 takes a free one")
        sys.stdout.write(f"CA: {serving.authority}\nnode port: {serving.node_port}\nready: {serving.url}\n")
        sys.stdout.flush()
        _until_ended()
    return 0


def _until_ended() -> None:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pve_double", description="A double of a Proxmox VE 9.2 node")
    parser.add_argument(
        "--listen", default=("127.0.0.1", 8006), type=_address, metavar="ADDRESS:PORT", help="port 0 takes a free one"
    )
    parser.add_argument("--node-port", type=int, default=0, help="for the node's qm and pvesm; plain HTTP on 127.0.0.1")
    parser.add_argument("--user", default="root@pam")
    parser.add_argument("--password", required=True)
    parser.add_argument("--token", action="append", default=[], type=_token, metavar="USER!NAME=VALUE")
    parser.add_argument("--disk", action="append", default=[], type=_disk, metavar="BY_ID,SERIAL,SIZE,DEVICE")
    parser.add_argument("--fault", action="append", default=[], type=_fault, metavar="JSON", help="see README.md")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--no-kvm", dest="kvm", action="store_false", help="the node has no /dev/kvm")
    parser.add_argument("--no-zfs", dest="zfs", action="store_false", help="the node has no zfsutils-linux")
    parser.add_argument("--pace", type=float, default=1.0, metavar="FACTOR", help="0.01: a hundred times as fast")
    parser.add_argument("--boot-seconds", type=float, default=8.0, help="from start to the agent's first answer")
    add_options(parser)
    return parser


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is not ADDRESS:PORT, as in 127.0.0.1:8006")
    return host, int(port)


def _token(text: str) -> tuple[str, str, str]:
    name, separator, value = text.partition("=")
    user, mark, token = name.partition("!")
    if not separator or not mark:
        raise argparse.ArgumentTypeError(f"'{text}' is not USER!NAME=VALUE")
    return user, token, value


def _disk(text: str) -> Disk:
    parts = text.split(",")
    size = parse_size(parts[2]) if len(parts) == 4 else None
    if size is None:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not BY_ID,SERIAL,SIZE,DEVICE, as in /dev/disk/by-id/x,x,1G,/dev/sdb"
        )
    return Disk(parts[3], size, serial=parts[1], by_id=parts[0])


def _fault(text: str) -> Fault:
    try:
        return Fault(**json.loads(text))
    except (ValueError, TypeError) as wrong:
        raise argparse.ArgumentTypeError(f"'{text}' is no fault: {wrong}") from wrong


if __name__ == "__main__":
    sys.exit(main())
