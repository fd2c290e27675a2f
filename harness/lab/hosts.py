"""Connects to a host: how to run commands on it, its properties, and how guests run there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_state_path

from harness.errors import HostError, LabUnavailable, NotReached
from harness.events import Events, Note
from harness.feature import CycleCounter, embedded_lab, find_brought
from harness.image import ImageSet
from harness.image.manifest import sha256_of
from harness.lab.counters import NOT_PROBED, CycleCounting
from harness.lab.facts import Acceleration, HostFacts, load_or_probe, probe, probes_file, read_facts
from harness.lab.inventory import HostSpec
from harness.lab.pin import IMAGE_DIRECTORY, STATE_DIRECTORIES, STATE_DIRECTORY, why_unsafe
from harness.lab.transport.base import HoldingRunner, Runner
from harness.lab.transport.local import LocalRunner
from harness.lab.transport.ssh import SshRunner, SshTarget
from harness.model.mode import LabKind, lab_kind_of

CONNECT_SECONDS = 30.0
COPY_SECONDS = 600.0

# $1: a file. chmod is for copies of earlier versions, which all users could read. It fails on the embedded lab's CD.
# $1: a file, $2: its digest. QEMU's user owns the file while a guest runs, so a name and a size say little.
_FOUND = '[ -f "$1" ] && { chmod 0600 "$1" 2>/dev/null; [ "$(sha256sum <"$1")" = "$2  -" ]; }'


@dataclass(frozen=True, slots=True)
class GuestFiles:
    """The paths of the guest image on the host, and the keys for the login to the guest.

    `iso` is the bootable image on this machine, for hypervisors that need an upload. `digest` identifies the image.
    `fio` is the archive with fio on this machine, for guests of other images.
    """

    kernel: str
    initramfs: str
    key: Path
    host_key: str
    iso: Path = Path()
    iso_sha256: str = ""
    digest: str = ""
    fio: Path = Path()


@dataclass(frozen=True, slots=True)
class ReachedHost:
    """A reachable host. `ssh` and `target` are None for this machine. The connection to a guest goes through `ssh`."""

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
    """A reachable host that can start guests."""

    guest_files: GuestFiles
    acceleration: Acceleration
    cycles: CycleCounting = NOT_PROBED

    @property
    def representative(self) -> tuple[bool, str]:
        """Whether results from this host represent real hardware, and the reason."""
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
        """The kind of lab that its results represent. A budget applies only to the kind that it was written for."""
        return lab_kind_of(self.acceleration.accel, self.facts["hypervisor"])


@contextmanager
def open_host(spec: HostSpec, images: ImageSet, events: Events) -> Iterator[Host]:
    """Connect to the host and read its properties. If it is the embedded lab, start it.

    Raises LabUnavailable with the remedy if it cannot be used, and NotReached if there is no connection.
    """
    with ExitStack() as stack:
        if spec.kind == "embedded":
            spec = stack.enter_context(embedded_lab().run(images, events))
        reached = stack.enter_context(reach_host(spec))
        runner, facts = reached.runner, reached.facts
        counter = find_brought(CycleCounter)
        cycles = counter.probe(runner, facts) if counter is not None else NOT_PROBED
        if (why := spec.hypervisor.why_emulated(spec.name)) is not None:
            emulated = Acceleration("tcg", why)
            yield Host(spec, runner, reached.ssh, reached.target, facts, _describe(images), emulated, cycles)
            return
        files = _find_guest_files(runner, images, events)
        accelerated = _probe_acceleration(runner, facts, files, images)
        yield Host(spec, runner, reached.ssh, reached.target, facts, files, accelerated, cycles)


@contextmanager
def reach_host(spec: HostSpec) -> Iterator[ReachedHost]:
    """Connect to the host as root, for work without guests, which needs no image and no KVM.

    Raises LabUnavailable with the remedy if it cannot be reached, or if it is the embedded lab and does not run.
    """
    if spec.kind == "embedded" and spec.ssh is None:
        spec = embedded_lab().read_running_host()
    runner, ssh, target = _connect(spec)
    try:
        facts = read_facts(runner, spec.fio)
        _require_root(spec, facts)
        _require_own_state(spec, runner)
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
            f"host {spec.name}: only root can build layouts and open disks, but the user id is {facts['user']}",
            hint="run the command with sudo"
            if spec.ssh is None
            else f'set host.{spec.name}.user = "root" in the lab file',
        )


def _require_own_state(spec: HostSpec, runner: Runner) -> None:
    if why := why_unsafe(runner, *STATE_DIRECTORIES):
        raise LabUnavailable(
            f"host {spec.name}: another user could change what virt-overhead keeps in {STATE_DIRECTORY}: {why}",
            hint="find out who made that directory, then: chown root DIRECTORY; chmod go-w DIRECTORY",
        )


def _find_guest_files(runner: Runner, images: ImageSet, events: Events) -> GuestFiles:
    """Copy the guest image to the host, once per digest."""
    directory = f"{IMAGE_DIRECTORY}/{images.guest.digest}"
    copy_guest(runner, images.guest.path, directory, events)
    return _describe(images, directory)


def copy_guest(runner: Runner, image: Path, directory: str, events: Events) -> None:
    """Copy the guest's kernel and initramfs from `image` to `directory` on the host, if the host lacks their content.

    Only root may read them, because the guest's private host key is in the initramfs. When libvirt starts a guest, it
    changes the owner of both files to QEMU's user (`dynamic_ownership`, as for disks). This user must be able to enter
    the directory.
    """
    for name in ("vmlinuz", "initramfs"):
        target = f"{directory}/{name}"
        compare = ["sh", "-c", _FOUND, "sh", target, sha256_of(image / name)]
        if runner.run(compare, deadline=60, check=False).status != 0:
            events(Note(f"{runner.name}: copying the guest's {name}"))
            runner.run(["sh", "-c", 'umask 022 && mkdir -p "$1" && chmod 0711 "$1"', "sh", directory], deadline=20)
            runner.put(image / name, target, deadline=COPY_SECONDS)


def _describe(images: ImageSet, directory: str = "") -> GuestFiles:
    guest = images.guest
    return GuestFiles(
        kernel=f"{directory}/vmlinuz",
        initramfs=f"{directory}/initramfs",
        key=images.key,
        host_key=guest.manifest.host_key,
        iso=guest.iso,
        iso_sha256=guest.manifest.files[guest.iso.name].sha256,
        digest=guest.digest,
        fio=images.fio.path / "fio.tar",
    )


def _probe_acceleration(runner: Runner, facts: HostFacts, files: GuestFiles, images: ImageSet) -> Acceleration:
    key = f"{facts['hostname']}, {facts['kernel']}, {facts['cpu']}, {facts['qemu']}, guest {images.guest.digest}"
    return load_or_probe(probes_file(), key, lambda: probe(runner, files.kernel, files.initramfs))
