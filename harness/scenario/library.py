"""The names a scenario can use without defining them: mode presets, the workload grammar, profiles."""

from __future__ import annotations

import re

from harness.config.names import choices
from harness.errors import ConfigError
from harness.scenario.attach import Attach, Vfio
from harness.scenario.layouts import Device, Lvm, LvmThin, Partition, Qcow2, RawFile, Zvol
from harness.scenario.model import PATTERNS, Mode, Profile, Workload
from harness.units import parse_size

PRESETS = (
    Mode("host", Device(), attach=None),
    Mode("passthrough", Device(), Attach()),
    Mode("lvm", Lvm(), Attach()),
    Mode("raw", RawFile(), Attach()),
    # As the article measured RAW: reads may be served from the host's page cache. Proxmox VE attaches it with io_uring.
    Mode("raw-cached", RawFile(), Attach(cache="writeback", aio="io_uring")),
    # Each with one change against one of those above.
    Mode("partition", Partition(), Attach()),
    Mode("lvm-thin", LvmThin(), Attach()),
    Mode("raw-xfs", RawFile("xfs"), Attach()),
    Mode("qcow2", Qcow2(), Attach()),
    Mode("zvol", Zvol(), Attach()),
    Mode("passthrough-blk", Device(), Attach(bus="virtio-blk")),
    Mode("lvm-blk", Lvm(), Attach(bus="virtio-blk")),
    Mode("vfio", Device(), Vfio()),
)

_DEPTHS = tuple(2**power for power in range(9))  # 1..256
_MIB, _GIB = 1024**2, 1024**3

PROFILES = (
    Profile("smoke", ramp=0, runtime=3, rounds=3, iodepth=(32,), span=64 * _MIB, round_limit=5 * 60, most_rounds=3),
    Profile(
        "standard",
        ramp=2,
        runtime=10,
        rounds=3,
        iodepth=_DEPTHS,
        span=4 * _GIB,
        round_limit=10 * 60,
        most_rounds=12,
        target=0.05,
        time_limit=90 * 60,  # 7 of the longest rounds; the 12 are for a selection of cells
        conditioning="steady",
        bracket=True,
    ),
    Profile(
        "publish",
        ramp=5,
        runtime=60,
        rounds=5,
        iodepth=_DEPTHS,
        span=64 * _GIB,  # as in the article, whose LVM and RAW disks had 64 GB
        round_limit=30 * 60,
        most_rounds=27,
        target=0.02,
        time_limit=8 * 3600,  # 13 of the longest rounds
        conditioning="steady",
        bracket=True,
    ),
)

_WORKLOAD = re.compile(
    r"(?P<pattern>[a-z]+)-(?P<bs>[0-9]+[a-z]*)"
    r"(?:-nj(?P<numjobs>[0-9]{1,15}))?(?:-r(?P<reads>[0-9]{1,15}))?(?:-i(?P<rate>[0-9]{1,15}))?"
)
_GRAMMAR = "PATTERN-BS[-njNUMJOBS][-rREADS][-iIOPS], for example randread-4k, randrw-8k-r67 or randread-4k-i1000"
_LARGEST_BS = 16 * _MIB
_LARGEST_RATE = 10_000_000


def parse_workload(text: str) -> Workload:
    """The workload meant by `text`: "randread-4k", "randrw-8k-nj4-r67-i1000". Others are refused with a ValueError."""
    match = _WORKLOAD.fullmatch(text)
    if match is None:
        raise ValueError(f"no workload; allowed: {_GRAMMAR}")
    pattern, reads = match["pattern"], match["reads"]
    if pattern not in PATTERNS:
        raise ValueError(f"no such pattern; {choices(pattern, PATTERNS)}")
    bs = parse_size(match["bs"])
    if bs == 0 or bs % 512 or bs > _LARGEST_BS:
        raise ValueError("no block size of a disk; allowed: multiples of 512 bytes up to 16m")
    numjobs = int(match["numjobs"] or 1)
    if not 1 <= numjobs <= 64:
        raise ValueError("numjobs out of range; allowed: nj1 to nj64")
    mixed = pattern in ("seqrw", "randrw")
    if mixed != (reads is not None):
        raise ValueError(
            f"a mixed pattern needs its share of reads in percent; allowed: for example {pattern}-{match['bs']}-r70"
            if mixed
            else "a share of reads (-r) is for mixed patterns; allowed: seqrw, randrw"
        )
    if reads is not None and not 1 <= int(reads) <= 99:
        raise ValueError("share of reads out of range; allowed: r1 to r99 (percent)")
    read_share = int(reads) / 100 if reads is not None else None
    return Workload(PATTERNS[pattern], bs, numjobs, read_share, _rate(match["rate"], numjobs, read_share))


def _rate(text: str | None, numjobs: int, read_share: float | None) -> int | None:
    """The IOPS asked for. fio limits each process and direction by itself, in whole numbers."""
    if text is None:
        return None
    rate = int(text)
    if not 1 <= rate <= _LARGEST_RATE or rate % numjobs:
        raise ValueError("no rate that fio can keep; allowed: i1 to i10000000, a multiple of numjobs")
    if read_share is not None and not 1 <= round(rate / numjobs * read_share) < rate // numjobs:
        raise ValueError("the rate leaves nothing to reads or to writes; allowed: more I/Os per second")
    return rate


def profile_of(profiles: tuple[Profile, ...], name: str) -> Profile:
    """The profile called `name`; a ConfigError lists the names there are."""
    by_name = {profile.name: profile for profile in profiles}
    if name not in by_name:
        raise ConfigError(f'profile "{name}": no such profile; {choices(name, by_name)}')
    return by_name[name]
