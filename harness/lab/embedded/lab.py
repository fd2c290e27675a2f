"""Starts, describes and stops the embedded lab."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from platformdirs import user_state_path

from harness.errors import HarnessError, HostError, LabUnavailable
from harness.events import Events, Note
from harness.image import ImageSet
from harness.lab.accel import Acceleration, load_or_probe, nested, probe, probes_file
from harness.lab.embedded.disks import DISKS, make_creation_script
from harness.lab.embedded.machine import LabMachine, LabMachineState
from harness.lab.inventory import EMBEDDED, HostSpec, Inventory, SshAddress
from harness.lab.paths import IMAGE_DIRECTORY
from harness.lab.transport.local import LocalRunner
from harness.lab.transport.ssh import SshRunner, SshTarget
from harness.signals import cleaning_up, held_back

BOOT_SECONDS = 180.0
PREPARE_SECONDS = 90.0
LOCK_SECONDS = 300.0

_EXPECTED_BOOT_SECONDS = 20.0


def inventory() -> Inventory:
    """The embedded lab as an inventory: one host, the simulated disks, the smoke profile."""
    host = HostSpec(EMBEDDED, "embedded", ssh=None, disks=tuple(disk.spec for disk in DISKS))
    return Inventory("the embedded lab", "smoke", (host,))


def state() -> LabMachineState:
    return LabMachineState(user_state_path("virt-overhead") / "lab")


def up(images: ImageSet, events: Events) -> LabMachine:
    """The running, prepared lab host. If none runs from these images, this starts one.

    Raises LabUnavailable with the last output of the machine. If the start fails, the machine is stopped.
    """
    here = state()
    with held_back(), here.locked(seconds=LOCK_SECONDS):
        machine = here.running()
        if machine and here.fits(machine, images) and _answers(machine, images):
            return machine
        here.stop()
        choice = acceleration(images, events)
        events(Note(f"embedded lab: {choice.accel}, because {choice.why}"))
        with events.step("boot the lab host", _EXPECTED_BOOT_SECONDS):
            try:
                machine = here.start(images, choice.accel, choice.why)
                _prepare(machine, images)
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


def down() -> bool:
    """Stop the lab host, and remove what a crash left of it. True if there was one."""
    here = state()
    with held_back(), here.locked(seconds=LOCK_SECONDS), cleaning_up():
        return here.stop()


@contextmanager
def embedded_lab(images: ImageSet, events: Events) -> Iterator[HostSpec]:
    """The lab host for the duration of the block. If it ran before (`virt-overhead lab up`), it continues to run."""
    # A lab host that nobody knows of would run for ever.
    with held_back():
        already = state().running()
        machine = up(images, events)
        try:
            yield host_spec(machine)
        finally:
            if already is None or already.pid != machine.pid:
                with cleaning_up():
                    down()


def host_spec(machine: LabMachine) -> HostSpec:
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


def running_host_spec() -> HostSpec:
    """The running lab host for the inventory. Raises LabUnavailable if there is none."""
    return host_spec(running())


def acceleration(images: ImageSet, events: Events) -> Acceleration:
    """The accelerator of the lab host: KVM if a guest boots with it here and nesting is enabled, else TCG.

    A successful probe is stored per kernel and image.
    """
    here = LocalRunner()
    kernel = here.run(["uname", "-r"], deadline=5).stdout.strip()

    def run_probe() -> Acceleration:
        if not nested(here):
            return Acceleration("tcg", "KVM on this machine is missing or does not allow nesting")
        with events.step("probe KVM by booting a guest"):
            return probe(here, str(images.guest.vmlinuz), str(images.guest.initramfs), images.emulator.command)

    key = f"this machine, {kernel}, guest {images.guest.digest}, emulator {images.emulator.digest}"
    return load_or_probe(probes_file(), key, run_probe)


def _find_image_directory(images: ImageSet) -> str:
    return f"{IMAGE_DIRECTORY}/{images.guest.digest}"


def _target(machine: LabMachine) -> SshTarget:
    return SshTarget("127.0.0.1", machine.port, "root", Path(machine.key), machine.host_key)


def _answers(machine: LabMachine, images: ImageSet) -> bool:
    try:
        runner = SshRunner.connect(_target(machine), name="host lab", deadline=15)
    except HostError:
        return False
    try:
        # The last step of `_prepare`. If it is missing, the start was interrupted, and the lab host is started again.
        return (
            runner.run(["test", "-e", f"{_find_image_directory(images)}/vmlinuz"], deadline=15, check=False).status == 0
        )
    except HostError:
        return False
    finally:
        runner.close()


def _prepare(machine: LabMachine, images: ImageSet) -> None:
    runner = SshRunner.connect_when_up(_target(machine), name="host lab", deadline=BOOT_SECONDS)
    try:
        directory = _find_image_directory(images)
        steps = [
            # libvirt queries QEMU's capabilities at the first use. Under emulation this needs seconds, so do it now.
            "virsh --quiet domcapabilities --virttype kvm >/dev/null 2>&1 &",
            make_creation_script(),
            "wait",
            f"mkdir -p {directory}",
            f"mount -o ro -t iso9660 /dev/vdb {directory}",
        ]
        runner.run(["sh", "-s"], stdin="\n".join(steps), deadline=PREPARE_SECONDS)
    finally:
        runner.close()
