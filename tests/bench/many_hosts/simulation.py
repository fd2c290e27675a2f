"""What a simulated host does not have, for the processes of pytest that measure it: QEMU, and images for its guests.

Everything else is the harness: the connection, the lease, the creation log, the clocks, fio's timetable and output, the
counters, the campaign, the store, the report. A guest is a second connection to its host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from harness import image
from harness.events import Events
from harness.guest.protocol import Backup, GuestDisk, Hypervisor
from harness.lab.counters import VmThreads
from harness.lab.created import CreationLog, Entry, Removal
from harness.lab.facts import Acceleration
from harness.lab.hosts import CONNECT_SECONDS, Host, reach_host
from harness.lab.inventory import AnyDisk, HostSpec
from harness.lab.transport.base import Runner
from harness.lab.transport.ssh import SshRunner
from harness.layout import BlockSource
from harness.layout.build import Layouts, SharedStorage
from harness.measure import host_measurer
from harness.measure.series import LabFound
from harness.model.counters import Transferred
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.mode import Mode
from harness.model.option import NOTHING, Effective
from harness.results import LabInfo
from tests.bench.many_hosts.hosts import FILES
from tests.unit.granted import granted

FIO = "fio-3.39"
WHY = "a simulated host"


@dataclass(frozen=True)
class SimulatedGuest:
    """A guest that is another connection to its host. Its disks are the files of its host."""

    runner: Runner
    paths: Mapping[str, str]
    threads: VmThreads | None = None
    boot_seconds: float = 0.0
    windows: bool = False
    fio: str = "fio"
    evidence: Mapping[str, str] = field(default_factory=lambda: {"hypervisor": "KVM", "fio": FIO})

    def device(self, disk: str) -> str:
        return self.paths[disk]

    def transferred(self, disks: Sequence[str]) -> Mapping[str, Transferred | None]:
        return dict.fromkeys(disks)

    def effective(self, disk: str) -> Effective:
        del disk
        return NOTHING

    @contextmanager
    def holding(self, disk: str) -> Iterator[None]:
        del disk
        yield

    def backup(self, disk: str, target: str) -> Backup:
        raise NotImplementedError

    def post_mortem(self) -> str | None:
        return None


class Unlimited:
    """The space of a storage that has enough."""

    def require(self, size_bytes: int) -> None:
        """There is enough."""

    def require_for(self, path: str, size_bytes: int, part_bytes: int) -> None:
        """There is enough."""


@dataclass(frozen=True)
class SimulatedHypervisor:
    """Guests that are connections, and volumes that are files of any content."""

    host: Host
    poll_seconds: float = 0.0
    passes_at_boot: bool = False

    def unsupported_by_host(self, mode: Mode, disk: AnyDisk) -> str | None:
        del mode, disk
        return None

    def unsupported_by_guest_os(self, log: CreationLog, mode: Mode) -> str | None:
        del log, mode
        return None

    def remove(self, entry: Entry) -> Removal | None:
        del entry
        return None

    @contextmanager
    def layouts(
        self, log: CreationLog, disks: Sequence[AnyDisk], modes: Sequence[Mode], *, span: int
    ) -> Iterator[Layouts]:
        del disks
        runner = log.runner
        sources = {}
        for name in ("baseline", *(mode.name for mode in modes if mode.attach is not None)):
            path = f"{FILES}/{name}.raw"
            runner.run(["truncate", f"--size={span}", path], deadline=20)
            sources[name] = BlockSource(path, "file", 0, span, grant=granted(path, runner))
        bare = sources.pop("baseline")
        yield Layouts(bare, sources, span, "", shared=SharedStorage(WHY, (), Unlimited()))

    @contextmanager
    def guest(
        self, log: CreationLog, disks: Sequence[GuestDisk], options: GuestOptions = ANY_GUEST, *, variant: str = ""
    ) -> Iterator[SimulatedGuest]:
        del log, options, variant
        assert self.host.target is not None
        name = f"guest on {self.host.name}"
        runner = SshRunner.connect(self.host.target, name=name, deadline=CONNECT_SECONDS)
        try:
            yield SimulatedGuest(runner, {disk.name: disk.source.path for disk in disks})
        finally:
            runner.close()


@contextmanager
def open_host(spec: HostSpec, images: object, events: Events) -> Iterator[Host]:
    """Connects to the host and reads its facts, as `harness.lab.hosts.open_host` does. Copies no image."""
    del images, events
    with reach_host(spec) as at:
        yield Host(spec, at.runner, at.ssh, at.target, at.facts, None, Acceleration("kvm", WHY))  # type: ignore[arg-type]


@contextmanager
def hypervisor_of(host: Host, events: Events) -> Iterator[Hypervisor]:
    del events
    yield SimulatedHypervisor(host)


def examine(host: Host, images: object) -> LabFound:
    del images
    info = LabInfo(host.name, host.spec.kind, "kvm", representative=True, why=WHY)
    return LabFound(info, "bare-metal", {"host": dict(host.facts.provenance)})


def pytest_configure() -> None:
    """Has the harness of this process use them."""
    patch = pytest.MonkeyPatch()
    patch.setattr(image, "ensure_images", lambda _: None)
    patch.setattr(host_measurer, "open_host", open_host)
    patch.setattr(host_measurer, "open_hypervisor", hypervisor_of)
    patch.setattr(host_measurer, "examine", examine)
