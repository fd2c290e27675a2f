"""What each attach mode of a disk loses over its jobs, and the headline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis import IN_ORDER, Estimate, Samples, estimate_overhead
from harness.report.cells import ArmName, CellView, Outcome, confidence_words
from harness.report.numbers import count, percent, percent_interval, sample_count
from harness.results.dependence import paired_blocks

_JobKey = str


@dataclass(frozen=True, slots=True)
class ModeSummary:
    """One mode over `jobs` jobs: the geometric mean of the ratios, as an overhead."""

    mode: str
    jobs: int
    overhead: Estimate
    """Guest against host."""
    layer: Estimate | None
    """Twin against host; None if the layout is the bare device."""
    virtualisation: Estimate
    """Guest against twin, or against host if there is no twin."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Modes over the same jobs, least overhead first. `left_out` names the modes that lack some of these jobs."""

    modes: tuple[ModeSummary, ...]
    jobs: int
    planned: int
    """Jobs that the plan has for the modes, measured or not."""
    left_out: tuple[str, ...]
    faster: tuple[tuple[str, int], ...]
    """Modes with cells whose guest is faster than its host beyond the interval, and how many. They are left out."""
    void: tuple[tuple[str, int], ...]
    """Modes with void cells, and how many. They are left out."""
    confidence: str
    """The confidence of the intervals, in words."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The answer for one disk in a sentence, and its basis."""

    sentence: str
    details: tuple[str, ...]


def compare_modes(cells: Sequence[CellView]) -> Comparison:
    """The modes of one disk over the jobs that all of them have. A mode may be left out if that leaves more jobs.

    Void cells, and cells whose guest is faster than its host, are left out, because they are not results. Jobs at a
    fixed rate are left out, because their throughput is the same on every arm.
    """
    guests = [cell for cell in cells if not cell.is_baseline and not cell.rated]
    by_mode: dict[str, dict[_JobKey, CellView]] = {}
    for cell in guests:
        by_mode.setdefault(cell.mode, {})
        if cell.comparable:
            by_mode[cell.mode][cell.record.job.id] = cell
    chosen, jobs = most_comparable({mode: set(of_job) for mode, of_job in by_mode.items()})
    summaries = [_summary(mode, [by_mode[mode][job] for job in sorted(jobs)]) for mode in chosen]
    return Comparison(
        modes=tuple(sorted(summaries, key=lambda each: each.overhead.point)),
        jobs=len(jobs),
        planned=len({cell.record.job.id for cell in guests}),
        left_out=tuple(mode for mode in by_mode if mode not in chosen),
        faster=_counted(cell for cell in guests if cell.usable and cell.faster_than_host),
        void=_counted(cell for cell in guests if cell.outcome is Outcome.VOID),
        confidence=confidence_words(cells),
    )


def headline(disk: str, comparison: Comparison) -> Headline:
    """For example "optane: `raw` loses least (38.1 % [36.0, 40.2]), `lvm` loses most (52.0 % [...]) of ..."."""
    modes = comparison.modes
    if not modes:
        sentence = "no attach mode was measured"
        if comparison.faster or comparison.void:
            sentence = "no attach mode has a figure that can be trusted"
        return Headline(f"{disk}: {sentence}", _left_out(comparison))
    best, worst = modes[0], modes[-1]
    if len(modes) == 1:
        sentence = f"{disk}: {_alone(best)}"
    else:
        sentence = f"{disk}: {_least(best)}, `{worst.mode}` loses most ({_figure(worst.overhead)})"
        if worst.overhead.point <= 0:
            sentence = f"{disk}: no mode loses throughput: {_least(best)}, `{worst.mode}` {_figure(worst.overhead)}"
        sentence += " of the host's throughput"
    return Headline(sentence, _details(comparison))


