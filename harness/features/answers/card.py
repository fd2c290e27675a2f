"""The card of a run for a forum post: what its picture shows, and the Markdown beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.features.answers.decision import Answer
from harness.features.answers.report import answers_of, named
from harness.report.background import moment
from harness.report.contents import find_banners, headline_of
from harness.report.markdown import code, marked, plain
from harness.report.modes import ModeSummary
from harness.report.numbers import percent_with_interval
from harness.report.section import Section, find_sections
from harness.results import Run, RunStore

MOST_MODES = 7
"""Modes that the card shows, in the order of the plan. Of more, it gives the number of the others."""


@dataclass(frozen=True, slots=True)
class CardAnswer:
    """The mode for one use."""

    use: str
    mode: str
    alike: str
    """The modes that cannot be told apart from it, with backticks; else empty."""


@dataclass(frozen=True, slots=True)
class Card:
    """What the picture shows, in plain text. Backticks mark the names of modes."""

    run: str
    measured: str
    """Where and when."""
    headline: str
    warnings: tuple[str, ...]
    """First that the lab is not real hardware, if it is not."""
    answers: tuple[CardAnswer, ...]
    """Each typical use that has a recommendation."""
    modes: tuple[ModeSummary, ...]
    jobs: int
    confidence: str
    others: tuple[str, ...]
    """What the run has and the card does not show."""
    method: str
    source: str
    """Which tool measured it, and the run."""


def write_card(store: RunStore, run: Run) -> tuple[Path, str]:
    """Draw card.png beside the run's results. Returns its path, and the Markdown of the post.

    The first disk with a comparison of modes is shown. Raises ConfigError if the library for pictures is missing, and
    ResultsError if the file cannot be written.
    """
    from harness.features.answers.card_picture import drawn  # noqa: PLC0415 - an optional library, of which only this has a use

    drawn_card = card(run)
    path = store.write_card(drawn(drawn_card))
    return path, markdown(drawn_card, path.name)


def card(run: Run) -> Card:
    """The card of a run."""
    sections = find_sections(run)
    section = next((section for section in sections if section.comparison.modes), next(iter(sections), None))
    comparison = section.comparison if section else None
    answers = answers_of(section) if section else ()
    return Card(
        run=run.run.id,
        measured=f"results of fio from {moment(run.run.started)}"
        if run.lab.imported
        else f"{run.lab.host}, {moment(run.run.started)}",
        headline=headline_of(section).sentence if section else "This run has no cells",
        warnings=tuple(
            f"{banner.title}: {banner.text}"
            for banner in sorted(find_banners(run), key=lambda banner: banner.kind != "lab")
        ),
        answers=tuple(map(_answer, (answer for answer in answers if answer.mode))),
        modes=comparison.modes[:MOST_MODES] if comparison else (),
        jobs=comparison.jobs if comparison else 0,
        confidence=comparison.confidence if comparison else "",
        others=tuple(_others(sections, section)),
        method=_method(run),
        source=f"Imported by virt-overhead, run {run.run.id}"
        if run.lab.imported
        else f"Measured with virt-overhead, run {run.run.id}",
    )


def markdown(card_: Card, picture: str) -> str:
    """The post: the picture, the headline, warnings, the mode for each use, a table of modes, and the method."""
    lines = [
        f"![{plain(card_.headline.replace('`', ''))}]({picture})",
        "",
        f"**{marked(card_.headline)}**",
        "",
    ]
    lines += [line for warning in card_.warnings for line in (f"> {plain(warning)}", "")]
    lines += [
        f"- {plain(answer.use)}: `{code(answer.mode)}`"
        + (f" (not told apart from {marked(answer.alike)})" if answer.alike else "")
        for answer in card_.answers
    ]
    lines += [""] * bool(card_.answers)
    if card_.modes:
        lines += [f"| mode | throughput lost, % [{card_.confidence}] | n |", "|:--|--:|--:|"]
        lines += [
            f"| `{code(mode.mode)}` | {percent_with_interval(mode.overhead)} | {mode.overhead.n} |"
            for mode in card_.modes
        ]
        lines.append("")
    lines += [f"{plain(other)}.\n" for other in card_.others]
    lines.append(f"{plain(card_.measured)}. {plain(card_.method)}. {plain(card_.source)}.")
    return "\n".join(lines) + "\n"


def _answer(answer: Answer) -> CardAnswer:
    equals = [equal.mode for equal in answer.equals]
    return CardAnswer(answer.use.title, answer.mode or "", named(equals, "or") if equals else "")


def _others(sections: Sequence[Section], section: Section | None) -> list[str]:
    facts = []
    more = len(section.comparison.modes) - MOST_MODES if section else 0
    if more > 0:
        facts.append(f"{more} more modes are in the report")
    if len(sections) > 1:
        names = ", ".join(other.name for other in sections if other is not section)
        facts.append(f"The run also has results of {names}")
    return facts


def _method(run: Run) -> str:
    """How it was measured, and with what: "profile smoke, QEMU 10.0.2, ..."."""
    if run.lab.imported:
        return "Results of fio from elsewhere: who measured them, and how, is not known"
    host = run.provenance.get("host")
    tools = [str(host[name]) for name in ("qemu", "kernel", "fio") if name in host] if isinstance(host, dict) else []
    return ", ".join((f"Each guest against its host in short alternating slices, profile {run.run.profile}", *tools))
