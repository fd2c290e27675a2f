"""Whether the host changed while a group was measured: its drift by job, and when it voids the cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.model.attach import Attach, Vfio
from harness.model.base import Device, Md
from harness.model.job import Job
from harness.model.mode import Cell, Mode, Place
from harness.results import DriftRecord, Measurement, drift_checks, drift_notes, host_drift
from tests.build import build_measurement

JOB = "randwrite-4k-qd32"


def at_iops(iops: float, number: int, arm: str = "host", job: str = JOB) -> Measurement:
    return build_measurement(arm, number, job=job, started=1000.0 + 60 * number, metrics={"iops": iops})


def rounds(values: Sequence[float], arm: str = "host", job: str = JOB) -> list[Measurement]:
    return [at_iops(value, number, arm, job) for number, value in enumerate(values, start=1)]


def only(measurements: Sequence[Measurement]) -> DriftRecord:
    (found,) = host_drift(measurements)
    return found


def cell_with(attach: Attach) -> Cell:
    return Cell(
        "optane", "optane", Mode("guest", Device(), attach), Job("randwrite", 4096, iodepth=32, ramp=0, seconds=1)
    )


ALTERNATING = cell_with(Attach())
APART = cell_with(Attach(cache="writeback"))


def test_a_host_that_loses_a_quarter_voids_cells_whose_arms_are_apart_and_is_a_note_on_the_others() -> None:
    drift = only(rounds([1000, 930, 870, 805, 750]))
    assert drift.change.point == pytest.approx(-0.25, abs=0.005)
    assert drift.too_much
    (check,) = drift_checks([drift], APART, [APART.mode])
    assert not check.ok
    assert check.detail.startswith("the bare host changed by -25.")
    assert "more than 20%: warm up the host" in check.detail
    assert drift_notes([drift], APART, [APART.mode]) == []
    assert drift_checks([drift], ALTERNATING, [ALTERNATING.mode]) == []
    (note,) = drift_notes([drift], ALTERNATING, [ALTERNATING.mode])
    assert note.startswith("the bare host changed by -25.")
    assert note.endswith("the arms alternate within seconds, so the overhead is valid")


def test_a_cell_beside_a_guest_that_gets_the_disk_for_itself_does_not_alternate() -> None:
    drift = only(rounds([1000, 930, 870, 805, 750]))
    modes = [ALTERNATING.mode, Mode("vfio", Device(), Vfio())]
    assert drift_checks([drift], ALTERNATING, modes)
    assert not drift_notes([drift], ALTERNATING, modes)


def test_the_arms_of_a_rebuilding_array_are_apart_from_the_host() -> None:
    drift = only(rounds([1000, 930, 870, 805, 750]))
    rebuilding = replace(ALTERNATING, mode=Mode("md", Md(5, 3, state="rebuilding", spares=1), Attach()))
    assert drift_checks([drift], rebuilding, [rebuilding.mode, ALTERNATING.mode])
    assert not drift_checks([drift], ALTERNATING, [rebuilding.mode, ALTERNATING.mode])


def test_the_drift_of_another_job_does_not_concern_a_cell() -> None:
    drift = replace(only(rounds([1000, 930, 870, 805, 750])), job="seqread-256k-qd32")
    assert not drift_checks([drift], APART, [APART.mode])
    assert not drift_notes([drift], ALTERNATING, [ALTERNATING.mode])


def test_a_host_that_grows_faster_voids_its_group_as_well() -> None:
    assert only(rounds([1000, 1080, 1150, 1240, 1330])).too_much


def test_a_drift_within_the_bound_is_reported_and_voids_nothing() -> None:
    drift = only(rounds([1000, 970, 940, 910, 880]))
    assert drift.change.point == pytest.approx(-0.12, abs=0.005)
    assert not drift.too_much
    assert not drift_checks([drift], APART, [APART.mode])
    assert not drift_notes([drift], ALTERNATING, [ALTERNATING.mode])


def test_noise_as_large_as_the_bound_is_not_a_drift() -> None:
    drift = only(rounds([1000, 1400, 700]))
    assert abs(drift.change.point) > 0.2
    assert not drift.too_much


def test_two_rounds_prove_no_drift() -> None:
    drift = only(rounds([1000, 500]))
    assert drift.change.point == pytest.approx(-0.5)
    assert (drift.change.low, drift.change.high, drift.too_much) == (None, None, False)


def test_one_measurement_has_no_drift_at_all() -> None:
    assert host_drift(rounds([1000])) == ()


def test_a_bracketed_round_gives_two_values() -> None:
    again = replace(at_iops(900, 1), repeat=2, started=1100.0)
    assert only([at_iops(1000, 1), again]).change.n == 2


def test_only_the_bare_host_counts_for_its_drift() -> None:
    falling = [1000, 800, 600, 400]
    assert host_drift([*rounds(falling, "guest:lvm"), *rounds(falling, "twin:lvm")]) == ()


def test_a_cached_cell_has_the_drift_of_its_twin() -> None:
    cached = replace(APART, mode=replace(APART.mode, cached=True))
    falling = [1000, 930, 870, 805, 750]
    (drift,) = host_drift([*rounds([1000] * 5), *rounds(falling, "twin:guest")], cached.by_role[Place.HOST].id)
    (check,) = drift_checks([drift], cached, [cached.mode])
    assert check.detail.startswith("the host twin changed by -25.")


def test_each_job_has_its_own_drift_in_the_order_of_their_first_time() -> None:
    writes = rounds([500, 300, 200, 100], job="seqwrite-256k-qd32")
    found = host_drift([*writes, *rounds([1000, 1000, 1000.1, 1000])])
    assert [(each.job, each.too_much) for each in found] == [("seqwrite-256k-qd32", True), (JOB, False)]
