"""Volume names: what kind of thing each names, on which kind of storage, and where it is on the node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pve_double.errors import PveError
from pve_double.formats import VOLUME_ID

CLUSTER = "5c1e9a70-7f43-4b0a-9f0e-2d6b8c3a4e11"
"""The id of the cluster of Ceph that the node belongs to."""
FILE_FORMATS = ("raw", "qcow2", "vmdk")
SUBDIRECTORIES: Mapping[str, str] = {
    "images": "images", "iso": "template/iso", "vztmpl": "template/cache", "backup": "dump", "snippets": "snippets",
    "import": "import",
}  # fmt: skip
_SAFE = r"[a-zA-Z0-9.+=_ -]+"
_TEMPLATES: Mapping[str, str] = {
    "iso": r"[^/]+\.(?i:iso|img)",
    "vztmpl": r"[^/]+\.tar\.(gz|xz|zst|bz2)",
    "backup": r"[^/]+\.(tgz|((tar|vma)(\.(gz|lzo|zst|bz2))?))",
    "snippets": r"[^/]+",
    "import": rf"{_SAFE}\.(ova|ovf|qcow2|raw|vmdk)",
}


@dataclass(frozen=True, slots=True)
class Named:
    """What a volume name says: `content` is images, iso, import and so on; `vmid` the owner's of an image."""

    content: str
    name: str
    format: str
    vmid: int | None = None

    @property
    def is_base(self) -> bool:
        return self.name.startswith("base-")


@dataclass(slots=True)
class Storage:
    """One entry of storage.cfg. A file-based one has a `path`, the others a volume group or a pool.

    It is `offline` where what it names does not exist: PVE configures it all the same.
    """

    id: str
    kind: str
    content: frozenset[str]
    total_bytes: int
    path: str = ""
    vgname: str = ""
    thinpool: str = ""
    pool: str = ""
    disabled: bool = False
    offline: bool = False
    options: dict[str, str] = field(default_factory=dict)

    def is_on(self, node: str) -> bool:
        """Whether the node may use it; without a list of nodes all may."""
        nodes = self.options.get("nodes")
        return not nodes or node in nodes.split(",")

    def parse(self, volname: str) -> Named:
        """Raises PveError in the words of the storage's own plugin."""
        if self.path:
            return _parse_file(volname)
        if self.kind == "zfspool":
            return _parse_zfs(volname)
        return _parse_rbd(volname) if self.kind == "rbd" else _parse_lvm(volname)

    def path_of(self, volname: str) -> str:
        """Where the volume is on the node."""
        named = self.parse(volname)
        if self.path:
            directory = f"{self.path}/{SUBDIRECTORIES[named.content]}"
            return (
                f"{directory}/{named.vmid}/{named.name}" if named.content == "images" else f"{directory}/{named.name}"
            )
        if self.kind == "rbd":
            return self.link_of(volname) if self.maps_images else f"rbd:{self.image_of(volname)}{self._login}"
        if named.content == "images":
            directory = f"/dev/zvol/{self.pool}" if self.kind == "zfspool" else f"/dev/{self.vgname}"
            return f"{directory}/{named.name}"
        raise PveError(f"storage '{self.id}' has no path for '{volname}'")

    @property
    def maps_images(self) -> bool:
        """Whether the kernel of the node opens its images, and not QEMU."""
        return self.options.get("krbd", "0") != "0"

    def image_of(self, volname: str) -> str:
        """The image of a volume as POOL[/NAMESPACE]/IMAGE: RBDPlugin.pm, get_rbd_path."""
        namespace = self.options.get("namespace")
        return "/".join([self.pool or "rbd", *([namespace] if namespace else []), self.parse(volname).name])

    def link_of(self, volname: str) -> str:
        """Where the device of an image is once the node has mapped it: RBDPlugin.pm, get_rbd_dev_path."""
        return f"/dev/rbd-pve/{CLUSTER}/{self.image_of(volname)}"

    @property
    def rbd_login(self) -> dict[str, str]:
        """Files and user of the clients of Ceph: CephConfig.pm, ceph_connect_option."""
        own = "monhost" in self.options
        conf = f"/etc/pve/priv/ceph/{self.id}.conf" if own else "/etc/pve/ceph.conf"
        return {
            "conf": conf,
            "id": self.options.get("username", "admin"),
            "keyring": f"/etc/pve/priv/ceph/{self.id}.keyring",
        }

    @property
    def _login(self) -> str:
        login = self.rbd_login
        words = [f"conf={login['conf']}"]
        if monitors := self.options.get("monhost"):
            words += [f"mon_host={';'.join(re.split('[ ,;]+', monitors))}".replace(":", "\\:"), "auth_supported=cephx"]
        return "".join(f":{word}" for word in [*words, f"id={login['id']}", f"keyring={login['keyring']}"])

    def volname_of_file(self, path: str) -> str | None:
        """The volume that a path in one of the directories for whole files would be; None for other paths."""
        for content, directory in SUBDIRECTORIES.items():
            name = path.removeprefix(f"{self.path}/{directory}/")
            if content in _TEMPLATES and name != path and re.fullmatch(_TEMPLATES[content], name):
                return f"{content}/{name}"
        return None

    def config(self) -> dict[str, Any]:
        """As GET /storage/{storage} has it."""
        where = {"path": self.path, "vgname": self.vgname, "thinpool": self.thinpool, "pool": self.pool}
        entry: dict[str, Any] = {"storage": self.id, "type": self.kind, "content": ",".join(sorted(self.content))}
        entry |= {"shared": 1} if self.kind == "rbd" else {}
        entry |= self.options | {key: value for key, value in where.items() if value}
        return entry | ({"disable": 1} if self.disabled else {})


