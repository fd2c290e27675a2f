"""The embedded lab: what is measured without a lab file, in a KVM host in QEMU on this machine (docs/embedded-lab.md).

lab_host.py starts and stops the lab host, disks.py has its simulated disks. The verbs `quickstart` and `lab` are in
commands.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import EmbeddedLab, Feature, import_later

if TYPE_CHECKING:
    from harness.features.embedded import lab_host
else:
    (lab_host,) = import_later(__name__, "lab_host")


FEATURE = Feature(
    name="embedded",
    brings=(
        EmbeddedLab(
            list_hosts=lambda: lab_host.inventory(),
            run=lambda images, events: lab_host.run_embedded_lab(images, events),
            read_running_host=lambda: lab_host.read_running_host(),
            is_running=lambda: lab_host.state().running() is not None,
        ),
    ),
)
