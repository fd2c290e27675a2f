"""Which results of a file count, and when their sections ran: at the same time or not, and for how long. Pure.

`select_final` tells results of several calls of fio from the cumulative ones of one call with `--status-interval`.

fio 3.36 and later print when each process started. Before, the order follows from the options and from `elapsed`, the
time of the whole run. fio prints options without a value (`stonewall`) only since 3.37, so they may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NoReturn

from harness.errors import MeasurementError
from harness.features.exchange.document import Document, ReportedJob
from harness.features.exchange.section import JobSection

_SAME_TIME = 1.02
"""How much longer a further call of the same job takes at most."""
_TIME_ROUNDING = 1.0
"""Seconds: fio's text has the time in whole seconds."""
_ELAPSED_ROUNDING = 1.5
"""Seconds: fio states `elapsed` in whole seconds."""


def select_final(documents: Sequence[Document], source: str) -> Iterator[Document]:
    """The last result of each call of fio, in their order, with a remark if there are several.

    Raises MeasurementError, which names `source`, if it cannot be told.
    """
    call: list[Document] = []
    for document, following in zip(documents, (*documents[1:], None), strict=True):
        call.append(document)
        if following is None or not _continues(document, following, source):
            yield _merge_call(call)
            call = []


def _merge_call(call: Sequence[Document]) -> Document:
    first, last = call[0], call[-1]
    if len(call) == 1:
        return last
    if all(document.jobs == last.jobs for document in call):
        remark = f"the file has this result {len(call)} times; it is used once"
    else:
        remark = (
            f"the last of {len(call)} results that fio printed during one call (--status-interval); it includes the "
            "others"
        )
    return replace(last, notes=first.notes, remarks=(*last.remarks, remark))


def _continues(earlier: Document, later: Document, source: str) -> bool:
    """Whether both are of one call: the same jobs, which began before the earlier one was printed, with more I/Os."""
    same = (
        (earlier.version, earlier.options) == (later.version, later.options)
        and [_identify(job) for job in earlier.jobs] == [_identify(job) for job in later.jobs]
        and earlier.written <= later.written
    )
    if not same:
        return False
    if not earlier.timed and earlier.jobs != later.jobs:
        return _continues_without_time(earlier, later, source)
    if earlier == replace(later, notes=earlier.notes):
        return True
    # After the ramp time, fio counts anew.
    return (_all_grew(earlier, later) and _began_together(earlier, later)) or _in_ramp(earlier, later)


def _identify(job: ReportedJob) -> tuple[object, ...]:
    return job.jobname, job.groupid, job.options


def _counters(job: ReportedJob) -> tuple[int, ...]:
    return tuple(count for side in job.directions for count in (side.io_bytes, side.total_ios, side.runtime))


def _all_grew(earlier: Document, later: Document) -> bool:
    return all(
        before <= after
        for first, second in zip(earlier.jobs, later.jobs, strict=True)
        for before, after in zip(_counters(first), _counters(second), strict=True)
    )


def _began_together(earlier: Document, later: Document) -> bool:
    starts = [(one.job_start, two.job_start) for one, two in zip(earlier.jobs, later.jobs, strict=True)]
    known = [(one, two) for one, two in starts if one and two]
    if known:
        return all(one == two for one, two in known)
    # A further call begins after the earlier result was printed. Half of its time allows for clocks and rounding.
    ended = earlier.written - _sum_run_time(earlier) / 2
    if later.written % 1 == earlier.written % 1 == 0 and _sum_run_time(later) > _sum_run_time(earlier) * _SAME_TIME:
        ended += _TIME_ROUNDING
    return later.written - _sum_run_time(later) < ended


def _continues_without_time(earlier: Document, later: Document, source: str) -> bool:
    """Equal run times are those of several calls. Raises MeasurementError if it could be either."""
    if _all_grew(earlier, later) and _sum_run_time(later) > _sum_run_time(earlier) * _SAME_TIME:
        raise MeasurementError(
            f"{source} has several results of the same jobs, with more and more I/Os; without times, results of "
            "--status-interval cannot be told from those of several calls of fio",
            hint="leave the last result of each call in the file, or measure with --output-format=json+",
        )
    return False


def _in_ramp(earlier: Document, later: Document) -> bool:
    """Whether the earlier one was printed during the ramp time of the same call."""
    if not any("ramp_time" in options for options in (earlier.options, *(job.options for job in earlier.jobs))):
        return False
    elapsed = [(one.elapsed or 0, two.elapsed or 0) for one, two in zip(earlier.jobs, later.jobs, strict=True)]
    return all(
        0 < one < two and abs((earlier.written - one) - (later.written - two)) <= _ELAPSED_ROUNDING
        for one, two in elapsed
    )


