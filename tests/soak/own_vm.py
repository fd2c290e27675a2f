"""A VM of somebody else on the lab host: defined in libvirt, running, with a disk of its own, and an SSH server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from harness.guest.libvirt.domain import GuestSpec, build_domain_xml
from harness.guest.protocol import GuestDisk
from harness.lab.hosts import Host
from harness.lab.transport.ssh import SshRunner, SshTarget
from harness.layout import BlockSource
from harness.model.attach import Attach
from harness.model.guest import GuestOptions
from tests.patience import patience

NAME = "shop"
UUID = "6f0b8f6e-5d0a-4f5e-9a0e-0d5b1d0c9a11"
PORT = 19022
DIRECTORY = "/srv/shop"
DISK_MIB = 32
BOOT_SECONDS = 240.0

_MAKE = f"""
mkdir -p {DIRECTORY} && dd if=/dev/urandom of={DIRECTORY}/disk.raw bs=1M count={DISK_MIB} conv=fsync status=none &&
cat >{DIRECTORY}/shop.xml && virsh -q define {DIRECTORY}/shop.xml >&2 && virsh -q start {NAME} >&2
"""
_REMOVE = f"virsh -q destroy {NAME}; virsh -q undefine {NAME}; rm -rf {DIRECTORY}"
# Its definition, how it runs, and its disk. libvirt gives the file to QEMU's user while the VM runs, and only then.
_CONFIGURATION = f"""
set -e
virsh dumpxml --inactive {NAME}
virsh dumpxml {NAME}
virsh domstate {NAME}
cat /run/libvirt/qemu/{NAME}.pid; echo
sha256sum {DIRECTORY}/disk.raw
"""
# In it: its disks, and what is on its own one.
_SEEN = 'ls /sys/block; for at in /sys/block/*; do [ ! -e "$at/device" ] || sha256sum "/dev/${at##*/}"; done'


@dataclass(frozen=True, slots=True)
class OwnVm:
    """The running VM. `inside` runs commands in it, `host` on the lab host."""

    host: SshRunner
    inside: SshRunner
    target: SshTarget

    def state(self) -> str:
        """All of its configuration, the checksum of its disk, and which disks its system has, with their checksums."""
        on_host = self.host.run(["sh", "-c", _CONFIGURATION], deadline=patience(60)).stdout
        return on_host + self.inside.run(["sh", "-c", _SEEN], deadline=patience(120)).stdout

    def definition(self) -> str:
        """What libvirt stores of it."""
        return self.host.run(["virsh", "dumpxml", "--inactive", NAME], deadline=patience(60)).stdout

    def sources(self) -> set[str]:
        """The disks that libvirt lists of it now, by their targets on the host."""
        printed = self.host.run(["virsh", "-q", "domblklist", NAME], deadline=patience(60)).stdout
        return {line.split(maxsplit=1)[1].strip() for line in printed.splitlines() if line.strip()}

    def lab_table(self, reach: str = "node") -> str:
        """The table of a lab file that borrows it, with or without a login over SSH."""
        if reach == "agent":
            return f'[host.kvm1.guest]\nborrow = "{NAME}"\nreach = "agent"\n'
        return (
            f'[host.kvm1.guest]\nborrow = "{NAME}"\naddress = "{self.target.host}"\nport = {self.target.port}\n'
            f'key = "{self.target.key}"\nhost_key = "{self.target.host_key}"\n'
        )


@contextmanager
def own_vm(host: Host, on_host: SshRunner) -> Iterator[OwnVm]:
    """The VM, from the harness's guest image, until the end of the block. Its machine is `pc`: all slots are free."""
    files = host.guest_files
    disk = GuestDisk("shop", BlockSource(f"{DIRECTORY}/disk.raw", "file", 0, DISK_MIB << 20), Attach(iothread=True))
    emulated = bool(host.spec.simulated) or host.lab_kind == "emulated"
    spec = GuestSpec(
        name=NAME,
        uuid=UUID,
        run_id=NAME,
        accel=host.acceleration.accel,
        kernel=files.kernel,
        initramfs=files.initramfs,
        ssh_port=PORT,
        console=f"{DIRECTORY}/console.log",
        disks=(disk,),
        vcpus=1,
        # As the harness does it: an emulated guest on several CPUs crashes.
        pinned_cpu=int(host.facts["cpus"] or 1) - 1 if emulated else None,
        options=GuestOptions(machine="pc"),
    )
    target = SshTarget("127.0.0.1", PORT, "root", files.key, files.host_key)
    with ExitStack() as stack:
        stack.callback(on_host.run, ["sh", "-c", _REMOVE], deadline=patience(120), check=False)
        on_host.run(["sh", "-c", _MAKE], stdin=build_domain_xml(spec), deadline=patience(120))
        inside = SshRunner.connect_when_up(
            target, name=f"VM {NAME}", via=on_host, deadline=patience(BOOT_SECONDS), on_wait=lambda _cause: None
        )
        stack.callback(inside.close)
        inside.run(["sh", "-c", "until [ -e /run/ready ]; do sleep 1; done"], deadline=patience(120))
        yield OwnVm(on_host, inside, target)
