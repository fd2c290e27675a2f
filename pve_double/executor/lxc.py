"""Containers that really run: LXC on the machine of the guests, with the configuration that PVE writes."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping

from pve_double.errors import PveError
from pve_double.executor.base import QemuFailed
from pve_double.executor.commands import Commands

START_SECONDS = 60.0
ROOT_ID = 100_000
"""The user of the machine that is root in an unprivileged container."""
_FILL = """
mkfs.ext4 -q -F "$1"
at=$(mktemp -d)
mount "$1" "$at"
tar -C "$at" -xf "$2" && chown -R "$3:$3" "$at" || { umount "$at"; exit 1; }
umount "$at"
rmdir "$at"
"""
# $1: its id, $2: the volume of its root, $3: its user. The rest: pairs of what it gets and its place there, a directory
# of the machine or a device. Standard input: its configuration. Devices get nodes of their own, as on a node of PVE.
_START = """
vmid=$1 user=$3 at=/var/lib/lxc/$1
mkdir -p "$at/rootfs" "$at/passthrough" && cat >"$at/config" && mount "$2" "$at/rootfs" || exit
# A node of PVE has the parser of AppArmor. A machine that has only the kernel's part cannot make a profile.
[ "$(cat /sys/module/apparmor/parameters/enabled 2>/dev/null)" != Y ] || command -v apparmor_parser >/dev/null ||
    sed -i 's/^lxc.apparmor.profile = .*/lxc.apparmor.profile = unconfined/' "$at/config" || exit
shift 3
while [ $# -gt 0 ]; do
    if [ -d "$1" ]; then
        mkdir -p "$at/rootfs$2" && mount --bind "$1" "$at/rootfs$2" && mount -o remount,bind,ro "$at/rootfs$2" || exit
    else
        number=$(stat -L -c "0x%t 0x%T" "$1")
        minor=$((${number#* })) major=$((${number% *}))
        node=$at/passthrough/$major-$minor
        mknod -m 0660 "$node" b "$major" "$minor" && chown "$user:$user" "$node" || exit
        echo "lxc.cgroup2.devices.allow = b $major:$minor rw" >>"$at/config"
        echo "lxc.mount.entry = $node ${2#/} none bind,create=file 0 0" >>"$at/config"
    fi
    shift 2
done
lxc-start --name "$vmid" --logfile "$at/log" --logpriority ERROR --daemon && exit
tail -n 5 "$at/log" >&2
exit 1
"""
_STOP = """
at=/var/lib/lxc/$1
lxc-stop --name "$1" --kill
for _ in $(seq 100); do [ -d "/sys/fs/cgroup/lxc/$1" ] || break; sleep 0.1; done
umount --recursive "$at/rootfs"
rm -f "$at/config" "$at/log" "$at"/passthrough/*
rmdir "$at/passthrough" "$at/rootfs" "$at"
"""


class Containers:
    """The containers of the double, on the machine that `commands` leads to."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._started: set[int] = set()

    def fill_container(self, vmid: int, root: str, archive: str) -> None:
        """Make a file system on the volume at `root`, and unpack the template `archive` there. Raises PveError."""
        if not root.startswith("/dev/"):
            raise PveError(f"the double has no container {vmid} on the file {root}", status=501)
        self._commands.run(["sh", "-euc", _FILL, "sh", root, archive, str(ROOT_ID)])

    def start_container(self, vmid: int, config: Mapping[str, str], root: str) -> None:
        """Raises QemuFailed with what LXC wrote."""
        things = [word for pair in _list_things(config) for word in pair]
        words = ["sh", "-uc", _START, "sh", str(vmid), root, str(ROOT_ID), *things]
        self._started.add(vmid)
        cpus = int(self._commands.run(["nproc"]).stdout)
        with tempfile.TemporaryFile() as text:
            text.write(write_config(vmid, config, cpus).encode())
            text.seek(0)
            done = self._commands.run(words, deadline=START_SECONDS, stdin=text, check=False)
        if done.status != 0:
            self.stop_container(vmid)
            raise QemuFailed(done.stderr.strip() or f"exit code {done.status}")

    def container_runs(self, vmid: int) -> bool:
        if vmid not in self._started:
            return False
        state = self._commands.run(["lxc-info", "--name", str(vmid), "--no-humanize", "--state"], check=False).stdout
        return state.strip() == "RUNNING"

    def stop_container(self, vmid: int) -> None:
        self._commands.run(["sh", "-uc", _STOP, "sh", str(vmid)], check=False)
        self._started.discard(vmid)

    def stop_containers(self) -> None:
        """End all of them."""
        for vmid in sorted(self._started):
            self.stop_container(vmid)

    def has_device(self, path: str) -> bool:
        return self._commands.run(["test", "-e", path], check=False).status == 0


def write_config(vmid: int, config: Mapping[str, str], cpus: int) -> str:
    """The configuration for LXC on a machine with so many CPUs, after PVE::LXC::update_lxc_config."""
    lines = [
        "lxc.include = /usr/share/lxc/config/common.conf",
        f"lxc.uts.name = {config.get('hostname', f'CT{vmid}')}",
        f"lxc.rootfs.path = dir:/var/lib/lxc/{vmid}/rootfs",
        "lxc.apparmor.profile = generated",
        "lxc.cgroup.relative = 0",
        f"lxc.cgroup.dir.monitor = lxc.monitor/{vmid}",
        f"lxc.cgroup.dir.container = lxc/{vmid}",
        "lxc.cgroup.dir.container.inner = ns",
        f"lxc.cgroup2.memory.max = {int(config.get('memory', '512')) << 20}",
    ]
    if config.get("unprivileged") == "1":
        lines += [f"lxc.idmap = u 0 {ROOT_ID} 65536", f"lxc.idmap = g 0 {ROOT_ID} 65536"]
    if cores := config.get("cores"):
        # pvestatd spreads the containers over the CPUs. The last ones handle the fewest interrupts.
        lines.append(f"lxc.cgroup2.cpuset.cpus = {max(cpus - int(cores), 0)}-{cpus - 1}")
    return "\n".join(lines) + "\n"


def _list_things(config: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The directories and devices of the machine that the container gets, with their places in it."""
    for key, value in sorted(config.items()):
        source, *options = value.split(",")
        if re.fullmatch(r"dev\d+", key):
            path = source.removeprefix("path=")
            yield path, path
        elif re.fullmatch(r"mp\d+", key) and source.startswith("/"):
            yield source, dict(option.split("=", 1) for option in options)["mp"]
