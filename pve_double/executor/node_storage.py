"""Volumes and pools on a real machine, with the commands that PVE's plugins run."""

from __future__ import annotations

from pathlib import Path

from pve_double.errors import PveError
from pve_double.executor.commands import Commands
from pve_double.storage.disks import Disk
from pve_double.storage.volumes import Storage

TRACELESS = "activation/monitoring=0 backup/backup=0 backup/archive=0"
"""LVM's settings with which it leaves no copies of its metadata, and starts no daemon, on the machine of the guests.

For the same end udev does not activate the groups: it would do so with the machine's own settings.
"""
DEFAULT_PREALLOCATION = {"raw": "off", "qcow2": "metadata"}
_RECEIVE = 'mkdir -p "$(dirname "$1")" && cat >"$1.part" && mv "$1.part" "$1"'
_PROBE = '[ -b "$1" ] || exit 0; readlink -f "$1"; blockdev --getsize64 "$1"'
_PARTITION = """
if [ "$(lsblk -dno TYPE "$1")" = disk ]; then
    echo 'type=linux' | sfdisk --quiet --label gpt "$1"
    udevadm settle
    lsblk -nlpo PATH "$1" | sed -n 2p
else
    readlink -f "$1"
fi
"""
_WIPE = """
wipefs --all --force --quiet "$1"
dd if=/dev/zero of="$1" bs=1M count=8 conv=fsync,notrunc status=none
"""


