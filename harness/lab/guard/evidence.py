"""Reads the evidence about a disk from its host, for the guard.

Each probe has one of three results: found, not found, could not tell. The last one is evidence as well.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote

from harness.lab.paths import LEFT_DIRECTORY
from harness.lab.pin import FACTS, BlockPin
from harness.lab.transport.base import Runner
from harness.shipped import read_script
from harness.untrusted import parse_json, reading

SAMPLE_BYTES = 65536
"""Bytes of each sample that is read."""
SAMPLES = 64
"""Samples at random positions, not at the ends. If a share p of the disk holds data, all miss it with (1 - p)^64."""
WHOLE_BYTES = 128 << 20
"""A disk of this size or less is read as a whole."""
END_BYTES = 1 << 20
"""Bytes at each end of a disk that are all read, because most formats have their signatures there."""

SAMPLED = read_script(
    "harness.lab.guard",
    "sample_disk.sh",
    SAMPLE_BYTES=SAMPLE_BYTES,
    WHOLE_BYTES=WHOLE_BYTES,
    LEFT_DIRECTORY=LEFT_DIRECTORY,
)

INSPECT = FACTS + SAMPLED + read_script("harness.lab.guard", "inspect_disk.sh")


INSPECT_SECONDS = 120.0

Contents = Literal["blank", "left", "data", "unknown"]
"""Samples of a disk: all zero; unchanged since a run, with zeros at both ends; anything else; or not readable."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence about a disk.

    Each tuple of texts names what was found, and is empty if the probe found nothing. `unknown` maps each probe
    without a result to the reason.
    """

    pin: BlockPin
    serials: tuple[str, ...]
    backing_file: str
    read_only: bool
    is_whole_disk: bool
    is_root: bool = False
    mounts: tuple[str, ...] = ()
    swaps: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    """Processes that have the disk or a partition of it open, in any namespace."""
    claims: tuple[str, ...] = ()
    """Devices of the disk to which the kernel does not grant exclusive access."""
    definitions: tuple[str, ...] = ()
    """Files of libvirt and Proxmox VE that define a guest or a storage with the disk."""
    partitions: tuple[str, ...] = ()
    """Kernel names of the disk's partitions."""
    signatures: tuple[str, ...] = ()
    """`DEVICE: TYPE` of every signature on the disk and its partitions."""
    contents: Contents = "blank"
    unknown: Mapping[str, str] = field(default_factory=dict)


def inspect(runner: Runner, device: str) -> Evidence | None:
    """The current evidence about `device`; None if there is no such block device. Raises HostError."""
    # Random each time: data between the samples of one inspection may be found by the next one.
    ends = range(0, END_BYTES, SAMPLE_BYTES)
    inside = (f"inside{random.SystemRandom().random()}" for _ in range(SAMPLES))
    positions = [*(f"ends{at}" for at in ends), *(f"ends{-at - SAMPLE_BYTES}" for at in ends), *inside]
    printed = runner.run(["sh", "-c", INSPECT, "sh", device, *positions], deadline=INSPECT_SECONDS).stdout
    answers = _Answers.of(printed)
    if "missing" in answers.found:
        return None
    source = f"{runner.name}: the evidence about {device}"
    with reading(source, hint="install util-linux 2.33 or newer there (lsblk, wipefs, findmnt)"):
        return _parse_evidence(answers, source)


@dataclass(frozen=True, slots=True)
class _Answers:
    """The results of probes by name, and the reasons of probes without a result."""

    found: Mapping[str, str]
    unknown: Mapping[str, str]

    @classmethod
    def of(cls, printed: str) -> _Answers:
        found: dict[str, str] = {}
        unknown: dict[str, str] = {}
        for line in printed.splitlines():
            name, _, rest = line.partition("\t")
            status, _, text = rest.partition("\t")
            (found if status == "0" else unknown)[name] = unquote(text)
        return cls(found, unknown)

    def lines(self, name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(line for line in self.found.get(name, "").splitlines() if line))


PROBES = (
    "tools",
    "block",
    "mounts",
    "swaps",
    "holders",
    "roots",
    "signatures",
    "domains",
    "proxmox",
    "users",
    "claim",
    "contents",
)
"""All of them must answer. A missing answer counts as a probe without a result."""


def _parse_evidence(answers: _Answers, source: str) -> Evidence:
    texts = answers.found
    number, diskseq, sectors, identity = texts["facts"].split("\t")
    pin = BlockPin(texts["device"], number, diskseq, int(sectors), identity)
    unknown = dict(answers.unknown)
    unknown |= {name: "it gave no answer" for name in PROBES if name not in texts and name not in unknown}
    node: dict[str, Any] = parse_json(texts["block"], source)["blockdevices"][0] if "block" in texts else {}
    below = _list_descendants(node)
    parts = [each for each in below if each["type"] == "part"]
    signatures = parse_json(texts.get("signatures") or "{}", source).get("signatures", ())
    kind = str(node.get("type", ""))
    return Evidence(
        pin=pin,
        serials=tuple(dict.fromkeys(texts["serials"].split())),
        backing_file=texts["backing"],
        read_only=bool(node.get("ro")),
        # On device-mapper (a volume, a multipath) the kernel makes no partitions.
        is_whole_disk=kind in ("disk", "loop") or kind.startswith("raid"),
        is_root=bool({pin.name, *(each["kname"] for each in below)} & set(answers.lines("roots"))),
        mounts=answers.lines("mounts"),
        swaps=answers.lines("swaps"),
        holders=answers.lines("holders"),
        users=answers.lines("users"),
        claims=answers.lines("claim"),
        definitions=answers.lines("domains") + answers.lines("proxmox"),
        partitions=tuple(part["kname"] for part in parts),
        signatures=tuple(dict.fromkeys(f"{signature['device']}: {signature['type']}" for signature in signatures)),
        contents=_parse_contents(texts.get("contents"), texts.get("left")),
        unknown=unknown,
    )


def _parse_contents(counted: str | None, left: str | None) -> Contents:
    if counted is None:
        return "unknown"
    ends, inside = (int(count) for count in counted.split())
    if ends:
        return "data"
    if not inside:
        return "blank"
    return "left" if left == "same" else "data"


def _list_descendants(node: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    children: list[dict[str, Any]] = node.get("children", [])
    return [each for child in children for each in (child, *_list_descendants(child))]
