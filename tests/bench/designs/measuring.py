"""Measures units of both designs in one session of the embedded lab, with the engine of a campaign."""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.config.names import RunId
from harness.errors import LabUnavailable
from harness.events import Events
from harness.features.calibrate.measuring import LATE, PASSTHROUGH, PLAIN, SPAN, TrialMeasurer
from harness.features.embedded import lab_host as embedded
from harness.image import ensure_images
from harness.lab.inventory import HostSpec
from harness.measure.phases import Pauses, Phases
from harness.measure.series import Policy, PreparedGroup, Round, RoundSegment, SeriesEngine
from harness.model.mode import Cell
from harness.results import Measurement, RunStore
from harness.scenario.plan import Plan
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice
from tests.bench.designs.blocks import Block, paired
from tests.bench.designs.comparisons import WORKLOADS, Design, Seen, Sizes, pause
from tests.bench.lines import append

SCENARIO = "designs"
STARTUP_SECONDS = 90.0
"""The time to start the lab host and the guest."""
UNIT_OVERHEAD_SECONDS = 6.0
"""Seconds of a unit and design beside its slices: two starts of fio, and reading their output."""


class DesignMeasurer(TrialMeasurer):
    """The measurer of a calibration, without what fio printed."""

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        measured = super().measure(group, segment, began)
        for each in (self._store.path / "raw").iterdir():  # The outputs of a whole session are hundreds of MB.
            each.unlink()
        return measured


def unit_seconds(sizes: Sizes, seen: Seen) -> float:
    """How long one group of each comparison and job takes, in both designs together."""
    return sum(sizes.seconds(design, seen) + UNIT_OVERHEAD_SECONDS for design in Design)


def units_for(groups: int) -> int:
    """The number of units until each comparison has so many groups."""
    return math.ceil(groups / len(WORKLOADS))


def measure(path: Path, sizes: Sizes, *, units: int, minutes: float, seed: int, events: Events) -> int:
    """Measure up to so many units in about `minutes`, and append their blocks to the file. Returns how many there were.

    Raises what measuring raises. Blocks that were measured before an error remain in the file.
    """
    ends = time.monotonic() + minutes * 60
    images = ensure_images(events)
    session = RunId.new()
    (host,) = embedded.inventory().hosts
    disk = host.disks[0].name
    with tempfile.TemporaryDirectory(prefix="virt-overhead-") as directory:
        store = RunStore.create(Path(directory), session)
        measurer = DesignMeasurer(host, session, store, disk, seed=seed, images=images, phases=Phases(events))
        try:
            _require_delay(measurer, host)
            series = Series(path, sizes, SeriesEngine(measurer, events), session=session, disk=disk, seed=seed)
            for done in range(units):
                seconds = unit_seconds(sizes, series.seen)
                if done and time.monotonic() + seconds > ends:
                    return done
                series.measure_unit((units - done) * seconds)
        finally:
            measurer.close()
    return units


def _require_delay(measurer: DesignMeasurer, host: HostSpec) -> None:
    if not measurer.can_delay():
        raise LabUnavailable(
            f"host {host.name} cannot create disks in memory, so no delay can be planted",
            hint="build the images of the embedded lab again: virt-overhead images --rebuild",
        )


class Series:
    """The units of one session. Each attempt has a number of its own. `seen` is of the unit before."""

    def __init__(self, path: Path, sizes: Sizes, engine: SeriesEngine, *, session: RunId, disk: str, seed: int) -> None:
        self.seen = Seen()
        self._pauses = {design: Pauses() for design in Design}
        self._path = path
        self._sizes = sizes
        self._engine = engine
        self._session = session
        self._disk = disk
        self._chance = random.Random(f"designs {seed} {session}")
        self._attempts = 0

    def measure_unit(self, left_s: float) -> None:
        """Measure one group of each comparison and job in both designs, in random order. Writes the blocks."""
        late: dict[str, float] = {}
        for design in self._chance.sample(tuple(Design), len(Design)):
            for job, seconds in self._measure(design, left_s).items():
                late[job] = max(seconds, late.get(job, 0.0))
        self.seen = Seen(max(each.jitter for each in self._pauses.values()), late)

    def _measure(self, design: Design, left_s: float) -> Mapping[str, float]:
        """Measure the groups of one design. Returns how late the slices of each job ended."""
        jobs = {job.id: job for several in self._sizes.jobs(design, self.seen).values() for job in several}
        cells = [Cell(SCENARIO, self._disk, mode, job) for mode in (PASSTHROUGH, PLAIN, LATE) for job in jobs.values()]
        group = Group(str(design), self._disk, SCENARIO, tuple(cells))
        plan = Plan(self._disk, (group,), 1, SPAN, write_rate=0)
        late: dict[str, float] = {}

        def next_round() -> Round:
            self._attempts += 1
            number = self._attempts
            began = time.monotonic()

            def record(measured: Sequence[Measurement]) -> None:
                nonlocal began
                now = time.monotonic()
                blocks = paired(
                    measured, self._sizes, session=self._session, unit=number, design=design, wall=now - began
                )
                began = now
                append(self._path, blocks, Block)
                self._pauses[design].learn(measured)
                for measurement in measured:
                    late[measurement.job] = max(
                        measurement.seconds - jobs[measurement.job].seconds, late.get(measurement.job, 0.0)
                    )

            tables = self._sizes.tables(design, self.seen, self._chance)
            return Round(
                plan, group, number, 1, tables, lambda job, _arm: pause(job, self.seen), record, lambda: left_s
            )

        self._engine.run_series(OneRound(next_round), self._engine.prepare(plan, group))
        return late


@dataclass
class OneRound(Policy):
    """A series of one round. `next_round` makes it, and another one if the lab fails."""

    next_round: Callable[[], Round]
    measured: bool = False

    def next_step(self, prepared: PreparedGroup) -> Round | None:  # noqa: ARG002 - a Policy
        return None if self.measured else self.next_round()

    def count_step(self, prepared: PreparedGroup) -> None:  # noqa: ARG002 - a Policy
        self.measured = True
