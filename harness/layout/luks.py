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
from harness.layout.regions import FIND, Need
from harness.model.effective import Effective
from harness.shipped import read_script
from harness.untrusted import reading

MIB = 1024**2
NEED = Need(16 * MIB, 0)
"""The header: the offset of the data that cryptsetup(8) chooses for LUKS2."""

_MAKE = read_script("harness.layout", "create_luks.sh")
_REMOVE = FIND + read_script("harness.layout", "remove_luks.sh")
_LOOK = read_script("harness.layout", "read_luks.sh")


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
    facts = {key.strip(): value.strip() for key, colon, value in lines if colon}
    if not facts:
        return Effective(host_encryption="none")
    # "512 bits"; "512", or from cryptsetup 2.8 on "512 [bytes]".
    return Effective(
        host_encryption=facts["type"].lower(),
        host_cipher=facts["cipher"],
        host_key_bits=int(facts["keysize"].split()[0]),
        host_encryption_sector=int(facts["sector size"].split()[0]),
    )
