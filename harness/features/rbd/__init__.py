"""Images of Ceph RBD: a pool that a host uses is a storage in use, on which runs create images of their own.

`pool.sh` looks at a pool with the commands of Ceph, by the host's own configuration and keyring. A pool is the same if
the id of its cluster and its number there are the same. `images.py` creates the images. The name of an image ends with
a random token, which is also in its metadata, and the creation log has both. An image is removed only if its id and its
token are those of the log.

The kernel of the host maps each image, so that fio can fill it and measure it there. The guest of a mode gets this
device (`client = "krbd"`), or QEMU opens the image itself (`client = "librbd"`). The images have no exclusive lock, so
that both use them in turn without waiting for it. In both cases the twin is fio on the mapped image. The results say
that.

On a node of Proxmox VE, the storage has the client (`krbd`), and Proxmox VE creates and removes the images, as volumes
of a VM. `open_volume` in `images.py` maps them on the node with the login of the storage. The run holds the device
open, because Proxmox VE unmaps it whenever it stops the VM.

If all OSDs of the cluster are on the host itself, its disks show what reaches them: `report.py` compares these bytes
with those of fio times the replicas of the pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureRecords, FeatureStorage, NodeStorage, Subject, import_later
from harness.files import read_script
from harness.lab.inventory import StorageKind
from harness.model.layout import Rbd

if TYPE_CHECKING:
    from harness.features.rbd import images, report
    from harness.lab.transport.base import Runner
else:
    images, report = import_later(__name__, "images", "report")

CONFIGURATION = "/etc/ceph/ceph.conf"
# $1: the host's own configuration of Ceph. Prints the pools for images of the cluster that it names.
_FIND = """
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin" CEPH_ARGS=--client_mount_timeout=20
[ -r "$1" ] && command -v ceph >/dev/null && command -v rbd >/dev/null || exit 0
ceph osd dump | sed -n "s/^pool [0-9]* '\\([^']*\\)' replicated .* application rbd.*/\\1/p"
"""


def _check(text: str) -> str:
    images.CephPool.parse(text)
    return text


def _find(runner: Runner) -> Iterable[str]:
    return runner.run(["sh", "-c", _FIND, "sh", CONFIGURATION], deadline=120).stdout.split("\n")[:-1]


FEATURE = Feature(
    name="rbd",
    subject=Subject(
        in_cell=lambda cell, _slices: isinstance(cell.mode.layout, Rbd),
        in_record=lambda cell: isinstance(cell.mode_detail.layout, Rbd),
    ),
    brings=(
        FeatureStorage(
            key="rbd",
            kind=StorageKind(
                "Ceph pool",
                ("rbd",),
                space="rbd",
                allocates="when written",
                hint="see `ceph -s` and `ceph osd pool ls detail` on the host, and correct the pool in the lab file",
            ),
            check=_check,
            script=read_script("harness.features.rbd", "pool.sh"),
            load_volumes=lambda: images.Images(),
            find=_find,
            refuse=lambda mode, storage: images.refuse_client(mode, storage),
            describe=lambda mode: images.describe_twin(mode),
            on_node=NodeStorage(
                refuse=lambda entry, mode: images.refuse_on_node(entry, mode),
                locate=lambda entry: images.locate_pool(entry),
                open=lambda runner, at, name, path: images.open_volume(runner, at, name, path),
            ),
        ),
    ),
    list_things=lambda: (images.StoredImage,),
    load_records=lambda: (
        FeatureRecords(
            key="rbd",
            record=report.RbdRecord,
            place=16,
            description="One entry per measured cell on an image of Ceph whose OSDs are all on the host: their bytes.",
            compute=report.account_cells,
        ),
    ),
)
