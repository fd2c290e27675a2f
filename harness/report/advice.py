"""The advice of a run: what to use for what, the change to make, how to set it up; and whether it held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.answers import (
    answer_details,
    answer_sentence,
    answers_of,
    caution_sentences,
    change_percent,
    change_words,
    undecided_words,
)
from harness.report.cells import CellView
from harness.report.model import report_view
from harness.report.numbers import signed_percent
from harness.report.section import Section
from harness.report.settings import Setting, setting_of
from harness.results import CellRecord, Run
from harness.results.answers import Answer
from harness.results.verifying import Advice, Verified, advice_of


@dataclass(frozen=True, slots=True)
class UseAdvice:
    """The advice for one use of one disk. `setting` is how to set the recommended mode up, if that was read back."""

    section: Section
    answer: Answer
    setting: Setting | None
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
            "undecided": undecided_words(self.answer) or None,
            "cautions": list(caution_sentences(self.answer)),
            "against": self.advice.rival.mode if self.advice else None,
            "metric": self.answer.metric or None,
            "ratio": {"point": change.ratio, "low": change.low, "high": change.high} if change else None,
            "set": {"tool": self.setting.tool, "text": self.setting.text} if self.setting else None,
            "cells": list(self.advice.cells) if self.advice else [],
        }


def advice_of_uses(run: Run) -> list[UseAdvice]:
    """One for each use of each disk that was measured."""
    found = []
    for section in report_view(run).sections:
        results = _results(section.cells)
        for answer in answers_of(section):
            if answer.judge is not None:
                setting = setting_of(results, answer.mode) if answer.mode else None
                found.append(UseAdvice(section, answer, setting, advice_of(answer, results)))
    return found


def fresh_results(run: Run) -> dict[str, CellRecord]:
    """The cells of a run that may represent their modes, by id."""
    return {cell.id: cell for section in report_view(run).sections for cell in _results(section.cells)}


def setting_lines(views: Sequence[UseAdvice]) -> Iterator[str]:
    """How to set up each recommended mode, once."""
    shown: set[tuple[str, str | None]] = set()
    for view in views:
        key = view.section.name, view.answer.mode
        if view.setting is not None and key not in shown:
            shown.add(key)
            yield f"set up `{view.answer.mode}` ({view.section.name}) with {view.setting.tool}:"
            yield from (f"  {line}" for line in view.setting.text.splitlines())


def verified_lines(view: UseAdvice, found: Verified) -> Iterator[str]:
    """Whether the advice held, and the figures."""
    yield f"{view.title}: `{found.advice.mode}` against `{found.advice.rival.mode}`: {found.held}: {found.why}"
    if found.fresh is not None and found.low is not None and found.high is not None:
        expected = f"[{signed_percent(found.low - 1)}, {signed_percent(found.high - 1)}]"
        yield f"  advice {change_percent(found.advice.change)}, fresh blocks {change_percent(found.fresh)}"
        yield f"  expected when measured again: {expected} %"


def verified_record(view: UseAdvice, found: Verified) -> dict[str, Any]:
    """For `--json`. `expected` is where the fresh ratio is expected if nothing changed."""
    fresh = found.fresh
    return {
        **view.record,
        "held": str(found.held),
        "why": found.why,
        "fresh": {"point": fresh.ratio, "low": fresh.low, "high": fresh.high} if fresh else None,
        "expected": {"low": found.low, "high": found.high} if fresh else None,
        "inside": found.low <= fresh.ratio <= found.high if fresh and found.low and found.high else None,
    }


def _results(cells: Sequence[CellView]) -> list[CellRecord]:
    return [cell.record for cell in cells if cell.usable and not cell.is_baseline]
