"""What each attach mode of a disk loses over its jobs, and the headline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.analysis import Estimate
from harness.model.mode import Place
from harness.report.numbers import confidence_words, count, percent, percent_with_interval, sample_count
from harness.results import CellRecord, Outcome
from harness.results.contrasts import compare_guests, loss_over_jobs, most_comparable

NO_LOSS = 0.02
"""A mode loses nothing if its interval ends below this share of the host's throughput. docs/report.md has it too."""
MOST_NAMED = 4
"""Modes that a headline names. Of more, it gives the number."""


class Loss(StrEnum):
    """What an interval of an overhead says about a loss."""

    SHOWN = "shown"
    NOTHING = "nothing"
    """A loss of more than NO_LOSS is ruled out, and none is shown."""
    UNDECIDED = "undecided"
    UNKNOWN = "unknown"
    """One sample has no interval."""


def loss_of(overhead: Estimate) -> Loss:
    """Whether the guest loses something, as far as the interval shows it."""
    if overhead.low is None or overhead.high is None:
        return Loss.UNKNOWN
    if overhead.low > 0:
        return Loss.SHOWN
    return Loss.NOTHING if overhead.high <= NO_LOSS else Loss.UNDECIDED


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

    @property
    def loss(self) -> Loss:
        return loss_of(self.overhead)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Modes over the same jobs, in the order of the plan. `left_out` names the modes that lack some of these jobs."""

    modes: tuple[ModeSummary, ...]
    least: tuple[str, ...]
    """The modes that may lose least: no interval, guest against guest, shows that another one loses less."""
    most: tuple[str, ...]
    """The modes that may lose most."""
    jobs: int
    planned: int
    """Jobs that the plan has for the modes, measured or not."""
    left_out: tuple[str, ...]
    faster: tuple[tuple[str, int], ...]
    """Modes with cells whose guest is shown to be faster than its host, and how many. They need an explanation."""
    void: tuple[tuple[str, int], ...]
    """Modes with void cells, and how many. They are left out."""
    confidence: str
    """The confidence of the intervals, in words."""
    why_none: str = ""
    """Why the throughput of no job is compared, in words, although some were measured; else empty."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The answer for one disk in a sentence, and its basis."""

    sentence: str
    details: tuple[str, ...]


def compare_modes(cells: Sequence[CellRecord]) -> Comparison:
    """The modes of one disk over the jobs that all of them have. A mode may be left out if that leaves more jobs.

    Void cells are left out, because they are not results. Jobs at a fixed rate are left out, because their throughput
    is the same on every arm, and so are trims, which a mode may drop.
    """
    of_guests = [cell for cell in cells if not cell.is_baseline]
    guests = [cell for cell in of_guests if not cell.rated and not cell.job.trims]
    by_mode: dict[str, dict[str, CellRecord]] = {}
    for cell in guests:
        by_mode.setdefault(cell.mode, {})
        if cell.usable:
            by_mode[cell.mode][cell.job.id] = cell
    chosen, jobs = most_comparable({mode: set(of_job) for mode, of_job in by_mode.items()})
    cells_of = {mode: [by_mode[mode][job] for job in sorted(jobs)] for mode in by_mode if mode in chosen}
    summaries = tuple(_summary(mode, of_mode) for mode, of_mode in cells_of.items())
    return Comparison(
        modes=summaries,
        least=_extreme(summaries, cells_of, 1),
        most=_extreme(summaries, cells_of, -1),
        jobs=len(jobs),
        planned=len({cell.job.id for cell in guests}),
        left_out=tuple(mode for mode in by_mode if mode not in chosen),
        faster=_counted(cell for cell in guests if cell.usable and cell.better_than_host),
        void=_counted(cell for cell in guests if cell.outcome is Outcome.VOID),
        confidence=confidence_words(cells),
        why_none="" if guests else _explain_none([cell for cell in of_guests if cell.measured]),
    )


def _explain_none(measured: Sequence[CellRecord]) -> str:
    if any(cell.rated for cell in measured):
        return "its jobs compare latencies, not throughput"
    return "its jobs trim, which a mode may drop, so no throughput is compared" if measured else ""


def _extreme(modes: Sequence[ModeSummary], cells: dict[str, list[CellRecord]], sign: int) -> tuple[str, ...]:
    """The modes that may have the extreme loss: the least with `sign` 1, the most with -1.

    Each is compared with the mode of the extreme mean, guest against guest. The intervals hold together (Bonferroni).
    """
    if not modes:
        return ()
    extreme = min(modes, key=lambda mode: sign * mode.overhead.point).mode
    confidence = max(cell.confidence for of_mode in cells.values() for cell in of_mode)
    confidence = 1 - (1 - confidence) / max(1, len(modes) - 1)

    pairs = {
        mode: [(one, other) for one, other in zip(cells[extreme], of_mode, strict=True)]
        for mode, of_mode in cells.items()
        if mode != extreme
    }
    changes = {mode: mode_change.change for mode, mode_change in compare_guests(pairs, "iops", confidence).items()}
    beyond = {mode for mode, change in changes.items() if change.excludes_one and (change.ratio < 1) == (sign > 0)}
    return tuple(mode.mode for mode in modes if mode.mode not in beyond)


