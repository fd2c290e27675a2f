"""Disks that must not be written to: how to prepare each on a real device, and the guard's expected message."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024**2
DISK_BYTES = 32 * MIB


@dataclass(frozen=True, slots=True)
class Case:
    """One disk that must not be written to.

    `prepare` and `undo` are shell scripts: `$1` is the disk, `$2` a directory only for this case, `$3` the disk's link.
    `message` is a part of the guard's message. `needs` names the required programs. `lab` means that only the lab's
    kernel supports the case (device-mapper, md, KVM). `unchanged` is how many bytes at the beginning of the disk must
    stay as they are: all of them, unless the kernel writes the rest by itself. After `undo`, the disk is overwritten
    with zeros. Then the guard must accept it, which shows that the case was the reason for the refusal.
    """

    name: str
    prepare: str
    message: str
    undo: str = ""
    needs: tuple[str, ...] = ()
    lab: bool = False
    unchanged: int = DISK_BYTES


def _signature(name: str, prepare: str, kind: str, *needs: str, lab: bool = False, undo: str = "") -> Case:
    return Case(name, prepare, f"there is a signature on it: DISK: {kind}", undo, needs, lab)


_PARTITION = 'printf "label: %s\\n%s\\n" "$label" "$lines" | sfdisk --quiet --no-reread "$1"'
_RANDOM = "dd if=/dev/urandom bs=64K status=none conv=notrunc"
_UNKNOWN = "it holds data of an unknown kind"
_DEFINED = "a virtual machine or a storage is defined with it"
_DOMAIN = """<domain type='kvm'><name>voh-prod</name><memory>65536</memory><os><type>hvm</type></os><devices>
<disk type='block' device='disk'><source dev='$source'/><target dev='vda' bus='virtio'/></disk></devices></domain>"""
# A process that was killed has closed everything once it is a zombie; who reaps it may take seconds.
_END = 'kill -KILL $pids; for pid in $pids; do while grep -qs "^State:[[:space:]]*[^ZX[:space:]]" "/proc/$pid/status"; do sleep 0.05; done; done'
_OPEN = """sh -c 'echo $$ >"$2/pid"; exec "$3" "$1"' sh "$1" "$2" "$2/hold" >/dev/null 2>&1 &"""

SIGNATURES = (
    _signature("an ext2 file system", 'mkfs.ext2 -q -F "$1"', "ext2", "mkfs.ext2"),
    _signature("an ext4 file system", 'mkfs.ext4 -q -F "$1"', "ext4", "mkfs.ext4"),
    _signature(
        "an ext4 file system whose first block is gone",
        'mkfs.ext4 -q -F -b 4096 "$1" && dd if=/dev/zero of="$1" bs=512 count=2 conv=notrunc status=none',
        "ext4",
        "mkfs.ext4",
    ),
    # The smallest XFS is larger than the disk.
    _signature(
        "the beginning of an XFS file system",
        'truncate -s 320M "$2/image" && mkfs.xfs -q "$2/image" && dd if="$2/image" of="$1" bs=1M count=32 conv=notrunc '
        "status=none",
        "xfs",
        "mkfs.xfs",
    ),
    _signature("swap space", 'mkswap "$1" >/dev/null', "swap", "mkswap"),
    _signature(
        "swap space with an image of a suspended system",
        'mkswap "$1" >/dev/null && printf S1SUSPEND | dd of="$1" bs=1 seek=4086 conv=notrunc status=none',
        "swsuspend",
        "mkswap",
    ),
    _signature(
        "a physical volume of LVM",
        'pvcreate --yes --quiet --config "devices/use_devicesfile=0 backup/backup=0" "$1" >/dev/null 2>&1',
        "LVM2_member",
        "pvcreate",
        lab=True,
        undo='pvremove --yes --force --force --quiet "$1" >/dev/null 2>&1; true',
    ),
    _signature(
        "an encrypted volume (LUKS 1)",
        'echo secret | cryptsetup luksFormat --batch-mode --type luks1 --pbkdf-force-iterations 1000 "$1" -',
        "crypto_LUKS",
        "cryptsetup",
    ),
    _signature(
        "an encrypted volume (LUKS 2)",
        'echo secret | cryptsetup luksFormat --batch-mode --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 "$1" -',
        "crypto_LUKS",
        "cryptsetup",
    ),
    _signature(
        "an encrypted volume (LUKS 2) whose first header is gone",
        'echo secret | cryptsetup luksFormat --batch-mode --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 "$1" - '
        '&& dd if=/dev/zero of="$1" bs=4096 count=1 conv=notrunc status=none',
        "crypto_LUKS",
        "cryptsetup",
    ),
    *(
        _signature(
            f"a member of an array (md, metadata {version})",
            f'mdadm --create /dev/md/guard --quiet --run --force --level=1 --raid-devices=1 --metadata={version} "$1" '
            "2>/dev/null && udevadm settle && mdadm --quiet --stop /dev/md/guard",
            "linux_raid_member",
            "mdadm",
            lab=True,
        )
        for version in ("0.90", "1.0", "1.1", "1.2")
    ),
    _signature(
        "an OSD of Ceph (BlueStore)",
        "printf 'bluestore block device\\n12345678-1234-1234-1234-123456789012\\n' | dd of=\"$1\" conv=notrunc status=none",
        "ceph_bluestore",
    ),
    _signature("an empty partition table (GPT)", "label=gpt lines=; " + _PARTITION, "gpt", "sfdisk"),
    _signature("an empty partition table (MBR)", "label=dos lines=; " + _PARTITION, "dos", "sfdisk"),
    _signature(
        "a partition table (GPT) that has only its backup left",
        "label=gpt lines=',,L'; " + _PARTITION + ' && dd if=/dev/zero of="$1" bs=1M count=1 conv=notrunc status=none',
        "gpt",
        "sfdisk",
    ),
    _signature(
        "a partition with a file system",
        "label=gpt lines=',,L'; " + _PARTITION + ' && mkfs.ext4 -q -F -E offset=1048576 "$1" 24M',
        "gpt",
        "sfdisk",
        "mkfs.ext4",
    ),
    _signature(
        "partitions that all have names like those of virt-overhead (voh:RUN:device)",
        "label=gpt lines='size=16MiB, name=\"voh:20260101-000000-abcd:device\"'; " + _PARTITION,
        "gpt",
        "sfdisk",
    ),
    _signature(
        "a partition with a name like those of virt-overhead, over a file system of the whole disk",
        'mkfs.ext4 -q -F -b 4096 "$1" && '
        "label=gpt lines='size=16MiB, name=\"voh:20260101-000000-abcd:device\"'; " + _PARTITION,
        "gpt",
        "sfdisk",
        "mkfs.ext4",
    ),
)
"""Disks with contents that the guard recognises."""


def _data(name: str, prepare: str, *needs: str, lab: bool = False) -> Case:
    return Case(name, prepare, _UNKNOWN, needs=needs, lab=lab)


DATA = (
    _data(
        "an encrypted volume without a header (plain dm-crypt, VeraCrypt, a detached LUKS header): random data",
        f'{_RANDOM} of="$1" count=512',
    ),
    _data(
        "random data in the first 512 bytes only", 'dd if=/dev/urandom of="$1" bs=512 count=1 conv=notrunc status=none'
    ),
    _data(
        "random data in the last 512 bytes only",
        'dd if=/dev/urandom of="$1" bs=512 count=1 seek=$(($(blockdev --getsz "$1") - 1)) conv=notrunc status=none',
    ),
    _data("a byte other than zero at 900 KiB", 'printf x | dd of="$1" bs=1 seek=921600 conv=notrunc status=none'),
    _data(
        "a raw database over a third of the disk, from the middle on",
        f'{_RANDOM} of="$1" seek=200 count=170',
    ),
    _data("a tar archive", 'tar -cf - /etc/passwd /etc/hosts 2>/dev/null | dd of="$1" conv=notrunc status=none', "tar"),
    _data("text", 'seq 100000 | dd of="$1" bs=64K conv=notrunc status=none'),
    _data(
        "an image of a virtual machine (qcow2), written to the bare disk",
        'qemu-img create -q -f qcow2 "$2/image" 32M && dd if="$2/image" of="$1" conv=notrunc status=none',
        "qemu-img",
    ),
    _data(
        "a file system whose superblocks were overwritten",
        'mkfs.ext4 -q -F "$1" && dd if=/dev/zero of="$1" bs=1M count=1 conv=notrunc status=none && wipefs --all -q "$1" && '
        f'{_RANDOM} of="$1" seek=128 count=256',
        "mkfs.ext4",
    ),
)
"""Disks with data of an unknown kind."""

USED = (
    Case(
        "a mounted file system",
        'mkfs.ext4 -q -F "$1" && mount -o ro "$1" "$2"',
        "DISK on DIRECTORY is mounted",
        'umount "$2"',
        ("mkfs.ext4",),
    ),
    Case(
        "a file system that is mounted in another mount namespace",
        'mkfs.ext4 -q -F "$1" && unshare --mount --propagation=private sh -c '
        '\'mount -o ro "$1" "$2" && echo $$ >"$2.pid" && exec sleep 600\' sh "$1" "$2" >/dev/null 2>&1 & '
        'for try in $(seq 100); do [ -s "$2.pid" ] && break; sleep 0.1; done; [ -s "$2.pid" ]',
        "DISK on DIRECTORY is mounted",
        f'pids=$(cat "$2.pid"); {_END}; rm "$2.pid"',
        ("mkfs.ext4", "unshare"),
    ),
    Case(
        "swap space in use",
        'mkswap "$1" >/dev/null && swapon "$1"',
        "DISK is used as swap",
        'swapoff "$1"',
        ("mkswap", "swapon"),
        # The kernel may swap pages out to it; only the header stays.
        unchanged=4096,
    ),
    Case(
        "a process that has it open for writing",
        'sh -c \'exec 9<>"$1"; echo $$ >"$2/pid"; exec sleep 600\' sh "$1" "$2" >/dev/null 2>&1 & '
        'while [ ! -s "$2/pid" ]; do sleep 0.1; done',
        "DISK by sleep (process ",
        f'pids=$(cat "$2/pid"); {_END}',
    ),
    Case(
        "a process that has it open for reading",
        'sh -c \'exec 9<"$1"; echo $$ >"$2/pid"; exec sleep 600\' sh "$1" "$2" >/dev/null 2>&1 & '
        'while [ ! -s "$2/pid" ]; do sleep 0.1; done',
        "DISK by sleep (process ",
        f'pids=$(cat "$2/pid"); {_END}',
    ),
    Case(
        "a process in a container, with a device node of its own, that has it open",
        'unshare --mount --pid --fork sh -c \'number=$(cat "/sys/class/block/${1##*/}/dev"); mknod "$2/xvda" b '
        '${number%:*} ${number#*:}; exec 9<"$2/xvda"; rm "$2/xvda"; : >"$2/ready"; exec sleep 600\' sh "$1" "$2" '
        '>/dev/null 2>&1 & echo $! >"$2/pid"; while [ ! -e "$2/ready" ]; do sleep 0.1; done',
        "DISK by sleep (process ",
        f'pid=$(cat "$2/pid"); pids="$(cat "/proc/$pid/task/$pid/children") $pid"; {_END}',
        ("unshare",),
    ),
    Case(
        "a running guest of libvirt, by the disk's link",
        """cat >"$2/guest.xml" <<XML
