"""The lab host: a disposable KVM host in QEMU on this machine, with simulated disks (disks.py).

It is a process of this user, which is started here, found again by other processes, and stopped.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_state_path

from harness.errors import HarnessError, HostError, LabUnavailable
from harness.events import Events, Note
from harness.features.embedded.disks import CONTROLLERS, DISKS, EMULATED, EmulatedDisk, make_creation_script
from harness.files import read_regular, read_script, write_stored
from harness.lab.inventory import EMBEDDED, Accel, HostSpec, Inventory, SshAddress
from harness.signals import cleaning_up, held_back, interruptible, wait_until
from harness.units import format_duration
from harness.untrusted import read_stored

if TYPE_CHECKING:
    from harness.image import ImageSet
    from harness.lab.facts import Acceleration
    from harness.lab.transport.ssh import SshRunner

MEMORY_MIB = 5120
START_SECONDS = 30.0
STOP_SECONDS = 10.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class LabMachine:
    """A running lab host: its process, the login on 127.0.0.1, and the images it was started from.

    The keys are from these images, so a checkout with newer recipes can still log in.
    """

    pid: int
    port: int
    key: str
    host_key: str
    accel: Accel
    why: str
    made_of: tuple[str, ...]
    """The digests of its images, and a digest of its hardware and disks."""
    started: float
    kept: bool = False
    """Whether it runs until `virt-overhead lab down`, and not only until the end of the run that started it."""


class LabMachineState:
    """The directory with the state of the only lab host of this user."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.record = directory / "machine.json"
        self.console = directory / "console.log"
        self.pidfile = directory / "qemu.pid"
        self.known_hosts = directory / "known_hosts"

    @contextmanager
    def locked(self, *, seconds: float) -> Iterator[None]:
        """Lock the start and stop of the lab host. Wait at most `seconds` for another process."""
        with self._holding("lock", seconds) as is_held:
            if not is_held:
                raise LabUnavailable(
                    f"another process has been starting or stopping the embedded lab for {format_duration(seconds)}",
                    hint="wait for that process, or end it and run: virt-overhead lab down",
                )
            yield

    @contextmanager
    def used(self, events: Events, *, seconds: float = 0.0) -> Iterator[None]:
        """Use the lab host alone. Wait at most `seconds` for another run, and tell it.

        Two runs would measure each other, and the end of the first would be the end of the other's lab host.
        """
        with ExitStack() as stack:
            is_held = stack.enter_context(self._holding("run.lock", 0.0))
            if not is_held and seconds:
                events(Note("embedded lab: waiting for the end of another run that uses it"))
                is_held = stack.enter_context(self._holding("run.lock", seconds))
            if not is_held:
                raise LabUnavailable(
                    "another run uses the embedded lab", hint="wait for its end, or end it with Ctrl-C there"
                )
            yield

    @contextmanager
    def _holding(self, name: str, seconds: float) -> Iterator[bool]:
        """Hold the lock with this name, which also ends with this process. False if it is not free in this time."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        from filelock import FileLock, Timeout

        lock = FileLock(self.directory / name)
        try:
            with interruptible():
                lock.acquire(timeout=seconds)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def running(self) -> LabMachine | None:
        """The running machine, or None. Its process must exist; the record alone is not sufficient."""
        known: LabMachine | None = read_stored(self.record, LabMachine)
        return known if known is not None and known.pid in self.processes() else None

    def processes(self) -> list[int]:
        """Process ids of all lab hosts started from this directory, even if a crash left no record."""
        mark = os.fsencode(self.pidfile)
        pids = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                if mark in (entry / "cmdline").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
        return pids

    def start(self, images: ImageSet, accel: Accel, why: str) -> LabMachine:
        """Start the lab host from `images`. When this returns, it is still booting, and may not work."""
        if self.console.exists():
            # If a lab host hung or crashed, its console is the only evidence.
            self.console.replace(self.console.with_suffix(".previous.log"))
        self._make_disks()
        port = _find_free_port()
        # -daemonize: QEMU returns when it runs, or prints an error. Ctrl-C then ends the harness, not the lab host.
        started = subprocess.run(
            [*images.emulator.command, *self._build_arguments(images, accel, port), "-daemonize"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=START_SECONDS,
            check=False,
        )
        if started.returncode != 0:
            self._remove_disks()
            errors = [line for line in started.stderr.splitlines() if "warning: TCG doesn't support" not in line]
            raise LabUnavailable(
                "the lab host did not start: " + ("\n     ".join(errors[-5:]) or f"QEMU status {started.returncode}"),
                hint=f"the lab host needs {MEMORY_MIB} MiB of free memory",
            )
        machine = LabMachine(
            pid=int(self.pidfile.read_text()),
            port=port,
            key=str(images.key),
            host_key=images.lab.manifest.host_key,
            accel=accel,
            why=why,
            made_of=self.made_of(images, accel),
            started=time.time(),
        )
        return self._write(machine)

    def keep(self, machine: LabMachine) -> LabMachine:
        """Note that the machine runs until `virt-overhead lab down`."""
        return machine if machine.kept else self._write(replace(machine, kept=True))

    def _write(self, machine: LabMachine) -> LabMachine:
        write_stored(self.record, asdict(machine))
        return machine

    def fits(self, machine: LabMachine, images: ImageSet) -> bool:
        """Whether the machine was started from exactly these images, with the current hardware and disks."""
        return tuple(machine.made_of) == self.made_of(images, machine.accel)

    def hangs(self) -> bool:
        """Whether the kernel said on the console that a CPU makes no progress."""
        with suppress(OSError):
            return b"detected stalls on CPUs" in read_regular(self.console)
        return False

    def stop(self) -> bool:
        """End all lab hosts of this directory with SIGTERM, then with SIGKILL. True if there was one."""
        pids = self.processes()
        for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if wait_until(lambda: not self.processes(), deadline=seconds, every=_POLL_SECONDS):
                break
        self.record.unlink(missing_ok=True)
        self.known_hosts.unlink(missing_ok=True)
        self._remove_disks()
        return bool(pids)

    def _name_image(self, disk: EmulatedDisk) -> Path:
        return self.directory / f"{disk.name}.img"

    def _make_disks(self) -> None:
        """Create the files for the disks that QEMU emulates, empty and sparse."""
        for disk in EMULATED:
            with self._name_image(disk).open("wb") as image:
                image.truncate(disk.size_bytes)

    def _remove_disks(self) -> None:
        for disk in EMULATED:
            self._name_image(disk).unlink(missing_ok=True)

    def made_of(self, images: ImageSet, accel: Accel) -> tuple[str, ...]:
        """The identity of a lab host: the digests of its images, and a digest of its hardware and disks."""
        described = "\n".join([*self._build_arguments(images, accel, port=0), make_creation_script()])
        hardware = hashlib.sha256(described.encode()).hexdigest()[:12]
        return (images.lab.digest, images.guest.digest, images.emulator.digest, hardware)

    def _build_arguments(self, images: ImageSet, accel: Accel, port: int) -> list[str]:
        lab = images.lab.path
        # If the kernel finds damaged memory, it must not continue. The machine ends and is started again.
        kernel = ["console=ttyS0", "quiet", "net.ifnames=0", "intel_iommu=on", "iommu=pt", "oops=panic", "panic=-1"]
        if accel == "kvm":
            # The emulated IOMMU can remap interrupts only if QEMU, not KVM, has the I/O APIC.
            engine = ["-accel", "kvm,kernel-irqchip=split", "-cpu", "host"]
        else:
            # TCG emulates only AMD's virtualisation. Nested paging makes guests fast enough.
            engine = ["-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "EPYC,svm=on,npt=on"]
            # All emulated CPUs show the same counter, but the kernel finds it 1 ms off HPET's when they are busy. It
            # then reads HPET instead, in system calls that leave half of the IOPS, also in the middle of a run.
            kernel.append("tsc=reliable")
        return [
            *("-name", "virt-overhead-lab"),
            *("-pidfile", str(self.pidfile)),
            *engine,
            *("-machine", "q35"),
            # Intel's IOMMU, although the CPU may be AMD's: Debian's cloud kernel has no driver for AMD's IOMMU.
            *("-device", "intel-iommu,intremap=on"),
            *("-smp", "2"),
            *("-m", str(MEMORY_MIB)),
            *("-nodefaults", "-display", "none"),
            *("-serial", f"file:{self.console}"),
            *("-kernel", str(lab / "vmlinuz")),
            *("-initrd", str(lab / "initramfs")),
            *("-append", " ".join(kernel)),
            "-no-reboot",
            *("-netdev", f"user,id=net0,hostfwd=tcp:127.0.0.1:{port}-:22"),
            *("-device", "virtio-net-pci,netdev=net0,romfile="),
            # A snapshot: the image does not change, and all writes of the lab host are lost at its end.
            *("-drive", f"file={lab / 'root.img'},if=virtio,format=raw,snapshot=on,cache=unsafe"),
            *("-drive", f"file={images.guest.path / 'guest.iso'},if=virtio,format=raw,readonly=on"),
            *("-device", "virtio-rng-pci"),
            *(word for controller in CONTROLLERS for word in controller.hardware()),
            *(word for disk in EMULATED for word in disk.hardware(self._name_image(disk))),
        ]


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


HANG_SECONDS = 90.0
BOOT_SECONDS = 360.0
PREPARE_SECONDS = 240.0
LOCK_SECONDS = 600.0
RUN_SECONDS = 900.0
"""How long a run waits for another one that uses the lab host."""

_EXPECTED_BOOT_SECONDS = 20.0


def inventory() -> Inventory:
    """The embedded lab as an inventory: one host, the simulated disks, the smoke profile."""
    host = HostSpec(EMBEDDED, "embedded", ssh=None, disks=tuple(disk.spec for disk in DISKS))
    return Inventory("the embedded lab", "smoke", (host,))


def state() -> LabMachineState:
    return LabMachineState(user_state_path("virt-overhead") / "lab")


def up(images: ImageSet, events: Events) -> LabMachine:
    """The running, prepared lab host, which runs until `down`. If none runs from these images, this starts one.

    Raises LabUnavailable with the last output of the machine. If the start fails, the machine is stopped. A run that
    uses a lab host from other images, or one that does not answer, keeps it: that is LabUnavailable as well.
    """
    here = state()
    with held_back(), here.locked(seconds=LOCK_SECONDS):
        machine = _find_ready(here, images)
        if machine is None:
            with here.used(events):
                machine = _start(here, images, events)
        return here.keep(machine)


def _find_ready(here: LabMachineState, images: ImageSet) -> LabMachine | None:
    """The lab host, if it runs from these images, and answers."""
    machine = here.running()
    return machine if machine and here.fits(machine, images) and _is_answering(machine, images) else None


def _start(here: LabMachineState, images: ImageSet, events: Events) -> LabMachine:
    """Start the lab host and prepare it, instead of one that runs."""
    here.stop()
    choice = choose_acceleration(images, events)
    events(Note(f"embedded lab: {choice.accel}, because {choice.why}"))
    with events.step("boot the lab host", _EXPECTED_BOOT_SECONDS):
        try:
            machine, runner = boot(here, images, choice)
            _prepare(runner, images)
        except BaseException as error:
            with cleaning_up():
                here.stop()
            if isinstance(error, HarnessError):
                raise LabUnavailable(
                    f"the embedded lab did not come up: {error.message}",
                    hint=f"read its console output in {here.console}; to try again: virt-overhead lab up",
                ) from error
            raise
    return machine


def boot(here: LabMachineState, images: ImageSet, choice: Acceleration) -> tuple[LabMachine, SshRunner]:
    """The lab host, and a connection to it. HostError if it does not answer.

    Under emulation, a CPU may lose its timer while the kernel boots, which then hangs. It is started again once.
    """
    machine = here.start(images, choice.accel, choice.why)
    try:
        return machine, _connect(machine, HANG_SECONDS, now=False)
    except HostError:
        if here.hangs():
            here.stop()
            machine = here.start(images, choice.accel, choice.why)
    return machine, _connect(machine, BOOT_SECONDS, now=False)


def down() -> bool:
    """Stop the lab host, and remove what a crash left of it. True if there was one."""
    here = state()
    with held_back(), here.locked(seconds=LOCK_SECONDS), cleaning_up():
        return here.stop()


@contextmanager
def run_embedded_lab(images: ImageSet, events: Events) -> Iterator[HostSpec]:
    """The lab host for the duration of the block. After `virt-overhead lab up`, it continues to run.

    One run at a time has it: others wait for `RUN_SECONDS`. Raises LabUnavailable.
    """
    here = state()
    # A lab host that nobody knows of would run for ever.
    with held_back(), here.used(events, seconds=RUN_SECONDS):
        try:
            with here.locked(seconds=LOCK_SECONDS):
                machine = _find_ready(here, images) or _start(here, images, events)
            yield build_host_spec(machine)
        finally:
            with cleaning_up(), here.locked(seconds=LOCK_SECONDS):
                last = here.running()
                if last is None or not last.kept:
                    here.stop()


def build_host_spec(machine: LabMachine) -> HostSpec:
    """The lab host with its current address."""
    address = SshAddress("127.0.0.1", machine.port, "root", Path(machine.key), machine.host_key)
    nested = "emulation" if machine.accel == "tcg" else "KVM"
    return replace(inventory().hosts[0], ssh=address, simulated=f"nested under {nested}, on simulated disks in memory")


def running() -> LabMachine:
    """The running lab host. Raises LabUnavailable if there is none; this function does not start it."""
    machine = state().running()
    if machine is None:
        raise LabUnavailable("the embedded lab is not running", hint="start it with: virt-overhead lab up")
    return machine


def read_running_host() -> HostSpec:
    """The running lab host for the inventory. Raises LabUnavailable if there is none."""
    return build_host_spec(running())


_NESTED = "cat /sys/module/kvm_amd/parameters/nested /sys/module/kvm_intel/parameters/nested 2>/dev/null; true"
"""Prints whether a guest of this machine's KVM may use KVM itself."""


