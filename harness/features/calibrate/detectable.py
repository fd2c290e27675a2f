"""The smallest overhead that each cell of a plan can show, before anything is measured, and how the user reads it.

What is known about the noise of a cell is from earlier runs, else from the calibration.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from harness.analysis import CONFIDENCE, METRICS, Sequential, Verdict, log_ratios
from harness.config.names import RunId
from harness.errors import ResultsError
from harness.feature import PlannedRuns
from harness.features.calibrate.calibration import Calibration, blocks_of_boots, choose_common_slice, find_calibration
from harness.features.calibrate.noise import estimate_boot_variance, pool_sd, smallest_detectable
from harness.lab.inventory import HostSpec
from harness.model.mode import Budget, Cell, LabKind, lab_kind_of
from harness.model.workloads import Profile, find_profile
from harness.report.numbers import count, percent
from harness.scenario.legality import budgets_for
from harness.scenario.plan import MOST_ROUNDS, Plan
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group
from harness.units import format_duration

if TYPE_CHECKING:
    from harness.results import CellRecord, Run

LEAST_FREEDOM = 2
"""With fewer degrees of freedom (blocks less boots), the scatter of a cell is not known."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """The scatter of log(guest/host) in one metric of a cell.

    `sd` is the standard deviation of blocks within a boot, `sd_of_boots` that of the boots' true means; None if all
    blocks are of one boot.
    """

    sd: float
    sd_of_boots: float | None


def measure_scatter(record: CellRecord, metric: str) -> Scatter | None:
    """The scatter of a metric of the cell. None if it was not measured, in too few blocks, or with values of 0."""
    values = record.metrics.get(metric)
    host, guest = (values.samples(arm) for arm in ("host", "guest")) if values is not None else ((), ())
    if not guest or min(*host, *guest) <= 0:
        return None
    ratios = log_ratios(host, guest)
    labels = record.boots or (1,) * len(ratios)
    boots: dict[int, list[float]] = {}
    for boot, ratio in zip(labels, ratios, strict=False):
        boots.setdefault(boot, []).append(ratio)
    if len(labels) != len(ratios) or len(ratios) - len(boots) < LEAST_FREEDOM:
        return None
    if len(boots) == 1:
        return Scatter(pool_sd([ratios]), None)
    variance = estimate_boot_variance(boots.values())
    return Scatter(math.sqrt(variance.within), math.sqrt(variance.between))


MOST_NAMED = 3
"""Small budgets of a scenario that are named without -v."""
LEAST_GAIN = 0.05
"""A length of the slices is recommended if intervals would be narrower by this share."""
MOST_RUNS = 10
"""Earlier runs that are read, the newest first."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of log(guest/host) of a cell: standard deviations between blocks and between boots.

    `source` says in words where it comes from. `lab_kind` is the kind of lab there; None if it is not known.
    """

    sd: float
    sd_of_boots: float
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
        return cls(host, tuple(run for run in _open_runs(reports) if run.lab.host == host.name), calibration)

    def noise(self, cell: Cell, metric: str) -> Noise | None:
        """The noise of a metric of the cell. None if it is not known.

        It is that of the newest run with this cell: the same disk, mode and job, with slices of the same length. Else
        it is the calibration's noise of the job, or of all its jobs together. The calibration is not about percentiles.
        """
        boots = self.calibration.boots if self.calibration is not None else None
        sd_of_boots = boots.sd if boots is not None else 0.0
        if (earlier := self._earlier(cell)) is not None:
            run, record = earlier
            if (scatter := measure_scatter(record, metric)) is not None:
                boots_sd = scatter.sd_of_boots if scatter.sd_of_boots is not None else sd_of_boots
                return Noise(scatter.sd, boots_sd, f"run {run.run.id}", _read_lab_kind(run))
        if self.calibration is None or METRICS[metric].quantile is not None:
            return None
        by_job = self.calibration.noise_sd_by_job.get(cell.job.id)
        sd = self.calibration.noise_sd if by_job is None else by_job
        source = "calibration" if by_job is not None else "calibration with other jobs"
        return Noise(sd, sd_of_boots, source, self.calibration.lab_kind)

    def _earlier(self, cell: Cell) -> tuple[Run, CellRecord] | None:
        pairs = self._records.get(cell.id, ())
        return next(((run, record) for run, record in pairs if self._is_same(run, record, cell)), None)

    def _is_same(self, run: Run, record: CellRecord, cell: Cell) -> bool:
        """Whether this record of the cell is about the same disk, and counts."""
        if record.skipped is not None or record.verdict is Verdict.VOID:
            return False
        requested = run.provenance.get("asked")
        disk = requested.get(f"{cell.scenario}.disk.{cell.disk}") if isinstance(requested, dict) else None
        same_disk = any(
            measured_disk.name == cell.disk and measured_disk.identity == disk for measured_disk in self.host.measured
        )
        return same_disk and (record.job, record.mode_detail) == (cell.job, cell.mode.detail)


def _open_runs(reports: Path) -> Iterator[Run]:
    """The newest runs that can be read, the newest first. The name of a run begins with its date."""
    try:
        names = [path.name for path in reports.iterdir() if not path.is_symlink() and _is_run(path)]
    except OSError:  # There is no directory yet, or this user may not read it. Creating the run reports that.
        return
    for name in sorted(names, reverse=True)[:MOST_RUNS]:
        from harness.results import RunStore  # noqa: PLC0415 - only earlier runs need it

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


def _read_lab_kind(run: Run) -> LabKind | None:
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


def list_detectable(plan: Plan, scenario: Scenario, known: KnownNoise) -> list[Detectable]:
    """The smallest overhead of each cell of the plan that has a guest, in the order of the plan."""
    return [
        _judge_cell(plan, group, cell, scenario, known)
        for group in plan.groups
        for cell in group.cells
        if cell.mode.attach
    ]


def _judge_cell(plan: Plan, group: Group, cell: Cell, scenario: Scenario, known: KnownNoise) -> Detectable:
    rounds = plan.most_rounds_of(group)
    blocks, boots = _count_samples(plan, group, rounds)
    noise = known.noise(cell, cell.job.headline)
    if noise is None:
        return Detectable(cell, None, blocks, boots, "")
    share = _compute_share(plan, group, rounds, noise, cell.job.headline)
    budgets = budgets_for(scenario, cell, noise.lab_kind) if noise.lab_kind is not None else {}
    small = tuple(_list_small_budgets(plan, group, cell, budgets.values(), known))
    return Detectable(cell, share, blocks, boots, noise.source, small)


def _list_small_budgets(
    plan: Plan, group: Group, cell: Cell, budgets: Iterable[Budget], known: KnownNoise
) -> Iterator[SmallBudget]:
    """The budgets whose share the cell cannot show. A budget that an amount of time can also meet does not count."""
    for budget in budgets:
        noise = known.noise(cell, budget.metric)
        limit = budget.share
        if noise is None or limit is None or budget.both == "looser":
            continue
        share = _compute_share(plan, group, plan.most_rounds_of(group), noise, budget.metric)
        if share is not None and share > limit:
            yield SmallBudget(budget, share, _compute_seconds(plan, group, noise, budget.metric, limit))


def _compute_seconds(plan: Plan, group: Group, noise: Noise, metric: str, limit: float) -> float | None:
    """The time for measuring the plan in which the group has enough rounds to show an overhead of `limit`."""

    def shows(rounds: int) -> bool:
        share = _compute_share(plan, group, rounds, noise, metric)
        return share is not None and share <= limit

    numbers = range(plan.rounds, MOST_ROUNDS + 1)
    place = bisect_left(numbers, True, key=shows)
    if place == len(numbers):
        return None
    return plan.seconds_of(numbers[place])


def _compute_share(plan: Plan, group: Group, rounds: int, noise: Noise, metric: str) -> float | None:
    """The smallest overhead that these rounds show. The last look has only the rest of the probability of error."""
    blocks, boots = _count_samples(plan, group, rounds)
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
    )


def _count_samples(plan: Plan, group: Group, rounds: int) -> tuple[int, int]:
    """Blocks in each boot, and boots, of this number of rounds."""
    return (group.blocks, rounds) if plan.reboots(group) else (group.blocks * rounds, 1)


def announce(runs: PlannedRuns) -> Iterator[str]:
    """The smallest overhead that the cells of each plan can show, and a better length of its slices."""
    known: dict[str, KnownNoise] = {}
    by_host: dict[str, list[Detectable]] = {}
    for name, plan in runs.plans.items():
        host, scenario = runs.hosts[name], runs.scenarios[name]
        if host.name not in known:
            known[host.name] = KnownNoise.of(host, runs.reports, find_calibration(host))
        cells = list_detectable(plan, scenario, known[host.name])
        yield from describe_smallest(name, cells, verbose=runs.verbose)
        yield from describe_boots(name, plan, known[host.name])
        profile = find_profile(scenario.profiles, runs.profile)
        yield from describe_slice(name, profile, host.target(plan.disk).identity, known[host.name].calibration)
        by_host.setdefault(host.name, []).extend(cells)
    for host_name, cells in by_host.items():
        host = known[host_name].host
        yield from describe_missing(host, cells, None if host.kind == "embedded" else runs.lab)


def describe_smallest(scenario: str, cells: Sequence[Detectable], *, verbose: bool) -> list[str]:
    """The smallest overhead that the cells of a scenario can show, and a warning for each budget below it.

    One line for all cells; with `verbose`, also one for each. Cells whose noise is not known are left out.
    """
    shown = sorted((cell.share, number, cell) for number, cell in enumerate(cells) if cell.share is not None)
    lines = []
    if shown:
        best, _, first = shown[0]
        worst, _, last = shown[-1]
        middle = shown[len(shown) // 2][0]
        sources = ", ".join(f"{name} ({number})" for name, number in Counter(cell.source for *_, cell in shown).items())
        shares = f"{percent(best)} % ({first.cell.id})"
        if len(shown) > 1:
            shares += f" to {percent(worst)} % ({last.cell.id}), median {percent(middle)} %"
        lines.append(f"{scenario}: the smallest overhead that a cell can show is {shares}; noise from: {sources}")
        lines += [
            f"  {cell.cell.id}: {percent(cell.share)} % with {blocks_of_boots(cell.blocks, cell.boots)} ({cell.source})"
            for cell in cells
            if verbose and cell.share is not None
        ]
    if alone := [cell for cell in cells if cell.share is None and cell.source]:
        lines.append(f"{scenario}: {count(len(alone), 'cell')} with one block cannot show any overhead; use --rounds=3")
    warnings = list(_warn(cells))
    named = warnings if verbose else warnings[:MOST_NAMED]
    rest = len(warnings) - len(named)
    return lines + named + ([f"  and {count(rest, 'further budget')} like these; -v names them"] if rest else [])


def describe_boots(scenario: str, plan: Plan, known: KnownNoise) -> list[str]:
    """How much another boot may differ, if each guest is booted once and this is known of the host."""
    cells = [cell for group in plan.groups if not plan.reboots(group) for cell in group.cells if cell.mode.attach]
    noises = [noise for cell in cells if (noise := known.noise(cell, cell.job.headline)) is not None]
    sds = [noise.sd_of_boots for noise in noises if noise.sd_of_boots > 0]
    if not sds:
        return []
    change = percent(math.expm1(median(sds)))
    return [f"{scenario}: all blocks of a cell are of one boot; boots of this host differed by {change} %, as a rule"]


def describe_slice(scenario: str, profile: Profile, disk: str, calibration: Calibration | None) -> list[str]:
    """A recommendation for the length of slices, if the calibration of this disk shows a better one than the profile's.

    `disk` is the identity of the scenario's disk. Another disk of the host may need another length.
    """
    if calibration is None or calibration.disk_identity != disk or not calibration.slices:
        return []
    best = choose_common_slice(calibration.slices, against=profile.runtime)
    if best.gain < LEAST_GAIN:
        return []
    now, length = format_duration(profile.runtime), format_duration(best.seconds)
    gain = f"slices of {length} give {best.gain * 100:.0f} % narrower intervals in the same time"
    change = f'set runtime = "{length}" and blocks = {best.blocks(profile.blocks, profile.runtime)}'
    where = f"in [profile.{profile.name}] of the scenario"
    return [f"{scenario}: slices of {now} (profile {profile.name}); by the calibration, {gain}: {where}, {change}"]


def describe_missing(host: HostSpec, cells: Sequence[Detectable], lab: str | None) -> list[str]:
    """How to find out what the cells of this host can show, if nothing is known about some of them.

    `lab` is the path of the lab file, None for the embedded lab.
    """
    unknown = sum(not cell.source for cell in cells)
    if not unknown:
        return []
    command = "virt-overhead calibrate" + (f" --lab={lab} --host={host.name}" if lab is not None else "")
    what = f"the smallest overhead that {count(unknown, 'cell')} can show is not known"
    can_calibrate = host.disks and not host.hypervisor.why_no_devices
    remedy = f"run: {command}" if can_calibrate else "a calibration needs a disk that a guest may overwrite"
    return [f"{host.name}: {what}, because this host was never calibrated; {remedy}"]


def _warn(cells: Sequence[Detectable]) -> Iterator[str]:
    for cell in cells:
        for small in cell.small_budgets:
            limit = f"{percent(small.budget.share)} % in {small.budget.metric}"
            yield (
                f"  {cell.cell.id}: the budget of {limit} is smaller than {percent(small.share)} %, "
                f"the smallest overhead that {blocks_of_boots(cell.blocks, cell.boots)} can show; "
                f"{_suggest_remedy(small)}"
            )


def _suggest_remedy(small: SmallBudget) -> str:
    if small.seconds is None:
        return "no time is enough with this noise: find out what else the host does, or use longer slices (runtime)"
    return f"use --time={math.ceil(small.seconds / 60)}m, or a longer profile"
