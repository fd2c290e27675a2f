"""`python -m tests.replay RUN` assembles the results of a recorded run again, and compares them with its results.json.

A refactoring must not change a figure. The real campaign runs, as if it resumed the run: it takes the rounds from the
journal, looks at them, decides which cells and rounds follow, and makes every record anew. Only the host is not there.
What a host, a guest and the clock contributed is taken from results.json:

* provenance, the lab, disks and their health, conditioning, the settings that were read back, why modes were skipped;
* `run`: command, start and end, phases, efficiency;
* notes on arms (storage, versions of fio) and on restarts of the lab: a note that only the recorded run has, if it is
  in all cells of the arm, or of the run;
* breakdowns and `writes`: the journal does not have their traces and counters.

Not replayed: fio's raw outputs, rounds that only a limit of time or bytes ended, runs with --max-writes, checks of a
project. The scenario's file must be the same as when the run was recorded: the campaign compares modes and profile.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import unescape
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import harness
from harness.config.names import RunId
from harness.console import CleanConsole
from harness.errors import MeasurementError
from harness.events import Events
from harness.feature import feature_records
from harness.features.embedded.lab_host import inventory as embedded_inventory
from harness.files import shipped
from harness.lab.inventory import HostSpec
from harness.lab.lab_file import load_lab
from harness.lab.transport.base import Runner
from harness.measure.campaign import Campaign
from harness.measure.phases import Phases
from harness.measure.resume import Earlier
from harness.measure.series import CampaignSpec, LabFound, OpenSession, PreparedGroup, RoundSegment
from harness.model.mode import lab_kind_of
from harness.model.option import Effective
from harness.report.html import render_html
from harness.report.markdown import markdown_table
from harness.report.terminal import overhead_table, summary_lines
from harness.results import Measurement, Run, RunStore
from harness.scenario.load import load_scenario
from harness.scenario.plan import Plan, expand, plan_for
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice

_COMPUTED = ("asked", "evaluation", "fio_files")
"""The provenance that the campaign makes from its plan. The rest is from the host."""
_FROM_CLOCK = ("command", "started", "finished", "phases", "efficiency")
WIDTH = 120
ROUNDING = 1e-9
"""The largest relative difference of two equal numbers. The rest of results.json is equal bit by bit."""


class Notes(NamedTuple):
    """Notes of the measurer: on all cells of the run, and by the id of an arm."""

    restarts: tuple[str, ...]
    of_arms: Mapping[str, tuple[str, ...]]


class StoredMeasurer:
    """Prepares groups as the stored run found them, and measures nothing."""

    def __init__(self, stored: Run, notes: Notes) -> None:
        self._stored = stored
        self._cells = {cell.id: cell for cell in stored.cells}
        self._notes = notes
        self.restarts: Sequence[str] = notes.restarts
        self.runner: Runner | None = None

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:
        stored = self._stored
        host = stored.provenance["host"]
        assert isinstance(host, dict)
        kind = lab_kind_of(stored.lab.accel, str(host["hypervisor"]))
        found = {key: value for key, value in stored.provenance.items() if key not in _COMPUTED}
        examined(LabFound(stored.lab, kind, found))
        cells = [(cell, self._cells[cell.id]) for cell in group.cells]
        effective: dict[str, Effective] = {}
        for cell, record in cells:
            # Guests that run at the same time have the same settings, which only the first one's record has.
            effective |= {mode.name: record.effective for mode in (*cell.mode.volumes[1:], cell.mode)}
        skipped = {cell.id: record.skipped for cell, record in cells if record.skipped is not None}
        groups = {each.id: each for each in stored.groups}
        conditioning = groups[group.id].conditioning
        assert conditioning is not None, f"{group.id} was not conditioned"
        return PreparedGroup(
            cells[0][1].span_bytes or plan.span,
            conditioning,
            unable=skipped,
            effective=effective,
            notes=dict(self._notes.of_arms),
        )

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:  # noqa: ARG002
        raise MeasurementError(f"{group.id}: the campaign wants round {segment.number}, which was not recorded")

    def use_session(self, work: Callable[[OpenSession], Any]) -> Any:
        raise MeasurementError(f"the campaign wants to measure {work}, which was not recorded")

    def start_again(self, error: Exception, what: str) -> None:  # noqa: ARG002
        raise error

    def boot_again(self) -> None:
        """There is no guest."""

    def round_measured(self) -> None:
        """No round is measured."""

    def close_session(self) -> None:
        """There is no session."""

    def close(self) -> None:
        """Nothing was built."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The run as recorded, and as the present code assembles it. `notes` were taken as recorded."""

    recorded: Run
    run: Run
    notes: Notes

    @property
    def differences(self) -> list[str]:
        """Each value of results.json that differs, with its path."""
        recorded, run = (json.loads(_text(of)) for of in (self.recorded, self.run))
        return list(_compare(recorded, run, ""))