def _sum_run_time(document: Document) -> float:
    """The seconds for which its groups of jobs ran, one after the other."""
    groups = groupby(document.jobs, key=lambda job: job.groupid)
    return sum(max(side.runtime for job in jobs for side in job.directions) for _, jobs in groups) / 1000


_UNEQUAL = 0.02
"""Processes ran at the same time if each of them ran for all of the time but this share."""
_JITTER = 0.002
"""fio prints times in milliseconds."""
_CLOCK = 0.002
"""By this share, the clock of the starts and that of the times may differ."""
_STARTING = 2.0
"""Seconds that fio needs at most to start and to end, beside the time in which its jobs run."""
_STONEWALL = "add `stonewall` to each section, and measure again"


@dataclass(frozen=True, slots=True)
class Span:
    """Times in seconds, from a moment that all spans of a file share.

    `began` is the start without the ramp, `first` with it. `measured` is the end of the I/Os that count, `last` of all.
    """

    first: float
    began: float
    measured: float
    last: float

    @property
    def seconds(self) -> float:
        return self.measured - self.began

    def meets(self, other: Span) -> bool:
        """Whether both ran at the same time for more than the error of the times."""
        shared = min(self.last, other.last) - max(self.first, other.first)
        return shared > 10 * _JITTER + _CLOCK * min(self.last - self.first, other.last - other.first)

    def joined(self, other: Span) -> Span:
        return Span(
            min(self.first, other.first),
            min(self.began, other.began),
            max(self.measured, other.measured),
            max(self.last, other.last),
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """Sections that ran at the same time, as one job. Most stages have one section."""

    sections: tuple[JobSection, ...]
    span: Span
    notes: tuple[str, ...]

    @property
    def runs(self) -> tuple[float, ...]:
        """The seconds of each direction of each process."""
        return tuple(side.runtime / 1000 for section in self.sections for side in section.sides)

    @property
    def unequal(self) -> bool:
        """Whether its processes ran for different times, or started at different times."""
        return any(differs(run, self.span.seconds) for run in self.runs)

    @property
    def seconds(self) -> float:
        """From the first start to the last end, without the ramp."""
        return round(self.span.seconds, 3) if self.unequal else max(self.runs)


def differs(run: float, wall: float) -> bool:
    """Whether a process that ran for `run` seconds of `wall` was absent for more than the error of the times."""
    return wall - run > max(_JITTER, _UNEQUAL * wall)


def derive_stages(sections: Sequence[JobSection], source: str) -> tuple[Stage, ...]:
    """The sections by stage, in fio's order. Raises MeasurementError if it is not known what ran when, or if sections
    of different groups ran at the same time, so that no figure is of one job alone."""
    starts = [entry.job_start for section in sections for entry in section.entries]
    known = None not in starts
    for section in sections:
        if _delays_vary(section) and (section.together or (len(section.entries) > 1 and not known)):
            raise MeasurementError(
                f"{section.where}: its processes started at different times (startdelay with a range), which its "
                "output does not show",
                hint="measure without startdelay",
            )
    if known:
        return tuple(_join_stages([(section, _span_reported(section)) for section in sections], source))
    return _plan_stages(sections, source)


def _delays_vary(section: JobSection) -> bool:
    return "-" in section.options.get("startdelay", "")


def _runtime(section: JobSection) -> float:
    """How long its I/Os took that count, of the longest process, in seconds."""
    return max((side.runtime for side in section.sides), default=0) / 1000


def _compute_whole_time(section: JobSection) -> float:
    """How long it ran, with reads that verify. `job_runtime` is the sum if one entry has several processes."""
    runs = [entry.job_runtime / 1000 for entry in section.entries] if not section.together else []
    verified = [sum(side.runtime for side in entry.sides) / 1000 for entry in section.entries if section.verifies]
    return max([_runtime(section), *runs, *verified])


def _span_reported(section: JobSection) -> Span:
    """From the starts that fio reports, which are without the ramp."""
    starts = [(entry.job_start or 0) / 1000 for entry in section.entries]
    counted = section.sides
    ends = [
        start + max((side.runtime for side in entry.sides if side in counted), default=0) / 1000
        for start, entry in zip(starts, section.entries, strict=True)
    ]
    began = min(starts)
    return Span(began - section.ramp, began, max(ends), max([max(starts) + _compute_whole_time(section), *ends]))


def _join_stages(ran: Sequence[tuple[JobSection, Span]], source: str) -> Iterator[Stage]:
    """Sections of one group that ran at the same time are one stage. Raises MeasurementError for others."""
    stages: list[Stage] = []
    for section, span in ran:
        meeting = [stage for stage in stages if stage.span.meets(span)]
        for stage in meeting:
            if stage.sections[0].group != section.group:
                _refuse_overlap(stage.sections[0], section, source)
        joined = Stage((section,), span, ())
        for stage in reversed(meeting):
            joined = Stage((*stage.sections, *joined.sections), stage.span.joined(joined.span), ())
        first = stages.index(meeting[0]) if meeting else len(stages)
        stages = [*stages[:first], joined, *(stage for stage in stages[first:] if stage not in meeting)]
    yield from stages


def _refuse_overlap(one: JobSection, other: JobSection, source: str) -> None:
    raise MeasurementError(
        f"{source}: jobs {one.name} and {other.name} ran at the same time (groupid {one.group} and {other.group}), so "
        "no figure is of one job alone",
        hint=f"{_STONEWALL} (new_group alone does not make them wait)",
    )


def _plan_stages(sections: Sequence[JobSection], source: str) -> tuple[Stage, ...]:
    """From the options. A group that does not show whether it waited did so, if `elapsed` is long enough for that."""
    waits = [section.has("stonewall") or section.has("wait_for_previous") for section in sections]
    begins = [True, *(one.group != other.group for one, other in pairwise(sections))]
    unknown = any(begin and not wait for begin, wait in list(zip(begins, waits, strict=True))[1:])
    delayed = any(section.delay for section in sections)
    if any(section.options.get("wait_for") for section in sections):
        _refuse_unknown(sections, source, "wait_for moves their starts")
    barrier, end = 0.0, 0.0
    ran: list[tuple[JobSection, Span]] = []
    for section, begin, wait in zip(sections, begins, waits, strict=True):
        if wait or (begin and not delayed):
            barrier = end
        first = max(barrier, section.delay)
        began = first + section.ramp
        span = Span(first, began, began + _runtime(section), began + _compute_whole_time(section))
        if unknown and delayed and ran and begin and first < end:
            _refuse_unknown(sections, source, "startdelay moves their starts")
        end = max(end, span.last)
        ran.append((section, span))
    stages = tuple(_join_stages(ran, source))
    _require_known_starts(stages, source, known=not (unknown or delayed))
    return _check_elapsed(stages, end, source) if unknown and not delayed else stages


def _read_elapsed(stages: Sequence[Stage]) -> int:
    """How long fio ran until its output, in seconds, rounded up; 0 if it does not say."""
    return max(entry.elapsed or 0 for stage in stages for section in stage.sections for entry in section.entries)


def _check_elapsed(stages: tuple[Stage, ...], end: float, source: str) -> tuple[Stage, ...]:
    """The stages with a note if they may have run at the same time. Raises MeasurementError if they did."""
    elapsed = _read_elapsed(stages)
    if elapsed and elapsed + 10 * _JITTER < end:
        names = " and ".join(section.name for stage in stages for section in stage.sections)
        raise MeasurementError(
            f"{source}: jobs {names} ran at the same time, so no figure is of one job alone: one after the other they "
            f"need {end:.1f} s, and all of fio took {elapsed} s",
            hint=f"{_STONEWALL} (new_group alone does not make them wait)",
        )
    shortest = min(stage.span.last - stage.span.first for stage in stages)
    if not elapsed or shortest + elapsed - end <= _STARTING:
        note = "fio's output does not show whether its jobs ran one after the other or at the same time"
        return tuple(replace(stage, notes=(note,)) for stage in stages)
    return stages


def _require_known_starts(stages: Sequence[Stage], source: str, *, known: bool) -> None:
    """fio starts the sections of a group at the same time, unless options delay one. Text output has no options."""
    for stage in stages:
        if len(stage.sections) > 1 and not (known and _read_elapsed(stages)):
            _refuse_unknown(stage.sections, source, "options may have delayed some of them")


def _refuse_unknown(sections: Sequence[JobSection], source: str, why: str) -> NoReturn:
    names = " and ".join(section.name for section in sections)
    raise MeasurementError(
        f"{source}: it is not known which of the jobs {names} ran at the same time: {why}",
        hint=f"use fio 3.36 or later, which prints when each job started; or {_STONEWALL}",
    )
