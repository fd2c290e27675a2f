"""Equal modes, hosts that do not drift, runs without a change, rare stalls: how often what is said is wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from harness.analysis import estimate_drift, estimate_overhead, has_drifted
from harness.features.answers.decision import answer_uses
from harness.features.compare.trends import change_points
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.mode import Mode
from harness.model.workloads import Profile, parse_workloads
from harness.results import CellRecord
from harness.results.metric_records import note_stalls
from harness.results.validity import DRIFT_BOUND, DRIFT_CONFIDENCE
from harness.scenario.scenario import Scenario
from tests.build import synthetic_run
from tests.simulation.noises import autoregression, normal
from tests.simulation.stated import stated

BLOCKS = 20
DECISIONS = 200
SERIES = 1000


def measured_modes(number: int) -> list[CellRecord]:
    """A cell of each of so many modes, all of the same blocks."""
    modes = (Mode("host", Device(), None), *(Mode(f"mode{at}", Device(), Attach()) for at in range(number)))
    profile = Profile("smoke", ramp=0, runtime=1, rounds=3, iodepth=(64,), span=64 << 20, round_limit=300)
    workloads = tuple(parse_workloads("randread-4k"))
    scenario = Scenario("lab", "A lab", "nvme", modes, workloads, 2 << 30, (profile,))
    run = synthetic_run(scenario=scenario, rounds=BLOCKS, budget=None)
    return [cell for cell in run.cells if not cell.is_baseline]


def measure_again(chance: np.random.Generator, cells: list[CellRecord], sd: float) -> list[CellRecord]:
    """The cells with other values: all guests have the same true speed, and share their host's slices."""
    host = np.exp(chance.normal(0, sd, BLOCKS)).tolist()
    again = []
    for cell in cells:
        guest = np.exp(chance.normal(0, sd, BLOCKS)).tolist()
        loss = estimate_overhead(host, guest, higher_is_better=True)
        iops = replace(cell.metrics["iops"], host=tuple(host), guest=tuple(guest), adjusted={}, overhead=loss)
        again.append(replace(cell, metrics={"iops": iops}))
    return again


@pytest.mark.parametrize("modes", [2, 5, 8])
def test_equal_modes_are_rarely_called_worse(modes: int) -> None:
    chance, cells = np.random.default_rng(modes), measured_modes(modes)
    worse = 0
    for _ in range(DECISIONS):
        (general, *_) = answer_uses(measure_again(chance, cells, 0.05), 1.0)
        assert len(general.equals) + len(general.worse) == modes - 1
        worse += bool(general.worse)
    share = worse / DECISIONS
    # Three standard deviations of a count of 5 %.
    assert share <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / DECISIONS)


# The standard deviation of noises.autoregression, to which the noise of a host is scaled.
_SD = 0.05


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.9])
def test_a_noisy_host_rarely_seems_to_drift(correlation: float) -> None:
    for column, n in enumerate((6, 10, 20, 40)):
        logs = 0.2 / _SD * autoregression(correlation)(np.random.default_rng(n), SERIES, n)
        drifts = [estimate_drift(range(n), values, confidence=DRIFT_CONFIDENCE) for values in np.exp(logs).tolist()]
        share = sum(has_drifted(drift, DRIFT_BOUND) for drift in drifts) / SERIES
        assert share <= 0.05
        assert share == pytest.approx(stated(f"does not drift, AR(1) {correlation:g}")[column], abs=0.015)


def test_a_host_that_loses_half_of_its_speed_is_found() -> None:
    for column, n in enumerate((6, 10, 20, 40)):
        line = math.log(0.5) * np.linspace(0, 1, n)
        logs = line + normal(np.random.default_rng(n), SERIES, n)
        drifts = [estimate_drift(range(n), values, confidence=DRIFT_CONFIDENCE) for values in np.exp(logs).tolist()]
        share = sum(has_drifted(drift, DRIFT_BOUND) for drift in drifts) / SERIES
        assert share == pytest.approx(stated("loses half of its speed, noise 5 %")[column], abs=0.05)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_a_history_without_a_change_rarely_has_a_change_point(correlation: float) -> None:
    for column, runs in enumerate((20, 40, 80)):
        series = autoregression(correlation)(np.random.default_rng(runs), SERIES, runs).tolist()
        share = sum(bool(change_points(values)) for values in series) / SERIES
        assert share <= 0.05
        assert share == pytest.approx(stated(f"runs correlated by {correlation:g}")[column], abs=0.015)


@pytest.mark.parametrize(
    ("row", "stalls"), [("no stalls", 0.0), ("one guest's slice of 100 is ten times slower", 0.01)]
)
def test_stalls_are_noted_where_there_were_some(row: str, stalls: float) -> None:
    chance = np.random.default_rng(4)
    (cell,) = measured_modes(1)
    noted = 0
    for _ in range(SERIES):
        host, guest = np.exp(chance.normal(0, 0.1, (2, BLOCKS)))
        stalled = chance.random(BLOCKS) < stalls
        guest[stalled] /= 10
        loss = estimate_overhead(host, guest, higher_is_better=True)
        iops = replace(
            cell.metrics["iops"],
            host=tuple(host.tolist()),
            guest=tuple(guest.tolist()),
            adjusted={},
            overhead=loss,
        )
        found = any("slower" in note for note in note_stalls(iops))
        assert found == (0 < stalled.sum() <= BLOCKS // 10)
        noted += found
    assert noted / SERIES == pytest.approx(stated(row)[0], abs=0.04)
