"""The images of a run in a pool of Ceph: created with a token, mapped, and removed; and volumes of Proxmox VE there."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from harness.errors import HostError
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing, fenced
from harness.lab.guard import Room, created
from harness.lab.pin import TAG
from harness.lab.storages import FoundStorage
from harness.lab.transport.base import Runner
from harness.layout import BlockSource, NetworkDisk, Sources
from harness.model.attach import Attach
from harness.model.layout import Layout, Rbd
from harness.model.mode import Mode

MIB, KIB = 1024**2, 1024
POOL_SCRIPT = read_script("harness.features.rbd", "pool.sh")
_CREATE = POOL_SCRIPT + read_script("harness.features.rbd", "create_image.sh")
_MAP = POOL_SCRIPT + read_script("harness.features.rbd", "map_image.sh")
_MAP_VOLUME = POOL_SCRIPT + read_script("harness.features.rbd", "map_volume.sh")
_REMOVE = POOL_SCRIPT + read_script("harness.features.rbd", "remove_image.sh")
SECONDS = 180.0
"""For a command of Ceph, also on an emulated host."""
ADMIN = "admin"
"""The user of a client that names none."""

_POOL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_OPTIONS = {
    "id": re.compile(r"[A-Za-z0-9_.-]+"),
    "conf": re.compile(r"/[A-Za-z0-9_./-]+"),
    "secret": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
}
_ALLOWED = 'allowed: a pool, for example "vms", or "vms:id=USER:conf=/etc/ceph/NAME.conf:secret=UUID"'


@dataclass(frozen=True, slots=True)
class CephPool:
    """A pool, and how its clients log in: the user without `client.`, Ceph's file, and the secret of libvirt."""

    name: str
    id: str = ADMIN
    conf: str | None = None
    secret: str | None = None

    @classmethod
    def parse(cls, text: str) -> CephPool:
        """The pool from its notation in the lab file, which is that of QEMU's rbd driver. Raises ValueError."""
        name, *words = text.split(":")
        options = [word.partition("=")[::2] for word in words]
        if not _POOL.fullmatch(name) or len(dict(options)) < len(options):
            raise ValueError(_ALLOWED)
        if any(key not in _OPTIONS or not _OPTIONS[key].fullmatch(value) for key, value in options):
            raise ValueError(_ALLOWED)
        return cls(name, **dict(options))

    def open_with_qemu(self, image: str) -> NetworkDisk:
        """How QEMU opens an image of the pool."""
        login = (self.id, self.secret) if self.secret else None
        return NetworkDisk("rbd", f"{self.name}/{image}", config=self.conf, login=login)


class StoredImage(HostThing):
    """An image in the pool `at`, with the random `token` in its name and its metadata. `id` is known once it exists.

    `storage` identifies the pool.
    """

    kind: Literal["stored-image"] = "stored-image"
    at: str
    storage: str
    name: str
    token: str
    id: str = ""

    removal: ClassVar[str] = _REMOVE
    seconds: ClassVar[float] = 600.0

    @property
    def words(self) -> str:
        return f"the image {self.at.partition(':')[0]}/{self.name}"


