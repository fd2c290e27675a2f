"""Annotations for GitHub Actions: one line for each finding, which nothing in a run can turn into another command."""

from __future__ import annotations

import re
from dataclasses import replace

from harness.report.markdown import annotation_lines
from tests.build import synthetic_run

PASSTHROUGH = "optane-passthrough-randread-4k-qd32"


def test_what_exceeds_is_void_or_undecided_is_annotated_with_its_figures() -> None:
    lines = list(annotation_lines(synthetic_run(budget=0.0001, void=[PASSTHROUGH], rounds=6)))
    assert any(line.startswith("::error title=optane-lvm-randread-4k-qd32 exceeds its budget::") for line in lines)
    (void,) = (line for line in lines if line.startswith(f"::error title={PASSTHROUGH} is void::"))
    assert "bytes" in void
    assert any("%25" in line for line in lines)
    assert not any(re.search("%(?!25|0A|0D|3A|2C)", line) for line in lines)


def test_a_run_that_judged_nothing_is_a_warning_and_no_error() -> None:
    lines = list(annotation_lines(synthetic_run(budget=None)))
    assert lines
    assert all(line.startswith("::warning title=") for line in lines)


def test_no_text_of_a_run_becomes_a_command_or_a_property() -> None:
    run = synthetic_run(void=[PASSTHROUGH])
    hostile = "x\r\n::stop-commands::y##[error]"
    cells = tuple(replace(cell, id=f"a,file=b:{hostile}") if cell.id == PASSTHROUGH else cell for cell in run.cells)
    lines = list(annotation_lines(replace(run, cells=cells)))
    (found,) = (line for line in lines if "is void" in line)
    assert found.startswith("::error title=a%2Cfile=b%3Ax%0D%0A%3A%3Astop-commands%3A%3Ay# #[error] is void::")
    assert not any("\n" in line or "\r" in line for line in lines)
