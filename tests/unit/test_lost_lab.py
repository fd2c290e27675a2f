"""The end-to-end tests after a hang of the lab host: what is run again, and what is failed all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

# A file `hangs` says that the lab host hangs; who notices starts it again.
PLUGIN = """
from pathlib import Path
import pytest
from tests.e2e.lost_lab import LostLab

HANGS = Path(__file__).with_name("hangs")
BEFORE = Path(__file__).with_name("before")

def hung():
    found = HANGS.exists()
    HANGS.unlink(missing_ok=True)
    return found

def pytest_configure(config):
    config.pluginmanager.register(LostLab(hung))

@pytest.fixture
def lab_hangs():
    HANGS.touch()
    pytest.fail("no answer")

@pytest.fixture
def lab_hangs_once(request):
    if not BEFORE.exists():
        BEFORE.touch()
        request.getfixturevalue("lab_hangs")
"""


@pytest.mark.parametrize(
    ("tests", "status"),
    [
        ({"one": "def test_a(): pass"}, pytest.ExitCode.OK),
        ({"one": "def test_a(lab_hangs_once): ...\ndef test_b(): pass"}, pytest.ExitCode.OK),
        ({"one": "def test_a(lab_hangs): pass"}, pytest.ExitCode.TESTS_FAILED),
        ({"one": "def test_a(lab_hangs_once): ...\ndef test_b(): assert 0"}, pytest.ExitCode.TESTS_FAILED),
        (
            {"one": "def test_a(lab_hangs_once): ...", "two": "def test_b(): assert 0"},
            pytest.ExitCode.TESTS_FAILED,
        ),
        (
            {"one": "def test_a(lab_hangs_once): ...", "two": "def test_b(): raise KeyboardInterrupt"},
            pytest.ExitCode.INTERRUPTED,
        ),
    ],
    ids=["no hang", "hang", "hangs twice", "fails beside a hang", "another file fails", "Ctrl-C after a hang"],
)
def test_a_file_whose_lab_hung_is_run_once_more_and_no_failure_is_forgiven(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tests: dict[str, str], status: int
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makeini("[pytest]")
    pytester.makeconftest(PLUGIN)
    pytester.makepyfile(**{f"test_{name}": text for name, text in tests.items()})
    assert pytester.runpytest_subprocess("-p", "no:cacheprovider").ret == status