class Images:
    """A `VolumeKind`: images in a pool."""

    thing: ClassVar[type[HostThing]] = StoredImage
    baseline: ClassVar[Layout] = Rbd()

    def bytes_of(self, storage: FoundStorage, layout: Layout, span: int) -> int:  # noqa: ARG002 - a VolumeKind
        """Whole objects. Ceph reports the free space for data that it has yet to replicate."""
        unit = layout.object_size if isinstance(layout, Rbd) else MIB
        return -(-span // unit) * unit

    @contextmanager
    def create(
        self, log: CreationLog, room: Room, label: str, wanted: Mapping[str, Layout], span: int
    ) -> Iterator[dict[str, Sources]]:
        """The image for each name in `wanted`, mapped. They are removed at the end. Raises SafetyError, HostError."""
        with ExitStack() as stack:
            sources = {}
            for name, layout in wanted.items():
                token = secrets.token_hex(16)
                thing = StoredImage(
                    disks=(label,),
                    at=room.found.at,
                    storage=room.found.identity,
                    name=f"{TAG}-{log.run_id}-{name}-{token}",
                    token=token,
                )
                image = layout if isinstance(layout, Rbd) else Rbd()
                sources[name] = Sources.same(stack.enter_context(_create_image(log, room, thing, image, span)))
            yield sources


@contextmanager
def _create_image(log: CreationLog, room: Room, thing: StoredImage, layout: Rbd, span: int) -> Iterator[BlockSource]:
    runner = log.runner
    known = [thing]
    with log.making(thing, lambda: known[-1].remove(runner)) as entry:
        words = [thing.at, thing.name, str(-(-span // MIB)), str(layout.object_size // KIB), thing.token]
        image_id = room.run(fenced(entry, ["sh", "-c", _CREATE, "sh", *words]), deadline=SECONDS).stdout.strip()
        if not image_id:
            raise HostError(f"{runner.name}: Ceph does not report the id of {thing.words}")
        known.append(thing.model_copy(update={"id": image_id}))
        log.amend(entry, known[-1])
        map_it = ["sh", "-c", _MAP, "sh", thing.at, thing.name]
        device = room.run(fenced(entry, map_it), deadline=SECONDS).stdout.strip()
        (grant,) = created(runner, entry, [device])
        opened = CephPool.parse(thing.at).open_with_qemu(thing.name) if layout.over_network else None
        yield BlockSource(device, "block", 0, span, grant=grant, network=opened)


def refuse_client(mode: Mode, storage: FoundStorage) -> str | None:
    """Why QEMU cannot open images of this pool for the mode, with the remedy; None if it can. Pure."""
    if not isinstance(mode.layout, Rbd) or not mode.layout.over_network:
        return None
    if isinstance(mode.attach, Attach) and not mode.attach.in_qemu:
        return "only QEMU itself opens an image with librbd: leave server out"
    pool = CephPool.parse(storage.at)
    if dict(storage.facts).get("librbd") != "yes":
        return "its QEMU has no driver for images of Ceph: apt-get install qemu-block-extra"
    if pool.id != ADMIN and pool.secret is None:
        return (
            f"libvirt logs QEMU in as client.{pool.id} only with a secret: define one with virsh secret-define, and "
            f'add ":secret=UUID" to {storage.words} in the lab file'
        )
    return None


def describe_twin(mode: Mode) -> str | None:
    """What the twin of the mode is, if it is not what the guest has; else None."""
    if not isinstance(mode.layout, Rbd) or not mode.layout.over_network:
        return None
    return (
        "QEMU opens the image itself (librbd), and its twin is fio on the image as the host's kernel maps it (krbd). "
        "So the guest against its twin has the difference of the clients, too"
    )


def locate_pool(entry: Mapping[str, Any]) -> str:
    """The pool of a storage with this entry of a node of Proxmox VE, with the login of pve-storage (CephConfig.pm)."""
    name, monitors = entry["storage"], re.split(r"[,;\s]+", str(entry.get("monhost", "")).strip())
    words = [_read_pool(entry), f"id={entry.get('username') or ADMIN}"]
    words.append(f"keyring=/etc/pve/priv/ceph/{name}.keyring")
    words += [f"namespace={entry['namespace']}"] if entry.get("namespace") else []
    if monitors == [""]:
        return ":".join([*words, "conf=/etc/pve/ceph.conf"])
    addresses = ",".join(monitors).replace(":", "%3A")
    return ":".join([*words, f"own_conf=/etc/pve/priv/ceph/{name}.conf", f"mons={addresses}"])


def _read_pool(entry: Mapping[str, Any]) -> str:
    return str(entry.get("pool") or "rbd")


def open_volume(runner: Runner, at: str, name: str, path: str) -> tuple[str, NetworkDisk | None]:
    """The volume `name` of Proxmox VE, mapped on its node, and how QEMU opens it if `path` is none of the node's.

    Raises HostError.
    """
    device = runner.run(["sh", "-c", _MAP_VOLUME, "sh", at, name, path], deadline=SECONDS).stdout.strip()
    image, _, _ = path.removeprefix("rbd:").partition(":")
    return device, NetworkDisk("rbd", image) if path.startswith("rbd:") else None


def refuse_on_node(entry: Mapping[str, Any], mode: Mode) -> str | None:
    """Why a storage with this entry of a node of Proxmox VE lacks the images of a mode, with the remedy; else None."""
    layout, name, pool = mode.layout, entry["storage"], _read_pool(entry)
    if entry.get("data-pool"):
        return f"storage {name} has its data in another pool (data-pool), whose space and replicas are not read"
    if not _POOL.fullmatch(pool) or not _POOL.fullmatch(str(entry.get("namespace") or pool)):
        return f"virt-overhead does not support the name of its pool or namespace: {pool}, {entry.get('namespace')}"
    if not isinstance(layout, Rbd):
        return None
    if layout.object_size != Rbd().object_size:
        return "Proxmox VE creates images with objects of 4 MiB: leave object_size out"
    krbd = int(entry.get("krbd") or 0)
    if (client := "krbd" if krbd else "librbd") == layout.client:
        return None
    return (
        f"storage {name} has krbd {krbd}, so Proxmox VE attaches all of its volumes by {client}: measure client = "
        f'"{client}", or name a storage on the same pool with krbd {1 - krbd} in the lab file '
        f"(pvesm add rbd NAME --pool {pool} --krbd {1 - krbd})"
    )
