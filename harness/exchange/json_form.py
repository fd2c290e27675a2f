"""Finds the JSON documents of fio in a text, and judges what is around them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from harness.errors import MeasurementError
from harness.exchange.normal_form import messages_in
from harness.exchange.printed import REMEDY, Printed
from harness.untrusted import parse_first_json

_BEGIN = re.compile(r'\{\s*"fio version"\s*:')
_ANY_OBJECT = re.compile(r"^[ \t]*\{", re.MULTILINE)
JOB_IN_TEXT = re.compile(
    r"^[ \t]*(?:(?P<normal>\S.{0,200}): \(groupid=|[345];fio-[^;\n]{1,80};(?P<terse>[^;\n]{1,200});)", re.MULTILINE
)
_AROUND_LIST = " \t\n["
_PUNCTUATION = " \t\n,[]}"
"""What a file with a list of results has between them, and at its end."""


def read_json_form(text: str, source: str) -> tuple[Printed, ...]:
    """The documents of fio in the text, in their order; none if it has no JSON. Raises MeasurementError.

    A document that is not whole, or something after it that looks like a further result, is an error: no result may be
    missing unnoticed.
    """
    # Other programs sort the keys.
    pattern = _BEGIN if _BEGIN.search(text) else _ANY_OBJECT
    first = pattern.search(text)
    if first is None:
        return ()
    documents: list[Any] = []
    gaps = [text[: first.start()]]
    begin: re.Match[str] | None = first
    while begin is not None:
        where = source if not documents else f"{source}: result {len(documents) + 1}"
        document, end = parse_first_json(text, begin.start(), where, MeasurementError, hint=REMEDY)
        documents.append(document)
        begin = pattern.search(text, end)
        gaps.append(text[end : begin.start() if begin else len(text)])
    remarks = tuple(dict.fromkeys(_remarks(gaps, documents, source)))
    return tuple(
        Printed(document, before=messages_in(gap).strip(_AROUND_LIST) if index == 0 else "", remarks=remarks)
        for index, (gap, document) in enumerate(zip(gaps, documents, strict=False))
    )


def _remarks(gaps: list[str], documents: list[Any], source: str) -> Iterator[str]:
    """What the reader must know of the text around the documents. Raises MeasurementError if it may be a result."""
    names = {str(job.get("jobname")) for document in documents for job in _jobs(document)}
    for number, gap in enumerate(gaps):
        texts = {match["normal"] or match["terse"] for match in JOB_IN_TEXT.finditer(gap)}
        if others := sorted(texts - names):
            raise MeasurementError(
                f"{source} has results in JSON, and fio's text output of another job: {others[0][:60]}",
                hint="save the output of each call of fio in its own file",
            )
        if texts:
            yield "the file also has fio's text output of the same jobs (--output-format), which is not used"
        elif number > 0 and (rest := " ".join(gap.strip().strip(_PUNCTUATION).split())):
            if _ANY_OBJECT.search(gap):
                raise MeasurementError(
                    f"{source} has something after the result that may be a further one, and is not whole: {rest[:80]}",
                    hint=REMEDY,
                )
            yield f"the file has other text after the result: {rest[:100]}"


def _jobs(document: object) -> Iterator[Mapping[str, Any]]:
    jobs = document.get("jobs") if isinstance(document, dict) else None
    yield from (job for job in (jobs if isinstance(jobs, list) else []) if isinstance(job, dict))
