"""Workloads with names of their own, and the profiles: how thoroughly to measure. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    AfterValidator,
    Field,
    Strict,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
)

from harness.config.names import choices, near
from harness.errors import ConfigError
from harness.model.job import PATTERNS, BlockShare, Bursts, Rw, Workload, has_trims, parse_workload
from harness.model.values import (
    STORED,
    Flag,
    Iodepth,
    Ramp,
    Rounds,
    Runtime,
    SecondsOrNone,
    ShareOrNone,
    SomeSeconds,
    Span,
    TomlTable,
)

_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9_]*$")

FioFiles = Mapping[str, tuple[Workload, ...] | ValueError]
"""The workloads of fio files by their paths in a scenario, or what is wrong with a file."""

KIB, MIB, GIB = 1024, 1024**2, 1024**3


@dataclass(frozen=True, slots=True)
class Named:
    """A name in a scenario's `workloads`, and the workloads that it stands for. `source` says where they are from."""

    name: str
    title: str
    source: str
    workloads: tuple[Workload, ...]
    best_counts: bool = False
    """Whether the program that it is from shows its best pass."""

    @property
    def is_set(self) -> bool:
        """Whether it stands for several workloads."""
        return len(self.workloads) > 1


_CDM_SECONDS = 5.0
"""CrystalDiskMark measures each test for 5 s by default."""
_CDM_REGION = GIB
"""CrystalDiskMark's default size of its test file."""
_CDM_SOURCE = (
    "CrystalDiskMark {version}, default profile: 5 passes of 1 GiB, 5 s pause between passes, MB/s of 10^6 bytes"
)
_IOMETER_DEPTHS = (1, 2, 4, 8, 16, 32)
_IOMETER_WORKERS = 4
_IOMETER_SOURCE = "Intel's IOMeter access patterns as published with disk reviews (Tom's Hardware, 2009), 4 workers"


def _make_cdm(version: int, tests: Sequence[tuple[str, bool, int, int, int]]) -> Named:
    """CrystalDiskMark's tests: name, whether random, block size in bytes, queue depth, threads.

    Each of them reads, and then writes.
    """
    name = f"cdm{version}"
    workloads = tuple(
        Workload(
            _choose_rw(direction, random=random),
            bs,
            threads,
            label=f"{name}-{test}-{direction}",
            iodepths=(depth,),
            region=_CDM_REGION,
            seconds_each=_CDM_SECONDS,
        )
        for test, random, bs, depth, threads in tests
        for direction in ("read", "write")
    )
    source = _CDM_SOURCE.format(version=version)
    return Named(name, f"CrystalDiskMark {version}", source, workloads, best_counts=True)


def _choose_rw(direction: str, *, random: bool) -> Rw:
    if direction == "read":
        return "randread" if random else "read"
    return "randwrite" if random else "write"


def _make_iometer(name: str, *, reads: int, random: int = 100, sizes: Mapping[int, int]) -> Named:
    """An IOMeter profile. `reads` and `random` are shares in percent, `sizes` the percent of each block size."""
    rw: Rw = "randread" if reads == 100 else "randrw"
    workload = Workload(
        rw,
        max(sizes),
        _IOMETER_WORKERS,
        None if reads == 100 else reads / 100,
        label=f"iometer-{name}",
        iodepths=_IOMETER_DEPTHS,
        sizes=tuple(BlockShare(bs, percent) for bs, percent in sizes.items()) if len(sizes) > 1 else (),
        random_share=None if random == 100 else random / 100,
    )
    return Named(f"iometer-{name}", f"IOMeter {name}", _IOMETER_SOURCE, (workload,))


_FILESERVER = {512: 10, KIB: 5, 2 * KIB: 5, 4 * KIB: 60, 8 * KIB: 2, 16 * KIB: 4, 32 * KIB: 4, 64 * KIB: 10}
_WEBSERVER = {
    512: 22,
    KIB: 15,
    2 * KIB: 8,
    4 * KIB: 23,
    8 * KIB: 15,
    16 * KIB: 2,
    32 * KIB: 6,
    64 * KIB: 7,
    128 * KIB: 1,
    512 * KIB: 1,
}

