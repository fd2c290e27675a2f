"""Tells results of several calls of fio from the cumulative ones of one call with `--status-interval`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from harness.errors import MeasurementError
from harness.exchange.document import Document, ReportedJob

_SAME_TIME = 1.02
"""How much longer a further call of the same job takes at most."""
_TIME_ROUNDING = 1.0
"""Seconds: fio's text has the time in whole seconds."""
_ELAPSED_ROUNDING = 1.5
"""Seconds: fio states `elapsed` in whole seconds."""


def last_of_each_call(documents: Sequence[Document], source: str) -> Iterator[Document]:
    """The last result of each call of fio, in their order, with a remark if there are several.

    Raises MeasurementError, which names `source`, if it cannot be told.
    """
    call: list[Document] = []
    for document, following in zip(documents, (*documents[1:], None), strict=True):
        call.append(document)
        if following is None or not _continues(document, following, source):
            yield _last(call)
            call = []


def _last(call: Sequence[Document]) -> Document:
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
        and [_identity(job) for job in earlier.jobs] == [_identity(job) for job in later.jobs]
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


def _identity(job: ReportedJob) -> tuple[object, ...]:
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
    ended = earlier.written - _ran(earlier) / 2
    if later.written % 1 == earlier.written % 1 == 0 and _ran(later) > _ran(earlier) * _SAME_TIME:
        ended += _TIME_ROUNDING
    return later.written - _ran(later) < ended


def _continues_without_time(earlier: Document, later: Document, source: str) -> bool:
    """Equal run times are those of several calls. Raises MeasurementError if it could be either."""
    if _all_grew(earlier, later) and _ran(later) > _ran(earlier) * _SAME_TIME:
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


def _ran(document: Document) -> float:
    """The seconds for which its groups of jobs ran, one after the other."""
    groups = groupby(document.jobs, key=lambda job: job.groupid)
    return sum(max(side.runtime for job in jobs for side in job.directions) for _, jobs in groups) / 1000
