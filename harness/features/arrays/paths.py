"""Whether a path (a controller) limits arrays: more disks behind it add nothing, and a second path does. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis import IN_ORDER, Estimate, Samples, mean_interval
from harness.features.arrays.records import PathLimitRecord
from harness.model.base import Shape
from harness.model.cell import Cell, Place
from harness.model.counters import Counters
from harness.model.disk import PcieLink, SerialLink
from harness.results.cells import CellRecord
from harness.results.contrasts import BlockKey
from harness.results.journal import Measurement

FLAT = 0.25
"""More disks add nothing if they add less than this share of their number. A second path helps if it adds more."""
MORE = 1.5
"""An array is larger than another one if it has this many times its disks."""


@dataclass(frozen=True, slots=True)
class PathLoad:
    """An array in one job. `disks` has the number of its disks on each path.

    `throughput` has a value for each sample, in any one unit. All arrays have the same samples. `shares` says what the
    disks on a path do together for each unit of the array's throughput: 1 if all of it goes over that path, more if
    each block is written twice.
    """

    array: str
    disks: Mapping[str, int]
    throughput: Sequence[float]
    shares: Mapping[str, float]

    def over(self, path: str) -> list[float]:
        """What goes over the path, sample by sample."""
        return [value * self.shares[path] for value in self.throughput]


@dataclass(frozen=True, slots=True)
class PathLimit:
    """A path that limits arrays in one job, and what shows it."""

    path: str
    array: str
    """The largest array on this path alone."""
    plateau: Estimate
    """What goes over the path for this array, in the unit of the throughput: the limit of the path."""
    fewer: int
    """Disks of the smaller array on this path alone."""
    more: int
    """Disks of the largest one."""
    growth: Estimate
    """What goes over the path with more disks, divided by what goes over it with fewer."""
    paths: int
    """The number of paths of an array with no more disks that is faster."""
    gain: Estimate
    """The throughput of that array, divided by the one on this path alone."""


def find_path_limits(
    loads: Sequence[PathLoad], *, confidence: float = 0.95, samples: Samples = IN_ORDER
) -> dict[str, PathLimit]:
    """The paths that limit these arrays in one job, by path. The arrays differ only in their disks.

    A path is a limit only if two things are shown, each by an interval of paired samples: an array on this path alone
    does not do more with `MORE` times the disks, and an array with no more disks on this and other paths does. Disks,
    CPUs, threads or a short queue as the limit fail the second. `samples` as for `estimate_overhead`.
    ValueError for values that are not positive and finite.
    """
    found = (
        _find_limit(path, loads, confidence, samples)
        for path in sorted({path for load in loads for path in load.disks})
    )
    return {limit.path: limit for limit in found if limit is not None}


def _find_limit(path: str, loads: Sequence[PathLoad], confidence: float, samples: Samples) -> PathLimit | None:
    alone = sorted((load for load in loads if set(load.disks) == {path}), key=lambda load: load.disks[path])
    if not alone:
        return None
    more = alone[-1]
    smaller = [load for load in alone if load.disks[path] * MORE <= more.disks[path]]
    wider = [load for load in loads if path in load.disks and _is_wider(load, more)]
    if not smaller or not wider:
        return None
    fewer, wide = smaller[-1], max(wider, key=lambda load: sum(load.disks.values()))

    def estimate(values: Sequence[float]) -> Estimate:
        return mean_interval(values, confidence=confidence, samples=samples)

    growth = estimate([one / other for one, other in zip(more.over(path), fewer.over(path), strict=True)])
    gain = estimate([one / other for one, other in zip(wide.throughput, more.throughput, strict=True)])
    if growth.high is None or growth.high >= 1 + FLAT * (more.disks[path] / fewer.disks[path] - 1):
        return None
    if gain.low is None or gain.low <= 1 + FLAT * (len(wide.disks) - 1):
        return None
    plateau = estimate(more.over(path))
    return PathLimit(path, more.array, plateau, fewer.disks[path], more.disks[path], growth, len(wide.disks), gain)


def _is_wider(load: PathLoad, than: PathLoad) -> bool:
    return len(load.disks) > len(than.disks) and sum(load.disks.values()) <= sum(than.disks.values())


REACHES = 0.9
"""An array is at the limit of a path if it does this share of it there."""


@dataclass(frozen=True, slots=True)
class MeasuredArray:
    """A cell on an array, its record, and the measurements on the array in the blocks that count.

    `on_host` are those of the arm `place`, on the host, and `guests` those of the guest. `single` is the arm of the
    single disk. `chunk` in bytes is None if it is not known.
    """

    cell: Cell
    shape: Shape
    chunk: int | None
    record: CellRecord
    place: Place
    single: Place
    on_host: Sequence[Measurement]
    guests: Sequence[Measurement]
    link: PcieLink | SerialLink | None = None
    """The link that all its I/O goes over, of an array that was there already; None if it is not known."""

    @property
    def counted(self) -> list[Measurement]:
        """The measurements on the host whose bytes it counted. In the others, the reading came too late."""
        return [measurement for measurement in self.on_host if measurement.counters.members]

    def values(self, metric: str) -> tuple[float, ...]:
        """The values of the array on the host."""
        return self.record.values(metric, self.place)

    @property
    def of(self) -> tuple[object, ...]:
        """Arrays with the same value can be compared: they differ only in their disks."""
        layout = self.cell.mode.layout
        return (self.cell.scenario, self.record.host, self.cell.job, layout.kind, self.shape.level, self.chunk)

    @property
    def disks_by_path(self) -> dict[str, int]:
        """The number of its disks on each path. Empty if the path of a disk is not known."""
        paths = [member.path for member in self.counted[0].counters.members.values()] if self.counted else []
        known = [path for path in paths if path is not None]
        return {path: known.count(path) for path in known} if len(known) == len(paths) == self.shape.disks else {}


def limits_of(arrays: Sequence[MeasuredArray]) -> dict[str, PathLimitRecord]:
    """The limit of a path that an array reaches, by cell id. Arrays that reach none are left out."""
    alike: dict[tuple[object, ...], list[MeasuredArray]] = {}
    for array in arrays:
        if array.disks_by_path:
            alike.setdefault(array.of, []).append(array)
    path_limits: dict[str, PathLimitRecord] = {}
    for group in alike.values():
        path_limits |= _reached_limits(group)
    return path_limits


def _reached_limits(arrays: Sequence[MeasuredArray]) -> dict[str, PathLimitRecord]:
    """Compares bytes: the same job has requests of another size on the disks of another array, but not more bytes."""
    common = set.intersection(*(set(array.record.samples) for array in arrays))
    path_loads = {array.cell.id: _load(array, "bw", common) for array in arrays}
    loads = {name: load for name, load in path_loads.items() if load is not None}
    if not common or not loads:
        return {}
    first = arrays[0].record
    boots = tuple(boot for key, boot in zip(first.samples, first.boots, strict=False) if key in common)
    samples, confidence = Samples(boots), first.confidence
    limits = find_path_limits(list(loads.values()), confidence=confidence, samples=samples)
    records = {}
    for array in arrays:
        load = loads.get(array.cell.id)
        reached = [limit for limit in limits.values() if load is not None and _reaches(load, limit)]
        if reached and load is not None:
            limit = reached[0]
            largest = _load(next(one for one in arrays if one.cell.id == limit.array), "iops", common)
            over = largest.over(limit.path) if largest is not None else []
            iops = mean_interval(over, confidence=confidence, samples=samples) if over else None
            records[array.cell.id] = _record(limit, load.disks[limit.path], iops)
    return records


def _reaches(load: PathLoad, limit: PathLimit) -> bool:
    over = load.over(limit.path) if limit.path in load.disks else []
    return bool(over) and mean_interval(over).point >= REACHES * limit.plateau.point


def _record(limit: PathLimit, disks: int, iops: Estimate | None) -> PathLimitRecord:
    return PathLimitRecord(
        path=limit.path,
        disks=disks,
        bw=limit.plateau,
        iops=iops,
        fewer=limit.fewer,
        more=limit.more,
        growth=limit.growth,
        paths=limit.paths,
        gain=limit.gain,
    )


def _load(measured: MeasuredArray, metric: str, common: set[BlockKey]) -> PathLoad | None:
    """What the array does, with the share of each path from the counters of fio and of the disks."""
    shares = _shares(measured, metric)
    if shares is None:
        return None
    record = measured.record
    values = zip(record.samples, measured.values(metric), strict=True)
    return PathLoad(measured.cell.id, measured.disks_by_path, [value for key, value in values if key in common], shares)


def _shares(measured: MeasuredArray, metric: str) -> dict[str, float] | None:
    """What the disks on each path did for each I/O (`iops`) or byte (`bw`) of fio. None if it was not counted."""
    by_path = dict.fromkeys(measured.disks_by_path, 0.0)
    of_fio = 0.0
    for measurement in measured.counted:
        by_fio = _of_fio(measurement.counters, metric)
        if by_fio is None:
            return None
        of_fio += by_fio
        for member in measurement.counters.members.values():
            done = member.ios if metric == "iops" else member.read + member.written
            if done is None or member.path not in by_path:
                return None
            by_path[member.path] += done
    if of_fio <= 0 or not all(by_path.values()):
        return None
    return {path: done / of_fio for path, done in by_path.items()}


def _of_fio(counters: Counters, metric: str) -> float | None:
    return counters.fio.ios if metric == "iops" else counters.fio.read + counters.fio.written
