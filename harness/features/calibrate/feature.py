"""What calibrations add to the kernel: what a run can show, before it is measured and in its report."""

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
