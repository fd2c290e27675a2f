"""The executor that really runs guests: QEMU, LVM and files on a KVM host, by commands and sockets there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from pve_double.errors import PveError
from pve_double.executor import guest, sockets
from pve_double.executor.arguments import runnable, tap_commands, unlocked
from pve_double.executor.base import GuestSilent, QemuFailed
from pve_double.executor.commands import Commands
from pve_double.executor.lxc import Containers
from pve_double.executor.node_storage import TRACELESS, NodeStorage
from pve_double.qemu import network
from pve_double.qemu.blockdev import throttle_group
from pve_double.qemu.devices import passed_through
from pve_double.qemu.drives import Drive
from pve_double.qemu.machine import Config, agent_enabled

RUN = "/var/run/qemu-server"
START_SECONDS = 60.0
UNPLUG_SECONDS = 10.0
_GIB = 1024**3
MARK = "/var/lib/vz/made-by-the-pve-double"
"""The file without which nothing is removed: its directory was made by a double, on a host that is no PVE node.

It lists the bridges that were made, one a line.
"""
_PREPARE = """
size=$1 bridges=$2 traceless=$3 mark=$4
if [ -e /etc/pve ] || [ -e /var/lib/vz ] || [ -e /mnt/pve ] || vgs pve >/dev/null 2>&1; then
    echo 'this host has /etc/pve, /var/lib/vz, /mnt/pve or a volume group pve of its own: a double leaves it alone' >&2
    exit 1
fi
mkdir /var/lib/vz
touch "$mark"
mkdir -p /mnt/pve /var/run/qemu-server /etc/pve/nodes/pve/qemu-server
# By this link, a client sees which node its commands run on.
ln -s nodes/pve /etc/pve/local
mkdir -p /var/lib/vz/template/iso /var/lib/vz/template/cache /var/lib/vz/import /var/lib/vz/images /var/lib/vz/snippets
for bridge in $bridges; do
    [ -d "/sys/class/net/$bridge" ] || {
        ip link add "$bridge" type bridge
        ip address add 10.99.0.1/16 dev "$bridge"
        ip link set "$bridge" up
        echo "$bridge" >>"$mark"
    }
done
truncate -s "$size" /var/lib/vz/pve-data.img
loop=$(losetup --find --show /var/lib/vz/pve-data.img)
pvcreate --config "$traceless" --quiet --yes "$loop"
vgcreate --config "$traceless" --quiet --setautoactivation n pve "$loop"
lvcreate --config "$traceless" --quiet --type thin-pool --extents 95%FREE --name data pve
# Like pvestatd: as local-lvm is a storage, it lists all volume groups and volumes, and so reads from their disks.
while sleep 10; do
    vgs --config "$traceless" --options vg_name,vg_size,vg_free,lv_count || true
    lvs --config "$traceless" --options vg_name,lv_name,lv_size,pool_lv,data_percent,metadata_percent || true
done </dev/null >/dev/null 2>&1 &
echo "$!" >/var/run/qemu-server/pvestatd
"""
# On an emulated host a vCPU that comes to a CPU from another one may hang, so it has one CPU from its first moment.
# QEMU's other threads then get the other CPUs; PVE's QEMU names its threads.
# A VM with an affinity gets those CPUs instead, as on a node of PVE.
_ON_CPUS = 'cpus=${1:-$(($(nproc) - 1))}; shift; exec taskset --cpu-list "$cpus" "$@"'
_SPREAD = """
[ "$(nproc)" -gt 1 ] || exit 0
others=0-$(($(nproc) - 2))
for task in /proc/"$1"/task/*; do
    case $(cat "$task/comm") in CPU*) ;; *) taskset --pid --cpu-list "$others" "${task##*/}" >/dev/null ;; esac
