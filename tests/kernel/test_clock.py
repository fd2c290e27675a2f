"""A host whose kernel changes its clock source in the middle of a run."""

from __future__ import annotations

from harness.model.counters import Counters
from harness.results import Measurement
from harness.results.validity import clock_checks
from tests.build import build_measurement


def with_clock(number: int, clock: str | None) -> Measurement:
    return build_measurement(number=number, started=float(number), counters=Counters(clock=clock))  # fmt: skip


def test_slices_with_one_clock_source_are_comparable() -> None:
    (check,) = clock_checks([with_clock(1, "tsc"), with_clock(1, None), with_clock(2, "tsc")])
    assert (check.check, check.ok, check.detail) == ("clock", True, "tsc in all slices")


def test_slices_before_and_after_a_change_are_not_comparable() -> None:
    (check,) = clock_checks([with_clock(1, "tsc"), with_clock(2, "tsc"), with_clock(3, "hpet"), with_clock(4, "hpet")])
    assert not check.ok
    assert check.detail.startswith("the host's kernel changed its clock source from tsc to hpet in round 3. ")


def test_runs_of_earlier_versions_do_not_have_the_check() -> None:
    assert clock_checks([with_clock(1, None)]) == ()
