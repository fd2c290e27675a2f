"""The answer in words: which attach mode for which use, what a change of one option does, and what is undecided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import METRICS, Change, Relation
from harness.report.numbers import percent, signed_percent, significant
from harness.results.answers import Answer, Rival
from harness.results.option_matrix import OptionEffect, OptionMatrix
from harness.units import format_duration

MOST_NAMED = 5
"""Modes that a sentence names. Of more, it gives the number of the others."""


@dataclass(frozen=True, slots=True)
class AnswerView:
    """The answer for one use. Backticks mark the names of modes."""

    answer: Answer

    @property
    def title(self) -> str:
        return self.answer.use.title

    @property
    def take(self) -> str:
        """The mode to use; empty if none is recommended."""
        return self.answer.mode or ""

    @property
    def measured(self) -> bool:
        """Whether a job of this use was measured."""
        return self.answer.judge is not None

    @property
    def verdict(self) -> str:
        """What to do and why, as the end of a sentence."""
        answer = self.answer
        if not self.measured:
            return f"not measured: add the workload `{answer.use.to_measure}`"
        if answer.mode is None:
            return f"no recommendation: {answer.why}"
        if not answer.equals and not answer.worse:
            return f"`{answer.mode}` is the only mode to choose from"
        if not answer.equals:
            return f"use `{answer.mode}`: {self.difference}"
        equals = f"{named((answer.mode, *(equal.mode for equal in answer.equals)))} {self._alike}"
        if not answer.why:
            return f"{equals}; use any of them"
        return f"{equals}; use {named((answer.mode, *answer.alike), 'or')}: {answer.why}"

    @property
    def _alike(self) -> str:
        return "cannot be told apart" if self.open else f"are equal within {_WITHIN}"

    @property
    def short(self) -> str:
        """For one of ten lines: "low latency: use `raw`; `raw` and `lvm` cannot be told apart; +4.1 % ..."."""
        if not self.take:
            return f"{self.title}: {self.verdict}"
        parts = [f"use `{self.take}`"]
        if self.answer.equals:
            parts.append(f"{named((self.take, *(equal.mode for equal in self.answer.equals)))} {self._alike}")
        elif self.answer.worse:
            parts.append(self.difference)
        else:
            parts = [self.verdict]
        parts += [f"{self.against_host} against the host"] if self.against_host else []
        return f"{self.title}: {'; '.join(parts)}"

    @property
    def difference(self) -> str:
        """The mode against the runner-up: the best of the modes that are worse, or else the equal ones."""
        if self.answer.mode is None:
            return ""
        return "; ".join(self._against(equal) for equal in (self.answer.equals or self.answer.worse[:1])[:MOST_NAMED])

    @property
    def against_host(self) -> str:
        """The guest of the mode against the host: "-38.2 % [-41.0, -35.2] IOPS"."""
        loss = self.answer.loss
        if loss is None:
            return ""
        sign = -1 if self.answer.higher_is_better else 1
        ends = () if loss.low is None or loss.high is None else sorted((sign * loss.low, sign * loss.high))
        interval = f" [{', '.join(map(percent, ends))}]" if ends else ""
        return f"{signed_percent(sign * loss.point)} %{interval} {self._metric}"

    @property
    def cpu(self) -> str:
        """CPU time of the host for an I/O of the guest: "34.1 us [33.9, 34.3]"."""
        cost = self.answer.cpu
        if cost is None:
            return ""
        words = f"{significant(cost.point * 1e6)} us"
        if cost.low is None or cost.high is None:
            return words
        return f"{words} [{significant(cost.low * 1e6)}, {significant(cost.high * 1e6)}]"

    @property
    def open(self) -> tuple[Rival, ...]:
        """The equal modes of which it is not proven that they are equal."""
        return tuple(equal for equal in self.answer.equals if equal.shown is not Relation.EQUAL)

    @property
    def undecided(self) -> str:
        """What is undecided, and how much more measuring would decide it; empty if nothing is."""
        if not self.open:
            return ""
        known = [each.seconds for each in self.open if each.seconds is not None]
        words = f"`{self.take}` or {named([each.mode for each in self.open], 'or')}"
        if len(known) < len(self.open):
            return f"{words}: they scatter too much for this way of measuring"
        return f"{words}: about {format_duration(max(60, sum(known)))} more of measuring these modes would decide"

    @property
    def change(self) -> str:
        """The one option to change, with the gain that was measured; empty if no such change is shown."""
        step = self.answer.step if self.answer.mode is not None else None
        if step is None:
            return ""
        return f"{step.factors[0].words} (`{step.mode}` to `{self.take}`): {self._gain(step)}"

    @property
    def basis(self) -> str:
        """By what it was judged."""
        judge, jobs = self.answer.judge, [job.id for job in self.answer.jobs]
        if judge is None or not jobs:
            return ""
        shown = ", ".join(jobs[:MOST_NAMED]) + (f" and {len(jobs) - MOST_NAMED} more" * (len(jobs) > MOST_NAMED))
        return f"{judge.words} ({shown}), by {METRICS[self.answer.metric].label}"

    @property
    def never(self) -> tuple[str, ...]:
        """The modes that are never recommended, with the reason."""
        return tuple(f"`{each.mode}` is never recommended: {each.unfit}" for each in self.answer.never)

    @property
    def cautions(self) -> tuple[str, ...]:
        """What to know before using the mode, or one of its equals."""
        return tuple(f"`{mode}`: {words}" for mode, words in self.answer.cautions)

    @property
    def sentence(self) -> str:
        """For a line of text."""
        parts = [f"{self.title}: {self.verdict}"]
        if self.take and self.answer.equals:
            parts.append(self.difference)
        if self.take:
            parts += [f"{self.against_host} against the host"] + ([f"CPU {self.cpu} per I/O"] if self.cpu else [])
        return "; ".join(part for part in parts if part)

    @property
    def details(self) -> tuple[str, ...]:
        """What else there is to say, each in a sentence."""
        found = list(self.cautions)
        found += [f"change {self.change}"] if self.change else []
        found += [f"undecided: {self.undecided}"] if self.undecided else []
        return (*found, f"judged by {self.basis}") if self.basis else tuple(found)

    def _against(self, rival: Rival) -> str:
        return f"{self._gain(rival)} against `{rival.mode}`{_RELATIONS[rival.shown]}"

    def _gain(self, rival: Rival) -> str:
        return f"{change_percent(rival.than.change.inverse)} {self._metric}"

    @property
    def _metric(self) -> str:
        return _SHORT.get(self.answer.metric, METRICS[self.answer.metric].label)


_WITHIN = "5 %"
_RELATIONS = {Relation.SHOWN: "", Relation.EQUAL: " (equal)", Relation.UNDECIDED: " (undecided)", Relation.UNKNOWN: ""}
_SHORT = {"iops": "IOPS", "bw": "MB/s", "lat_mean": "mean latency", "clat_mean": "mean latency"}


def named(modes: Sequence[str], word: str = "and") -> str:
    """ "`a`, `b` and `c`"; of many, the first ones and the number of the others."""
    quoted = [f"`{mode}`" for mode in modes]
    if len(quoted) > MOST_NAMED:
        return f"{', '.join(quoted[: MOST_NAMED - 1])} {word} {len(quoted) - MOST_NAMED + 1} others"
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {word} {quoted[-1]}"


def change_percent(change: Change) -> str:
    """A change with its interval: "+38.0 % [31.2, 45.1]"."""
    words = f"{signed_percent(change.ratio - 1)} %"
    if change.low is None or change.high is None:
        return words
    return f"{words} [{percent(change.low - 1)}, {percent(change.high - 1)}]"


@dataclass(frozen=True, slots=True)
class EffectView:
    """One option of an option matrix against the mode without it, guest against guest."""

    record: OptionEffect

    @property
    def verdict(self) -> str:
        """Whether the option changes the throughput."""
        if self.record.relation is Relation.SHOWN:
            return "faster" if self.record.effect.change.ratio > 1 else "slower"
        return str(self.record.relation)

    @property
    def change(self) -> str:
        return change_percent(self.record.effect.change)

    @property
    def pairing(self) -> str:
        """How the two were compared, if not in the same blocks."""
        return "" if self.record.effect.paired else "by way of their hosts, as they had different guests"

    @property
    def sentence(self) -> str:
        """For a line of text: "iothread off: -4.0 % [-9.1, 1.2] against `passthrough`, undecided"."""
        record = self.record
        return f"{record.factor.words}: {self.change} against `{record.reference}`, {self.verdict}"


@dataclass(frozen=True, slots=True)
class MatrixView:
    """The options of the modes of a disk, each by itself."""

    record: OptionMatrix

    @property
    def effects(self) -> tuple[EffectView, ...]:
        """In the order of the plan."""
        return tuple(map(EffectView, self.record.effects))

    @property
    def sentences(self) -> tuple[str, ...]:
        """First what is shown, then what is not, each in the order of the plan."""
        ordered = sorted(self.effects, key=lambda effect: effect.record.relation is not Relation.SHOWN)
        return tuple(each.sentence for each in ordered)
