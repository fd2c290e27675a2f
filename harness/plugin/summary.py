"""What the user reads before and after a run, in the terminal, JUnit and failed assertions; the page of all hosts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harness.analysis import Verdict
from harness.calibrate.assess import common_slice
from harness.console import CleanConsole
from harness.errors import ResultsError
from harness.lab.inventory import HostSpec
from harness.measure.calibration import Calibration
from harness.measure.detectable import Detectable, SmallBudget
from harness.model.profile import Profile
from harness.report.budgets import gravest_first, limit, sentence
from harness.report.cells import confidence_words, sample_words
from harness.report.hosts import HostsView, write_hosts_page
from harness.report.numbers import blocks_of_boots, count, percent, percent_interval
from harness.report.short import print_run
from harness.results import CellRecord, RunStore
from harness.units import format_duration

MOST_NAMED = 3
"""Small budgets of a scenario that are named without -v."""
LEAST_GAIN = 0.05
"""A length of the slices is recommended if intervals would be narrower by this share."""


def smallest_lines(scenario: str, cells: Sequence[Detectable], *, verbose: bool) -> list[str]:
    """The smallest overhead that the cells of a scenario can show, and a warning for each budget below it.

    One line for all cells; with `verbose`, also one for each. Cells whose noise is not known are left out.
    """
    shown = sorted((each.share, number, each) for number, each in enumerate(cells) if each.share is not None)
    lines = []
    if shown:
        best, _, first = shown[0]
        worst, _, last = shown[-1]
        middle = shown[len(shown) // 2][0]
        sources = ", ".join(f"{name} ({number})" for name, number in Counter(each.source for *_, each in shown).items())
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
    warnings = list(_warnings(cells))
    named = warnings if verbose else warnings[:MOST_NAMED]
    rest = len(warnings) - len(named)
    return lines + named + ([f"  and {count(rest, 'further budget')} like these; -v names them"] if rest else [])


def slice_line(scenario: str, profile: Profile, disk: str, calibration: Calibration | None) -> list[str]:
    """A recommendation for the length of slices, if the calibration of this disk shows a better one than the profile's.

    `disk` is the identity of the scenario's disk. Another disk of the host may need another length.
    """
    if calibration is None or calibration.disk_identity != disk or not calibration.slices:
        return []
    best = common_slice(calibration.slices, against=profile.runtime)
    if best.gain < LEAST_GAIN:
        return []
    now, length = format_duration(profile.runtime), format_duration(best.seconds)
    gain = f"slices of {length} give {best.gain * 100:.0f} % narrower intervals in the same time"
    change = f'set runtime = "{length}" and blocks = {best.blocks(profile.blocks, profile.runtime)}'
    where = f"in [profile.{profile.name}] of the scenario"
    return [f"{scenario}: slices of {now} (profile {profile.name}); by the calibration, {gain}: {where}, {change}"]


def missing_line(host: HostSpec, cells: Sequence[Detectable], lab: str | None) -> list[str]:
    """How to find out what the cells of this host can show, if nothing is known about some of them.

    `lab` is the path of the lab file, None for the embedded lab.
    """
    unknown = sum(not cell.source for cell in cells)
    if not unknown:
        return []
    command = "virt-overhead calibrate" + (f" --lab={lab} --host={host.name}" if lab is not None else "")
    what = f"the smallest overhead that {count(unknown, 'cell')} can show is not known"
    return [f"{host.name}: {what}, because this host was never calibrated; run: {command}"]


def _warnings(cells: Sequence[Detectable]) -> Iterator[str]:
    for cell in cells:
        for small in cell.small_budgets:
            limit = f"{percent(small.budget.share)} % in {small.budget.metric}"
            yield (
                f"  {cell.cell.id}: the budget of {limit} is smaller than {percent(small.share)} %, "
                f"the smallest overhead that {blocks_of_boots(cell.blocks, cell.boots)} can show; {_remedy(small)}"
            )


def _remedy(small: SmallBudget) -> str:
    if small.seconds is None:
        return "no time is enough with this noise: find out what else the host does, or use longer slices (runtime)"
    return f"use --time={math.ceil(small.seconds / 60)}m, or a longer profile"


def cell_properties(record: CellRecord) -> list[tuple[str, object]]:
    """Properties of the cell's JUnit test case."""
    properties: list[tuple[str, object]] = [
        ("verdict", str(record.verdict)),
        ("rounds", len(set(record.rounds))),
        ("blocks", len(record.rounds)),
        ("boots", record.boot_count),
        ("confidence", record.confidence),
    ]
    for budget in record.budget:
        of = budget.metric if budget.difference is None else f"{budget.metric}.difference"
        properties.append((f"{of}.budget", limit(budget)))
        properties.append((f"{of}.verdict", str(budget.verdict)))
        if budget.p_value is not None:
            properties.append((f"{of}.p", budget.p_value))
    for name, metric in record.metrics.items():
        for arm in ("host", "twin", "against", "guest"):
            values = getattr(metric, arm)
            if values:
                properties.append((f"{name}.{arm}", sum(values) / len(values)))
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
    if record.verdict is Verdict.VOID:
        return f"{record.id} is void: {'; '.join(record.remarks)}"
    parts = [f"{budget.verdict}: {sentence(record, budget)}" for budget in gravest_first(record.budget)]
    if not parts and record.overhead is not None:
        found = f"{percent(record.overhead.point)} % {percent_interval(record.overhead)}".rstrip()
        parts.append(f"{record.verdict}: {record.headline_name} overhead {found}, no budget")
    if not parts:
        return f"{record.id}: {record.verdict}"
    basis = f"n = {sample_words(record)}, intervals hold with {confidence_words([record])}"
    return f"{record.id}: {'; '.join(parts)}; {basis}"


def write_summary(reporter: pytest.TerminalReporter, path: Path, *, verbose: bool) -> None:
    """The answers of a run and the path of its report; with `verbose`, also the table of its cells and all findings."""
    store = RunStore.open(path)
    run = store.read_results()
    reporter.section(f"overhead on {run.lab.host}, profile {run.run.profile}")
    width = 120 if not reporter.isatty() else reporter._tw.fullwidth
    console = CleanConsole(width=width, colours=reporter.hasmarkup)
    with console.capture() as capture:
        print_run(run, store.report_path, verbose=verbose, console=console)
    reporter.write(capture.get())


def write_hosts(reporter: pytest.TerminalReporter, runs: Sequence[Path]) -> None:
    """For several runs: a line for each host, and one page with all cells, beside the directories of the runs."""
    if len(runs) < 2:
        return
    try:
        view = HostsView.of([RunStore.open(path) for path in runs])
        page = runs[0].parent / f"hosts-{min(path.name for path in runs)}.html"
        write_hosts_page(view, page)
    except (ResultsError, OSError) as error:
        reporter.write_line(f"the page of all hosts cannot be written: {error}", red=True)
        return
    reporter.section(view.headline)
    for host in view.hosts:
        reporter.write_line(host.sentence)
    reporter.write_line(f"report of all hosts: {page}")
