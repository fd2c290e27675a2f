"""Disks that a storage daemon of QEMU serves by vhost-user-blk: `attach.server = "storage-daemon"`.

Before the guest starts, a daemon per disk opens it with the options of the attachment, and waits at a socket
(`serving.py`). libvirt connects the guest to the socket. What the daemon really does is read back from the arguments
and the rings of its process. It ends with the guest, or with `virt-overhead reap`. Which options a daemon can have, and
which versions it needs, are rows of the option table (`model/attach.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import DiskServer, Feature, ServedDisk, import_later

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from harness.features.storage_daemon import serving
    from harness.guest.protocol import GuestDisk
    from harness.lab.created import CreationLog
else:
    (serving,) = import_later(__name__, "serving")

PROGRAM = "qemu-storage-daemon"


def _serve(log: CreationLog, disk: GuestDisk, queues: int) -> AbstractContextManager[ServedDisk]:
    return serving.serve_disk(log, disk, queues)


FEATURE = Feature(
    name="storage_daemon",
    brings=(
        DiskServer(
            name="storage-daemon",
            program=PROGRAM,
            package="qemu-system-common",
            # Source: QEMU's block/export/vhost-user-blk-server.c.
            serial="vhost_user_blk",
            serve=_serve,
        ),
    ),
    list_things=lambda: (serving.DaemonProcess,),
)
