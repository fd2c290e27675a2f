"""Storages in use on the lab host: each on disks of its own, with a place for the disk of a bystander's guest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from harness.lab.inventory import StorageKey
from harness.lab.transport.base import Runner
from tests.soak.zfs_on_host import zfs_installed

MIB = 1024**2
BYSTANDER_BYTES = 128 * MIB
"""The size of the bystander's disk. All of it is allocated and written before anything is measured."""

_DIRECTORY = "/srv/use"
_PATH = 'export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"\n'


@dataclass(frozen=True, slots=True)
class StorageInUse:
    """One storage: its entry in the lab file, and shell scripts that make it and look at it.

    `make` gets the paths of its `disks`. `space` prints free and all bytes. `listing` prints all that is there, each
    thing with an identity of its own. `fill` takes all free space for the bystander, and `free` gives it back.
    """

    name: str
    key: StorageKey
    at: str
    bystander: str
    """The path of the bystander's disk."""
    make: str
    remove: str
    space: str
    listing: str
    fill: str
    free: str
    disks: int = 1
    counted: str = "counted on "
    """What each run says of where the bytes are counted."""
    needs: str = "true"
    """A command that succeeds if the lab host can have this storage."""
    copies_on_write: bool = False
    """Whether an overwrite of what a guest has already written needs free space too: when it is full, the guests that
    write wait until there is space again."""
    installed: Callable[[Runner], AbstractContextManager[object]] = nullcontext
    """Installs on the lab host what its image lacks, for the time of a block. Raises LabUnavailable."""

    def script(self, text: str) -> str:
        return _PATH + text


_BYSTANDER_VOLUME = f"lvcreate --yes --quiet --wipesignatures y --size {BYSTANDER_BYTES}b --name bystander use"
_BYSTANDER_FILE = (
    f"dd if=/dev/zero of={_DIRECTORY}/bystander.raw bs=1M count={BYSTANDER_BYTES // MIB} conv=fsync status=none"
)
# $at: a directory. A run may allocate at the same time, so what was free may be less now.
_FILL_FILES = """
for try in 1 2 3; do
    free=$(df --block-size=1 --output=avail "$at" | tail -n 1)
    [ "$free" -gt 16777216 ] || break
    fallocate --length $((free - 8388608)) "$at/neighbour.$try" || rm -f "$at/neighbour.$try"
done
"""

