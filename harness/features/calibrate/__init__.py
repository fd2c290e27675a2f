"""Calibration: how small a difference a lab can show, whether it finds a real one, and how long its slices should be.

`virt-overhead calibrate` measures trials on one disk of a host (measuring.py): a device against itself, a known delay,
series of short slices, and boots. command.py computes what they show, and calibration.py stores it in a file of the
host, which runs quote and reports put into words. Before a run, detectable.py says which overhead its cells can show,
by the noise of earlier runs or of the calibration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.feature import Feature, import_later

if TYPE_CHECKING:
    from pydantic import JsonValue

    from harness.features.calibrate import calibration, detectable, memory_disk
    from harness.image import ImageSet
    from harness.lab.hosts import Host
else:
    calibration, detectable, memory_disk = import_later(__name__, "calibration", "detectable", "memory_disk")


def _quote(host: Host, images: ImageSet) -> Mapping[str, JsonValue]:
    quoted = calibration.quote(host, images)
    return {"calibration": quoted} if quoted is not None else {}


FEATURE = Feature(
    name="calibrate",
    announce=lambda runs: detectable.announce(runs),
    provenance=_quote,
    about_lab=lambda run: calibration.describe_lab(run),
    list_things=lambda: (memory_disk.MemoryDisk,),
)
