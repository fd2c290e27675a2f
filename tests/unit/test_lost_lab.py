"""The end-to-end tests after a loss of the lab: what is run again, and what is failed all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

# A file `lost` says that the lab host is lost; who notices starts it again.
PLUGIN = """
from pathlib import Path
from types import SimpleNamespace
import pytest
from tests.e2e.lost_lab import LostLab

LOST = Path(__file__).with_name("lost")
BEFORE = Path(__file__).with_name("before")

def lost():
    found = LOST.exists()
    LOST.unlink(missing_ok=True)
    return found

def pytest_configure(config):
    config.pluginmanager.register(LostLab(lost))

@pytest.fixture
def loses_host():
    LOST.touch()
    pytest.fail("no answer")

@pytest.fixture
def loses_host_once(request):
    if not BEFORE.exists():
        BEFORE.touch()
        request.getfixturevalue("loses_host")

@pytest.fixture
def guest():
    yield SimpleNamespace(runner=SimpleNamespace(alive=BEFORE.exists()))
    BEFORE.touch()
"""


@pytest.mark.parametrize(
    ("tests", "status"),
    [
        ({"one": "def test_a(): pass"}, pytest.ExitCode.OK),
        ({"one": "def test_a(loses_host_once): ...\ndef test_b(): pass"}, pytest.ExitCode.OK),
        ({"one": "def test_a(guest): assert guest.runner.alive"}, pytest.ExitCode.OK),
        ({"one": "def test_a(guest): assert 0"}, pytest.ExitCode.TESTS_FAILED),
        ({"one": "def test_a(loses_host): pass"}, pytest.ExitCode.TESTS_FAILED),
        ({"one": "def test_a(loses_host_once): ...\ndef test_b(): assert 0"}, pytest.ExitCode.TESTS_FAILED),
        (
            {"one": "def test_a(loses_host_once): ...", "two": "def test_b(): assert 0"},
            pytest.ExitCode.TESTS_FAILED,
        ),
        (
            {"one": "def test_a(loses_host_once): ...", "two": "def test_b(): raise KeyboardInterrupt"},
            pytest.ExitCode.INTERRUPTED,
        ),
    ],
    ids=[
        "no loss",
        "host lost",
        "guest lost",
        "guest lost, then failed",
        "host lost twice",
        "another test of the file fails",
        "another file fails",
        "Ctrl-C after a loss",
    ],
)
def test_a_file_whose_lab_was_lost_is_run_once_more_and_no_failure_is_forgiven(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tests: dict[str, str], status: int
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makeini("[pytest]")
    pytester.makeconftest(PLUGIN)
    pytester.makepyfile(**{f"test_{name}": text for name, text in tests.items()})
    assert pytester.runpytest_subprocess("-p", "no:cacheprovider").ret == status