def replay_run(directory: Path, scenarios: Path, lab: Path | None = None) -> Replayed:
    """Replay the run in `directory` with the files of `scenarios`. `lab` is its lab file; None for the embedded lab."""
    recorded = RunStore.open(directory).read_results()
    inventory = load_lab(lab) if lab is not None else embedded_inventory()
    host = next(host for host in inventory.hosts if host.name == recorded.lab.host)
    spec = _spec(recorded, host, {name: load_scenario(scenarios / f"{name}.toml") for name in recorded.run.scenarios})
    run = _campaign(directory, recorded, spec, Notes((), {}))
    notes = _notes_of_measurer(recorded, run, spec)
    return Replayed(recorded, _campaign(directory, recorded, spec, notes) if any(notes) else run, notes)


def overhead_text(run: Run, *, width: int) -> str:
    """The table as plain text, without colours."""
    console = CleanConsole(width=width, tables_only=True)
    with console.capture() as capture:
        console.print(overhead_table(run, width=width))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def render_run(run: Run) -> dict[str, str]:
    """The report as text by file name: the words of the page, the terminal's table and lines, and Markdown."""
    page = render_html(run)
    words = re.sub(r"<(script|style)\b.*?</\1>|<!--.*?-->", " ", page, flags=re.DOTALL)
    lines = (re.sub(r"\s+", " ", unescape(line)).strip() for line in re.split(r"<[^>]*>", words))
    return {
        "page.html": page,
        "page.txt": "\n".join(filter(None, lines)) + "\n",
        "terminal.txt": overhead_text(run, width=WIDTH) + "\n" + "\n".join(summary_lines(run)) + "\n",
        "report.md": markdown_table(run),
    }


def _spec(recorded: Run, host: HostSpec, scenarios: Mapping[str, Scenario]) -> CampaignSpec:
    one_guest = host.hypervisor.one_guest
    found = {name: scenario.on(host.guest, one_guest=one_guest) for name, scenario in scenarios.items()}
    return CampaignSpec(
        run_id=RunId(recorded.run.id),
        host=host,
        plans=tuple(_plan(recorded, scenario, host) for scenario in found.values()),
        scenarios=found,
        profile=recorded.run.profile,
        seed=recorded.run.seed,
        command=recorded.run.command,
        switches=frozenset({"--breakdown"} if recorded.of_features.get("breakdowns") else ()),
    )


def _plan(recorded: Run, scenario: Scenario, host: HostSpec) -> Plan:
    """The plan for the cells that the run measured, with its numbers of rounds."""
    ids = {cell.id for cell in recorded.cells}
    cells = [cell for cell in expand(scenario, recorded.run.profile) if cell.id in ids]
    evaluations: Any = recorded.provenance["evaluation"]
    own = evaluations[scenario.name]
    plan = plan_for(scenario, recorded.run.profile, cells)
    return replace(
        plan,
        reboot=plan.reboot and host.hypervisor.boots_guests,
        **{key: own[key] for key in ("rounds", "most_rounds", "target", "time_limit")},
    )


