"""Calibration: how small a difference a lab can show, whether it finds a real one, and how long its slices should be.

`virt-overhead calibrate` measures trials on one disk of a host (measuring.py): a device against itself, a known delay,
series of short slices, and boots. command.py computes what they show, and calibration.py stores it in a file of the
host, which runs quote and reports put into words. Before a run, detectable.py says which overhead its cells can show,
by the noise of earlier runs or of the calibration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from harness.feature import Feature, PlannedRuns

if TYPE_CHECKING:
    from pydantic import JsonValue

    from harness.image import ImageSet
    from harness.lab.created import HostThing
    from harness.lab.hosts import Host
    from harness.results import Run


def _announce(runs: PlannedRuns) -> Iterable[str]:
    from harness.features.calibrate.detectable import announce

    return announce(runs)


def _quote(host: Host, images: ImageSet) -> Mapping[str, JsonValue]:
    from harness.features.calibrate.calibration import quote

    calibration = quote(host, images)
    return {"calibration": calibration} if calibration is not None else {}


def _describe_lab(run: Run) -> Iterable[str]:
    from harness.features.calibrate.calibration import describe_lab

    return describe_lab(run)


def _list_things() -> tuple[type[HostThing], ...]:
    from harness.features.calibrate.memory_disk import MemoryDisk

    return (MemoryDisk,)


FEATURE = Feature(
    name="calibrate",
    announce=_announce,
    provenance=_quote,
    about_lab=_describe_lab,
    list_things=_list_things,
)
