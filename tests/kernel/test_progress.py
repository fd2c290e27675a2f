"""Progress as it is seen: rewritten in place on a terminal, few plain lines in a log."""

from __future__ import annotations

import io
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from harness.events import (
    QUIET_IN_CI_SECONDS,
    QUIET_SECONDS,
    BlockStarted,
    Events,
    GroupMeasured,
    Note,
    Progress,
    StandardOutput,
    StepAdvanced,
    StepFinished,
    StepStarted,
)


class Stream(io.StringIO):
    """Standard output, as a terminal or as a pipe."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@dataclass
class Output:
    """What a command wrote, and what of it is left on a terminal when it has ended."""

    stream: Stream
    events: Events = field(default_factory=Events)

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def left(self) -> list[str]:
        """The lines on a terminal: a carriage return goes to the line's start, ESC [ K erases from there on."""
        lines = []
        for line in self.text.split("\n"):
            seen = ""
            for part in line.split("\r"):
                text, erased, _ = part.partition("\x1b[K")
                seen = text if erased else text + seen[len(text) :]
            lines.append(seen)
        return [line for line in lines if line]


def output(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> Output:
    stream = Stream(terminal=terminal)
    # Not sys.stdout itself: pytest puts its own there before each phase of a test.
    monkeypatch.setattr("harness.events.sys", SimpleNamespace(stdout=stream))
    monkeypatch.delenv("CI", raising=False)
    return Output(stream, Events(Progress(StandardOutput())))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Output:
    return output(monkeypatch, terminal=True)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Output:
    return output(monkeypatch, terminal=False)


def started(block: int, left_s: float = 95) -> BlockStarted:
    return BlockStarted("optane-batch1", 1, 3, f"block {block} of 8: randread-4k-qd1", left_s=left_s)


def test_on_a_terminal_the_last_passing_line_alone_is_seen(terminal: Output) -> None:
    terminal.events(StepStarted("boot the guest", 12))
    terminal.events(started(7))
    terminal.events(started(8))
    assert terminal.left == ["  optane-batch1, round 1 of 3, block 8 of 8: randread-4k-qd1; about 1 min 40 s left"]
    assert "\n" not in terminal.text


def test_on_a_terminal_lasting_lines_stay_and_passing_ones_go(terminal: Output) -> None:
    terminal.events(StepStarted("build the layouts of a disk with a long name"))
    terminal.events(StepFinished("build layouts", 1.25))
    terminal.events(started(1))
    terminal.events(Note("raw is left out"))
    terminal.events(StepStarted("fill"))
    assert terminal.left == ["  build layouts: 1.25 s", "  raw is left out", "  fill ..."]


def test_a_step_that_comes_further_says_how_far_and_how_long_still(terminal: Output) -> None:
    terminal.events(StepAdvanced("condition the disk", "round 6 of at most 25", 194))
    assert terminal.left == ["  condition the disk: round 6 of at most 25; at most 3 min 10 s left"]
    terminal.events(StepAdvanced("copy the image", "half of it"))
    assert terminal.left == ["  copy the image: half of it"]


def test_a_group_that_is_measured_leaves_a_line_with_its_verdicts(terminal: Output) -> None:
    terminal.events(started(8))
    terminal.events(GroupMeasured("optane-batch1", 4, 20, "2 within, 1 void"))
    terminal.events(StepStarted("boot"))
    assert terminal.left == ["  optane-batch1: 2 within, 1 void; 4 of 20 cells done", "  boot ..."]


def test_a_line_of_a_shorter_text_leaves_nothing_of_the_longer_one(terminal: Output) -> None:
    terminal.events(StepStarted("a step with a long name indeed"))
    terminal.events(StepStarted("short"))
    assert terminal.left == ["  short ..."]


def test_in_a_log_no_line_is_ever_rewritten(log: Output) -> None:
    for event in (StepStarted("boot"), started(1), Note("so be it"), StepFinished("boot", 3), started(2)):
        log.events(event)
    assert "\r" not in log.text
    assert "\x1b" not in log.text
    assert log.text.endswith("\n")


def test_in_a_log_blocks_are_told_once_in_a_while(log: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("harness.events.time.monotonic", lambda: now)
    told = []
    for _ in range(60):  # a minute
        log.events(started(1))
        told.append(len(log.text.splitlines()))
        now += 1
    assert told[-1] == 60 / QUIET_SECONDS
    assert [second for second in range(1, 60) if told[second] > told[second - 1]] == [20, 40]


@pytest.mark.parametrize("terminal", [False, True])
def test_in_ci_notes_alone_are_told_at_once(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> None:
    now = 1000.0
    monkeypatch.setattr("harness.events.time.monotonic", lambda: now)
    log = output(monkeypatch, terminal=terminal)
    monkeypatch.setenv("CI", "true")
    events = Events(Progress(StandardOutput()))
    for _ in range(660):  # eleven minutes
        for event in (StepStarted("boot", 12), StepFinished("boot", 3), started(1), GroupMeasured("a", 1, 2, "1 void")):
            events(event)
        now += 1
    events(Note("raw is left out"))
    assert len(log.text.splitlines()) == 1 + 660 // QUIET_IN_CI_SECONDS + 1
    assert log.text.endswith("  raw is left out\n")
    assert "\x1b" not in log.text


def test_in_a_log_every_step_is_told(log: Output) -> None:
    for number in range(3):
        log.events(StepStarted(f"step {number}", 90))
        log.events(StepFinished(f"step {number}", 0.5))
    assert log.text.splitlines() == [
        line for number in range(3) for line in (f"  step {number} ... (about 1 min 30 s)", f"  step {number}: 500 ms")
    ]


def test_no_time_is_told_if_only_further_rounds_may_follow(log: Output) -> None:
    log.events(replace(started(1, 0), round=4))
    assert log.text.endswith("round 4, block 1 of 8: randread-4k-qd1; the number of further rounds is not known\n")


@pytest.mark.parametrize(("left_s", "said"), [(0, "10 s"), (14, "10 s"), (27, "30 s"), (3599, "1 h")])
def test_what_is_left_is_told_in_tens_of_seconds(log: Output, left_s: float, said: str) -> None:
    log.events(started(1, left_s))
    assert log.text.endswith(f"; about {said} left\n")
