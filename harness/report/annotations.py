"""A run as workflow commands of GitHub Actions, which shows them as annotations of the workflow's run."""

from __future__ import annotations

from collections.abc import Iterator

from harness.report.banners import find_banners
from harness.report.verdicts import find_verdicts
from harness.results import Run
from harness.terminal import clean


def annotation_lines(run: Run) -> Iterator[str]:
    """One line each: what exceeds or is void (errors), what is inconclusive and what the run warns of (warnings).

    GitHub shows the first ten errors and the first ten warnings of a step.
    """
    verdicts = find_verdicts(run.cells)
    for judged in verdicts.exceeds:
        yield _command("error", f"{judged.cell.id} exceeds its budget", judged.sentence)
    for cell in verdicts.void:
        yield _command("error", f"{cell.id} is void", "; ".join(cell.remarks))
    for banner in find_banners(run):
        yield _command("warning", banner.title, banner.text)
    for judged in verdicts.inconclusive:
        text = "; ".join(filter(None, (judged.sentence, judged.decides)))
        yield _command("warning", f"{judged.cell.id} is inconclusive", text)


def _command(kind: str, title: str, text: str) -> str:
    # Hosts and files name things: what they say must not become a command or a property of its own.
    return f"::{kind} title={_escaped(title).replace(':', '%3A').replace(',', '%2C')}::{_escaped(text)}"


def _escaped(text: str) -> str:
    return clean(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))