def choose_acceleration(images: ImageSet, events: Events) -> Acceleration:
    """The accelerator of the lab host: KVM if a guest boots with it here and nesting is enabled, else TCG.

    A successful probe is stored per kernel and image.
    """
    from harness.lab.facts import Acceleration, load_or_probe, probe, probes_file
    from harness.lab.transport.local import LocalRunner

    here = LocalRunner()
    kernel = here.run(["uname", "-r"], deadline=5).stdout.strip()

    def run_probe() -> Acceleration:
        if not {"1", "Y"} & set(here.run(["sh", "-c", _NESTED], deadline=10).stdout.split()):
            return Acceleration("tcg", "KVM on this machine is missing or does not allow nesting")
        with events.step("probe KVM by booting a guest"):
            return probe(here, str(images.guest.vmlinuz), str(images.guest.initramfs), images.emulator.command)

    key = f"this machine, {kernel}, guest {images.guest.digest}, emulator {images.emulator.digest}"
    return load_or_probe(probes_file(), key, run_probe)


def _find_image_directory(images: ImageSet) -> str:
    from harness.lab.pin import IMAGE_DIRECTORY

    return f"{IMAGE_DIRECTORY}/{images.guest.digest}"


def _connect(machine: LabMachine, seconds: float, *, now: bool) -> SshRunner:
    """A connection to the lab host, or, unless `now`, as soon as it answers. Raises HostError after so many seconds."""
    from harness.lab.transport.ssh import SshRunner, SshTarget

    target = SshTarget("127.0.0.1", machine.port, "root", Path(machine.key), machine.host_key)
    return (SshRunner.connect if now else SshRunner.connect_when_up)(target, name="host lab", deadline=seconds)


def _is_answering(machine: LabMachine, images: ImageSet) -> bool:
    # The last step of `_prepare`. If it is missing, the start was interrupted, and the lab host is started again.
    prepared = ["test", "-e", f"{_find_image_directory(images)}/vmlinuz"]
    with suppress(HostError), closing(_connect(machine, 15, now=True)) as runner:
        return runner.run(prepared, deadline=15, check=False).status == 0
    return False


def _prepare(runner: SshRunner, images: ImageSet) -> None:
    names = {"DIRECTORY": _find_image_directory(images), "MAKE_DISKS": make_creation_script()}
    steps = read_script("harness.features.embedded", "prepare_lab_host.sh", **names)
    with closing(runner):
        runner.run(["sh", "-s"], stdin=steps, deadline=PREPARE_SECONDS)