<domain type='qemu'><name>voh-prod</name><memory unit='MiB'>32</memory><os><type>hvm</type></os><devices>
<disk type='block' device='disk'><driver name='qemu' type='raw'/><source dev='$3'/><target dev='vda' bus='virtio'/></disk>
</devices></domain>
XML
virsh -q create "$2/guest.xml" >/dev/null""",
        "DISK by qemu-system",
        "virsh -q destroy voh-prod",
        ("virsh",),
        lab=True,
    ),
    Case(
        "another loop device on it",
        'losetup --find --show "$1" >"$2/loop"',
        " by /sys/block/loop",
        'losetup -d "$(cat "$2/loop")"; while losetup "$(cat "$2/loop")" >/dev/null 2>&1; do sleep 0.1; done',
        ("losetup",),
    ),
    Case(
        "an active volume of LVM on it",
        'pvcreate --yes -q "$1" >/dev/null && vgcreate -q voh-data "$1" >/dev/null && lvcreate -q -W n -Z n -l 4 -n data voh-data '
        ">/dev/null",
        "(voh--data-data), LVM is in use",
        'vgremove --yes --force -q voh-data >/dev/null; pvremove --yes -q "$1" >/dev/null',
        ("pvcreate",),
        lab=True,
    ),
    Case(
        "a running array on it",
        'mdadm --create /dev/md/voh-array --quiet --run --force --level=1 --raid-devices=1 "$1" 2>/dev/null',
        ", md is in use",
        'mdadm --quiet --stop /dev/md/voh-array && mdadm --quiet --zero-superblock "$1"',
        ("mdadm",),
        lab=True,
    ),
    Case(
        "an opened encrypted volume without a header",
        'echo secret | cryptsetup open --type plain --cipher aes-xts-plain64 --key-size 256 "$1" voh-plain -',
        "(voh-plain), CRYPT is in use",
        "cryptsetup close voh-plain",
        ("cryptsetup",),
        lab=True,
    ),
    Case(
        "a multipath device on it",
        'dmsetup create voh-path --uuid mpath-voh --table "0 $(blockdev --getsz "$1") linear $1 0"',
        " is a path of the multipath map voh-path",
        "dmsetup remove voh-path",
        ("dmsetup",),
        lab=True,
    ),
)
"""Disks that are in use."""


def _libvirt(name: str, directory: str, source: str, *, xml: str = "") -> Case:
    # The disk's name is in it, because two runs of the tests on one machine must not remove each other's file.
    file = f"{directory}/voh-test-${{1##*/}}.xml"
    make = f'mkdir -p {directory}; source={source}; cat >"{file}" <<XML\n{xml or _DOMAIN}\nXML'
    return Case(name, make, _DEFINED, f'rm -f "{file}"')


def _proxmox(name: str, file: str, line: str) -> Case:
    make = f'mkdir -p "$(dirname {file})"; printf "%s\\n" "{line}" >{file}'
    return Case(
        name, make, _DEFINED, f"rm -rf /etc/pve/{file.split('/')[3]}; rmdir /etc/pve 2>/dev/null; true", lab=True
    )


DEFINED = (
    _libvirt("a guest of libvirt that does not run, by the disk's link", "/etc/libvirt/qemu", '"$3"'),
    _libvirt("a guest of libvirt that does not run, by the kernel's name", "/etc/libvirt/qemu", '"$1"'),
    _libvirt("a guest of libvirt in the session of a user", "$HOME/.config/libvirt/qemu", '"$1"'),
    _libvirt("a snapshot of a guest of libvirt", "/var/lib/libvirt/qemu/snapshot/prod", '"$1"'),
    _libvirt("a container of libvirt", "/etc/libvirt/lxc", '"$1"'),
    _libvirt(
        "a storage pool of libvirt",
        "/etc/libvirt/storage",
        '"$1"',
        xml="<pool type='disk'><name>voh-data</name><source><device path='$source'/></source></pool>",
    ),
    _proxmox("a VM of Proxmox VE", "/etc/pve/nodes/pve1/qemu-server/100.conf", "scsi1: $3,size=128M"),
    _proxmox(
        "a snapshot of a VM of Proxmox VE",
        "/etc/pve/nodes/pve1/qemu-server/100.conf",
        "name: prod\n\n[before]\nscsi1: $1,size=128M",
    ),
    _proxmox("a VM on another node of a Proxmox VE cluster", "/etc/pve/nodes/pve2/qemu-server/101.conf", "virtio0: $3"),
    _proxmox("a container of Proxmox VE", "/etc/pve/nodes/pve1/lxc/102.conf", "mp0: $3,mp=/data"),
)
"""Disks in the definition of a virtual machine or a storage, running or not."""

UNKNOWN = (
    Case(
        "a disk whose last sector cannot be read",
        'echo "+$(($(blockdev --getsz "$1") - 1))-$(($(blockdev --getsz "$1") - 1))" >/sys/kernel/config/nullb/${1##*/}/badblocks',
        "the probe `contents` could not tell: byte ",
        'echo "-0-$(($(blockdev --getsz "$1") - 1))" >/sys/kernel/config/nullb/${1##*/}/badblocks',
        lab=True,
    ),
    Case(
        "a file system on a disk whose last sector cannot be read",
        'mkfs.ext4 -q -F "$1" && echo "+$(($(blockdev --getsz "$1") - 1))-$(($(blockdev --getsz "$1") - 1))" '
        ">/sys/kernel/config/nullb/${1##*/}/badblocks",
        "the probe `contents` could not tell: byte ",
        'echo "-0-$(($(blockdev --getsz "$1") - 1))" >/sys/kernel/config/nullb/${1##*/}/badblocks',
        lab=True,
    ),
    Case(
        "a disk whose first sectors cannot be read",
        'echo "+0-7" >/sys/kernel/config/nullb/${1##*/}/badblocks',
        "the probe `contents` could not tell: byte 0",
        'echo "-0-$(($(blockdev --getsz "$1") - 1))" >/sys/kernel/config/nullb/${1##*/}/badblocks',
        lab=True,
    ),
)
"""Disks for which a probe has no result."""

CASES = (*SIGNATURES, *DATA, *USED, *DEFINED, *UNKNOWN)
