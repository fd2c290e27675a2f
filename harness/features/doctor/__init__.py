"""Whether a host is fit for measuring: `virt-overhead doctor`.

One script reads the state of a host and watches its CPUs and disks for a moment. Pure functions make a finding of each
fact: of the whole host (machine.py, which also runs the script), of memory, CPUs and disks (devices.py), and of a node
of Proxmox VE (node.py). `--tune` holds the settings that findings advise for a while (settings.py), and
command.py shows everything. A new check is a function there, with `add_check`, and a row of docs/doctor.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.feature import Feature, SettingsHolder, import_later

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from harness.features.doctor import settings
    from harness.lab.transport.base import Runner
    from harness.model.mode import HostSetting
else:
    (settings,) = import_later(__name__, "settings")


def _hold(runner: Runner, wanted: Sequence[HostSetting]) -> AbstractContextManager[None]:
    return settings.hold_all(runner, wanted)


FEATURE = Feature(
    name="doctor",
    brings=(SettingsHolder(refuse=lambda runner, wanted: settings.find_unsettable(runner, wanted), hold=_hold),),
)
