"""The only test. It runs for every cell of every scenario here; select with `pytest -k`, `-m` and `--profile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.analysis import Verdict

if TYPE_CHECKING:
    from harness.results import CellRecord


def test_overhead(record: CellRecord, verdict: str) -> None:
    if record.verdict is Verdict.EXCEEDS:
        pytest.fail(verdict, pytrace=False)
