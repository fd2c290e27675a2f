"""The limits of tests: generous, longer where the lab booted slowly, and a run that is cut short cleans up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.machines import background, ran
from tests.patience import GENEROUS, SLOWNESS, booting, patience

RUN = """
import signal, sys, time
from pathlib import Path
made = Path(sys.argv[1])
def ended(*_):
    made.unlink()
    print("cleaned up", flush=True)
    sys.exit(2)
signal.signal(signal.SIGTERM, ended)
made.touch()
print("made", flush=True)
time.sleep(3600)
"""


def test_a_limit_is_several_times_what_an_idle_machine_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SLOWNESS, raising=False)
    assert patience(60) == 60 * GENEROUS


def test_a_limit_follows_from_the_boot_of_the_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOWNESS, "1")
    monkeypatch.setattr("tests.patience.USUAL_BOOT_SECONDS", 1e-9)
    with booting():
        sum(range(1000))
    assert patience(60) > 600 * GENEROUS, "also in processes that the test starts"


def test_a_run_that_takes_too_long_is_told_to_end_and_removes_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    monkeypatch.setenv(SLOWNESS, "1")
    with pytest.raises(AssertionError, match=r"not done after 20 s: (?s:.*)made\ncleaned up"):
        ran([sys.executable, "-c", RUN, str(made)], seconds=20 / GENEROUS)
    assert not made.exists()


def test_a_run_in_the_background_ends_with_its_test(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with background([sys.executable, "-c", RUN, str(made)]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
    assert process.returncode == 2
    assert not made.exists()