_ALL = (
    _make_cdm(
        3,
        (
            ("seq", False, MIB, 1, 1),
            ("512k", True, 512 * KIB, 1, 1),
            ("4k", True, 4 * KIB, 1, 1),
            ("4k-qd32", True, 4 * KIB, 32, 1),
        ),
    ),
    _make_cdm(
        7,
        (
            ("seq1m-q8t1", False, MIB, 8, 1),
            ("seq1m-q1t1", False, MIB, 1, 1),
            ("rnd4k-q32t16", True, 4 * KIB, 32, 16),
            ("rnd4k-q1t1", True, 4 * KIB, 1, 1),
        ),
    ),
    _make_cdm(
        8,
        (
            ("seq1m-q8t1", False, MIB, 8, 1),
            ("seq1m-q1t1", False, MIB, 1, 1),
            ("rnd4k-q32t1", True, 4 * KIB, 32, 1),
            ("rnd4k-q1t1", True, 4 * KIB, 1, 1),
        ),
    ),
    _make_iometer("database", reads=67, sizes={8 * KIB: 100}),
    _make_iometer("fileserver", reads=80, sizes=_FILESERVER),
    _make_iometer("webserver", reads=100, sizes=_WEBSERVER),
    _make_iometer("workstation", reads=80, random=80, sizes={8 * KIB: 100}),
    Named(
        "wal",
        "a write-ahead log",
        "etcd issue 10578: fdatasync after each write, in the guest and on the host. etcd wants a p99 below 10 ms",
        (Workload("write", 4 * KIB, label="wal", iodepths=(1,), syncs=True),),
    ),
    Named(
        "wal-buffered",
        "the same log through the page cache, as most databases write it",
        "cloud-hypervisor issue 6520: a slow fsync after buffered writes, which a benchmark with O_DIRECT did not show",
        (Workload("write", 4 * KIB, label="wal-buffered", iodepths=(1,), syncs=True, buffered=True),),
    ),
    Named(
        "search",
        "a search server: many processes read, and each write is durable when it completes",
        "the busy guest of the study of SSD arrays; the sizes and shares are ours",
        (Workload("randrw", 16 * KIB, 8, 0.9, label="search", iodepths=(4,), durable=True),),
    ),
    Named(
        "qd1",
        "one request at a time",
        "the latency of a single request, without any other I/O",
        tuple(
            Workload(_choose_rw(direction, random=True), 4 * KIB, label=f"qd1-{direction}", iodepths=(1,))
            for direction in ("read", "write")
        ),
    ),
    Named(
        "thinktime",
        "short bursts of reads with pauses",
        "QEMU's io_uring on AHCI could sleep for up to 499 ms after a pause (patches by Axboe, February 2026)",
        (Workload("randread", 4 * KIB, label="thinktime", iodepths=(1,), bursts=Bursts(ios=4, pause=0.02)),),
    ),
    Named(
        "poisson",
        "reads that arrive at random times, whether or not the disk has answered",
        "fio's rate_process=poisson, against coordinated omission",
        (Workload("randread", 4 * KIB, rate=200, label="poisson", iodepths=(64,), poisson=True),),
    ),
)

NAMED: Mapping[str, Named] = MappingProxyType({named.name: named for named in _ALL})
"""Every name that stands for workloads, in the order in which the documentation lists them."""


def list_workload_names() -> Iterator[str]:
    """Every name of a single workload or of a set."""
    for named in _ALL:
        yield named.name
        if named.is_set:
            yield from (workload.name for workload in named.workloads)


def shows_best(workload: Workload) -> bool:
    """Whether the program that the workload is from shows its best pass."""
    return any(
        named.best_counts and workload.label in {workload_of_set.label for workload_of_set in named.workloads}
        for named in _ALL
    )


def is_fio_file(text: str) -> bool:
    """Whether a name in `workloads` is the path of a fio file: no other workload has a suffix or a slash."""
    return "/" in text or _SUFFIX.search(text) is not None


def parse_workloads(text: str, files: FioFiles = MappingProxyType({})) -> tuple[Workload, ...]:
    """The workloads that `text` stands for: one of NAMED or of its members, or a pattern such as "randread-4k".

    A path such as "my.fio" stands for the workloads of this file in `files`. Raises ValueError, which says what is
    allowed.
    """
    if is_fio_file(text):
        return _read_file(text, files)
    if text in NAMED:
        return NAMED[text].workloads
    members = {workload.name: workload for named in _ALL for workload in named.workloads}
    if text in members:
        return (members[text],)
    try:
        return (parse_workload(text),)
    except ValueError:
        names = list(list_workload_names())
        if text.partition("-")[0] not in PATTERNS and near(text, names):
            raise ValueError(f"no such workload; {choices(text, names)}, or a pattern such as randread-4k") from None
        raise


def _read_file(path: str, files: FioFiles) -> tuple[Workload, ...]:
    if path not in files:
        raise ValueError(
            "not a fio file in the scenario's workloads; allowed: one of those, or a pattern such as randread-4k"
        )
    workloads = files[path]
    if isinstance(workloads, ValueError):
        raise ValueError(str(workloads))
    return workloads


