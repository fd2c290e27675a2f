"""Connects pytest and the campaigns: creates a campaign per host for the selected cells, and returns their records."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.analysis import Verdict
from harness.config.names import RunId
from harness.errors import ConfigError, LabUnavailable, NotTried, Unsupported
from harness.events import Events
from harness.feature import PlannedRuns, RunLimit, RunSwitch, SessionRuns, embedded_lab, features, list_brought
from harness.lab.inventory import DiskById, DiskByStorage, HostSpec, withdraw_secrets
from harness.measure.phases import Phases, read_paces
from harness.model.mode import Cell
from harness.plugin.options import Options
from harness.scenario.plan import Plan, describe_plan, describe_plans, plan_for
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Paces, places_of
from harness.terminal import format_command

if TYPE_CHECKING:
    from harness.image import ImageSet
    from harness.measure.campaign import Campaign
    from harness.results import ArmName, CellRecord, RunStore
    from harness.results.assemble import Check


@dataclass
class Engine:
    """Measures the selected cells. It opens, builds and writes nothing before the first cell is requested."""

    options: Options
    scenarios: Mapping[str, Scenario]
    events: Events
    check: Check | None = None
    """What users and other plugins check of each cell."""
    plans: dict[str, Plan] = field(default_factory=dict)
    limit: RunLimit | None = None
    """The limit of the run, also that of a run which is resumed."""
    runs: list[Path] = field(default_factory=list)
    begun_by_workers: list[str] = field(default_factory=list)
    measured: int = 0
    unavailable: dict[str, str] = field(default_factory=dict)
    """The first cause why cells could not be measured, by host, or by scenario if no host has its disks."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why no host of the lab can measure the selected cells of a scenario, by the scenario's name."""
    late: list[str] = field(default_factory=list)
    """Cells that exceed their budget after the correction for all cells. Their own tests had ended before that."""
    undecided: dict[str, str] = field(default_factory=dict)
    """Why the run on a host judged nothing, by host."""
    _verdicts: dict[str, Verdict] = field(default_factory=dict)
    """The verdict that the test of each cell reported."""
    _campaigns: dict[str, Campaign] = field(default_factory=dict)
    _hosts: dict[str, HostSpec] = field(default_factory=dict)
    _limits: dict[str, dict[str, int]] = field(default_factory=dict)
    """By host, the bytes that the run may write to each disk."""
    _images: ImageSet | None = None

    def select(self, cells: Sequence[Cell]) -> None:
        """Plan these cells, and no others. Images are not built yet, and the lab is not started yet.

        Raises ConfigError if the lab has none of their disks, or if a run to resume has another host or profile. Raises
        ResultsError if there is no run to resume.
        """
        by_scenario: dict[str, list[Cell]] = {}
        for cell in cells:
            by_scenario.setdefault(cell.scenario, []).append(cell)
        problems: list[ConfigError] = []
        for name, chosen in by_scenario.items():
            try:
                self._hosts[name] = self.options.inventory.host_of_all(self._disks(name, chosen))
            except ConfigError as error:
                problems.append(error)
                self.left_out[name] = error.message
            else:
                guest, one_guest = self._hosts[name].guest, self._hosts[name].hypervisor.one_guest
                self.scenarios = {**self.scenarios, name: self.scenarios[name].on(guest, one_guest=one_guest)}
                by_name = {cell.mode.name: cell.mode for cell in chosen}
                modes = {key: mode.on(guest, one_guest=one_guest) for key, mode in by_name.items()}
                self.plans[name] = self._plan(name, [replace(cell, mode=modes[cell.mode.name]) for cell in chosen])
        if problems and not self.plans:
            raise problems[0]
        self._set_paces()
        self.limit = self.options.limit
        if self.options.resume is not None:
            from harness.measure.resume import choose_limit, earlier_part
            from harness.results import RunStore

            store = RunStore.open(self.options.resume)
            for host in {self._hosts[name].name for name in self.plans}:
                earlier, *_ = earlier_part(store, host, self.options.profile)
                self.limit = choose_limit(earlier, self.options.limit)
        if self.limit is not None:
            self._fit_plans(self.limit)

    def describe(self, *, verbose: bool) -> list[str]:
        """The lines before the run: each plan, and what features say about it."""
        lines = [f"{name}: {describe_plan(plan)}" for name, plan in self.plans.items()]
        by_name: dict[str, list[Plan]] = {}
        for name, plan in self.plans.items():
            by_name.setdefault(self._hosts[name].name, []).append(plan)
        lines += [f"{host_name}: {describe_plans(plans)}" for host_name, plans in by_name.items() if len(plans) > 1]
        if self.limit is not None:
            for name, plan in self.plans.items():
                lines += self.limit.describe(name, plan, self._hosts[name])
        runs = PlannedRuns(
            plans=self.plans,
            scenarios=self.scenarios,
            hosts={name: self._hosts[name] for name in self.plans},
            profile=self.options.profile,
            reports=self.options.reports,
            lab=self.options.inventory.source,
            verbose=verbose,
        )
        for feature in features():
            lines += feature.announce(runs)
        return lines + [f"{name}: will be skipped: {why}" for name, why in self.left_out.items()]

    def record(self, cell: Cell) -> CellRecord:
        """The cell's record, which is measured at the first request. Raises the error that stopped measuring."""
        host = self._hosts.get(cell.scenario)
        if host is None:
            why = f"{self.left_out[cell.scenario]}; therefore scenario {cell.scenario} is skipped"
            self.unavailable.setdefault(f"scenario {cell.scenario}", why)
            raise Unsupported(why)
        try:
            if host.name not in self._campaigns:
                if host.name in self.unavailable:
                    raise NotTried(f"not tried: {self.unavailable[host.name].partition(chr(10))[0]}")
                self._campaigns[host.name] = self._campaign(host)
            cell_record = self._campaigns[host.name].record(cell)
        except LabUnavailable as error:
            self.unavailable.setdefault(host.name, str(error))
            raise
        if cell_record.skipped:
            self.unavailable.setdefault(host.name, cell_record.skipped)
        self.measured += not cell_record.skipped
        self._verdicts[cell.id] = cell_record.verdict
        return cell_record

    def left_out_by_limit(self, cell: Cell) -> bool:
        """Whether the cell was not measured because of the limit of the bytes written."""
        campaign = self._campaigns.get(self._hosts[cell.scenario].name)
        return campaign is not None and cell.id in campaign.not_measured

    @property
    def without_verdict(self) -> dict[str, str]:
        """Why nothing was judged, by host, or by scenario if no host has its disks. Known at the end."""
        return self.undecided or ({} if self.runs else dict(self.unavailable) or {"run": "no cell was measured"})

    @property
    def session_runs(self) -> SessionRuns:
        return SessionRuns(tuple(self.runs), self.options.reports, self.options.inconclusive == "fail")

    def close(self, *, interrupted: bool) -> None:
        """End every campaign and write every report, also after an error.

        Raises the first error at the end, with the others as its notes.
        """
        failures: list[Exception] = []
        for campaign in self._campaigns.values():
            for end in (partial(self._end, campaign, interrupted=interrupted), partial(_write_page, campaign.store)):
                try:
                    end()
                except Exception as error:
                    failures.append(error)
            self.runs.append(campaign.store.path)
        self._campaigns = {}
        if failures:
            first, *others = failures
            for other in others:
                first.add_note(str(other) or type(other).__name__)
            raise first

    def list_begun(self) -> list[str]:
        """The directories of the runs that have begun to measure, and did not end."""
        begun = [str(run.store.path) for run in self._campaigns.values() if run.store.journal_path.exists()]
        return begun + self.begun_by_workers

    def _end(self, campaign: Campaign, *, interrupted: bool) -> None:
        run = campaign.close(interrupted=interrupted)
        if run.judged is None or run.judged.why is not None:
            self.undecided[run.lab.host] = run.judged.why if run.judged and run.judged.why else "nothing was judged"
        self.late += [
            cell.id
            for cell in run.cells
            if cell.verdict is Verdict.EXCEEDS and self._verdicts.get(cell.id) is Verdict.INCONCLUSIVE
        ]

    def _disks(self, name: str, cells: Sequence[Cell]) -> tuple[str, ...]:
        """The disks for these cells: the baseline's, and those of the selected arrays."""
        return tuple(self.scenarios[name].disks[place] for place in places_of(cells))

    def _set_paces(self) -> None:
        """Estimate the time of the plans by what the last runs on their hosts took."""
        for host in {host.name: host for host in self._hosts.values()}.values():
            mine = [name for name in self.plans if self._hosts[name] == host]
            simulated = host.simulated is not None
            running = host.kind == "embedded" and embedded_lab().is_running()
            known = Paces.of(read_paces(host), sorted(mine), simulated=simulated, running=running)
            for name in mine:
                plan = self.plans[name]
                disks = [disk for disk in host.disks if disk.name in plan.disks and isinstance(disk, DiskById)]
                iops = [disk.iops for disk in disks if disk.iops is not None]
                asked = (switch for switch in list_brought(RunSwitch) if switch.flag in self.options.switches)
                further = sum(switch.estimate_seconds(plan) for switch in asked)
                self.plans[name] = plan.on(known, min(iops, default=None), _offered(host, plan), further)

    def _fit_plans(self, limit: RunLimit) -> None:
        """Fit the plans of each host into the limit. Raises ConfigError."""
        for host in {host.name: host for host in self._hosts.values()}.values():
            of_host = {name: plan for name, plan in self.plans.items() if self._hosts[name] == host}
            fitted, self._limits[host.name] = limit.fit_plans(host, of_host)
            self.plans |= fitted

    def _plan(self, name: str, cells: Sequence[Cell]) -> Plan:
        plan = plan_for(self.scenarios[name], self.options.profile, cells)
        if not self._hosts[name].hypervisor.boots_guests:
            plan = replace(plan, reboot=False)
        if self.options.rounds:
            return plan.with_rounds(self.options.rounds)
        return plan.with_time(self.options.time) if self.options.time else plan

    def _campaign(self, host: HostSpec) -> Campaign:
        from harness.image import ensure_images
        from harness.measure.campaign import Campaign
        from harness.measure.host_measurer import HostMeasurer
        from harness.measure.resume import Earlier, earlier_part
        from harness.measure.series import CampaignSpec
        from harness.results import RunStore
        from harness.results.assemble import no_check

        # This must precede the first child process. The controller of pytest-xdist starts workers, but never gets here.
        withdraw_secrets(self.options.hosts)
        if self._images is None:
            self._images = ensure_images(self.events)
        mine = {name: plan for name, plan in self.plans.items() if self._hosts[name] == host}
        spec = CampaignSpec(
            run_id=RunId.new(),
            host=host,
            plans=tuple(mine.values()),
            scenarios={name: self.scenarios[name] for name in mine},
            profile=self.options.profile,
            seed=self.options.seed if self.options.seed is not None else random.SystemRandom().getrandbits(31),
            command=format_command(["pytest", *sys.argv[1:]]),
            check=self.check or no_check,
            max_writes=self.limit.text if self.limit else None,
            limits=self._limits.get(host.name, {}),
            switches=self.options.switches,
        )
        earlier = Earlier()
        if self.options.resume is None:
            store = RunStore.create(self.options.reports, spec.run_id)
        else:
            store = RunStore.open(self.options.resume)
            store.require_own()
            store.claim()
            earlier, run_id, seed = earlier_part(store, host.name, self.options.profile)
            spec = replace(spec, run_id=run_id, seed=seed)
        phases = Phases(self.events)
        return Campaign(spec, store, HostMeasurer(spec, store, self._images, phases), phases, earlier)


