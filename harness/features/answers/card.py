"""The card of a run for a forum post: what its picture shows, and the Markdown beside it."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import ConfigError
from harness.features.answers.decision import Answer, get_answers
from harness.features.answers.report import named
from harness.report.background import moment
from harness.report.contents import find_banners, headline_of
from harness.report.draw import INK, PAPER, RULE, SOFT
from harness.report.markdown import code, marked, plain
from harness.report.modes import ModeSummary
from harness.report.numbers import count, percent_with_interval, shorten
from harness.report.section import Section, find_sections
from harness.results import Run, RunStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

MOST_MODES = 7
"""Modes that the card shows, in the order of the plan. Of more, it gives the number of the others."""


@dataclass(frozen=True, slots=True)
class Card:
    """What the picture shows, in plain text. Backticks mark the names of modes."""

    run: str
    measured: str
    """Where and when."""
    headline: str
    warnings: tuple[str, ...]
    """First that the lab is not real hardware, if it is not."""
    answers: tuple[Answer, ...]
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
    drawn_card = card(run)
    path = store.write_page("card.png", draw_png(drawn_card))
    return path, markdown(drawn_card, path.name)


def card(run: Run) -> Card:
    """The card of a run."""
    sections = find_sections(run)
    section = next((section for section in sections if section.comparison.modes), next(iter(sections), None))
    comparison = section.comparison if section else None
    answers = get_answers(section) if section else ()
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
        answers=tuple(answer for answer in answers if answer.mode),
        modes=comparison.modes[:MOST_MODES] if comparison else (),
        jobs=comparison.jobs if comparison else 0,
        confidence=comparison.confidence if comparison else "",
        others=tuple(_list_others(sections, section)),
        method=_describe_method(run),
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
        f"- {plain(answer.use.title)}: `{code(answer.mode or '')}`"
        + (f" (not told apart from {marked(_name_equals(answer))})" if answer.equals else "")
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


def _name_equals(answer: Answer) -> str:
    """The modes that cannot be told apart from the recommended one, with backticks."""
    return named([equal.mode for equal in answer.equals], "or")


def _list_others(sections: Sequence[Section], section: Section | None) -> list[str]:
    facts = []
    more = len(section.comparison.modes) - MOST_MODES if section else 0
    if more > 0:
        facts.append(f"{more} more modes are in the report")
    if len(sections) > 1:
        names = ", ".join(other.name for other in sections if other is not section)
        facts.append(f"The run also has results of {names}")
    return facts


def _describe_method(run: Run) -> str:
    """How it was measured, and with what: "profile smoke, QEMU 10.0.2, ..."."""
    if run.lab.imported:
        return "Results of fio from elsewhere: who measured them, and how, is not known"
    host = run.provenance.get("host")
    tools = [str(host[name]) for name in ("qemu", "kernel", "fio") if name in host] if isinstance(host, dict) else []
    return ", ".join((f"Each guest against its host in short alternating slices, profile {run.run.profile}", *tools))


WIDTH, HEIGHT = 1200, 630
_DPI = 100
_LEFT, _RIGHT = 44, WIDTH - 44
_CHART = (_LEFT, 756)
_USES = 812
_DOT, _WARNING = "#1a5f96", "#b03f00"


def draw_png(card: Card) -> bytes:
    """The PNG. Raises ConfigError without matplotlib."""
    figure = picture(card)
    file = io.BytesIO()
    with warnings.catch_warnings():
        # A name may have letters that the font lacks. They are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(file, format="png", metadata={"Title": card.run})
    return file.getvalue()


def picture(card: Card) -> Figure:
    """The figure of the card, not yet drawn. Raises ConfigError without matplotlib.

    matplotlib draws it, because it needs no browser (plotly's export does) and no library or font of the system
    (cairosvg does), and has axes and fonts of its own (Pillow has only shapes).
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an optional dependency
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigError(
            "--card needs matplotlib, which is not installed", hint="run: pip install 'virt-overhead[card]'"
        ) from None
    # matplotlib must not read a name with two dollar signs as a formula, or use the user's own settings.
    with mpl.rc_context({**mpl.rcParamsDefault, "text.parse_math": False, "backend": "agg"}):
        figure = Figure(figsize=(WIDTH / _DPI, HEIGHT / _DPI), dpi=_DPI, facecolor=PAPER)
        _Page(figure).fill(card)
    return figure


class _Page:
    """Places texts on the figure in pixels from its upper left corner."""

    def __init__(self, figure: Figure) -> None:
        self._figure = figure

    def fill(self, card: Card) -> None:
        self._write_text(_LEFT, 30, "virt-overhead", size=11, weight="bold")
        self._write_text(_RIGHT, 30, _shorten(card.measured, 90), size=10, color=SOFT, ha="right")
        self._draw_line(50)
        below = self._write_paragraph(70, card.headline.replace("`", ""), size=20, lines=3)
        for warning in card.warnings[:2]:
            below = self._write_paragraph(below + 6, warning, size=10, lines=2, color=_WARNING)
        if card.modes:
            self._draw_chart(below + 26, card)
        if card.answers:
            self._draw_uses(below + 26, card.answers)
        last = ". ".join((*card.others, card.method))
        self._write_paragraph(HEIGHT - 44, last, size=9, lines=2, color=SOFT)

    def _draw_chart(self, top: float, card: Card) -> None:
        left, right = _CHART
        self._write_text(
            left,
            top,
            f"Throughput lost against the host over {count(card.jobs, 'job')}, % [interval, {card.confidence}]",
            size=11,
        )
        named, row = 196, min(40.0, (HEIGHT - 100 - top) / max(1, len(card.modes)))
        first = top + 34 + row / 2
        for number, mode in enumerate(card.modes):
            middle = first + number * row
            name = _shorten(mode.mode, 20)
            self._write_text(left, middle, name, size=11, va="center", family="DejaVu Sans Mono")
            self._write_text(right, middle, percent_with_interval(mode.overhead), size=11, va="center", ha="right")
        height = row * len(card.modes)
        axes = self._figure.add_axes(
            (
                (left + named) / WIDTH,
                1 - (first - row / 2 + height) / HEIGHT,
                (right - left - named - 170) / WIDTH,
                height / HEIGHT,
            )
        )
        axes.set_facecolor(PAPER)
        axes.set_xlim(*_compute_limits(card.modes))
        axes.set_ylim(len(card.modes) - 0.5, -0.5)
        axes.set_yticks([])
        axes.grid(axis="x", color=RULE, linewidth=1)
        axes.set_axisbelow(True)
        axes.axvline(0, color=SOFT, linewidth=1)
        axes.tick_params(axis="x", colors=SOFT, labelsize=10, length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        for number, mode in enumerate(card.modes):
            overhead = mode.overhead
            if overhead.low is not None and overhead.high is not None:
                axes.plot(
                    (overhead.low * 100, overhead.high * 100), (number, number), color=_DOT, alpha=0.4, linewidth=6,
                    solid_capstyle="butt",
                )  # fmt: skip
            axes.plot((overhead.point * 100,), (number,), color=_DOT, marker="o", markersize=8)

    def _draw_uses(self, top: float, answers: Sequence[Answer]) -> None:
        self._write_text(_USES, top, "Mode to use for", size=11)
        for number, answer in enumerate(answers):
            at = top + 36 + number * 54
            self._write_text(_USES, at, _shorten(answer.use.title, 40), size=10, color=SOFT)
            mode = _shorten(answer.mode or "", 28)
            drawn_mode = self._write_text(_USES, at + 18, mode, size=13, weight="bold", family="DejaVu Sans Mono")
            if answer.equals:
                beside = drawn_mode.get_window_extent().x1 + 8
                letters = int((_RIGHT - beside) / (0.6 * 10 * _DPI / 72))
                alike = _shorten(f"or {_name_equals(answer).replace('`', '')}", letters)
                self._write_text(beside, at + 21, alike, size=10, color=SOFT)

    def _write_paragraph(self, top: float, words: str, *, size: float, lines: int, color: str = INK) -> float:
        """The text in at most so many lines, smaller if it is long. Returns the lower end."""
        for smaller in (1.0, 0.85, 0.7):
            points = size * smaller
            # A letter of DejaVu Sans is 0.6 em wide on average, and a point has 1/72 inch.
            letters = int((_RIGHT - _LEFT) / (0.6 * points * _DPI / 72))
            wrapped = textwrap.wrap(
                _clean_line(words), letters, max_lines=lines, placeholder=" \N{HORIZONTAL ELLIPSIS}"
            )
            if not wrapped or not wrapped[-1].endswith("\N{HORIZONTAL ELLIPSIS}"):
                break
        self._write_text(_LEFT, top, "\n".join(wrapped), size=points, color=color, linespacing=1.3)
        return top + len(wrapped) * points * 1.3 * 1.16 * _DPI / 72

    def _write_text(self, x: float, y: float, words: str, **style: Any) -> Text:
        return self._figure.text(x / WIDTH, 1 - y / HEIGHT, words, **{"va": "top", "color": INK, **style})

    def _draw_line(self, y: float) -> None:
        axes = self._figure.add_axes((_LEFT / WIDTH, 1 - y / HEIGHT, (_RIGHT - _LEFT) / WIDTH, 2 / HEIGHT))
        axes.set_facecolor(INK)
        axes.set_xticks([])
        axes.set_yticks([])
        for side in axes.spines.values():
            side.set_visible(False)


def _compute_limits(modes: Sequence[ModeSummary]) -> tuple[float, float]:
    """From zero to the largest loss, in percent, with room for the dots; an interval of more than 100 % is cut off."""
    ends = [0.0, *(mode.overhead.point for mode in modes)]
    ends += [end for mode in modes for end in (mode.overhead.low, mode.overhead.high) if end is not None]
    low, high = max(-1.0, min(ends)) * 100, min(1.0, max(ends)) * 100
    room = max(0.06 * (high - low), 0.5)
    return low - room, high + room


def _shorten(words: str, most: int) -> str:
    return shorten(_clean_line(words), most)


def _clean_line(words: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in words).split())
