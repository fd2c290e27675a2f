"""A step is announced when it starts, and at its end with the time that it took."""

from __future__ import annotations

import pytest

from harness.errors import HostError
from harness.events import Event, Events, StepFinished, StepStarted


def test_a_step_is_announced_and_reported_with_its_seconds() -> None:
    seen: list[Event] = []
    with Events(seen.append).step("build the guest image", 90.0) as step:
        assert seen == [StepStarted("build the guest image", 90.0)]
        during = step.seconds
    (finished,) = seen[1:]
    assert isinstance(finished, StepFinished)
    assert finished.what == "build the guest image"
    assert 0 <= during <= finished.seconds < 10


def test_a_step_that_fails_is_not_reported_as_finished() -> None:
    seen: list[Event] = []
    with pytest.raises(HostError), Events(seen.append).step("boot the guest"):
        raise HostError("it hangs")
    assert seen == [StepStarted("boot the guest")]