def _details(comparison: Comparison) -> tuple[str, ...]:
    best, worst = comparison.modes[0], comparison.modes[-1]
    jobs = count(comparison.jobs, "job")
    if comparison.jobs < comparison.planned:
        jobs = f"{comparison.jobs} of {count(comparison.planned, 'job')}"
    details = [f"Geometric mean over {jobs} in {sample_count(best.overhead.n, best.overhead.boots)}"]
    interval = f", with its interval ({comparison.confidence})."
    details[0] += interval if best.overhead.low is not None else "; one block gives no interval."
    if len(comparison.modes) > 1 and overlap(best.overhead, worst.overhead):
        details.append("The intervals of the two overlap: this run cannot distinguish them.")
    return (*details, *_left_out(comparison))


def _left_out(comparison: Comparison) -> tuple[str, ...]:
    """What the comparison leaves out, and why."""
    details = [
        f"`{mode}` is void in {count(cells, 'job')}: a check failed, so these figures are left out."
        for mode, cells in comparison.void
    ]
    details += [
        f"`{mode}` is faster than its host beyond the interval in {count(cells, 'job')}, and no check explains it: "
        "this is not a result and is left out."
        for mode, cells in comparison.faster
    ]
    explained = {mode for mode, _ in (*comparison.void, *comparison.faster)}
    if others := [mode for mode in comparison.left_out if mode not in explained]:
        names = ", ".join(f"`{mode}`" for mode in others)
        details.append(f"Not in this comparison, because there are no usable values of the same jobs: {names}.")
    return tuple(details)


def _counted(cells: Iterable[CellView]) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(cell.mode for cell in cells).items())


def _alone(mode: ModeSummary) -> str:
    if mode.overhead.point <= 0:
        return f"`{mode.mode}` loses nothing ({_figure(mode.overhead)}) of the host's throughput"
    return f"`{mode.mode}` loses {_figure(mode.overhead)} of the host's throughput"


def _least(mode: ModeSummary) -> str:
    verb = "loses least" if mode.overhead.point > 0 else "loses nothing"
    return f"`{mode.mode}` {verb} ({_figure(mode.overhead)})"


def _figure(overhead: Estimate) -> str:
    return f"{percent(overhead.point)} % {percent_interval(overhead)}".rstrip()


def overlap(one: Estimate, other: Estimate) -> bool:
    """Whether the interval of `one`, the smaller, reaches that of the other. False without intervals."""
    if one.high is None or other.low is None:
        return False
    return one.high >= other.low


def most_comparable(jobs_of: dict[str, set[_JobKey]]) -> tuple[list[str], set[_JobKey]]:
    """The modes and their common jobs with the most cells together. If equal, more modes win."""
    ranked = sorted((mode for mode in jobs_of if jobs_of[mode]), key=lambda mode: -len(jobs_of[mode]))
    best: tuple[list[str], set[_JobKey]] = ([], set())
    common: set[_JobKey] = set()
    for number, mode in enumerate(ranked, start=1):
        common = common & jobs_of[mode] if number > 1 else set(jobs_of[mode])
        if common and number * len(common) >= len(best[0]) * len(best[1]):
            best = (ranked[:number], set(common))
    return best


def _summary(mode: str, cells: Sequence[CellView]) -> ModeSummary:
    overhead = pooled(cells, "guest", "host")
    has_twin = all(cell.throughput and cell.throughput.twin for cell in cells)
    return ModeSummary(
        mode=mode,
        jobs=len(cells),
        overhead=overhead,
        layer=pooled(cells, "twin", "host") if has_twin else None,
        virtualisation=pooled(cells, "guest", "twin") if has_twin else overhead,
    )


def pooled(cells: Sequence[CellView], of: ArmName, than: ArmName) -> Estimate:
    """Overhead of the geometric mean over the cells' jobs. A sample is a block of each of them (`paired_blocks`)."""
    blocks = paired_blocks([cell.record for cell in cells])

    def samples(place: ArmName) -> list[float]:
        values = [getattr(cell.throughput, place) for cell in cells]
        return [_geometric_mean([own[at] for own, at in zip(values, block, strict=True)]) for block in blocks]

    confidence = max(cell.record.confidence for cell in cells)
    boots = cells[0].record.boots
    together = Samples(tuple(boots[block[0]] for block in blocks)) if boots else IN_ORDER
    return estimate_overhead(samples(than), samples(of), higher_is_better=True, confidence=confidence, samples=together)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(fmean(math.log(value) for value in values))
