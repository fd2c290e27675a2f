"""One disk ready to be measured: layouts built and filled, a guest up with all of them attached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pydantic import JsonValue

from harness.errors import GuestError, MeasurementError
from harness.guest.protocol import Guest, GuestDisk, Hypervisor
from harness.lab.hosts import Host
from harness.lab.inventory import DiskSpec
from harness.lab.transport.base import Runner
from harness.layout.build import Layouts, built, missing_prerequisite
from harness.measure.fio import ARGV, Target, fill_file
from harness.measure.phases import Phases
from harness.scenario.model import Arm, Mode, Place

SLOWEST_FILL = 2 * 1024**2
"""Bytes per second; a disk that takes less is broken rather than slow."""


@dataclass(frozen=True, slots=True)
class Session:
    """The arms' places: on which machine, on which span.

    `skipped` says of a mode why it is left out, `effective` how its disk is really attached.
    """

    host: Host
    layouts: Layouts
    guest: Guest | None
    skipped: Mapping[str, str]
    effective: Mapping[str, dict[str, JsonValue]]

    def runner(self, arm: Arm) -> Runner:
        return self._guest.runner if arm.place is Place.GUEST else self.host.runner

    def target(self, arm: Arm) -> Target:
        """What fio opens on this arm: the same span on every one."""
        source = self.layouts.source(arm.mode)
        if arm.place is Place.GUEST and arm.mode is not None:
            return Target(self._guest.device(arm.mode.name), source.offset, source.size, direct=True)
        attach = arm.mode.attach if arm.mode else None
        return Target(source.path, source.offset, source.size, direct=attach.direct if attach else True)

    @property
    def _guest(self) -> Guest:
        if self.guest is None:
            raise GuestError(f"host {self.host.name}: no guest was started, for no selected mode needs one")
        return self.guest


@contextmanager
def session(
    host: Host,
    hypervisor: Hypervisor,
    disk: DiskSpec,
    modes: Sequence[Mode],
    *,
    span: int,
    run_id: str,
    phases: Phases,
) -> Iterator[Session]:
    """Layouts and guest for `modes` of `disk`; all of it is gone at the end.

    Modes whose prerequisite the host lacks are left out and told in `skipped`.
    """
    missing = {mode.name: missing_prerequisite(mode.layout, host.facts) for mode in modes}
    skipped = {name: f"host {host.name}: {why}" for name, why in missing.items() if why}
    usable = [mode for mode in modes if mode.name not in skipped]
    with ExitStack() as stack:
        with phases.step("layouts", f"build {disk.name}'s layouts"):
            layouts = stack.enter_context(
                built(host.runner, host.facts, disk, usable, span=span, run_id=run_id),
            )
        with phases.step("fill", f"fill {disk.name} with incompressible data"):
            _fill(host.runner, layouts)
        disks = [GuestDisk(mode.name, layouts.source(mode), mode.attach) for mode in usable if mode.attach]
        guest = None
        if disks:
            with phases.timed("boot"):
                guest = stack.enter_context(hypervisor.guest(run_id, disks))
            _require_evidence(host, guest)
        effective = {disk.name: guest.effective(disk.name) for disk in disks} if guest else {}
        yield Session(host, layouts, guest, skipped, effective)


def _fill(runner: Runner, layouts: Layouts) -> None:
    """Write every block once: an unwritten one is answered by the file system or the disk without a look at it."""
    sources = dict.fromkeys([layouts.device, *layouts.by_mode.values()])
    spans = [(source.path, source.offset, source.size) for source in sources]
    deadline = 120 + sum(size for _, _, size in spans) / SLOWEST_FILL
    done = runner.run(list(ARGV), stdin=fill_file(spans), deadline=deadline, check=False)
    if done.status != 0:
        raise MeasurementError(
            f"{runner.name}: filling failed: {(done.stderr or done.stdout).strip()[-400:]}",
            hint="a full file system or a failing disk; see dmesg there",
        )


def _require_evidence(host: Host, guest: Guest) -> None:
    """KVM is believed when the guest's own CPU says so."""
    seen = guest.evidence.get("hypervisor", "")
    if host.acceleration.accel == "kvm" and seen != "KVM":
        raise GuestError(
            f"guest on {host.name}: started under KVM, but its CPU says {seen or 'nothing of a hypervisor'}",
            hint="the figures would be those of an emulator; see the QEMU log on the host",
        )
