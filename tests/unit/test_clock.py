"""A host whose kernel changes its clock source in the middle of a run."""

from __future__ import annotations

from harness.model.counters import Counters
from harness.results import Measurement
from harness.results.validity import clock_checks


def measured(number: int, clock: str | None) -> Measurement:
    return Measurement(
        group="g", round=number, arm="host", repeat=1, job="randread-4k-qd1", started=float(number), seconds=1.0,
        wall=1.0, metrics={}, io_bytes=0, raw="raw/1.json", counters=Counters(clock=clock),
    )  # fmt: skip


def test_slices_with_one_clock_source_are_comparable() -> None:
    (check,) = clock_checks([measured(1, "tsc"), measured(1, None), measured(2, "tsc")])
    assert (check.check, check.ok, check.detail) == ("clock", True, "tsc in all slices")


def test_slices_before_and_after_a_change_are_not_comparable() -> None:
    (check,) = clock_checks([measured(1, "tsc"), measured(2, "tsc"), measured(3, "hpet"), measured(4, "hpet")])
    assert not check.ok
    assert check.detail.startswith("the host's kernel changed its clock source from tsc to hpet in round 3. ")


def test_runs_of_earlier_versions_do_not_have_the_check() -> None:
    assert clock_checks([measured(1, None)]) == ()
