"""The only test. It runs for every cell of every scenario here; select with `pytest -k`, `-m` and `--profile`."""

import pytest

from harness.analysis import Verdict
from harness.results import CellRecord


def test_overhead(record: CellRecord, verdict: str) -> None:
    if record.verdict is Verdict.EXCEEDS:
        pytest.fail(verdict, pytrace=False)