def headline(disk: str, comparison: Comparison) -> Headline:
    """For example "optane: `raw` loses least (38.1 % [36.0, 40.2]), `lvm` loses most (52.0 % [...]) of ...".

    Modes that cannot be told apart are named together, in the order of the plan. Without an interval, none is ranked.
    """
    modes = comparison.modes
    if comparison.why_none:
        return Headline(f"{disk}: {comparison.why_none}", ())
    if not modes:
        sentence = f"no attach mode {'has a figure that can be trusted' if comparison.void else 'was measured'}"
        return Headline(f"{disk}: {sentence}", _left_out(comparison))
    if len(modes) == 1:
        sentence = f"{_alone(modes[0])}"
    elif all(mode.overhead.low is None for mode in modes):
        sentence = f"{len(modes)} modes were measured without an interval, so none of them is ranked"
    elif len(comparison.least) == len(modes):
        sentence = f"{_named(comparison, comparison.least)} cannot be told apart: {_together(modes)}"
    else:
        least = _group(comparison, comparison.least, "least")
        most = _group(comparison, comparison.most, "most")
        sentence = f"{least}, {most} of the host's throughput"
        if all(mode.loss is Loss.NOTHING for mode in modes):
            sentence = f"no mode loses throughput: {least}, {most}"
    return Headline(f"{disk}: {sentence}", _details(comparison))


def _group(comparison: Comparison, names: Sequence[str], what: str) -> str:
    """For example "`raw` loses least (38.1 % [36.0, 40.2])", or "`raw` and `lvm` lose least (38.1 % to 39.2 %)"."""
    mode_summaries = [mode for mode in comparison.modes if mode.mode in names]
    if len(mode_summaries) == 1:
        return f"`{mode_summaries[0].mode}` loses {what} ({percent_with_interval(mode_summaries[0].overhead, ' %')})"
    return f"{_named(comparison, names)} lose {what} and cannot be told apart ({_span(mode_summaries)})"


def _named(comparison: Comparison, names: Sequence[str]) -> str:
    if len(names) > MOST_NAMED:
        return f"{len(names)} of {len(comparison.modes)} modes"
    return f"{', '.join(f'`{name}`' for name in names[:-1])} and `{names[-1]}`"


def _span(modes: Sequence[ModeSummary]) -> str:
    points = [mode.overhead.point for mode in modes]
    least, most = percent(min(points)), percent(max(points))
    return f"{least} % to {most} %" if least != most else f"{least} %"


def _details(comparison: Comparison) -> tuple[str, ...]:
    first = comparison.modes[0].overhead
    jobs = count(comparison.jobs, "job")
    if comparison.jobs < comparison.planned:
        jobs = f"{comparison.jobs} of {count(comparison.planned, 'job')}"
    basis = f"Geometric mean over {jobs} in {sample_count(first.n, first.boots)}"
    basis += (
        f", with its interval ({comparison.confidence})." if first.low is not None else "; one block gives no interval."
    )
    return (basis, *_left_out(comparison))


def _left_out(comparison: Comparison) -> tuple[str, ...]:
    """What the comparison leaves out, and why; and what in it needs an explanation."""
    details = [
        f"`{mode}` is void in {count(cells, 'job')}: a check failed, so these figures are left out."
        for mode, cells in comparison.void
    ]
    details += [
        f"`{mode}` is faster than its host by more than 5 % in {count(cells, 'job')}: this needs an explanation "
        "and is no gain."
        for mode, cells in comparison.faster
    ]
    explained = {mode for mode, _ in comparison.void}
    if others := [mode for mode in comparison.left_out if mode not in explained]:
        names = ", ".join(f"`{mode}`" for mode in others)
        details.append(f"Not in this comparison, because there are no usable values of the same jobs: {names}.")
    return tuple(details)


def _counted(cells: Iterable[CellRecord]) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(cell.mode for cell in cells).items())


def _alone(mode: ModeSummary) -> str:
    figure = percent_with_interval(mode.overhead, " %")
    return {
        Loss.SHOWN: f"`{mode.mode}` loses {figure} of the host's throughput",
        Loss.NOTHING: f"`{mode.mode}` loses nothing ({figure}) of the host's throughput",
        Loss.UNDECIDED: f"it is undecided whether `{mode.mode}` loses throughput ({figure} of the host's)",
        Loss.UNKNOWN: f"`{mode.mode}` has one sample, which shows no loss and rules out none ({figure} of the host's "
        "throughput)",
    }[mode.loss]


def _together(modes: Sequence[ModeSummary]) -> str:
    """What modes lose that cannot be told apart, as far as their intervals show it."""
    losses = {mode.loss for mode in modes}
    if losses == {Loss.SHOWN}:
        return f"they lose {_span(modes)}"
    if losses == {Loss.NOTHING}:
        return f"they lose nothing ({_span(modes)})"
    if shown := [f"`{mode.mode}`" for mode in modes if mode.loss is Loss.SHOWN]:
        return f"they lose {_span(modes)}, and a loss is shown for {' and '.join(shown)} only"
    return f"it is undecided whether they lose throughput ({_span(modes)})"


def _summary(mode: str, cells: Sequence[CellRecord]) -> ModeSummary:
    overhead = loss_over_jobs(cells)
    has_twin = all(cell.throughput and cell.throughput.twin for cell in cells)
    return ModeSummary(
        mode=mode,
        jobs=len(cells),
        overhead=overhead,
        layer=loss_over_jobs(cells, of=Place.TWIN) if has_twin else None,
        virtualisation=loss_over_jobs(cells, than=Place.TWIN) if has_twin else overhead,
    )
