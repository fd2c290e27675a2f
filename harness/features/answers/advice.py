"""Whether a recommendation holds when its two modes are measured again: the first blocks against fresh ones. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.analysis import MARGIN, METRICS, Change, Relation
from harness.features.answers.decision import Answer, Rival, get_answers, select_results
from harness.features.answers.report import (
    ModeSetting,
    answer_details,
    answer_sentence,
    change_percent,
    change_words,
    describe_undecided,
    find_setting,
    list_cautions,
)
from harness.report.numbers import signed_percent
from harness.report.section import Section, find_sections
from harness.results import CellRecord, Run
from harness.results.contrasts import compare_guests


class AdviceOutcome(StrEnum):
    """What fresh blocks say about a recommendation."""

    HELD = "held"
    NOT_HELD = "did not hold"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommendation that can be measured again: the mode, and the one that it is compared with."""

    answer: Answer
    rival: Rival
    cells: tuple[str, ...]
    """The ids of the cells of both modes in the jobs that the use is judged by."""

    @property
    def mode(self) -> str:
        return str(self.answer.mode)

    @property
    def change(self) -> Change:
        """The recommended mode as a multiple of the other."""
        return self.rival.than.change.inverse

    @property
    def confidence(self) -> float:
        """Of its interval, which holds together with those of the other modes. So it is also one of a selected mode."""
        return self.rival.than.confidence


@dataclass(frozen=True, slots=True)
class Verified:
    """What fresh blocks showed of a recommendation."""

    advice: Advice
    held: AdviceOutcome
    why: str
    fresh: Change | None = None
    """The recommended mode as a multiple of the other in the fresh blocks; None if it cannot be compared there."""
    low: float | None = None
    """The lower end of the interval in which the fresh ratio is expected if nothing changed."""
    high: float | None = None
    """The upper end of that interval."""


def choose_advice(answer: Answer, cells: Sequence[CellRecord]) -> Advice | None:
    """What to measure again of an answer: the change to make if there is one, else the best of the other modes.

    `cells` are the results that the answer is from. None if it recommends nothing, or has nothing to compare with.
    """
    rival = answer.step or next(iter((*answer.worse, *answer.equals)), None)
    if answer.mode is None or rival is None or rival.than.change.low is None:
        return None
    jobs = {job.id for job in answer.jobs}
    ids = [cell.id for cell in cells if cell.job.id in jobs and cell.mode in (answer.mode, rival.mode)]
    return Advice(answer, rival, tuple(ids))


def verify(advice: Advice, fresh: Mapping[str, CellRecord]) -> Verified:
    """Compare the recommendation with the results of fresh blocks, by the ids of their cells.

    Both runs have an error. So the fresh ratio is not expected in the interval of the recommendation, but in that of
    the difference of two estimates, as wide as the root of the sum of the squares of both (MOVER: Zou & Donner 2008).
    If nothing changed, it is in there with the confidence of the recommendation's interval.
    """
    change = _change(advice, fresh)
    if isinstance(change, str):
        return Verified(advice, AdviceOutcome.UNDECIDED, change)
    low, high = _predict_ratio(advice.change, change)
    held, why = _judge_outcome(advice, change, inside=low <= change.ratio <= high)
    return Verified(advice, held, why, change, low, high)


def _change(advice: Advice, fresh: Mapping[str, CellRecord]) -> Change | str:
    """The recommended mode as a multiple of the other in the fresh blocks, or why it is not known."""
    of_mode: dict[str, dict[str, CellRecord]] = {advice.mode: {}, advice.rival.mode: {}}
    metric = advice.answer.metric
    for name in advice.cells:
        cell = fresh.get(name)
        if cell is None or metric not in cell.metrics:
            return f"{name} was not measured again, or is no result: see the report of the fresh run"
        of_mode[cell.mode][cell.job.id] = cell
    than, recommended = of_mode[advice.rival.mode], of_mode[advice.mode]
    pairs = [(than[job], recommended[job]) for job in than]
    change = compare_guests({advice.mode: pairs}, metric, advice.confidence)[advice.mode].change
    return change if change.low is not None else "the fresh blocks are too few for an interval"


def _predict_ratio(first: Change, fresh: Change) -> tuple[float, float]:
    """The interval in which the fresh ratio is expected if both measured the same."""
    assert first.low is not None
    assert first.high is not None
    assert fresh.low is not None
    assert fresh.high is not None
    point = math.log(first.ratio)
    below = math.hypot(point - math.log(first.low), math.log(fresh.high / fresh.ratio))
    above = math.hypot(math.log(first.high) - point, math.log(fresh.ratio / fresh.low))
    return math.exp(point - below), math.exp(point + above)


