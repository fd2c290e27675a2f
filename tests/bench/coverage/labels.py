"""The labels test: the guests of a stored run exchange their labels within each block, so that no guest is better.

What is left is the noise of a real disk, in its own order of time. The truth of each comparison of two guests is 0.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from harness.analysis.adjusted import adjust_values
from harness.errors import ResultsError
from tests.bench.coverage.intervals import Intervals, compare, compute_half_by_t, judge_coverage
from tests.bench.coverage.noises import Floats

RECORDED = Path(__file__).parent / "recorded"
METRIC = "iops"
FEWEST_BLOCKS = 6
NARROWEST_OF_T = 0.85
"""The half width should be at most so many times that of Student's t."""
KEYS = ("group", "job", "rate", "discarded_s", "round", "block", "boot", "arm", "repeat", "started", "overlap")


@dataclass(frozen=True)
class Job:
    """The blocks of a job: logarithms of IOPS and starts in seconds, with the shape (blocks, arms).

    NaN is a slice that overlapped another one, or is not there. The first arm is the host, the guests are the last.
    """

    name: str
    logs: Floats
    times: Floats
    guests: tuple[str, ...]

    def permute(self, chance: np.random.Generator) -> Job:
        """The same slices with the guests' labels permuted in each block, among the guests that the block has."""
        order = np.tile(np.arange(self.logs.shape[1]), (len(self.logs), 1))
        for row, there in zip(order, ~np.isnan(self.logs), strict=True):
            guests = np.flatnonzero(there[-len(self.guests) :]) - len(self.guests)
            row[guests] = chance.permutation(row[guests])
        logs, times = (np.take_along_axis(of, order, axis=1) for of in (self.logs, self.times))
        return Job(self.name, logs, times, self.guests)

    def adjust(self) -> dict[str, dict[int, tuple[float, float]]]:
        """Each guest's values by block, as measured and adjusted, from the blocks that it shares with the host."""
        there = ~np.isnan(self.logs)
        fits: dict[tuple[int, ...], Floats] = {}
        adjusted: dict[str, dict[int, tuple[float, float]]] = {}
        for column, guest in enumerate(self.guests, start=-len(self.guests)):
            keys = tuple(np.flatnonzero(there[:, 0] & there[:, column]).tolist())
            if keys not in fits:
                logs, times = (of[list(keys)].tolist() for of in (self.logs, self.times))
                fits[keys] = np.array(adjust_values(logs, times))
            values = zip(self.logs[list(keys), column].tolist(), fits[keys][:, column].tolist(), strict=True)
            adjusted[guest] = dict(zip(keys, values, strict=True))
        return adjusted


def read_slices(path: Path) -> list[dict[str, Any]]:
    """The slices of a run's directory, or of a file as `keep` writes it. Raises ResultsError if it cannot be read."""
    journal = path / "journal.jsonl" if path.is_dir() else path
    try:
        text = gzip.decompress(journal.read_bytes()) if journal.suffix == ".gz" else journal.read_bytes()
        lines = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if "event" not in line and METRIC in line["metrics"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path}: the slices cannot be read: {error!r}", hint="name a run's directory") from error


def keep(run: Path, target: Path) -> None:
    """Write what the labels test needs of a run's slices, compressed."""
    lines = (
        {**{key: slice_[key] for key in KEYS}, "metrics": {METRIC: slice_["metrics"][METRIC]}}
        for slice_ in read_slices(run)
    )
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    target.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_jobs(path: Path) -> list[list[Job]]:
    """The jobs of each group of a run that have two guests or more, and enough complete blocks."""
    by_job: dict[tuple[Any, ...], dict[tuple[int, int], dict[tuple[str, int], dict[str, Any]]]] = {}
    for line in read_slices(path):
        key = line["group"], line["job"], line["rate"], line.get("longer_s"), line["discarded_s"]
        block = by_job.setdefault(key, defaultdict(dict))[line["round"], line["block"]]
        block[line["arm"], line["repeat"]] = line
    groups: dict[str, list[Job]] = {}
    for (group, job, *_), blocks in by_job.items():
        groups.setdefault(group, []).extend(_find_job(f"{group}, {job}", list(blocks.values())))
    return [jobs for jobs in groups.values() if jobs]


