"""An option matrix: modes that differ in one option each, read guest against guest and not against the host. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from harness.analysis import Relation, find_shown_changes
from harness.features.answers.decision import Factor, factors
from harness.features.answers.uses import simplicity
from harness.model.mode import ModeDetail
from harness.results.cells import CellRecord
from harness.results.mode_changes import ModeChange, mode_changes

THROUGHPUT = "iops"
"""The ratio of two arms in I/Os per second is also that of their bandwidths."""


@dataclass(frozen=True, slots=True)
class OptionEffect:
    """One mode against the mode from which it differs in one option, over the jobs that both have."""

    mode: str
    reference: str
    factor: Factor
    jobs: int
    effect: ModeChange
    shown: bool
    """Whether it changes anything, also as one of all options (Benjamini-Hochberg)."""

    @property
    def relation(self) -> Relation:
        relation = self.effect.change.relation
        return Relation.UNDECIDED if relation is Relation.SHOWN and not self.shown else relation


@dataclass(frozen=True, slots=True)
class OptionMatrix:
    """The effects of single options. `default` is the mode with which most others are compared."""

    default: str
    effects: tuple[OptionEffect, ...]
    apart: tuple[str, ...]
    """Modes that differ from every other mode in more than one option."""


def option_matrix(cells: Sequence[CellRecord]) -> OptionMatrix | None:
    """The effect of each option that the modes of these cells differ in; None without such an option or an interval.

    The cells are those of one disk with a guest that are results. Each mode is compared with the default, or with the
    mode nearest to it that differs in one option only.
    """
    by_mode: dict[str, dict[str, CellRecord]] = {}
    for cell in cells:
        if cell.job.is_saturating and THROUGHPUT in cell.metrics:
            by_mode.setdefault(cell.mode, {})[cell.job.id] = cell
    details = {mode: next(iter(cells_of_mode.values())).mode_detail for mode, cells_of_mode in by_mode.items()}
    near = _neighbours(details)
    if not any(near.values()):
        return None
    default = max(near, key=lambda mode: (len(near[mode]), [-place for place in simplicity(details[mode])]))
    references = _references(default, near)
    pairs = {}
    for mode in (mode for mode in by_mode if mode in references):
        before, after = by_mode[references[mode]], by_mode[mode]
        if both := [(before[job], after[job]) for job in after if job in before]:
            pairs[mode] = both
    confidence = max((cell.confidence for cell in cells), default=0.95)
    effects = []
    for mode, effect in mode_changes(pairs, THROUGHPUT, confidence).items():
        (factor,) = factors(details[references[mode]], details[mode])
        effects.append(OptionEffect(mode, references[mode], factor, len(pairs[mode]), effect, shown=False))
    if all(effect.effect.change.low is None for effect in effects):
        return None
    shown = find_shown_changes([effect.effect.change for effect in effects])
    return OptionMatrix(
        default,
        tuple(replace(effect, shown=is_shown) for effect, is_shown in zip(effects, shown, strict=True)),
        tuple(mode for mode in by_mode if mode != default and mode not in references),
    )


def _neighbours(details: dict[str, ModeDetail]) -> dict[str, list[str]]:
    """The modes that differ from each mode in one option."""
    near: dict[str, list[str]] = {mode: [] for mode in details}
    for one, other in combinations(details, 2):
        if len(factors(details[one], details[other])) == 1:
            near[one].append(other)
            near[other].append(one)
    return near


def _references(default: str, near: dict[str, list[str]]) -> dict[str, str]:
    """The mode with which each mode is compared: the one before it on the shortest way from the default."""
    names: dict[str, str] = {}
    ahead = [default]
    for mode in ahead:
        for other in near[mode]:
            if other != default and other not in names:
                names[other] = mode
                ahead.append(other)
    return names
