"""What the answers add to the kernel: content of reports, and the card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from harness.feature import Feature, ReportPlace

if TYPE_CHECKING:
    from pathlib import Path

    from harness.report.blocks import Block
    from harness.report.section import Section
    from harness.results import Run, RunStore


def _answer(section: Section) -> Iterable[Block]:
    from harness.features.answers.report import answer_blocks, brief_blocks, matrix_lines

    yield from answer_blocks(section)
    yield from matrix_lines(section)
    yield from brief_blocks(section)


def _compare_options(section: Section) -> Iterable[Block]:
    from harness.features.answers.report import matrix_blocks

    return matrix_blocks(section)


def _blame(section: Section) -> Iterable[Block]:
    from harness.features.answers.responsible import blame_blocks

    return blame_blocks(section)


def _lead(section: Section) -> Iterable[str]:
    from harness.features.answers.responsible import blame_sentences

    return blame_sentences(section)


def _to_json(section: Section) -> Mapping[str, Any]:
    from harness.features.answers.report import to_json

    return {"answers": to_json(section)}


def _draw_card(store: RunStore, run: Run) -> tuple[Path, str]:
    from harness.features.answers.card import write_card

    return write_card(store, run)


FEATURE = Feature(
    name="answers",
    contents={ReportPlace.ANSWERS: _answer, ReportPlace.DIFFERENCES: _compare_options, ReportPlace.FINDINGS: _blame},
    leads=_lead,
    section_json=_to_json,
    draw_card=_draw_card,
)