def _parse(value: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """The workloads that a name stands for. A record has a workload and not its name."""
    if info.context == STORED:
        return handler(value)
    if isinstance(value, str):
        return parse_workloads(value, (info.context or {}).get("fio_files", {}))
    raise ValueError('must be text in quotes; allowed: for example "randread-4k"')


def _parse_one(value: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """The workload with this name, which must not stand for several.

    A fio file is refused: its sections have their own rates, so a search could not set one.
    """
    if info.context != STORED and isinstance(value, str) and is_fio_file(value):
        raise ValueError("a fio file cannot be used here; allowed: a workload with a name, or a pattern")
    parsed = _parse(value, handler, info)
    if info.context != STORED and isinstance(value, str) and has_trims(value.partition("-")[0]):
        raise ValueError("a workload with trims cannot be used here; allowed: one that reads or writes")
    if isinstance(parsed, tuple):
        if len(parsed) > 1:
            raise ValueError(
                f"stands for several workloads; {choices(str(value), [workload.name for workload in parsed])}"
            )
        return parsed[0]
    return parsed


def _flatten(several: Iterable[Workload | tuple[Workload, ...]]) -> list[Workload]:
    each_once: dict[Workload, None] = {}
    for parsed in several:
        each_once.update(dict.fromkeys([parsed] if isinstance(parsed, Workload) else parsed))
    return list(each_once)


WorkloadText = Annotated[Workload, WrapValidator(_parse)]
OneWorkload = Annotated[Workload, WrapValidator(_parse_one)]
WorkloadList = Annotated[list[WorkloadText], Field(min_length=1), AfterValidator(_flatten)]
"""The names of a file, as workloads. A name that stands for several is replaced by them."""
WorkloadTuple = Annotated[
    tuple[WorkloadText, ...], Field(min_length=1), AfterValidator(lambda several: tuple(_flatten(several)))
]
"""The same for a domain value."""


Conditioning = Literal["fill", "steady"]


@dataclass(frozen=True, slots=True)
class Profile:
    """How thoroughly to measure. `rounds` is the minimum. More rounds follow until the cells are decided.

    The number of rounds is fixed if `most_rounds` is not set or is below `rounds`.
    """

    name: str
    ramp: Ramp
    """Seconds at the beginning of each slice that are not measured."""
    runtime: Runtime
    """Seconds of measured time of each slice."""
    rounds: Rounds
    """The minimum number of rounds. Each runs all blocks of all jobs."""
    iodepth: Annotated[tuple[Iodepth, ...], Field(min_length=1), Strict(False)]
    """The depths at which every workload runs."""
    span: Span
    """Bytes of the largest region that an arm uses."""
    round_limit: SomeSeconds
    """Seconds of fio that one round over all arms may take."""
    blocks: Rounds = 1
    """Blocks of each job in a round: how often each arm runs the job, in slices that alternate with the other arms."""
    most_rounds: Rounds = 0
    """The maximum number of rounds. If it equals `rounds`, the number is fixed."""
    target: ShareOrNone = None
    """Half width of the overhead's 95 % interval, as a fraction. A cell without a budget is decided at this width."""
    time_limit: SecondsOrNone = None
    """Seconds for measuring the scenario. No round begins that would end later."""
    conditioning: Conditioning = "fill"
    """How a region is prepared: filled once, or brought to a steady state."""
    reboot: Flag = False
    """Whether each round begins with a new boot of the guest. Then the samples are the boots and not the blocks."""

    own_times: Flag = True
    """Whether workloads that have a duration of their own run for it."""

    def __post_init__(self) -> None:
        if self.most_rounds < self.rounds:
            object.__setattr__(self, "most_rounds", self.rounds)

    def changed(self, changes: TomlTable | None) -> Profile:
        """The profile with the changes of a scenario, a `ProfileTable`."""
        return replace(self, **(changes.model_dump(exclude_unset=True) if changes is not None else {}))


def _make_profile_table() -> type[TomlTable]:
    """A table whose keys are the fields of Profile. A scenario changes only the keys that it sets."""
    hints = get_type_hints(Profile, include_extras=True)
    names = [field.name for field in fields(Profile) if field.name != "name"]
    keys: dict[str, Any] = {name: (hints[name] | None, None) for name in names}
    return create_model("ProfileTable", __base__=TomlTable, __doc__="What a scenario changes in a profile.", **keys)


PROFILE_TABLE = _make_profile_table()

_DEPTHS = tuple(2**power for power in range(9))  # 1..256
_MIB, _GIB = 1024**2, 1024**3

PROFILES = (
    Profile(
        "smoke",
        ramp=0,
        runtime=0.25,
        rounds=2,
        iodepth=(32,),
        span=64 * _MIB,
        round_limit=5 * 60,
        blocks=10,
        most_rounds=2,
        own_times=False,
    ),
    Profile(
        "standard",
        ramp=0,
        runtime=0.5,
        rounds=4,
        iodepth=_DEPTHS,
        span=4 * _GIB,
        round_limit=10 * 60,
        blocks=2,
        most_rounds=24,
        target=0.03,
        time_limit=3600,
        conditioning="steady",
        reboot=True,
    ),
    Profile(
        "publish",
        ramp=0,
        runtime=1,
        rounds=5,
        iodepth=_DEPTHS,
        span=64 * _GIB,  # as in the study of Proxmox VE, whose LVM and RAW disks had 64 GB
        round_limit=20 * 60,
        blocks=2,
        most_rounds=54,
        target=0.01,
        time_limit=10 * 3600,
        conditioning="steady",
        reboot=True,
    ),
)


def find_profile(profiles: tuple[Profile, ...], name: str) -> Profile:
    """The profile with this name. Raises ConfigError, which lists the names that exist."""
    by_name = {profile.name: profile for profile in profiles}
    if name not in by_name:
        raise ConfigError(f'profile "{name}": no such profile; {choices(name, by_name)}')
    return by_name[name]
