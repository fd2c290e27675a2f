"""Searches for the highest load: what a scenario may ask for, and the cost of a search in a plan. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from harness.analysis import METRICS, SearchLimits
from harness.analysis.loadcurve import FEWEST_SAMPLES
from harness.config.names import choices
from harness.config.problems import shown
from harness.model.cell import Arm, Cell, Place
from harness.model.job import Job
from harness.scenario.scenario import Scenario, Search

MOST_ROUNDS = 16
"""Rounds of a search. The simulated searches of the tests end earlier."""
USUAL_ROUNDS = 8
MOST_RATES = 2 * MOST_ROUNDS + 2
"""Rates that a search measures on an arm: four in its first round, then at most two in each round."""
LONGEST_SLICE = 10.0
"""Seconds. A slice of a search is long enough for the percentile of its I/Os."""
_MARGIN = 1.1
"""A slice has so many times the I/Os that the percentile needs, because an arm may be slower than its rate."""
_FEWEST_IOS = 100
"""The fewest I/Os in a slice."""


@dataclass(frozen=True, slots=True)
class PlannedSearch:
    """A search on the arms of `cells`, which have the workload at full speed. It follows the rounds of their group.

    `blocks` is the number of blocks of each rate in a round.
    """

    search: Search
    group: str
    cells: tuple[Cell, ...]
    blocks: int

    @property
    def id(self) -> str:
        """The name of the search's own rounds in the journal: `GROUP-search-NAME`."""
        return f"{self.group}-search-{self.search.name}"

    @property
    def job(self) -> Job:
        """The workload at full speed."""
        return self.cells[0].job

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms that are searched. The reference of an array only shows how far the array scales."""
        arms = (arm for cell in self.cells for arm in cell.arms if arm.place is not Place.REFERENCE)
        return tuple(dict.fromkeys(arms))

    def job_at(self, rate: int | None, speed: float, *, ramp: float) -> Job:
        """The job at this rate, or at full speed, about `speed` I/Os per second. Its slices have enough I/Os."""
        iops = rate if rate is not None else speed
        seconds = max(self.job.seconds, min(round(_ios(self.search) / iops, 3), LONGEST_SLICE))
        return replace(self.job, rate=rate, ramp=ramp, seconds=seconds)

    def limits(self, speed: float) -> SearchLimits:
        """The rates that can be measured on an arm with this full speed, in I/Os per second."""
        step = self.job.numjobs
        return SearchLimits(speed, lowest_rate(self.search, step), self.search.highest, step)

    @property
    def usual_seconds(self) -> float:
        """fio seconds of a search in which a slice at each rate has enough I/Os."""
        return USUAL_ROUNDS * self.blocks * len(self.arms) * self.job.wall

    def bytes_written(self, write_rate: int, place: int | None = None) -> float:
        """The bytes that the search writes at most to disks that write `write_rate` bytes per second.

        With `place`, only to the disk at this place of the scenario's disks.
        """
        if not self.job.writes:
            return 0.0
        places = [at for arm in self.arms for at in arm.places if place in (None, at)]
        return MOST_RATES * self.blocks * len(places) * max(self.job.wall * write_rate, _ios(self.search) * self.job.bs)


def lowest_rate(search: Search, numjobs: int) -> float:
    """The lowest rate at which a slice has enough I/Os, in I/Os per second of all processes together."""
    return max(_ios(search) / LONGEST_SLICE, 10.0 * numjobs)


def _ios(search: Search) -> float:
    """The I/Os of a slice."""
    return _MARGIN * max(METRICS[search.metric].fewest_ios, _FEWEST_IOS)


def planned_searches(
    searches: Iterable[Search], group: str, cells: Iterable[Cell], blocks: int
) -> Iterator[PlannedSearch]:
    """The searches on the cells of this group."""
    own = tuple(cells)
    for search in searches:
        if covered := tuple(cell for cell in own if search.covers(cell)):
            yield PlannedSearch(search, group, covered, max(blocks, FEWEST_SAMPLES))


def search_problems(scenario: Scenario) -> Iterator[str]:
    """One line for each search that cannot be measured, in the form of the schema's messages."""
    for search in scenario.searches:
        key = f"search.{search.name}"
        yield from _workload_problems(f"{key}.workload", search, scenario)
        fewest = math.ceil(lowest_rate(search, search.workload.numjobs))
        if search.highest is not None and search.highest < fewest:
            yield (
                f"{key}.highest = {search.highest}: too few I/Os per second for {search.metric}, which needs "
                f"{METRICS[search.metric].fewest_ios} I/Os in a slice; allowed: {fewest} or more"
            )
        depths = sorted({depth for profile in scenario.profiles for depth in profile.iodepth})
        if search.iodepth not in depths:
            allowed = ", ".join(map(str, depths))
            yield f"{key}.iodepth = {search.iodepth}: no profile measures at this depth; allowed: {allowed}"
        modes = [mode.name for mode in scenario.modes]
        for number, mode in enumerate(search.modes or ()):
            if mode not in modes:
                yield f"{key}.modes[{number}] = {shown(mode)}: not a mode of this scenario; {choices(mode, modes)}"


def _workload_problems(key: str, search: Search, scenario: Scenario) -> Iterator[str]:
    workload = search.workload
    at = f"{key} = {shown(workload.name)}"
    measured = [workload.name for workload in scenario.workloads]
    if workload.label is not None:
        yield f"{at}: has times and rates of its own; allowed: a pattern with a block size, for example randread-4k"
    elif workload.rate is not None:
        free = replace(workload, rate=None).name
        yield f"{at}: has a fixed rate, but a search sets the rates; allowed: {shown(free)}"
    elif workload.name not in measured:
        yield f"{at}: not a workload of this scenario; {choices(workload.name, measured)}"
