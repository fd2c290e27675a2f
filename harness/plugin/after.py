"""What is judged after the last test: whether the run judged anything, and what features judge."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.plugin.engine import Engine
from harness.plugin.options import REQUIRE_VERDICT, SCENARIOS

_TEST = f"{SCENARIOS}/test_overhead.py"


def report_failures(session: pytest.Session, engine: Engine) -> None:
    """Report a failed test for each thing that fails only now: --require-verdict, and the options of features."""
    failures = [*_without_verdict(engine), *_judge_by_features(engine)]
    for name, why in failures:
        failed = pytest.TestReport(
            nodeid=f"{_TEST}::{name}",
            location=(_TEST, None, name),
            keywords={},
            outcome="failed",
            longrepr=why,
            when="call",
        )
        session.config.hook.pytest_runtest_logreport(report=failed)
    if failures and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _judge_by_features(engine: Engine) -> Iterator[tuple[str, str]]:
    for option, value in engine.options.of_features:
        yield from option.judge(value, engine.session_runs)


def _without_verdict(engine: Engine) -> Iterator[tuple[str, str]]:
    for place, why in engine.without_verdict.items() if engine.options.require_verdict else ():
        yield f"verdict[{place}]", f"{REQUIRE_VERDICT}: nothing was judged on {place}: {why}"
