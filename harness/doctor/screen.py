"""The findings as lines on a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.text import Text

from harness.doctor.findings import Finding, Level
from harness.doctor.tune import Tuning

_STYLES = {Level.OK: "green", Level.UNKNOWN: "dim", Level.ADVICE: "yellow", Level.PROBLEM: "bold red"}
_LABELS = {Level.OK: "ok", Level.UNKNOWN: "-", Level.ADVICE: "advice", Level.PROBLEM: "problem"}
_INDENT = " " * 9


def finding_lines(host: str, findings: Sequence[Finding], *, width: int) -> Iterable[Text]:
    """A line per check with level, name and value; below it why the check matters, and what to do.

    Commands are not wrapped, because users copy them.
    """
    yield Text(f"host {host}", style="bold")
    for finding in findings:
        label = Text(f"{_LABELS[finding.level]:<{len(_INDENT)}}", style=_STYLES[finding.level])
        yield label.append(Text.assemble((finding.check, "bold"), f": {finding.value}", style="default"))
        for line in textwrap.wrap(finding.why, max(width - len(_INDENT), 40)):
            yield Text(f"{_INDENT}{line}", style="dim")
        if finding.advice:
            yield Text(f"{_INDENT}-> {finding.advice}")
    yield Text(_summary(host, findings))


def tuning_lines(host: str, tuning: Tuning) -> Iterable[str]:
    """What was changed and what could not be changed. Files with the same name and values share a line."""
    if not tuning.changed and not tuning.refused:
        yield f"host {host}: nothing to change"
    alike = Counter((change.path.rpartition("/")[2], change.before, change.after) for change in tuning.changed)
    for (name, before, after), number in alike.items():
        first = next(change.path for change in tuning.changed if change.path.endswith(f"/{name}"))
        others = f" and {number - 1} more" if number > 1 else ""
        yield f"host {host}: changed {first}{others}: {before} -> {after}"
    yield from (f"host {host}: not changed: {refusal}" for refusal in tuning.refused)


def _summary(host: str, findings: Sequence[Finding]) -> str:
    count = Counter(finding.level for finding in findings)
    problems = [finding.check for finding in findings if finding.level is Level.PROBLEM]
    if problems:
        return f"host {host}: figures measured now would be wrong or cannot be measured: {', '.join(problems)}"
    if count[Level.ADVICE]:
        return f"host {host}: fit for measuring; see the {count[Level.ADVICE]} pieces of advice above to improve it"
    return f"host {host}: fit for measuring"