done
"""
_REMOVE_TRACES = """
for tap in /sys/class/net/tap"$1"i*; do [ ! -e "$tap" ] || ip link delete "${tap##*/}"; done
rm -f "$2/$1".*
"""
# As PVE::SysFSTools does it: the device stays with VFIO's driver until somebody returns it.
_TO_VFIO = """
modprobe vfio-pci
cd /sys/bus/pci/drivers/vfio-pci || exit 1
for address; do
    pci=/sys/bus/pci/devices/$address
    [ ! -e "$address" ] || continue
    echo "$(cat "$pci/vendor") $(cat "$pci/device")" >new_id 2>/dev/null
    [ -e "$address" ] || { [ ! -e "$pci/driver" ] || echo "$address" >"$pci/driver/unbind"; echo "$address" >bind; }
    [ -e "$address" ] || { echo "can't unbind/bind PCI group to VFIO '$address'" >&2; exit 1; }
done
"""
_UNDO = """
traceless=$1 mark=$2
[ -e "$mark" ] || exit 0
[ ! -e /var/run/qemu-server/pvestatd ] || kill "$(cat /var/run/qemu-server/pvestatd)"
for pid in $(cat /var/run/qemu-server/*.pid 2>/dev/null); do
    case $(cat "/proc/$pid/comm" 2>/dev/null) in qemu-system*) kill "$pid" ;; *) continue ;; esac
    for _ in $(seq 100); do [ -e "/proc/$pid" ] || break; sleep 0.1; done
done
for bridge in $(cat "$mark"); do
    for port in /sys/class/net/"$bridge"/brif/tap*; do [ ! -e "$port" ] || ip link delete "${port##*/}"; done
    ip link delete "$bridge"