def _find_job(name: str, blocks: Sequence[dict[tuple[str, int], dict[str, Any]]]) -> Iterator[Job]:
    """The job, with those of its guests that have enough blocks in common with the host and with each other."""
    counting = [{arm: slice_ for arm, slice_ in block.items() if slice_["overlap"] is None} for block in blocks]
    numbers = Counter(arm for block in counting for arm in block)
    host = ("host", 1)
    # A mode that was decided early has half of the blocks; it would take the others from the modes that have all.
    of_guests = {arm: number for arm, number in numbers.items() if arm[0].startswith("guest:")}
    guests = sorted(arm for arm, number in of_guests.items() if 3 * number >= 2 * max(of_guests.values()))
    fewest = min((_count_common(counting, (host, *pair)) for pair in combinations(guests, 2)), default=0)
    if fewest >= FEWEST_BLOCKS:
        others = sorted(numbers.keys() - {host, *guests})
        slices = [[block.get(arm) for arm in (host, *others, *guests)] for block in counting]
        logs = np.array([[math.log(one["metrics"][METRIC]) if one else math.nan for one in block] for block in slices])
        times = np.array([[one["started"] if one else math.nan for one in block] for block in slices])
        yield Job(name, logs, times, tuple(mode for mode, _ in guests))


def _count_common(blocks: Sequence[Collection[tuple[str, int]]], arms: Sequence[tuple[str, int]]) -> int:
    return sum(all(arm in block for arm in arms) for block in blocks)


@dataclass(frozen=True)
class LabelsRow:
    """A run, and the mean over so many of its jobs."""

    run: str
    jobs: int
    blocks: int
    guests: int
    intervals: Intervals

    @property
    def failures(self) -> list[str]:
        """What does not hold."""
        failed, of_t = judge_coverage(self.intervals), self.intervals.of_t
        return failed if of_t is None or round(of_t, 2) <= NARROWEST_OF_T else [*failed, f"{of_t:.2f} of t"]


def permute_labels(path: Path, permutations: int) -> Iterator[LabelsRow]:
    """Each job of the run alone, and the mean over the jobs of a group for the guests that all of them have."""
    for jobs in read_jobs(path):
        chance = np.random.default_rng(len(jobs))
        permuted = [[job.permute(chance).adjust() for _ in range(permutations)] for job in jobs]
        name = path.name.removesuffix(".jsonl.gz")
        blocks = min(len(_share_blocks(of_job[0].values())) for of_job in permuted)
        alone = [
            _compare_all([[one] for one in of_job], job.guests) for job, of_job in zip(jobs, permuted, strict=True)
        ]
        yield LabelsRow(name, 1, blocks, max(len(job.guests) for job in jobs), _join(alone))
        common = [guest for guest in jobs[0].guests if all(guest in job.guests for job in jobs)]
        if len(jobs) > 1 and len(common) > 1:
            together = [list(of_jobs) for of_jobs in zip(*permuted, strict=True)]
            yield LabelsRow(name, len(jobs), blocks, len(common), _compare_all(together, common))


_Permuted = Mapping[str, Mapping[int, tuple[float, float]]]
"""Logarithms of each guest by block, as measured and adjusted."""


def _share_blocks(guests: Iterable[Mapping[int, object]]) -> list[int]:
    return sorted(set.intersection(*map(set, guests)))


def _compare_all(permutations: Sequence[Sequence[_Permuted]], guests: Sequence[str]) -> Intervals:
    """The intervals of each two guests in each permutation, for the mean over its jobs."""
    pairs = list(combinations(guests, 2))
    ends = np.empty((3, len(permutations), len(pairs)))
    by_t = np.empty((len(permutations), len(pairs)))
    for number, jobs in enumerate(permutations):
        for column, pair in enumerate(pairs):
            # Blocks of each job, two guests, and values as measured and adjusted.
            of_jobs = [
                np.array([[job[guest][at] for guest in pair] for at in _share_blocks(job[guest] for guest in pair)])
                for job in jobs
            ]
            blocks = min(map(len, of_jobs))
            one, other = np.mean([values[:blocks] for values in of_jobs], axis=0).transpose(1, 2, 0)
            ends[:, number, column] = compare(one[1].tolist(), other[1].tolist())
            by_t[number, column] = compute_half_by_t(other[0] - one[0])
    return Intervals(ends[0], ends[1], ends[2], np.zeros_like(by_t), by_t)


def _join(several: Sequence[Intervals]) -> Intervals:
    """The comparisons of several jobs as one list; each has its own oracle."""
    point, low, high, truth = (
        np.concatenate([getattr(of, name) for of in several], axis=1) for name in ("point", "low", "high", "truth")
    )
    by_t = np.concatenate([of.by_t for of in several if of.by_t is not None], axis=1)
    return Intervals(point, low, high, truth, by_t)
