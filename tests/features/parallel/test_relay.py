"""The progress of pytest-xdist's workers on the screen of their controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.events import BlockStarted, Note, StepAdvanced, StepFinished, StepStarted
from harness.features.parallel.workers import Relay, Sender


class Lines:
    """A screen that is a log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def isatty(self) -> bool:
        return False

    def write_line(self, line: str) -> None:
        self.lines.append(line)

    def rewrite(self, line: str, *, erase: bool) -> None:
        raise AssertionError((line, erase))


@pytest.fixture(autouse=True)
def _not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def test_each_line_begins_with_the_name_of_its_worker() -> None:
    screen = Lines()
    relay = Relay(screen)
    first, second = (Sender(relay.path, name) for name in ("gw0", "gw1"))
    for event in (StepStarted("boot", 12), StepAdvanced("boot", "half of it", 6.0), StepFinished("boot", 3)):
        first(event)
    second(BlockStarted("optane-batch1", 1, 3, "block 1 of 8", 95.0))
    first(Note("raw is left out: ö"))
    relay.close()
    assert screen.lines == [
        "  [gw0]  boot ... (about 12 s)",
        "  [gw0]  boot: 3 s",
        "  [gw1]  optane-batch1, round 1 of 3, block 1 of 8; about 1 min 40 s left",
        "  [gw0]  raw is left out: ö",
    ]
    assert not Path(relay.path).parent.exists()


def test_a_worker_whose_controller_has_ended_measures_on() -> None:
    screen = Lines()
    relay = Relay(screen)
    worker = Sender(relay.path, "gw0")
    relay.close()
    worker(Note("nobody reads this"))
    assert screen.lines == []
