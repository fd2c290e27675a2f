"""LUKS2 on a partition or a volume of the run: dm-crypt encrypts what is written to it.

The key is random. The host makes it in the command that uses it, and nobody stores it: what the run has written cannot
be read once the device is closed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

from harness.lab.created import CreationLog, HostThing
from harness.lab.guard import Writable, built_on
from harness.lab.transport.base import Runner
from harness.layout.identity import FIND
from harness.layout.regions import Need
from harness.model.effective import Effective
from harness.untrusted import reading

MIB = 1024**2
NEED = Need(16 * MIB, 0)
"""The header: the offset of the data that cryptsetup(8) chooses for LUKS2."""

# $1: the device, $2: the UUID of the header, $3: the name of the new device. The key is only in this shell and in
# pipes: `printf` is a part of the shell, so no process has it in its arguments. A random key needs no slow derivation.
_MAKE = r"""
export PATH="$PATH:/usr/sbin:/sbin"
key=$(od -An -v -tx1 -N64 /dev/urandom | tr -d ' \n') && [ "${#key}" -eq 128 ] || exit
printf %s "$key" | cryptsetup luksFormat --type luks2 --batch-mode --key-file - --uuid "$2" \
    --pbkdf pbkdf2 --pbkdf-force-iterations 1000 "$1" &&
    printf %s "$key" | cryptsetup open --type luks2 --key-file - "$1" "$3" || exit
! command -v udevadm >/dev/null || udevadm settle --timeout=20
"""
# $1: the name, $2: the UUID of its header, $3: the UUID of its partition, or empty for a volume, which is removed next.
# The kernel's own identity of the device has UUID and name. Retries, because udev may have the device open.
_REMOVE = (
    FIND
    + r"""
done=absent
for at in /sys/block/dm-*/dm; do
    [ -r "$at/name" ] && [ "$(cat "$at/name")" = "$1" ] || continue
    now=$(cat "$at/uuid")
    [ "$now" = "CRYPT-LUKS2-$(echo "$2" | tr -d -)-$1" ] || { echo "foreign: $1 has the identity $now"; exit; }
    for try in 1 2 3 4 5; do
        errors=$(cryptsetup close "$1" 2>&1) && { done=removed; break; }
        sleep 0.5
    done
    [ "$done" = removed ] || { echo "$errors" >&2; exit 1; }
done
device=
[ -z "$3" ] || device=$(partition_of "$3")
if [ -n "$device" ]; then
    exec 9<"$device" || exit
    if [ "$(blkid -p -s UUID -o value "$device")" = "$2" ]; then
        require_free "$device" && wipefs --all --quiet "$device" || exit
        done=removed
    fi
fi
echo "$done"
"""
)
# $1: a device or a file. Prints cryptsetup's status of each encrypted device that it is or that it is on.
_LOOK = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
from=$1
[ -b "$from" ] || from=$(findmnt -n -o SOURCE -T "$from") || exit
lsblk -s -n -r -o NAME,TYPE "$from" | while read -r name type; do
    [ "$type" != crypt ] || cryptsetup status "$name" || exit
done
"""


class CryptDevice(HostThing):
    """A device of dm-crypt with its name, and the LUKS header with the UUID `uuid` on a partition or a volume."""

    kind: Literal["crypt-device"] = "crypt-device"
    name: str
    uuid: str
    partuuid: str = ""

    removal: ClassVar[str] = _REMOVE

    @property
    def words(self) -> str:
        return f"the encrypted device {self.name}"

    def arguments(self) -> Sequence[str]:
        return [self.name, self.uuid, self.partuuid]


@contextmanager
def encrypted(log: CreationLog, device: Writable, name: str, partuuid: str = "") -> Iterator[Writable]:
    """The permission for a new encrypted device `name` on `device`, which is smaller by the header.

    `partuuid` is that of the partition that `device` is, if it is one. Closed at the end, without its header. Raises
    SafetyError, HostError.
    """
    thing = CryptDevice(disks=device.disks, name=name, uuid=str(uuid.uuid4()), partuuid=partuuid)
    with log.making_here(thing):
        device.run(["sh", "-c", _MAKE, "sh", device.path, thing.uuid, name], deadline=120)
        (grant,) = built_on([device], [f"/dev/mapper/{name}"])
        yield grant


def read_encryption(runner: Runner, path: str) -> Effective:
    """How the device or the file at `path` is encrypted, as `cryptsetup status` says. Raises HostError."""
    printed = runner.run(["sh", "-s", "--", path], stdin=_LOOK, deadline=60).stdout
    with reading(f"{runner.name}: cryptsetup's status of what {path} is on"):
        return parse_status(printed)


def parse_status(printed: str) -> Effective:
    """What `cryptsetup status` says of one device; `none` without one. Raises ValueError for other output."""
    lines = (line.partition(":") for line in printed.splitlines())
    found = {key.strip(): value.strip() for key, colon, value in lines if colon}
    if not found:
        return Effective(host_encryption="none")
    # "512 bits"; "512", or from cryptsetup 2.8 on "512 [bytes]".
    return Effective(
        host_encryption=found["type"].lower(),
        host_cipher=found["cipher"],
        host_key_bits=int(found["keysize"].split()[0]),
        host_encryption_sector=int(found["sector size"].split()[0]),
    )
