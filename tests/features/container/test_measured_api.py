"""Slices in a container that the double of Proxmox VE makes from the run's template, in name spaces of this machine."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from harness.events import Events
from harness.features.container.proxmox import make_template, start_on_node
from harness.features.proxmox import ProxmoxSpec
from harness.features.proxmox.creation import PveVolume
from harness.guest.protocol import Guest, GuestDisk
from harness.lab.created import CreationLog
from harness.lab.facts import HostFacts
from harness.lab.transport.local import LocalRunner
from harness.measure.session import Guests
from harness.model.attach import InContainer
from harness.model.guest import GuestOptions
from harness.signals import wait_until
from pve_double.executor.memory import MemoryExecutor
from pve_double.qemu.machine import Config
from pve_double.server import serve
from pve_double.testing import FAST, memory_node
from tests.build import RUN_ID
from tests.features.container.test_container_api import WITH_STORAGE
from tests.features.container.test_measured import ARMS, INSIDE
from tests.features.proxmox.proxmox_nodes import connected
from tests.unit.loop_disks import loop, require, sparse
from tests.unit.test_measure_blocks import MIB, READ, SPAN, WRITE, programs_in, ran_in, script, undisturbed

# $1: the root, $2: a device. What LXC gives a container beside the programs of its host.
_INSIDE = """
mount --bind "$1" "$1" && mount --bind /usr "$1/usr" && mount -o remount,bind,ro "$1/usr" || exit
mount -t tmpfs dev "$1/dev" && mkdir "$1/dev/shm" && mount -t sysfs sys "$1/sys" || exit
for name in null zero urandom; do : >"$1/dev/$name" && mount --bind "/dev/$name" "$1/dev/$name" || exit; done
: >"$1$2" && mount --bind "$2" "$1$2" && mount -t proc proc "$1/proc" || exit
exec env -i PATH=/usr/bin:/usr/sbin chroot "$1" /sbin/init
"""


@dataclass
class Containers(MemoryExecutor):
    """Starts the containers of the double in name spaces, with the root that the template has."""

    directory: Path = Path()
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(FAST.factor)

    def start_container(self, vmid: int, config: Config, root: str) -> None:
        del root
        at = self.directory / str(vmid)
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(make_template()))) as archive:
            archive.extractall(at, filter="tar")
        device = config["dev0"].split(",")[0].removeprefix("path=")
        words = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "sh", "-c", _INSIDE, "sh"]
        self.processes[vmid] = subprocess.Popen([*words, str(at), device])
        assert wait_until(lambda: self.find_pid(vmid) and (at / "proc").exists(), deadline=30.0, every=0.1)

    def find_pid(self, vmid: int) -> str:
        """Its first process, once it runs what the template has."""
        listed = ["pgrep", "--parent", str(self.processes[vmid].pid), "sleep"]
        return subprocess.run(listed, capture_output=True, text=True, check=False).stdout.strip()

    def container_runs(self, vmid: int) -> bool:
        return vmid in self.processes and self.processes[vmid].poll() is None

    def stop_container(self, vmid: int) -> None:
        subprocess.run(["kill", "-KILL", self.find_pid(vmid)], check=True)
        self.processes.pop(vmid).wait(timeout=30)


def test_real_slices_in_a_container_of_proxmox_use_the_volume_that_is_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("fio")
    programs = programs_in(tmp_path, monkeypatch)
    version = LocalRunner().run(["fio", "--version"], deadline=10).stdout.strip()
    node = memory_node(cpus=2)
    containers = Containers(directory=tmp_path / "containers")
    node.executor = containers
    node.store.backing = containers
    with loop(sparse(tmp_path / "disk", 2 * SPAN)) as device, serve(node) as serving, connected(serving) as client:
        ran = ran_in(tmp_path, device, Path(device).name, version=version)
        source = ran.at.layouts.guest(INSIDE)
        volume = PveVolume(source.path, "block", source.offset, source.size, "raw", source.grant, "local-lvm:x", 9000)

        @contextmanager
        def boot() -> Iterator[Guest]:
            spec = replace(ran.at.host.spec, hypervisor=ProxmoxSpec(client.spec, WITH_STORAGE))
            host = replace(ran.at.host, spec=spec, facts=HostFacts({"fio": version, "cpus": "2"}))
            log = CreationLog(LocalRunner(), RUN_ID, str(tmp_path / "created"))
            disk = GuestDisk(INSIDE.name, volume, InContainer())
            inner = tmp_path / "inner"
            script(programs, "lxc-info", f"cat {inner}")
            script(programs, "lxc-attach", f'read -r pid <{inner}; shift 3; exec nsenter -t "$pid" -m -p -r -w -- "$@"')
            started = containers.start_container

            def start(vmid: int, config: Config, root: str) -> None:
                started(vmid, config, root)
                inner.write_text(f"{containers.find_pid(vmid)}\n")

            monkeypatch.setattr(containers, "start_container", start)
            with start_on_node(host, client, log, [disk], GuestOptions(), cpus=1, events=Events()) as container:
                yield container

        guests = Guests("here", {"container": boot}, {"container": [INSIDE.name]})
        ran.at = replace(ran.at, guests=guests)
        try:
            table = ran.table((replace(READ, seconds=0.4), replace(WRITE, seconds=0.4)), ARMS)
            measured = undisturbed(lambda: ran.measure(table), list)
        finally:
            guests.close()
    assert (node.containers, containers.processes) == ({}, {})
    inside = [slice_ for slice_ in measured if slice_.arm == "guest:lvm-container"]
    assert len(inside) == 4
    for slice_ in inside:
        disk, fio = slice_.counters.disk, slice_.counters.fio
        assert disk is not None
        assert fio.read + fio.written > 0
        assert disk.read == pytest.approx(fio.read, rel=0.3, abs=MIB)
        assert disk.written == pytest.approx(fio.written, rel=0.3, abs=MIB)
