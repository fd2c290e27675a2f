"""The smallest overhead that each cell of a plan can show, from the noise that earlier runs and the calibration saw."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.analysis import METRICS, Sequential, Verdict, smallest_detectable
from harness.errors import ResultsError
from harness.lab.hosts import lab_kind_of
from harness.lab.inventory import HostSpec
from harness.measure.calibration import Calibration
from harness.model.budget import Budget, LabKind
from harness.model.cell import Cell
from harness.results import CONFIDENCE, CellRecord, Run, RunStore
from harness.results.contrasts import scatter_of
from harness.run_id import RunId
from harness.scenario.legality import budgets_for
from harness.scenario.plan import MOST_ROUNDS, Plan
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group

MOST_RUNS = 10
"""Earlier runs that are read, the newest first."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of log(guest/host) of a cell: standard deviations between blocks and between boots, and correlation.

    `source` says in words where it comes from. `lab_kind` is the kind of lab there; None if it is not known.
    """

    sd: float
    sd_of_boots: float
    correlation: float
    source: str
    lab_kind: LabKind | None


@dataclass(frozen=True, slots=True)
class KnownNoise:
    """The noise of the cells of one host. `runs` are its earlier runs, the newest first."""

    host: HostSpec
    runs: Sequence[Run] = ()
    calibration: Calibration | None = None
    _records: dict[str, list[tuple[Run, CellRecord]]] = field(default_factory=dict, init=False)
    """The records of all runs by the id of the cell, the newest first."""

    def __post_init__(self) -> None:
        for run in self.runs:
            for record in run.cells:
                self._records.setdefault(record.id, []).append((run, record))

    @classmethod
    def of(cls, host: HostSpec, reports: Path, calibration: Calibration | None) -> KnownNoise:
        """What the runs in the directory `reports` and the calibration show. Runs that cannot be read do not count."""
        return cls(host, tuple(run for run in _read_runs(reports) if run.lab.host == host.name), calibration)

    def noise(self, cell: Cell, metric: str) -> Noise | None:
        """The noise of a metric of the cell. None if it is not known.

        It is that of the newest run with this cell: the same disk, mode and job, with slices of the same length. Else
        it is the calibration's noise of the job, or of all its jobs together. The calibration is not about percentiles.
        """
        boots = self.calibration.boots if self.calibration is not None else None
        sd_of_boots = boots.sd if boots is not None else 0.0
        if (earlier := self._earlier(cell)) is not None:
            run, record = earlier
            if (scatter := scatter_of(record, metric)) is not None:
                of_boots = scatter.sd_of_boots if scatter.sd_of_boots is not None else sd_of_boots
                return Noise(scatter.sd, of_boots, scatter.correlation, f"run {run.run.id}", _lab_kind(run))
        if self.calibration is None or METRICS[metric].quantile is not None:
            return None
        by_job = self.calibration.noise_sd_by_job.get(cell.job.id)
        sd = self.calibration.noise_sd if by_job is None else by_job
        source = "calibration" if by_job is not None else "calibration with other jobs"
        return Noise(sd, sd_of_boots, 0.0, source, self.calibration.lab_kind)

    def _earlier(self, cell: Cell) -> tuple[Run, CellRecord] | None:
        pairs = self._records.get(cell.id, ())
        return next(((run, record) for run, record in pairs if self._is_same(run, record, cell)), None)

    def _is_same(self, run: Run, record: CellRecord, cell: Cell) -> bool:
        """Whether this record of the cell is about the same disk, and counts."""
        if record.skipped is not None or record.verdict is Verdict.VOID:
            return False
        requested = run.provenance.get("asked")
        disk = requested.get(f"{cell.scenario}.disk.{cell.disk}") if isinstance(requested, dict) else None
        same_disk = any(target.name == cell.disk and target.identity == disk for target in self.host.measured)
        return same_disk and (record.job, record.mode_detail) == (cell.job, cell.mode.detail)


def _read_runs(reports: Path) -> Iterator[Run]:
    """The newest runs that can be read, the newest first. The name of a run begins with its date."""
    try:
        names = [path.name for path in reports.iterdir() if not path.is_symlink() and _is_run(path)]
    except OSError:  # There is no directory yet, or this user may not read it. Creating the run reports that.
        return
    for name in sorted(names, reverse=True)[:MOST_RUNS]:
        try:
            yield RunStore.open(reports / name).read_results()
        except ResultsError:
            continue


def _is_run(path: Path) -> bool:
    try:
        RunId(path.name)
    except ValueError:
        return False
    return path.is_dir()


def _lab_kind(run: Run) -> LabKind | None:
    """The kind of lab of a run; None if the run does not have the properties of its host."""
    host = run.provenance.get("host")
    return lab_kind_of(run.lab.accel, str(host.get("hypervisor", ""))) if isinstance(host, dict) else None


@dataclass(frozen=True, slots=True)
class SmallBudget:
    """A budget that is smaller than the smallest overhead that the cell can show, `share`.

    `seconds` is the time for measuring the scenario in which the cell could show it; None if no time is enough.
    """

    budget: Budget
    share: float
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Detectable:
    """The smallest overhead that a cell can show in its headline metric, as a share, with a probability of 80 %.

    It needs all rounds that the plan allows: `blocks` in each of `boots`. None if the noise is not known, or if there
    is only one sample.
    """

    cell: Cell
    share: float | None
    blocks: int
    boots: int
    source: str
    small_budgets: tuple[SmallBudget, ...] = ()


def detectable(plan: Plan, scenario: Scenario, known: KnownNoise) -> list[Detectable]:
    """The smallest overhead of each cell of the plan that has a guest, in the order of the plan."""
    return [
        _of_cell(plan, group, cell, scenario, known)
        for group in plan.groups
        for cell in group.cells
        if cell.mode.attach
    ]


def _of_cell(plan: Plan, group: Group, cell: Cell, scenario: Scenario, known: KnownNoise) -> Detectable:
    rounds = plan.most_rounds_of(group)
    blocks, boots = _samples(plan, group, rounds)
    noise = known.noise(cell, cell.job.headline)
    if noise is None:
        return Detectable(cell, None, blocks, boots, "")
    share = _share(plan, group, rounds, noise, cell.job.headline)
    budgets = budgets_for(scenario, cell, noise.lab_kind) if noise.lab_kind is not None else {}
    small = tuple(_too_small(plan, group, cell, budgets.values(), known))
    return Detectable(cell, share, blocks, boots, noise.source, small)


def _too_small(
    plan: Plan, group: Group, cell: Cell, budgets: Iterable[Budget], known: KnownNoise
) -> Iterator[SmallBudget]:
    """The budgets whose share the cell cannot show. A budget that an amount of time can also meet does not count."""
    for budget in budgets:
        noise = known.noise(cell, budget.metric)
        limit = budget.share
        if noise is None or limit is None or budget.both == "looser":
            continue
        share = _share(plan, group, plan.most_rounds_of(group), noise, budget.metric)
        if share is not None and share > limit:
            yield SmallBudget(budget, share, _seconds(plan, group, noise, budget.metric, limit))


def _seconds(plan: Plan, group: Group, noise: Noise, metric: str, limit: float) -> float | None:
    """The time for measuring the plan in which the group has enough rounds to show an overhead of `limit`."""

    def shows(rounds: int) -> bool:
        share = _share(plan, group, rounds, noise, metric)
        return share is not None and share <= limit

    numbers = range(plan.rounds, MOST_ROUNDS + 1)
    place = bisect_left(numbers, True, key=shows)
    if place == len(numbers):
        return None
    return plan.seconds_of(numbers[place])


def _share(plan: Plan, group: Group, rounds: int, noise: Noise, metric: str) -> float | None:
    """The smallest overhead that these rounds show. The last look has only the rest of the probability of error."""
    blocks, boots = _samples(plan, group, rounds)
    if blocks * boots < 2:
        return None
    look = Sequential(min(plan.rounds, rounds), rounds, CONFIDENCE).look(rounds, final=True)
    return smallest_detectable(
        noise.sd,
        blocks,
        confidence=look.confidence if look is not None else CONFIDENCE,
        higher_is_better=METRICS[metric].higher_is_better,
        boots=boots,
        sd_of_boots=noise.sd_of_boots,
        correlation=noise.correlation,
    )


def _samples(plan: Plan, group: Group, rounds: int) -> tuple[int, int]:
    """Blocks in each boot, and boots, of this number of rounds."""
    return (group.blocks, rounds) if plan.reboots(group) else (group.blocks * rounds, 1)
