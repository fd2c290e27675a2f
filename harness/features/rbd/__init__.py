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

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from harness.feature import Feature, FeatureRecords, FeatureStorage, NodeStorage, Subject
from harness.files import read_script
from harness.lab.inventory import StorageKind
from harness.model.layout import Rbd

if TYPE_CHECKING:
    from harness.lab.created import HostThing
    from harness.lab.storages import FoundStorage
    from harness.lab.transport.base import Runner
    from harness.layout.source import NetworkDisk
    from harness.layout.storage import VolumeKind
    from harness.model.mode import Mode

CONFIGURATION = "/etc/ceph/ceph.conf"
# $1: the host's own configuration of Ceph. Prints the pools for images of the cluster that it names.
_FIND = """
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin" CEPH_ARGS=--client_mount_timeout=20
[ -r "$1" ] && command -v ceph >/dev/null && command -v rbd >/dev/null || exit 0
ceph osd dump | sed -n "s/^pool [0-9]* '\\([^']*\\)' replicated .* application rbd.*/\\1/p"
"""


def _check(text: str) -> str:
    from harness.features.rbd.images import CephPool

    CephPool.parse(text)
    return text


def _load_volumes() -> VolumeKind:
    from harness.features.rbd.images import Images

    return Images()


def _list_things() -> tuple[type[HostThing], ...]:
    from harness.features.rbd.images import StoredImage

    return (StoredImage,)


def _find(runner: Runner) -> Iterable[str]:
    return runner.run(["sh", "-c", _FIND, "sh", CONFIGURATION], deadline=120).stdout.split("\n")[:-1]


def _refuse(mode: Mode, storage: FoundStorage) -> str | None:
    from harness.features.rbd.images import refuse_client

    return refuse_client(mode, storage)


def _refuse_on_node(entry: Mapping[str, Any], mode: Mode) -> str | None:
    from harness.features.rbd.images import refuse_on_node

    return refuse_on_node(entry, mode)


def _locate(entry: Mapping[str, Any]) -> str:
    from harness.features.rbd.images import locate_pool

    return locate_pool(entry)


def _open(runner: Runner, at: str, name: str, path: str) -> tuple[str, NetworkDisk | None]:
    from harness.features.rbd.images import open_volume

    return open_volume(runner, at, name, path)


def _describe(mode: Mode) -> str | None:
    from harness.features.rbd.images import describe_twin

    return describe_twin(mode)


def _load_records() -> tuple[FeatureRecords, ...]:
    from harness.features.rbd.report import RbdRecord, account_cells

    return (
        FeatureRecords(
            key="rbd",
            record=RbdRecord,
            place=16,
            description="One entry per measured cell on an image of Ceph whose OSDs are all on the host: their bytes.",
            compute=account_cells,
        ),
    )


FEATURE = Feature(
    name="rbd",
    subject=Subject(
        in_cell=lambda cell, _slices: isinstance(cell.mode.layout, Rbd),
        in_record=lambda cell: isinstance(cell.mode_detail.layout, Rbd),
    ),
    storage=FeatureStorage(
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
        load_volumes=_load_volumes,
        find=_find,
        refuse=_refuse,
        describe=_describe,
        on_node=NodeStorage(refuse=_refuse_on_node, locate=_locate, open=_open),
    ),
    list_things=_list_things,
    load_records=_load_records,
)
