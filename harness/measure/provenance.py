"""The provenance of the figures: host, versions and settings."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version

from pydantic import JsonValue

from harness.image import Image, ImageSet
from harness.lab.hosts import Host
from harness.measure.calibration import quoted
from harness.measure.guests import Guests
from harness.measure.series import LabFound
from harness.measure.session import Session
from harness.measure.spec import CampaignSpec
from harness.model.disk import DiskRecord
from harness.results import FIO_FILES, LabInfo

_NOT_SHOWN = "not shown by the kernel"


def examine(host: Host, images: ImageSet) -> LabFound:
    """The properties of the host."""
    return LabFound(lab_info(host), host.lab_kind, provenance(host, images))


def lab_info(host: Host) -> LabInfo:
    """The lab, and whether it represents real hardware."""
    representative, why = host.representative
    return LabInfo(host.name, host.spec.kind, host.acceleration.accel, representative, why)


def provenance(host: Host, images: ImageSet) -> dict[str, JsonValue]:
    """The provenance of host, images and virt-overhead, as plain JSON values by subject."""
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


def fio_texts(spec: CampaignSpec) -> dict[str, JsonValue]:
    """The texts of the fio files among the workloads; empty without such files."""
    found: dict[str, JsonValue] = {
        name: {file.path: dict(file.texts) for file in scenario.fio_files}
        for name, scenario in spec.scenarios.items()
        if scenario.fio_files
    }
    return {FIO_FILES: found} if found else {}


def disk_provenance(at: Session, disks: Sequence[DiskRecord], first: str) -> dict[str, JsonValue]:
    """Device, I/O scheduler and path of the disks under test, or the storage in use that the volumes are on.

    `first` is the name of the baseline's disk or storage in the lab. The records of the disks have everything else.
    """
    if (shared := at.layouts.shared) is not None:
        bytes_are = {"bytes": shared.how_counted(at.layouts.device)}
        below = {"disks": ", ".join(shared.disks) or "none of this host"}
        return {f"disk.{first}": {"storage": shared.words, **shared.facts, **below, **bytes_are}}
    return {
        f"disk.{disk.name}": {
            "device": disk.facts.device,
            "scheduler": disk.facts.scheduler or _NOT_SHOWN,
            "path": disk.facts.path or _NOT_SHOWN,
        }
        for disk in disks
    }


def guest_provenance(guests: Guests | None) -> dict[str, JsonValue]:
    """The provenance of the guest, or of the guest of each variant as `guest VARIANT`. Empty without a guest."""
    if guests is None:
        return {}
    return {
        f"guest {variant}".strip(): {**found, **_boot(guests.boot_seconds[variant])}
        for variant, found in guests.evidence.items()
    }


def _boot(seconds: float | None) -> dict[str, JsonValue]:
    return {} if seconds is None else {"boot_seconds": round(seconds, 1)}


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
