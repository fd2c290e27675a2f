"""What the tests of attachments share: the lab host as a run has it, its disks, and what was read back of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from harness.config.names import RunId
from harness.events import Events
from harness.features.embedded import lab_host as embedded
from harness.guest import open_hypervisor
from harness.guest.protocol import Hypervisor
from harness.image import ensure_images
from harness.lab.created import CreationLog
from harness.lab.guard import require_writable
from harness.lab.hosts import Host, open_host
from harness.lab.inventory import DiskById
from harness.lab.transport.base import Runner
from harness.layout import BlockSource
from harness.model.attach import Attachment
from harness.model.option import Effective
from harness.results.validity import configuration_check
from tests.patience import patience
from tests.unit.granted import granted

MIB = 1024**2
DIRECTORY = "/var/lib/virt-overhead/attach-test"


@dataclass(frozen=True, slots=True)
class Lab:
    """The lab host as a run has it, and its disks that can be handed to a guest whole."""

    host: Host
    hypervisor: Hypervisor

    def log(self) -> CreationLog:
        """The creation log of a run of its own."""
        return CreationLog(self.host.runner, RunId.new())

    @property
    def nvme(self) -> DiskById:
        return self._disk("nvme")

    @property
    def scsi(self) -> DiskById:
        return self._disk("scsi")

    def _disk(self, name: str) -> DiskById:
        disk = self.host.spec.disk(name)
        assert isinstance(disk, DiskById)
        return disk


@contextmanager
def opened() -> Iterator[Lab]:
    """The lab host, with `DIRECTORY` for files that are disks."""
    with ExitStack() as stack:
        host = stack.enter_context(open_host(embedded.inventory().hosts[0], ensure_images(Events()), Events()))
        host.runner.run(["mkdir", "-p", DIRECTORY], deadline=patience(20))
        stack.callback(host.runner.run, ["rm", "-rf", DIRECTORY], deadline=patience(60))
        yield Lab(host, stack.enter_context(open_hypervisor(host, Events())))


def a_disk(runner: Runner, disk: DiskById) -> BlockSource:
    return BlockSource(disk.id, "block", 0, 64 * MIB, grant=require_writable(runner, disk, disk.id))


def a_file(runner: Runner, name: str, size: int = 16 * MIB) -> BlockSource:
    """A new file of zeros that becomes a disk."""
    path = f"{DIRECTORY}/{name}"
    runner.run(["truncate", "-s", str(size), path], deadline=patience(20))
    return BlockSource(path, "file", 0, size, grant=granted(path, runner))


def source_of(runner: Runner, name: str) -> BlockSource:
    """A new file that becomes a disk: RAW, or qcow2 if it is called so."""
    if name != "qcow2":
        return a_file(runner, name)
    path = f"{DIRECTORY}/{name}"
    runner.run(["qemu-img", "create", "-q", "-f", "qcow2", path, "16M"], deadline=patience(30))
    return BlockSource(path, "file", 0, 16 * MIB, format="qcow2", grant=granted(path, runner))


def differences(asked: Mapping[str, Attachment], found: Mapping[str, Effective]) -> list[str]:
    checks = {name: configuration_check(attach, found[name]) for name, attach in asked.items()}
    return [
        f"{name}: {check.detail if check else 'nothing was read back'}"
        for name, check in checks.items()
        if check is None or not check.ok or "not read back" in check.detail
    ]
