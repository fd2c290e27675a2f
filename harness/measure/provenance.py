"""What stands behind the figures: where they were measured, with which versions and settings."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version

from pydantic import JsonValue

from harness.guest.protocol import Guest
from harness.image import Image, ImageSet
from harness.lab.facts import read_schedulers
from harness.lab.hosts import Host
from harness.measure.calibration import quoted
from harness.measure.session import Session
from harness.results import LabInfo


def lab_info(host: Host) -> LabInfo:
    """Where it was measured, and whether that speaks for real hardware."""
    representative, why = host.representative
    return LabInfo(host.name, host.spec.kind, host.acceleration.accel, representative, why)


def provenance(host: Host, images: ImageSet) -> dict[str, JsonValue]:
    """Of the host and of what it is measured with: plain JSON values, by what they speak of."""
    found: dict[str, JsonValue] = {
        "harness": {"version": version("virt-overhead"), "python": platform.python_version()},
        "host": dict(host.facts.provenance),
        "acceleration": {"accel": host.acceleration.accel, "why": host.acceleration.why},
        "cycles": {"counted": host.cycles.counted, "why": host.cycles.why},
        "images": {image.name: _image(image) for image in (images.guest, images.emulator, images.lab)},
    }
    if (calibration := quoted(host, images)) is not None:
        found["calibration"] = calibration
    return found


def disk_provenance(at: Session, names: Sequence[str]) -> dict[str, JsonValue]:
    """Of the disks under test, whose `names` in the lab file are in the session's order: device and I/O scheduler."""
    # An array has the first so many of them, the baseline is on the first.
    devices = max([(at.layouts.disk,), *at.layouts.members.values()], key=len)
    schedulers = read_schedulers(at.host.runner, devices)
    return {
        f"disk.{name}": {"device": device, "scheduler": schedulers.get(device, "not shown by the kernel")}
        for name, device in zip(names, devices, strict=False)
    }


def guest_provenance(guest: Guest | None) -> dict[str, JsonValue]:
    """Of the guest, where there is one."""
    return {"guest": {**guest.evidence, "boot_seconds": round(guest.boot_seconds, 1)}} if guest is not None else {}


def _image(image: Image) -> dict[str, JsonValue]:
    manifest = image.manifest
    return {
        "recipe_digest": manifest.recipe_digest,
        "suite": manifest.suite,
        "built_at": manifest.built_at,
        "kernel": manifest.kernel,
        "fio": manifest.fio_version,
        "sha256": {name: record.sha256 for name, record in manifest.files.items()},
    }
