"""The mode presets. A scenario can use them without defining them."""

from __future__ import annotations

from harness.model.attach import Attach, Vfio
from harness.model.base import Device
from harness.model.layout import Lvm, LvmThin, Partition, Qcow2, RawFile, Zvol
from harness.model.mode import Mode

PRESETS = (
    Mode("host", Device(), attach=None),
    Mode("passthrough", Device(), Attach()),
    Mode("lvm", Lvm(), Attach()),
    Mode("raw", RawFile(), Attach()),
    # The study of Proxmox VE measured RAW in this way. Reads may come from the host's page cache. Proxmox VE uses
    # io_uring.
    Mode("raw-cached", RawFile(), Attach(cache="writeback", aio="io_uring")),
    # Each of these differs in one option from a preset above.
    Mode("partition", Partition(), Attach()),
    Mode("lvm-thin", LvmThin(), Attach()),
    Mode("raw-xfs", RawFile("xfs"), Attach()),
    Mode("qcow2", Qcow2(), Attach()),
    Mode("zvol", Zvol(), Attach()),
    Mode("passthrough-blk", Device(), Attach(bus="virtio-blk")),
    Mode("lvm-blk", Lvm(), Attach(bus="virtio-blk")),
    Mode("vfio", Device(), Vfio()),
)
