"""A host opened for work: a way to run commands, what it is, how guests can be had there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_state_path

from harness.errors import HostError, LabUnavailable, NotReached
from harness.events import Events, Note
from harness.image import ImageSet
from harness.lab.accel import Acceleration, probe, probes_file, remembered
from harness.lab.cycles import NOT_ASKED, CycleCounting, cycle_counting
from harness.lab.embedded.lab import embedded_lab, running_host_spec
from harness.lab.facts import HostFacts, read_facts
from harness.lab.inventory import HostSpec
from harness.lab.paths import IMAGE_DIRECTORY
from harness.lab.transport.base import HoldingRunner, Runner
from harness.lab.transport.local import LocalRunner
from harness.lab.transport.ssh import SshRunner, SshTarget
from harness.model.budget import LabKind

CONNECT_SECONDS = 30.0
COPY_SECONDS = 600.0

# $1: a file. Copies of earlier versions were readable by all; those of the embedded lab are on a read-only CD.
_FOUND = '[ -e "$1" ] || exit 1; chmod 0600 "$1" 2>/dev/null; exit 0'


@dataclass(frozen=True, slots=True)
class GuestFiles:
    """Where the guest image is on the host, and the keys that open the guest.

    `iso` is its bootable form on this machine, for hypervisors that have it uploaded; `digest` names the image.
    """

    kernel: str
    initramfs: str
    key: Path
    host_key: str
    iso: Path = Path()
    iso_sha256: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class ReachedHost:
    """A reachable host. `ssh` and `target` are None for this machine; a guest is reached through `ssh`."""

    spec: HostSpec
    runner: HoldingRunner
    ssh: SshRunner | None
    target: SshTarget | None
    facts: HostFacts

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class Host(ReachedHost):
    """A reachable host on which guests can be started."""

    guest_files: GuestFiles
    acceleration: Acceleration
    cycles: CycleCounting = NOT_ASKED

    @property
    def representative(self) -> tuple[bool, str]:
        """Whether figures from here speak for real hardware, and why or why not."""
        engine = "KVM" if self.acceleration.accel == "kvm" else "TCG (emulation)"
        if self.spec.simulated:
            return False, f"{engine} {self.spec.simulated}"
        if self.facts["hypervisor"]:
            return False, f"the host is itself a virtual machine ({self.facts['hypervisor']}); {engine}"
        if self.acceleration.accel != "kvm":
            return False, f"guests run under {engine}: {self.acceleration.why}"
        return True, "KVM on bare metal"

    @property
    def lab_kind(self) -> LabKind:
        """What its figures can speak for: a budget holds only in a lab of the kind that it was written for."""
        # An emulated CPU calls itself `qemu` to systemd-detect-virt, where one under KVM calls itself `kvm`.
        if self.acceleration.accel != "kvm" or self.facts["hypervisor"] == "qemu":
            return "emulated"
        return "nested" if self.facts["hypervisor"] else "bare-metal"


@contextmanager
def open_host(spec: HostSpec, images: ImageSet, events: Events) -> Iterator[Host]:
    """Connect to the host (bringing the embedded lab up where that is it) and learn what it is.

    Raises LabUnavailable with the remedy where it cannot be used; NotReached if no connection is made.
    """
    with ExitStack() as stack:
        if spec.kind == "embedded":
            spec = stack.enter_context(embedded_lab(images, events))
        reached = stack.enter_context(reach_host(spec))
        runner, facts = reached.runner, reached.facts
        cycles = cycle_counting(runner, facts)
        if (why := spec.hypervisor.why_emulated(spec.name)) is not None:
            emulated = Acceleration("tcg", why)
            yield Host(spec, runner, reached.ssh, reached.target, facts, _described(images), emulated, cycles)
            return
        files = _guest_files(runner, images, events)
        accelerated = _acceleration(runner, facts, files, images)
        yield Host(spec, runner, reached.ssh, reached.target, facts, files, accelerated, cycles)


@contextmanager
def reach_host(spec: HostSpec) -> Iterator[ReachedHost]:
    """Connect to the host as root, for work that starts no guests: it needs no image and no KVM.

    Raises LabUnavailable with the remedy where it cannot be reached, or is an embedded lab that does not run.
    """
    if spec.kind == "embedded" and spec.ssh is None:
        spec = running_host_spec()
    runner, ssh, target = _connect(spec)
    try:
        facts = read_facts(runner)
        _require_root(spec, facts)
        yield ReachedHost(spec, runner, ssh, target, facts)
    finally:
        runner.close()


def connect(spec: HostSpec) -> HoldingRunner:
    """A runner on the host, for work that needs no guest image."""
    return _connect(spec)[0]


def _connect(spec: HostSpec) -> tuple[HoldingRunner, SshRunner | None, SshTarget | None]:
    if spec.ssh is None:
        return LocalRunner(f"host {spec.name}"), None, None
    known_hosts = user_state_path("virt-overhead") / "known_hosts"
    at = spec.ssh
    target = SshTarget(at.address, at.port, at.user, at.key, at.host_key, known_hosts)
    try:
        ssh = SshRunner.connect(target, name=f"host {spec.name}", deadline=CONNECT_SECONDS)
    except HostError as error:
        raise NotReached(error.message, hint=error.hint) from error
    return ssh, ssh, target


def _require_root(spec: HostSpec, facts: HostFacts) -> None:
    if facts["user"] != "0":
        raise LabUnavailable(
            f"host {spec.name}: layouts are built and disks are opened as root, but this is user {facts['user']}",
            hint="run it with sudo" if spec.ssh is None else f'set host.{spec.name}.user = "root" in the lab file',
        )


def _guest_files(runner: Runner, images: ImageSet, events: Events) -> GuestFiles:
    """The guest image on the host, copied there once per digest."""
    directory = f"{IMAGE_DIRECTORY}/{images.guest.digest}"
    copy_guest(runner, images.guest.path, directory, events)
    return _described(images, directory)


def copy_guest(runner: Runner, image: Path, directory: str, events: Events) -> None:
    """Copy the guest's kernel and initramfs from `image` to `directory` of the host, where they are missing.

    Only root may read them: the guest's private host key is in the initramfs. libvirt makes both files those of QEMU's
    user when it starts a guest (`dynamic_ownership`, as it does with the disks), who needs to enter the directory.
    """
    for name in ("vmlinuz", "initramfs"):
        target = f"{directory}/{name}"
        if runner.run(["sh", "-c", _FOUND, "sh", target], deadline=20, check=False).status != 0:
            events(Note(f"{runner.name}: copying the guest's {name}"))
            runner.run(["sh", "-c", 'mkdir -p "$1" && chmod 0711 "$1"', "sh", directory], deadline=20)
            runner.put(image / name, target, deadline=COPY_SECONDS)


def _described(images: ImageSet, directory: str = "") -> GuestFiles:
    guest = images.guest
    return GuestFiles(
        kernel=f"{directory}/vmlinuz",
        initramfs=f"{directory}/initramfs",
        key=images.key,
        host_key=guest.manifest.host_key,
        iso=guest.iso,
        iso_sha256=guest.manifest.files[guest.iso.name].sha256,
        digest=guest.digest,
    )


def _acceleration(runner: Runner, facts: HostFacts, files: GuestFiles, images: ImageSet) -> Acceleration:
    key = f"{facts['hostname']}, {facts['kernel']}, {facts['cpu']}, {facts['qemu']}, guest {images.guest.digest}"
    return remembered(probes_file(), key, lambda: probe(runner, files.kernel, files.initramfs))
