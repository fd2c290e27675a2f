"""The headline of a disk with arrays: how far they scale against the single disk, and what limits them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import Estimate
from harness.report.cells import confidence_words
from harness.report.modes import Comparison, Headline, overlap, pooled
from harness.report.numbers import count, percent, percent_interval, sample_count, significant
from harness.report.scaling import ScalingView
from harness.results.answers import most_comparable

MOST_IN_SENTENCE = 4
"""Arrays that the headline lists. Of more, it has the one that delivers most and the one that delivers least."""


@dataclass(frozen=True, slots=True)
class ArraySummary:
    """One array over its jobs: the geometric mean of its throughput, as a multiple of the single disk's."""

    mode: str
    disks: int
    jobs: int
    speedup: Estimate
    single: str = "one disk"

    @property
    def words(self) -> str:
        """For example "`raid0-8` delivers 4.01 times one disk [3.97, 4.05], 50 % of 8 disks"."""
        return f"`{self.mode}` {self._figures}"

    @property
    def _figures(self) -> str:
        interval = ""
        if self.speedup.low is not None and self.speedup.high is not None:
            interval = f" [{significant(self.speedup.low)}, {significant(self.speedup.high)}]"
        share = f"{self.speedup.point / self.disks:.0%}".replace("%", " %")
        return (
            f"delivers {significant(self.speedup.point)} times {self.single}{interval}, {share} of {self.disks} disks"
        )


def array_headline(disk: str, views: Sequence[ScalingView], comparison: Comparison) -> Headline:
    """For example "ssd1: `raid0` delivers 3.9 times one disk [3.8, 4.0], 98 % of 4 disks; `raid5` delivers ..."."""
    usable = [view for view in views if not view.record.doubt]
    if not usable:
        sentence = f"{disk}: no array has a figure that can be trusted"
        return Headline(sentence, _not_usable(views))
    arrays = _summaries(usable)
    shown = arrays if len(arrays) <= MOST_IN_SENTENCE else [arrays[0], arrays[-1]]
    sentence = f"{disk}: " + "; ".join(array.words for array in shown)
    details = [_basis(arrays, usable), *_paths(usable), _limits(usable), *_guests(comparison), *_not_usable(views)]
    if len(arrays) > len(shown):
        details.insert(1, f"These deliver most and least of {len(arrays)} arrays.")
    return Headline(sentence, tuple(details))


def existing_array_sentences(views: Sequence[ScalingView]) -> tuple[str, ...]:
    """How an array scales that was there before the run. Its section is about what a guest loses of it.

    For example "RAID 5 over 6 on the host: `host` delivers 4.1 times one disk (spare) [4.0, 4.2], 68 % of 6 disks."
    """
    usable = [view for view in views if not view.record.doubt]
    if not usable:
        return _not_usable(views)
    arrays = _summaries(usable)
    words = "; ".join(array.words for array in arrays[:MOST_IN_SENTENCE])
    return (f"{usable[0].array} on the host: {words}.", _basis(arrays, usable), _limits(usable), *_not_usable(views))


def _summaries(views: Sequence[ScalingView]) -> list[ArraySummary]:
    """The arrays over the jobs that they have in common, the one that delivers most first."""
    by_mode: dict[str, dict[str, ScalingView]] = {}
    for view in views:
        by_mode.setdefault(view.cell.mode, {})[view.cell.record.job.id] = view
    chosen, jobs = most_comparable({mode: set(of_job) for mode, of_job in by_mode.items()})
    found = []
    for mode in chosen:
        own = [by_mode[mode][job] for job in sorted(jobs)]
        speedup = _speedup(pooled([view.cell for view in own], *own[0].arms))
        found.append(ArraySummary(mode, own[0].record.disks, len(own), speedup, own[0].single))
    return sorted(found, key=lambda array: -array.speedup.point)


def _speedup(overhead: Estimate) -> Estimate:
    """1 minus a loss of throughput is the ratio."""
    low = None if overhead.high is None else 1 - overhead.high
    high = None if overhead.low is None else 1 - overhead.low
    return Estimate(1 - overhead.point, low, high, overhead.n, boots=overhead.boots, caveat=overhead.caveat)


def _basis(arrays: Sequence[ArraySummary], views: Sequence[ScalingView]) -> str:
    first, last = arrays[0], arrays[-1]
    samples = sample_count(first.speedup.n, first.speedup.boots)
    basis = f"Geometric mean over {count(first.jobs, 'job')} in {samples}"
    if first.speedup.low is None:
        return f"{basis}; one block gives no interval."
    basis += f", with its interval ({confidence_words([view.cell for view in views])})."
    if len(arrays) > 1 and overlap(last.speedup, first.speedup):
        basis += " The intervals of the first and the last overlap: this run cannot distinguish them."
    return basis


def _paths(views: Sequence[ScalingView]) -> list[str]:
    """The limit of each path, the most that it let through: MB/s in sequential jobs, IOPS in random ones."""
    found = []
    for path in dict.fromkeys(view.record.path_limit.path for view in views if view.record.path_limit):
        limited = [view for view in views if view.record.path_limit and view.record.path_limit.path == path]
        figures = [view for view in limited if view.path_figure]
        best = [max(same, key=lambda view: view.path_rate) for same in _by_quantity(figures) if same]
        words = " and ".join(f"{view.path_figure} ({view.cell.record.job.id})" for view in best)
        modes = ", ".join(f"`{mode}`" for mode in dict.fromkeys(view.cell.mode for view in limited))
        found.append(f"Path {path} limits {modes} in {count(len(limited), 'cell')}: at most {words}.")
    return found


def _by_quantity(views: Sequence[ScalingView]) -> tuple[list[ScalingView], list[ScalingView]]:
    return (
        [view for view in views if view.cell.throughput_name == "bw"],
        [view for view in views if view.cell.throughput_name == "iops"],
    )


def _limits(views: Sequence[ScalingView]) -> str:
    counted = Counter(str(view.record.bottleneck) for view in views)
    words = ", ".join(f"{limit} in {count(number, 'cell')}" for limit, number in counted.most_common())
    return f"What limits the arrays: {words}."


def _guests(comparison: Comparison) -> list[str]:
    """What a guest loses of the array. The share of the single disk would say nothing."""
    losses = [
        f"`{mode.mode}` {percent(mode.virtualisation.point)} % {percent_interval(mode.virtualisation)}".rstrip()
        for mode in comparison.modes
        if mode.layer is not None
    ]
    return [f"A guest loses, of the throughput of its array on the host: {', '.join(losses)}."] if losses else []


def _not_usable(views: Sequence[ScalingView]) -> tuple[str, ...]:
    doubtful = sum(bool(view.record.doubt) for view in views)
    return (f"A check failed in {count(doubtful, 'cell')}: these figures are left out.",) if doubtful else ()