def _judge_outcome(advice: Advice, fresh: Change, *, inside: bool) -> tuple[AdviceOutcome, str]:
    higher = METRICS[advice.answer.metric].higher_is_better
    better, worse = ((fresh.ratio > 1) == wanted and fresh.excludes_one for wanted in (higher, not higher))
    if not inside:
        return AdviceOutcome.NOT_HELD, "the fresh blocks differ from it by more than both errors explain"
    if worse and not fresh.is_within(MARGIN):
        return AdviceOutcome.NOT_HELD, "in the fresh blocks, the recommended mode is worse"
    match advice.rival.shown:
        case Relation.SHOWN if better:
            return AdviceOutcome.HELD, "the fresh blocks alone show it again"
        case Relation.EQUAL if fresh.is_within(MARGIN):
            return AdviceOutcome.HELD, "the fresh blocks alone show again that the modes are equal"
        case Relation.UNDECIDED:
            return AdviceOutcome.HELD, "the fresh blocks do not show that the recommended mode is worse"
    return (
        AdviceOutcome.UNDECIDED,
        "the fresh blocks agree with it, but are too few to show it alone: measure more rounds",
    )


@dataclass(frozen=True, slots=True)
class UseAdvice:
    """The advice for one use of one disk. `setting` is how to set the recommended mode up, if that was read back."""

    section: Section
    answer: Answer
    setting: ModeSetting | None
    advice: Advice | None
    """What can be measured again; None if nothing is recommended, or there is nothing to compare with."""

    @property
    def title(self) -> str:
        return f"{self.section.name}, {self.answer.use.title}"

    @property
    def lines(self) -> Iterator[str]:
        """For the terminal, without the setting."""
        yield f"{self.section.name}, {answer_sentence(self.answer)}"
        yield from (f"  {detail}" for detail in answer_details(self.answer))

    @property
    def record(self) -> dict[str, Any]:
        """For `--json`. A ratio is the recommended mode as a multiple of the other."""
        change = self.advice.change if self.advice else None
        return {
            "disk": self.section.name,
            "use": self.answer.use.name,
            "mode": self.answer.mode,
            "sentence": answer_sentence(self.answer),
            "change": change_words(self.answer) or None,
            "undecided": describe_undecided(self.answer) or None,
            "cautions": list(list_cautions(self.answer)),
            "against": self.advice.rival.mode if self.advice else None,
            "metric": self.answer.metric or None,
            "ratio": {"point": change.ratio, "low": change.low, "high": change.high} if change else None,
            "set": {"tool": self.setting.tool, "text": self.setting.text} if self.setting else None,
            "cells": list(self.advice.cells) if self.advice else [],
        }


def list_advice(run: Run) -> list[UseAdvice]:
    """One for each use of each disk that was measured."""
    advice = []
    for section in find_sections(run):
        results = select_results(section)
        for answer in get_answers(section):
            if answer.judge is not None:
                setting = find_setting(results, answer.mode) if answer.mode else None
                advice.append(UseAdvice(section, answer, setting, choose_advice(answer, results)))
    return advice


def map_results(run: Run) -> dict[str, CellRecord]:
    """The cells of a run that may represent their modes, by id."""
    return {cell.id: cell for section in find_sections(run) for cell in select_results(section)}


def describe_settings(views: Sequence[UseAdvice]) -> Iterator[str]:
    """How to set up each recommended mode, once."""
    shown: set[tuple[str, str | None]] = set()
    for view in views:
        key = view.section.name, view.answer.mode
        if view.setting is not None and key not in shown:
            shown.add(key)
            yield f"set up `{view.answer.mode}` ({view.section.name}) with {view.setting.tool}:"
            yield from (f"  {line}" for line in view.setting.text.splitlines())


def describe_verified(view: UseAdvice, verified: Verified) -> Iterator[str]:
    """Whether the advice held, and the figures."""
    modes = f"`{verified.advice.mode}` against `{verified.advice.rival.mode}`"
    yield f"{view.title}: {modes}: {verified.held}: {verified.why}"
    if verified.fresh is not None and verified.low is not None and verified.high is not None:
        expected = f"[{signed_percent(verified.low - 1)}, {signed_percent(verified.high - 1)}]"
        yield f"  advice {change_percent(verified.advice.change)}, fresh blocks {change_percent(verified.fresh)}"
        yield f"  expected when measured again: {expected} %"


def make_verified_record(view: UseAdvice, verified: Verified) -> dict[str, Any]:
    """For `--json`. `expected` is where the fresh ratio is expected if nothing changed."""
    fresh = verified.fresh
    return {
        **view.record,
        "held": str(verified.held),
        "why": verified.why,
        "fresh": {"point": fresh.ratio, "low": fresh.low, "high": fresh.high} if fresh else None,
        "expected": {"low": verified.low, "high": verified.high} if fresh else None,
        "inside": verified.low <= fresh.ratio <= verified.high if fresh and verified.low and verified.high else None,
    }
