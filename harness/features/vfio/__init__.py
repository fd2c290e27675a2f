"""A guest that gets the whole PCI device of an NVMe disk (VFIO): the mode `vfio`, or `attach.device = "vfio"`.

To the kernel, that is a guest with a disk whose attachment is `Vfio` (`model/attach.py`): the disk is exclusive, and no
counter of the host sees its I/O. `passing.py` finds the device behind a disk, says why a guest cannot get it, plugs it
into a domain of libvirt, and gives it back to the host, also after a killed run. Proxmox VE gives a VM its devices when
it starts it, so its backend only has the host do without the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.feature import DevicePasser, Feature, PassedDevice, import_later
from harness.model.attach import Vfio
from harness.scenario.legality import list_names
from harness.scenario.scenario import Scenario

if TYPE_CHECKING:
    from harness.features.vfio import passing
    from harness.lab.transport.base import Runner
else:
    (passing,) = import_later(__name__, "passing")


def find_problems(scenario: Scenario) -> Iterator[str]:
    """The conflicts of a mode that needs the whole disk with the other modes of the scenario and with its disks."""
    for index, mode in enumerate(scenario.modes):
        if not isinstance(mode.attach, Vfio):
            continue
        shown_vfio = f'modes[{index}] = "{mode.name}"'
        for number, other in enumerate(scenario.modes):
            if other is not mode and other.attach is not None:
                yield (
                    f'modes[{number}] = "{other.name}": conflicts with {shown_vfio}, which needs the whole disk; '
                    "allowed: host and one mode with vfio; put other modes into another scenario"
                )
        if len(scenario.disks) > 1:
            yield (
                f"disks = {list_names(scenario.disks)}: conflicts with {shown_vfio}, which passes only one disk "
                "through; allowed: disk with one name"
            )


def _find(runner: Runner, path: str) -> PassedDevice | str:
    return passing.find_passable(runner, path)


FEATURE = Feature(
    name="vfio",
    brings=(DevicePasser(find=_find),),
    find_problems=find_problems,
    list_things=lambda: (passing.PassedThrough,),
)