class NodeStorage:
    """What exists of volumes and pools on the machine of the guests."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def create(self, storage: Storage, volname: str, size_bytes: int) -> None:
        match storage.kind:
            case "lvm":
                options = ["--yes", "--wipesignatures", "y", "--size", f"{size_bytes}b"]
                self._lvm("lvcreate", *options, "--name", volname, storage.vgname)
            case "lvmthin":
                pool = f"{storage.vgname}/{storage.thinpool}"
                self._lvm("lvcreate", "--virtualsize", f"{size_bytes}b", "--name", volname, "--thinpool", pool)
            case "zfspool":
                options = ["-s"] if storage.options.get("sparse", "0") != "0" else []
                options += ["-b", storage.options["blocksize"]] if "blocksize" in storage.options else []
                self._run("zfs", "create", *options, "-V", str(size_bytes), f"{storage.pool}/{volname}")
            case "rbd":
                self._rbd(storage, "create", "--image-format", "2", "--size", f"{size_bytes >> 20}M", volname=volname)
            case _:
                self._create_file(storage, volname, size_bytes)

    def _create_file(self, storage: Storage, volname: str, size_bytes: int) -> None:
        path, format_ = storage.path_of(volname), storage.parse(volname).format
        preallocation = storage.options.get("preallocation", DEFAULT_PREALLOCATION.get(format_, "off"))
        if format_ == "raw" and preallocation == "metadata":
            preallocation = "off"
        options = ["-o", f"preallocation={preallocation}"] if format_ in DEFAULT_PREALLOCATION else []
        self._run("mkdir", "-p", path.rpartition("/")[0])
        self._run("qemu-img", "create", "-q", *options, "-f", format_, path, str(size_bytes))

    def remove(self, storage: Storage, volname: str) -> None:
        if storage.kind == "rbd":
            self._rbd(storage, "snap", "purge", "--no-progress", volname=volname)
            self._rbd(storage, "rm", "--no-progress", volname=volname)
        elif storage.vgname:
            self._lvm("lvremove", "--yes", f"{storage.vgname}/{volname}")
        elif storage.pool:
            self._run("zfs", "destroy", "-r", f"{storage.pool}/{storage.parse(volname).name}")
        else:
            self._run("rm", "-f", storage.path_of(volname))

    def copy(self, source: tuple[Storage, str], target: tuple[Storage, str]) -> None:
        formats = [storage.parse(volname).format for storage, volname in (source, target)]
        paths = [storage.path_of(volname) for storage, volname in (source, target)]
        self._run("qemu-img", "convert", "-n", "-f", formats[0], "-O", formats[1], *paths, deadline=600)

    def rename(self, storage: Storage, volname: str, new: str) -> None:
        if storage.kind == "rbd":
            self._rbd(storage, "rename", storage.image_of(volname), storage.image_of(new))
        elif storage.vgname:
            self._lvm("lvrename", storage.vgname, volname, new)
        elif storage.pool:
            self._run("zfs", "rename", f"{storage.pool}/{volname}", f"{storage.pool}/{new}")
        else:
            self._run("mv", storage.path_of(volname), storage.path_of(new))

    def resize(self, storage: Storage, volname: str, size_bytes: int) -> None:
        if storage.kind == "rbd":
            self._rbd(storage, "resize", "--no-progress", "--size", f"{size_bytes >> 20}M", volname=volname)
        elif storage.vgname:
            self._lvm("lvextend", "--size", f"{size_bytes}b", f"{storage.vgname}/{volname}")
        elif storage.pool:
            self._run("zfs", "set", f"volsize={size_bytes}", f"{storage.pool}/{volname}")
        else:
            format_ = storage.parse(volname).format
            self._run("qemu-img", "resize", "-q", "-f", format_, storage.path_of(volname), str(size_bytes))

    def take_snapshot(self, storage: Storage, volname: str, name: str) -> None:
        match storage.kind:
            case "lvmthin":
                taken = ["--name", f"snap_{volname}_{name}", "--permission", "r", "--snapshot"]
                self._lvm("lvcreate", *taken, f"{storage.vgname}/{volname}")
            case "zfspool":
                self._run("zfs", "snapshot", f"{storage.pool}/{volname}@{name}")
            case "rbd":
                self._rbd(storage, "snap", "create", "--no-progress", "--snap", name, volname=volname)
            case _:
                raise PveError(f"the double takes no snapshots on storages of type {storage.kind}", status=501)

    def drop_snapshot(self, storage: Storage, volname: str, name: str) -> None:
        if storage.kind == "lvmthin":
            self._lvm("lvremove", "--yes", f"{storage.vgname}/snap_{volname}_{name}")
        elif storage.kind == "rbd":
            self._rbd(storage, "snap", "rm", "--no-progress", "--snap", name, volname=volname)
        else:
            self._run("zfs", "destroy", f"{storage.pool}/{volname}@{name}")

    def activate(self, storage: Storage, volname: str) -> None:
        match storage.kind:
            case "lvm":
                self._lvm("lvchange", "-aey", storage.path_of(volname))
                self._lvm("lvchange", "--refresh", storage.path_of(volname))
            case "lvmthin" if not self._is_device(path := storage.path_of(volname)):
                self._lvm("lvchange", "-ay", "-K", path)
            case "rbd" if not self._is_device(storage.link_of(volname)):
                self._rbd(storage, "map", volname=volname)
                self._run("udevadm", "settle", "--timeout=20")

    def deactivate(self, storage: Storage, volname: str) -> None:
        """Raises PveError where something has it open."""
        if storage.kind == "lvmthin":
            self._lvm("lvchange", "-an", storage.path_of(volname))
        elif storage.kind == "rbd" and self._is_device(link := storage.link_of(volname)):
            self._rbd(storage, "unmap", link)
        elif storage.kind == "lvm" and self._is_device(path := storage.path_of(volname)):
            self._lvm("lvchange", "-aln", path)

    def _is_device(self, path: str) -> bool:
        return self._commands.run(["test", "-b", path], check=False).status == 0

    def _rbd(self, storage: Storage, *words: str, volname: str | None = None) -> None:
        """A command of Ceph with the storage's login, on the image of a volume if one is given."""
        login = storage.rbd_login
        options = ["--conf", login["conf"], "--id", login["id"], "--keyring", login["keyring"]]
        image = [storage.image_of(volname)] if volname is not None else []
        self._run("rbd", *options, *words, *image)

    def put(self, file: Path, storage: Storage, volname: str) -> None:
        with file.open("rb") as content:
            self._commands.run(["sh", "-c", _RECEIVE, "sh", storage.path_of(volname)], stdin=content, deadline=600)

    def probe(self, path: str) -> Disk | None:
        lines = self._commands.run(["sh", "-c", _PROBE, "sh", path]).stdout.split()
        return Disk(lines[0], int(lines[1]), by_id=path) if len(lines) == 2 else None

    def make(self, kind: str, name: str, disk: Disk, *, filesystem: str) -> None:
        """Make a volume group, a thin pool, a mounted file system or a ZFS pool of a disk."""
        match kind:
            case "lvm" | "lvmthin":
                self._lvm("pvcreate", "--metadatasize", "250k", "--yes", "-ff", disk.device)
                self._lvm("vgcreate", "--setautoactivation", "n", name, disk.device)
                if kind == "lvmthin":
                    self._lvm("lvcreate", "--type", "thin-pool", "--extents", "95%FREE", "--name", name, name)
            case "directory":
                part = self._commands.run(["sh", "-euc", _PARTITION, "sh", disk.device]).stdout.strip()
                self._run(f"mkfs.{filesystem}", "-q", "-f" if filesystem == "xfs" else "-F", part, deadline=300)
                self._run("mkdir", "-p", f"/mnt/pve/{name}")
                self._run("mount", part, f"/mnt/pve/{name}")
            case _:
                self._run("zpool", "create", "-o", "ashift=12", "-f", name, disk.device)

    def unmake(self, kind: str, name: str, disk: Disk | None, *, wipe: bool) -> None:
        match kind:
            case "lvm" | "lvmthin":
                self._lvm("vgremove", "--yes", name)
            case "directory":
                # PVE leaves the mount point.
                self._run("umount", f"/mnt/pve/{name}")
            case _:
                self._run("zpool", "destroy", name)
        if wipe and disk is not None:
            self.wipe(disk)

    def wipe(self, disk: Disk) -> None:
        self._commands.run(["sh", "-euc", _WIPE, "sh", disk.device])

    def _lvm(self, command: str, *arguments: str) -> None:
        self._run(command, "--config", TRACELESS, *arguments)

    def _run(self, *argv: str, deadline: float = 120.0) -> None:
        done = self._commands.run(argv, deadline=deadline, check=False)
        if done.status != 0:
            raise PveError(f"{argv[0]} error: {done.stderr.strip() or done.stdout.strip()}")