def _write_page(store: RunStore) -> None:
    from harness.report.html import write_report

    write_report(store)


def _offered(host: HostSpec, plan: Plan) -> tuple[str, ...] | None:
    """The kinds of layouts that the plan's storage in use offers; None if it may offer all, or is a disk."""
    target = host.target(plan.disk)
    return target.layouts if isinstance(target, DiskByStorage) else None


def cell_properties(record: CellRecord) -> list[tuple[str, object]]:
    """Properties of the cell's JUnit test case."""
    from harness.report.verdicts import format_limit

    properties: list[tuple[str, object]] = [
        ("verdict", str(record.verdict)),
        ("rounds", len(set(record.rounds))),
        ("blocks", len(record.rounds)),
        ("boots", record.boot_count),
        ("confidence", record.confidence),
    ]
    for budget in record.budget:
        of = budget.metric if budget.difference is None else f"{budget.metric}.difference"
        properties.append((f"{of}.budget", format_limit(budget)))
        properties.append((f"{of}.verdict", str(budget.verdict)))
        if budget.p_value is not None:
            properties.append((f"{of}.p", budget.p_value))
    for name, metric in record.metrics.items():
        arms: tuple[ArmName, ...] = ("host", "twin", "against", "guest")
        means = ((arm, record.mean(metric, arm)) for arm in arms)
        properties += [(f"{name}.{arm}", mean.point) for arm, mean in means if mean is not None]
        for what, estimate in (("overhead", metric.overhead), ("difference", metric.difference)):
            if estimate is not None:
                properties.append((f"{name}.{what}", estimate.point))
                if estimate.low is not None and estimate.high is not None:
                    properties.append((f"{name}.{what}.low", estimate.low))
                    properties.append((f"{name}.{what}.high", estimate.high))
    return properties