def split_volume_id(volid: str) -> tuple[str, str]:
    """Storage and volume name. Raises PveError where it is no volume id."""
    match = VOLUME_ID.fullmatch(volid)
    if match is None:
        raise PveError(f"unable to parse volume ID '{volid}'")
    return match[1], match[2]


def is_volume_id(text: str) -> bool:
    return VOLUME_ID.fullmatch(text) is not None


def normalized_file_name(name: str) -> str:
    """What PVE makes of the name of an upload."""
    return re.sub(r"[^a-zA-Z0-9_.-]", "_", re.sub(r"^.*[/\\]", "", name.strip()))


def _parse_file(volname: str) -> Named:
    if match := re.fullmatch(r"(?:\d+/\S+/)?(\d+)/(\S+)", volname):
        return Named("images", match[2], _file_format(match[2]), int(match[1]))
    content, _, name = volname.partition("/")
    if content in _TEMPLATES and (match := re.fullmatch(_TEMPLATES[content], name)):
        return Named(content, name, match[1] if content == "import" else "raw")
    raise PveError(f"unable to parse directory volume name '{volname}'")


def _file_format(name: str) -> str:
    match = re.fullmatch(r"(?:base-)?[^/\s]+\.(raw|qcow2|vmdk|subvol)", name)
    if match is None:
        raise PveError(f"unable to parse volume filename '{name}'")
    return match[1]


def _parse_lvm(volname: str) -> Named:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*[a-z0-9]", volname, re.IGNORECASE):
        raise PveError(f"lvm name '{volname}' contains illegal characters")
    match = re.fullmatch(r"(?:vm|base)-(\d+)-\S+", volname)
    if match is None:
        raise PveError(f"unable to parse lvm volume name '{volname}'")
    return Named("images", volname, "raw", int(match[1]))


def _parse_zfs(volname: str) -> Named:
    match = re.fullmatch(r"(?:base-\d+-\S+/)?((?:base|vm)-(\d+)-\S+)", volname)
    if match is None:
        raise PveError(f"unable to parse zfs volume name '{volname}'")
    return Named("images", match[1], "raw", int(match[2]))


def _parse_rbd(volname: str) -> Named:
    match = re.fullmatch(r"(?:base-\d+-\S+/)?((?:base|vm)-(\d+)-\S+)", volname)
    if match is None:
        raise PveError(f"unable to parse rbd volume name '{volname}'")
    return Named("images", match[1], "raw", int(match[2]))
