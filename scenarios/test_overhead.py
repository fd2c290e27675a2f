"""The one test: every cell of every scenario in this directory, as `pytest -k`, `-m` and `--profile` select them."""

from harness.analysis import Verdict
from harness.results import CellRecord


def test_overhead(record: CellRecord, verdict: str) -> None:
    assert record.verdict is not Verdict.EXCEEDS, verdict