done
for point in /mnt/pve/*; do
    [ -d "$point" ] || continue
    ! mountpoint --quiet "$point" || umount "$point"
    rmdir "$point"
done
vgremove --config "$traceless" --quiet --yes pve
losetup --noheadings --output NAME --associated /var/lib/vz/pve-data.img | while read -r loop; do
    losetup --detach "$loop"
done
rm -rf /etc/pve /var/lib/vz /var/run/qemu-server
rmdir /mnt/pve
"""


class QemuExecutor(Containers, NodeStorage):
    """Runs the guests of the double with QEMU on the machine that `commands` leads to."""

    real = True
    saves_state = True

    def __init__(self, commands: Commands, *, bridges: tuple[str, ...], kvm: bool) -> None:
        Containers.__init__(self, commands)
        NodeStorage.__init__(self, commands)
        self._commands = commands
        self._bridges = bridges
        self._kvm = kvm
        self._pids: dict[int, int] = {}
        self._backups: dict[int, tuple[str, list[str], int]] = {}

    @property
    def group_device(self) -> str:
        listed = ["losetup", "--noheadings", "--output", "NAME", "--associated", "/var/lib/vz/pve-data.img"]
        return self._commands.run(listed).stdout.strip()

    def prepare(self, *, local_lvm_gib: int) -> None:
        """Make what a fresh node has: directories, the bridges, and the thin pool of `local-lvm` in a sparse file.

        What an earlier double left that was killed is removed first; two at a time have no place on a host.
        """
        self._remove_all()
        size = str(local_lvm_gib * _GIB)
        self._commands.run(["sh", "-euc", _PREPARE, "sh", size, " ".join(self._bridges), TRACELESS, MARK])

    def undo(self) -> None:
        """End all guests, and remove what `prepare` made; nothing where that made nothing."""
        self.stop_containers()
        self._remove_all()
        self._commands.close()

    def _remove_all(self) -> None:
        self._commands.run(["sh", "-uc", _UNDO, "sh", TRACELESS, MARK], check=False)

    def pci_devices(self) -> list[str]:
        return self._commands.run(["ls", "/sys/bus/pci/devices"]).stdout.split()

    def start(self, vmid: int, config: Config, command: list[str]) -> int:
        if passed := passed_through(command):
            done = self._commands.run(["sh", "-c", _TO_VFIO, "sh", *passed], check=False)
            if done.status != 0:
                raise QemuFailed(done.stderr.strip())
        cards = network.cards(config)
        for argv in tap_commands(vmid, cards):
            self._commands.run(argv)
        kvm = self._kvm and config.get("kvm", "1") == "1"
        affinity = config.get("affinity", "")
        words = ["sh", "-c", _ON_CPUS, "sh", affinity, *runnable(command, kvm=kvm)]
        done = self._commands.run(words, deadline=START_SECONDS, check=False)
        if done.status != 0:
            self._remove_traces(vmid)
            raise QemuFailed(done.stderr.strip() or f"exit code {done.status}")
        self._pids[vmid] = int(self._commands.run(["cat", f"{RUN}/{vmid}.pid"]).stdout)
        if not affinity:
            self._commands.run(["sh", "-c", _SPREAD, "sh", str(self._pids[vmid])], check=False)
        return self._pids[vmid]

    def alive(self, vmid: int) -> bool:
        pid = self._pids.get(vmid)
        if pid is None:
            return False
        # A number alone may by now be another process's.
        name = self._commands.run(["cat", f"/proc/{pid}/comm"], check=False).stdout
        if name.startswith("qemu-system"):
            return True
        self._gone(vmid)
        return False

    def kill(self, vmid: int) -> None:
        pid = self._pids.get(vmid)
        if pid is not None:
            self._commands.run(["kill", str(pid)], check=False)
            deadline = time.monotonic() + UNPLUG_SECONDS
            while self.alive(vmid) and time.monotonic() < deadline:
                time.sleep(0.1)
        if vmid in self._pids:
            self._commands.run(["kill", "-9", str(pid)], check=False)
            self._gone(vmid)

    def _gone(self, vmid: int) -> None:
        self._pids.pop(vmid, None)
        self._remove_traces(vmid)

    def _remove_traces(self, vmid: int) -> None:
        """Its ends of network cards, and the sockets and the process's id of a QEMU that did not end by itself."""
        self._commands.run(["sh", "-c", _REMOVE_TRACES, "sh", str(vmid), RUN], check=False)

    def power_down(self, vmid: int, config: Config) -> None:
        if agent_enabled(config):
            try:
                self.agent(vmid, "guest-shutdown", {})
            except GuestSilent:
                return
        else:
            self._qmp(vmid, "system_powerdown")

    def reset(self, vmid: int) -> None:
        self._qmp(vmid, "system_reset")

    def pause(self, vmid: int, *, resume: bool) -> None:
        self._qmp(vmid, "cont" if resume else "stop")

    def begin_backup(self, vmid: int, keys: list[str], path: str, total: int) -> None:
        """With plain QEMU, each drive is copied to a file of its own beside the archive, by a job of its own."""
        self._commands.run(["mkdir", "-p", path.rpartition("/")[0]])
        sizes = {}
        for device in self._qmp(vmid, "query-named-block-nodes"):
            sizes[str(device.get("node-name"))] = int(device["image"]["virtual-size"])
        for key in keys:
            target = f"{path}.{key}"
            self._commands.run(["truncate", "-s", str(sizes[f"drive-{key}"]), target])
            file = {"driver": "file", "filename": target, "locking": "off"}
            self._qmp(vmid, "blockdev-add", {"driver": "raw", "node-name": f"backup-{key}", "file": file})
            job = {"job-id": f"vzdump-{key}", "device": f"drive-{key}", "target": f"backup-{key}", "sync": "full"}
            self._qmp(vmid, "blockdev-backup", job)
        self._backups[vmid] = path, keys, total

    def backed_up(self, vmid: int) -> int | None:
        if vmid not in self._backups:
            return None
        jobs = [job for job in self._qmp(vmid, "query-block-jobs") if str(job["device"]).startswith("vzdump-")]
        if not jobs:
            self._drop_backup(vmid)
            return None
        left = sum(int(job["len"]) - int(job["offset"]) for job in jobs)
        return max(self._backups[vmid][2] - left, 0)

    def cancel_backup(self, vmid: int) -> None:
        if vmid not in self._backups:
            return
        for key in self._backups[vmid][1]:
            with suppress(PveError):
                self._qmp(vmid, "block-job-cancel", {"device": f"vzdump-{key}", "force": True})
        deadline = time.monotonic() + UNPLUG_SECONDS
        while self.backed_up(vmid) is not None and time.monotonic() < deadline:
            time.sleep(0.1)

    def _drop_backup(self, vmid: int) -> None:
        path, keys, _ = self._backups.pop(vmid)
        for key in keys:
            with suppress(PveError):
                self._qmp(vmid, "blockdev-del", {"node-name": f"backup-{key}"})
            self._commands.run(["rm", "-f", f"{path}.{key}"])

    def agent(self, vmid: int, command: str, arguments: Mapping[str, Any]) -> Any:
        return guest.ask(self._commands.socket(f"{RUN}/{vmid}.qga"), command, arguments)

    def monitor(self, vmid: int, command: str) -> str | None:
        return self._human(vmid, command)

    def block_statistics(self, vmid: int) -> Mapping[str, Mapping[str, Any]] | None:
        found = {}
        for each in self._qmp(vmid, "query-blockstats"):
            name = str(each.get("node-name", ""))
            if name.startswith("drive-"):
                found[name.removeprefix("drive-")] = each["stats"]
        return found

    def plug(self, vmid: int, drive: Drive, arguments: list[str]) -> None:
        """Add the drive as PVE starts it: what its arguments say, through the monitor."""
        if not drive.flag("scsiblock"):
            self._qmp(vmid, "object-add", json.loads(throttle_group(drive)))
        for name, value in zip(arguments[::2], arguments[1::2], strict=True):
            if name == "-blockdev":
                self._qmp(vmid, "blockdev-add", json.loads(unlocked(value)))
            elif not self._has(vmid, _id_of(value)):
                self._checked(vmid, f"{'object_add' if name == '-object' else 'device_add'} {value}")

    def unplug(self, vmid: int, drive: Drive) -> None:
        """Remove the device, wait until the guest has let go of it, and remove what was behind it."""
        deadline = time.monotonic() + UNPLUG_SECONDS
        if self._has(vmid, drive.key):
            self._checked(vmid, f"device_del {drive.key}")
        while self._has(vmid, drive.key):
            if time.monotonic() >= deadline:
                raise PveError(f"error on hot-unplugging device '{drive.key}' - still busy in guest?")
            time.sleep(0.1)
        self._release(vmid, f"drive-{drive.key}", deadline)
        if not drive.flag("scsiblock"):
            self._qmp(vmid, "object-del", {"id": f"throttle-drive-{drive.key}"})
        for controller in _controllers(drive):
            if self._has(vmid, controller):
                self._checked(vmid, f"device_del {controller}")

    def _release(self, vmid: int, node: str, deadline: float) -> None:
        """Remove a block node, which a device that is gone may still hold until its last request has ended."""
        while True:
            try:
                self._qmp(vmid, "blockdev-del", {"node-name": node})
            except PveError as error:
                if "is in use" not in str(error) or time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    def _has(self, vmid: int, id_: str) -> bool:
        listed = [
            each for path in ("/machine/peripheral", "/objects") for each in self._qmp(vmid, "qom-list", {"path": path})
        ]
        return any(each["name"] == id_ for each in listed)

    def _checked(self, vmid: int, text: str) -> None:
        if said := self._human(vmid, text).strip():
            raise PveError(f"VM {vmid} {text.partition(' ')[0]} failed - {said}")

    def _human(self, vmid: int, text: str) -> str:
        return str(self._qmp(vmid, "human-monitor-command", {"command-line": text}))

    def _qmp(self, vmid: int, command: str, arguments: Mapping[str, Any] | None = None) -> Any:
        try:
            return sockets.qmp(self._commands.socket(f"{RUN}/{vmid}.qmp"), (command, arguments or {}))[0]
        except (sockets.Refused, sockets.Silent) as failed:
            raise PveError(f"VM {vmid} qmp command '{command}' failed - {failed}") from failed


def _id_of(value: str) -> str:
    return next((part.removeprefix("id=") for part in value.split(",") if part.startswith("id=")), "")


def _controllers(drive: Drive) -> Iterator[str]:
    """What a drive has for itself, and goes with it."""
    if drive.bus == "scsi":
        yield f"virtioscsi{drive.index}"