VOLUME_GROUP = StorageInUse(
    "vg",
    "volume_group",
    "use",
    bystander="/dev/use/bystander",
    make=f'vgcreate --yes --quiet use "$1" && {_BYSTANDER_VOLUME}',
    remove="vgremove --yes --force --quiet use",
    space="vgs --noheadings --nosuffix --units b -o vg_free,vg_size use",
    listing="lvs --noheadings -o lv_name,lv_uuid,lv_size use",
    fill="lvcreate --yes --quiet --wipesignatures n --zero n --extents 100%FREE --name neighbour use",
    free="lvremove --yes --quiet use/neighbour",
)
ARRAY = replace(
    VOLUME_GROUP,
    name="md",
    make=f"""
mdadm --create /dev/md/use --quiet --run --level=1 --raid-devices=2 --assume-clean --bitmap=none "$1" "$2" &&
udevadm settle && vgcreate --yes --quiet use /dev/md/use && {_BYSTANDER_VOLUME}
""",
    remove=f"{VOLUME_GROUP.remove}; mdadm --quiet --stop /dev/md/use",
    disks=2,
)
THIN_POOL = replace(
    VOLUME_GROUP,
    name="thin",
    key="thin_pool",
    at="use/pool",
    make=f"""
vgcreate --yes --quiet use "$1" &&
lvcreate --yes --quiet --type thin-pool --size 1800m --poolmetadatasize 16m --chunksize 1m --zero n --name pool use &&
lvcreate --yes --quiet --virtualsize {BYSTANDER_BYTES}b --thinpool pool --name bystander use &&
dd if=/dev/zero of=/dev/use/bystander bs=1M count={BYSTANDER_BYTES // MIB} oflag=direct status=none
""",
    space="""
set -- $(lvs --noheadings --nosuffix --units b -o lv_size,data_percent use/pool)
awk -v size="$1" -v used="$2" 'BEGIN { printf "%.0f %.0f\\n", size * (1 - used / 100), size }'
""",
    # A chunk is allocated by its first write: 4 KiB of each are enough. dmsetup(8) prints used/all chunks.
    fill="""
lvcreate --yes --quiet --virtualsize 4g --thinpool pool --name neighbour use || exit
set -- $(dmsetup status use-pool-tpool)
chunks=$((${6#*/} - ${6%/*}))
fio --name=fill --filename=/dev/use/neighbour --ioengine=libaio --direct=1 --iodepth=16 --rw=write:1020k --bs=4k \\
    --size=${chunks}m --io_size=$((chunks * 4))k >/dev/null || true
""",
)
EXT4 = StorageInUse(
    "ext4",
    "directory",
    _DIRECTORY,
    bystander=f"{_DIRECTORY}/bystander.raw",
    make=f'mkfs.ext4 -q -F -m 0 "$1" && mkdir -p {_DIRECTORY} && mount "$1" {_DIRECTORY} && {_BYSTANDER_FILE}',
    remove=f"umount {_DIRECTORY}; rmdir {_DIRECTORY}",
    space=f"df --block-size=1 --output=avail,size {_DIRECTORY} | tail -n 1",
    listing=f"find {_DIRECTORY} -type f -printf '%P %i %s\\n' -o -printf '%P\\n' | sort",
    fill=f"at={_DIRECTORY}\n{_FILL_FILES}",
    free=f"rm -f {_DIRECTORY}/neighbour.*",
)
XFS = replace(EXT4, name="xfs", make=EXT4.make.replace("mkfs.ext4 -q -F -m 0", "mkfs.xfs -q -f"))
BTRFS = replace(
    EXT4,
    name="btrfs",
    make=EXT4.make.replace("mkfs.ext4 -q -F -m 0", "mkfs.btrfs -q -f"),
    copies_on_write=True,
    needs="command -v mkfs.btrfs",
)
BTRFS_IN_PLACE = replace(
    BTRFS,
    name="btrfs-nodatacow",
    copies_on_write=False,
    make=BTRFS.make.replace(_BYSTANDER_FILE, f"chattr +C {_DIRECTORY} && {_BYSTANDER_FILE}"),
)
NFS = replace(
    EXT4,
    name="nfs",
    # Without its grace time, in which clients of an earlier server could claim their locks: there are none.
    make=f"""
set -e
mkdir -p /etc/nfs.conf.d /srv/export {_DIRECTORY}
printf '[nfsd]\\ngrace-time=10\\nlease-time=10\\nvers3=n\\n' >/etc/nfs.conf.d/use.conf
mkfs.ext4 -q -F -m 0 "$1" && mount "$1" /srv/export
systemctl start nfs-server.service
exportfs -o rw,sync,no_root_squash,no_subtree_check,fsid=0 127.0.0.1:/srv/export
mount -t nfs -o vers=4.2 127.0.0.1:/ {_DIRECTORY}
{_BYSTANDER_FILE}
""",
    remove=f"""
umount {_DIRECTORY}; exportfs -u 127.0.0.1:/srv/export
systemctl stop nfs-server.service nfs-mountd.service nfs-idmapd.service nfsdcld.service rpc-statd.service \\
    rpcbind.socket rpcbind.service proc-fs-nfsd.mount run-rpc_pipefs.mount
umount /srv/export; rmdir {_DIRECTORY} /srv/export; rm -f /etc/nfs.conf.d/use.conf
""",
    counted=f"counted at {_DIRECTORY} by NFS, together with those of others",
    # The owner of the file server fills it there.
    fill=f"at=/srv/export\n{_FILL_FILES}",
    needs="command -v exportfs",
)
ZFS = StorageInUse(
    "zfs",
    "dataset",
    "use",
    bystander="/dev/zvol/use/bystander",
    make=f"""
zpool create -f -m none use "$1" && zfs create -V {BYSTANDER_BYTES} use/bystander && udevadm settle &&
dd if=/dev/urandom of=/dev/zvol/use/bystander bs=1M count={BYSTANDER_BYTES // MIB} oflag=direct status=none
""",
    remove="udevadm settle; zpool destroy -f use",
    space="""
set -- $(zfs list -Hp -o available,used use)
echo "$1 $(($1 + $2))"
""",
    listing="zfs list -Hp -t all -o name,guid -r use",
    # Its reservation takes the space at once.
    fill="zfs create -V $(($(zfs list -Hp -o available use) * 9 / 10 / 1048576 * 1048576)) use/neighbour",
    free="zfs destroy use/neighbour",
    installed=zfs_installed,
)
ZFS_MIRROR = replace(ZFS, name="zfs-mirror", make=ZFS.make.replace('"$1"', 'mirror "$1" "$2"'), disks=2)
ZFS_RAIDZ = replace(ZFS, name="zfs-raidz", make=ZFS.make.replace('"$1"', 'raidz "$1" "$2" "$3"'), disks=3)
STORAGES = (VOLUME_GROUP, THIN_POOL, EXT4, XFS, BTRFS, BTRFS_IN_PLACE, NFS, ARRAY, ZFS, ZFS_MIRROR, ZFS_RAIDZ)
