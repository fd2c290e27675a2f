"""The arrays of a run against each other, beside what a published study found: what a second controller gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis import Estimate, Shape
from harness.model.cell import Place
from harness.published import links
from harness.published.schema import Gain, PublishedArray, Study
from harness.report.numbers import significant
from harness.report.scaling import ScalingView
from harness.results.contrasts import contrast


def gain_sentences(published: str | None, views: Sequence[ScalingView]) -> tuple[str, ...]:
    """One sentence for each two arrays that the scenario's study compares. `published` is what the scenario names.

    For example "`raid0-16-paths` against `raid0-16`: 1.98 times [1.95, 2.01] in randread-4k-qd32 (published: 2) ...".
    """
    link = links().get(published or "")
    if link is None:
        return ()
    usable = [view for view in views if not view.record.doubt and view.cell.record.mode_detail.layout.is_base]
    found: dict[tuple[str, str], list[str]] = {}
    for gain in link.study.gain:
        for modes, words in _compared(gain, link.study, usable):
            found.setdefault(modes, []).append(words)
    return tuple(f"`{wide}` against `{narrow}`: {'; '.join(words)}." for (wide, narrow), words in found.items())


def _compared(gain: Gain, study: Study, views: Sequence[ScalingView]) -> Iterator[tuple[tuple[str, str], str]]:
    """The modes, and what one delivers against the other in each job of the gain."""
    wide, narrow = (_like(study.disk[name].array, views) for name in (gain.disk, gain.over))
    for one in wide:
        job = one.cell.record.job
        for other in (each for each in narrow if each.cell.record.job == job and gain.covers(job)):
            if ours := _times(one, other):
                modes = one.cell.mode, other.cell.mode
                yield modes, f"{_words(ours)} in {job.id} (published: {gain.times:g})"


def _like(array: PublishedArray | None, views: Sequence[ScalingView]) -> list[ScalingView]:
    found = [(view, Shape(view.record.level, view.record.disks, view.record.legs)) for view in views]
    return [view for view, shape in found if array is not None and array.is_like(shape)]


def _times(one: ScalingView, other: ScalingView) -> Estimate | None:
    """The ratio of their throughput on the host, in the blocks that both have; None without such blocks."""
    arrays = one.cell.record, other.cell.record
    ours, theirs = (array.series(one.cell.throughput_name, Place.TWIN) for array in arrays)
    found = contrast(theirs, ours, confidence=max(array.confidence for array in arrays))
    return None if found is None else found.times


def _words(times: Estimate) -> str:
    if times.low is None or times.high is None:
        return f"{significant(times.point)} times"
    return f"{significant(times.point)} times [{significant(times.low)}, {significant(times.high)}]"