def explain(record: CellRecord) -> str:
    """Why a cell has its verdict, with the figures. Of several budgets, the worst verdict comes first.

    For example "CELL: exceeds: iops overhead 79.4 % [77.5, 81.2], budget 60 %, p < 0.0001; within: clat_p99 ...; n = 6
    blocks, intervals hold with 95 %".
    """
    from harness.report.numbers import confidence_words, percent, percent_interval, sample_words
    from harness.report.verdicts import describe_budget, gravest_first

    if record.verdict is Verdict.VOID:
        return f"{record.id} is void: {'; '.join(record.remarks)}"
    parts = [f"{budget.verdict}: {describe_budget(record, budget)}" for budget in gravest_first(record.budget)]
    if not parts and record.overhead is not None:
        found = f"{percent(record.overhead.point)} % {percent_interval(record.overhead)}".rstrip()
        parts.append(f"{record.verdict}: {record.headline_name} overhead {found}, no budget")
    if not parts:
        return f"{record.id}: {record.verdict}"
    basis = f"n = {sample_words(record)}, intervals hold with {confidence_words([record])}"
    return f"{record.id}: {'; '.join(parts)}; {basis}"


def write_summary(reporter: pytest.TerminalReporter, path: Path, *, verbose: bool) -> None:
    """The answers of a run and the path of its report; with `verbose`, also the table of its cells and all findings."""
    from harness.console import CleanConsole
    from harness.report.terminal import print_run
    from harness.results import RunStore

    store = RunStore.open(path)
    run = store.read_results()
    reporter.section(f"overhead on {run.lab.host}, profile {run.run.profile}")
    if run.run.status == "running":
        lacks = f"{store.results_path} may lack what was measured: it was not written at the end of the run"
        reporter.write_line(f"{lacks}. {store.journal_path.name} has it: continue with --resume={path}", red=True)
        if not run.cells:
            return
    width = 120 if not reporter.isatty() else reporter._tw.fullwidth
    console = CleanConsole(width=width, colours=reporter.hasmarkup)
    with console.capture() as capture:
        page = store.report_path if store.report_path.exists() else None
        print_run(run, page, verbose=verbose, console=console)
    reporter.write(capture.get())
    if run.run.status == "failed" and any(record.measured for record in run.cells):
        reporter.write_line(f"to measure the rest, add to the same command: --resume={path}")