def _campaign(directory: Path, recorded: Run, spec: CampaignSpec, notes: Notes) -> Run:
    """The run as the campaign assembles it from the journal and what the host contributed."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / directory.resolve().name
        copy.mkdir(mode=0o700)
        shutil.copy(directory / "journal.jsonl", copy)
        (copy / "raw").mkdir(mode=0o700)
        # Without an evaluation, everything is evaluated again. Only what the journal does not have is taken over.
        provenance = {key: value for key, value in recorded.provenance.items() if key != "evaluation"}
        kept = {of.key: recorded.of_features.get(of.key, ()) for of in feature_records() if not of.in_journal}
        bare = replace(recorded, provenance=provenance, cells=(), groups=(), of_features=kept)
        RunStore.open(copy).write_results(bare)
        store = RunStore.open(copy)
        phases = Phases(Events())
        earlier = Earlier(store.read_journal(), store.read_results())
        # A run whose raw outputs are missing cannot be resumed. A replay does not read them, and archives lack them.
        for measurement in earlier.journal.measurements:
            (copy / measurement.raw).touch()
        campaign = Campaign(spec, store, StoredMeasurer(recorded, notes), phases, earlier)
        try:
            for plan in spec.plans:
                for cell in plan.cells:
                    campaign.record(cell)
        finally:
            campaign.close(interrupted=False)
        run = store.read_results()
    return replace(run, run=replace(run.run, **{key: getattr(recorded.run, key) for key in _FROM_CLOCK}))


def _notes_of_measurer(recorded: Run, run: Run, spec: CampaignSpec) -> Notes:
    """The notes that only the recorded run has: those in all its cells, and those in all cells of an arm."""
    lacking = {
        stored.id: [note for note in stored.notes if note not in cell.notes]
        for stored, cell in zip(recorded.cells, run.cells, strict=True)
    }
    everywhere = tuple(note for note in next(iter(lacking.values()), ()) if all(note in of for of in lacking.values()))
    cells_of: dict[str, list[str]] = {}
    for plan in spec.plans:
        for cell in plan.cells:
            for arm in cell.arms:
                cells_of.setdefault(arm.id, []).append(cell.id)
    of_arms: dict[str, tuple[str, ...]] = {}
    taken = set(everywhere)
    for name, cells in sorted(cells_of.items(), key=lambda item: -len(item[1])):
        of_arms[name] = tuple(
            note for note in lacking[cells[0]] if note not in taken and all(note in lacking[cell] for cell in cells)
        )
        taken |= set(of_arms[name])
    return Notes(everywhere, {name: notes for name, notes in of_arms.items() if notes})


def _text(run: Run) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        store = RunStore.open(Path(scratch))
        store.write_results(run)
        return store.results_path.read_text()


def _compare(before: Any, after: Any, path: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            yield from _compare(before.get(key), after.get(key), f"{path}.{key}")
        if list(before) != list(after) and before.keys() == after.keys():
            yield f"{path}: the order of the keys was {list(before)}, is {list(after)}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            name = one.get("id", number) if isinstance(one, dict) else number
            yield from _compare(one, other, f"{path}[{name}]")
    elif isinstance(before, float) and isinstance(after, float):
        # The libraries of linear algebra round differently on different CPUs.
        if not math.isclose(before, after, rel_tol=ROUNDING) and not (math.isnan(before) and math.isnan(after)):
            yield f"{path}: was {before!r}, is {after!r}"
    elif before != after or type(before) is not type(after):
        yield f"{path}: was {before!r}, is {after!r}"


def find_modules_used(work: Callable[[], object]) -> set[str]:
    """The modules of the harness, as paths, of which `work` calls a function; not those that it only imports.

    What the body of a module calls is part of its import.
    """
    root = str(Path(harness.__file__).parent)
    codes: set[CodeType] = set()

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_back is not None and frame.f_back.f_code.co_flags & inspect.CO_OPTIMIZED:
            codes.add(frame.f_code)

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return {
        code.co_filename.removeprefix(f"{root}/")
        for code in codes
        if code.co_filename.startswith(root) and code.co_flags & inspect.CO_OPTIMIZED
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="the directory of a recorded run")
    parser.add_argument("--scenarios", metavar="DIR", type=Path, default=shipped("scenarios"))
    parser.add_argument("--lab", metavar="FILE", type=Path, help="the run's lab file (default: the embedded lab)")
    parser.add_argument(
        "--rendered",
        metavar="DIR",
        type=Path,
        help="compare the reports with those in DIR/RUN; write those that are not there yet",
    )
    parser.add_argument(
        "--path",
        action="store_true",
        help="only print the modules that work from a scenario's file to the lines at the end of the run",
    )
    options = parser.parse_args(arguments)
    equal = True
    for directory in options.runs:
        if options.path:
            used = find_modules_used(partial(_replay_to_lines, directory, options.scenarios, options.lab))
            print(*sorted(used), f"{len(used)} modules", sep="\n")
            continue
        replayed = replay_run(directory, options.scenarios, options.lab)
        changes = replayed.differences
        rendered = render_run(replayed.recorded)
        if options.rendered is not None:
            changes += _compare_reports(rendered, options.rendered / replayed.recorded.run.id)
        equal = equal and not changes
        taken = len(replayed.notes.restarts) + len(replayed.notes.of_arms)
        words = f"{len(changes)} differences" if changes else "equal"
        print(f"{directory}: {len(replayed.run.cells)} cells, {taken} notes taken as recorded: {words}")
        print(*(f"  {change[:400]}" for change in changes[:40]), sep="\n", end="\n" if changes else "")
    return 0 if equal else 1


def _replay_to_lines(directory: Path, scenarios: Path, lab: Path | None) -> list[str]:
    return summary_lines(replay_run(directory, scenarios, lab).run)


def _compare_reports(rendered: Mapping[str, str], stored: Path) -> Iterator[str]:
    stored.mkdir(parents=True, exist_ok=True)
    for name, text in rendered.items():
        before = stored / name
        if not before.exists():
            before.write_text(text)
        elif before.read_text() != text:
            after = stored / f"{name}.new"
            after.write_text(text)
            yield f"{name} differs: diff {before} {after}"


if __name__ == "__main__":
    sys.exit(main())
