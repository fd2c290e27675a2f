"""Simulated hosts: OpenSSH servers on 127.0.0.1, 127.0.0.2 and so on, each with files and a fio of its own.

Each server is in a mount namespace, so each host has its own lease and creation log. Everything ends with the block.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.bench.many_hosts import replayed_fio
from tests.unit.transport_servers import SSHD, make_key

RECORDED = Path(__file__).parents[2] / "features/exchange/data"
FILES = "/mnt"
"""Where a simulated host has its storage."""
_UP_SECONDS = 20.0

# $1: the server, $2: its configuration. Nothing that a host writes is on this machine's disks. Each command of a host
# has a shell, which must not read the user's own files: they may start programs that lock each other out.
_SERVE = f"""
for each in /run /var/lib {FILES}; do mount -t tmpfs none "$each" || exit; done
for each in ~/.bashrc ~/.ssh/rc /etc/bash.bashrc; do [ ! -e "$each" ] || mount --bind /dev/null "$each" || exit; done
mkdir /run/sshd && exec "$1" -D -e -f "$2"
"""


@dataclass(frozen=True)
class SimulatedHost:
    """One of them: its address and port, and the process of its server."""

    name: str
    address: str
    port: int
    server: subprocess.Popen[bytes]

    def die(self) -> None:
        """End the server and all of its connections and commands at once, as when the power fails."""
        for process in _with_descendants(self.server.pid):
            with suppress(ProcessLookupError):  # A command may just have ended.
                os.kill(process, signal.SIGKILL)


@contextmanager
def simulated_hosts(directory: Path, number: int) -> Iterator[list[SimulatedHost]]:
    """So many hosts. Log in with the key `user_key` in the directory; `host_key.pub` there is the key of all hosts."""
    install_fio(directory)
    for key in ("user_key", "host_key"):
        make_key(directory / key)
    with ExitStack() as stack:
        yield [stack.enter_context(_host(directory, each)) for each in range(1, number + 1)]


@contextmanager
def _host(directory: Path, number: int) -> Iterator[SimulatedHost]:
    address = f"127.0.0.{number}"
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
    settings = {
        "ListenAddress": address,
        "Port": port,
        "HostKey": directory / "host_key",
        "AuthorizedKeysFile": directory / "user_key.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "MaxSessions": 20,
        "SetEnv": f"PATH={directory}/programs:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    config = directory / f"sshd_config{number}"
    config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    argv = ["unshare", "-m", "sh", "-c", _SERVE, "sh", SSHD or "sshd", str(config)]
    with (directory / f"sshd{number}.log").open("wb") as log:
        server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    host = SimulatedHost(f"node{number}", address, port, server)
    try:
        _wait_for(host)
        yield host
    finally:
        host.die()
        server.wait()


def _wait_for(host: SimulatedHost) -> None:
    give_up_at = time.monotonic() + _UP_SECONDS
    while time.monotonic() < give_up_at and host.server.poll() is None:
        try:
            with socket.create_connection((host.address, host.port), timeout=1):
                return
        except OSError:
            time.sleep(0.02)
    sys.exit(f"{host.name} does not listen on {host.address}. It needs root, OpenSSH's server and mount namespaces")


def install_fio(directory: Path) -> None:
    programs = directory / "programs"
    programs.mkdir()
    recorded = {}
    for place in ("host", "guest"):
        jobs = json.loads((RECORDED / f"own-{place}.json").read_text())["jobs"]
        recorded[place] = next(each for each in jobs if each["read"]["total_ios"])
    (programs / "recorded.json").write_text(json.dumps(recorded))
    run = f'exec {sys.executable} -I -S {replayed_fio.__file__} {programs}/recorded.json "$@"'
    (programs / "fio").write_text(f'#!/bin/sh\n[ "$1" != --version ] || {{ echo fio-3.39; exit; }}\n{run}\n')
    (programs / "fio").chmod(0o755)


def _with_descendants(process: int) -> list[int]:
    """The process, then those that it started, their children, and so on."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [process] if Path(f"/proc/{process}").exists() else []
    for each in found:
        found += children.get(each, ())
    return found
