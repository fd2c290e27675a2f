"""The notes of cells about a simulated lab that failed report only what was really done."""

from __future__ import annotations

from harness.measure.host_measurer import KEPT_RUNNING, Restarts


def test_a_lab_host_that_kept_running_was_not_started_again() -> None:
    restarts = Restarts()
    assert restarts.opened("boot 1") is None
    restarts.failed("the lab failed in round 2 of optane-batch1, which does not count")
    assert restarts.opened("boot 1") == "the lab host kept running; its layouts and guest were created again"
    (sentence,) = restarts.sentences
    assert sentence == f"the lab failed in round 2 of optane-batch1, which does not count; {KEPT_RUNNING}"


def test_a_lab_host_in_another_boot_was_started_again() -> None:
    restarts = Restarts()
    restarts.opened("boot 1")
    restarts.failed("the lab failed in round 2 of optane-batch1, which does not count")
    assert restarts.opened("boot 2") == "the lab host was started again"
    assert restarts.opened("boot 2") is None
    assert len(restarts.sentences) == 1


def test_what_failed_is_known_before_the_lab_is_open_again() -> None:
    restarts = Restarts()
    restarts.opened("boot 1")
    restarts.failed("the lab failed before optane-batch1 was measured")
    assert restarts.sentences == ["the lab failed before optane-batch1 was measured"]
