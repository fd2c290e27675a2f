"""Whether a path limits arrays: more disks behind it add nothing, and a second path does. A path is a controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.estimate import Estimate, mean_interval
from harness.analysis.samples import IN_ORDER, Samples

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


def path_limits(
    loads: Sequence[PathLoad], *, confidence: float = 0.95, samples: Samples = IN_ORDER
) -> dict[str, PathLimit]:
    """The paths that limit these arrays in one job, by path. The arrays differ only in their disks.

    A path is a limit only if two things are shown, each by an interval of paired samples: an array on this path alone
    does not do more with `MORE` times the disks, and an array with no more disks on this and other paths does. Disks,
    CPUs, threads or a short queue as the limit fail the second. `samples` as for `estimate_overhead`.
    ValueError for values that are not positive and finite.
    """
    found = (
        _limit(path, loads, confidence, samples) for path in sorted({path for load in loads for path in load.disks})
    )
    return {limit.path: limit for limit in found if limit is not None}


def _limit(path: str, loads: Sequence[PathLoad], confidence: float, samples: Samples) -> PathLimit | None:
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
