"""What a run is asked for, and the resuming of a run if neither that nor its host has changed.

The complete rounds of a run that was interrupted or killed count. A round that was not finished does not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from harness.config.names import RunId
from harness.errors import ConfigError, ResultsError
from harness.feature import (
    FeatureLimit,
    FeatureTables,
    RunLimit,
    feature_records,
    find_brought,
    list_brought,
)
from harness.measure.recorder import BUILT_AT
from harness.measure.series import CampaignSpec
from harness.model.mode import Budget, Mode, ModeDetail
from harness.model.values import STORED
from harness.model.workloads import find_profile
from harness.results import FIO_FILES, Journal, Measurement, Run, RunStore
from harness.results.records import comparable_fact
from harness.scenario.scenario import Scenario
from harness.untrusted import CLOCKS_DIFFER_SECONDS, adapt


def dump_mode(mode: Mode) -> JsonValue:
    return _record(mode.detail)


def normalise_mode(stored: JsonValue) -> JsonValue:
    """A stored mode as `dump_mode` returns it now: with the defaults of options that the run's version did not have.

    A mode that cannot be read stays as it is, so it differs from every mode.
    """
    try:
        return _record(adapt(ModeDetail).validate_python(stored, context=STORED))
    except (ValueError, RecursionError):
        return stored


def _record(mode: ModeDetail) -> JsonValue:
    record: JsonValue = adapt(ModeDetail).dump_python(mode, mode="json")
    return record


_SAME = {"host": "host", "images": "images", "acceleration": "acceleration", "asked": "scenario or lab file"}
"""The provenance that must not change, because otherwise the rounds would not be comparable. Values are words."""


_OF_PROFILE = ("ramp", "runtime", "blocks", "span", "conditioning", "reboot")
"""What in a profile must not change either."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier part of the run stored. Empty for a new run."""

    journal: Journal = field(default_factory=Journal)
    run: Run | None = None

    def rounds(self, group: str) -> list[list[Measurement]]:
        """The group's complete rounds, sorted by number: those that have all measurements that they began with."""
        whole = self.journal.whole(group)
        rounds: dict[int, list[Measurement]] = {}
        for measurement in self.journal.of_group(group):
            if measurement.round in whole:
                rounds.setdefault(measurement.round, []).append(measurement)
        return [rounds[number] for number in sorted(rounds)]

    def seconds(self, group: str, until: int | None = None) -> float:
        """Seconds for which the group was measured, up to round `until` or in total, also in rounds that do not count.

        The time between rounds is not in the journal and does not count.
        """
        processes: dict[int, dict[float, float]] = {}
        for measurement in self.journal.of_group(group):
            if until is None or measurement.round <= until:
                ran = processes.setdefault(measurement.round, {})
                ran[measurement.started] = ran.get(measurement.started, 0.0) + measurement.wall
        return sum(max(start + wall for start, wall in ran.items()) - min(ran) for ran in processes.values())

    def finished(self, spec: CampaignSpec) -> bool:
        """Whether everything in `spec` was measured completely, with the same evaluation."""
        if self.run is None or self.run.provenance.get("evaluation") != describe_evaluation(spec):
            return False
        if self.run.run.max_writes != spec.max_writes:
            return False
        before, now = _select_common(self.run.provenance.get("asked"), requested(spec))
        if before != now:
            return False
        ended = {group.id for group in self.run.groups if group.stopped is not None}
        skipped = {cell.id: cell.skipped is not None for cell in self.run.cells}
        for kind in feature_records():
            records: tuple[Any, ...] = self.run.of(kind.record)
            ended |= {record.id for record in records if kind.ends_follow_up(record)}
        further = [follow_up for plan in spec.plans for follow_up in plan.follow_ups]
        if not all(more.id in ended or all(skipped.get(cell.id) for cell in more.cells) for more in further):
            return False
        return all(
            cell.id in skipped and (group.id in ended or skipped[cell.id])
            for plan in spec.plans
            for group in plan.groups
            for cell in group.cells
        )

    def require_same(self, now: Mapping[str, JsonValue]) -> None:
        """Raise ConfigError if something in `now` (host, images, what is requested) has changed."""
        stored = self.run.provenance if self.run is not None else {}
        for key, what in _SAME.items():
            if key not in now or key not in stored:
                continue
            before, after = stored.get(key), now[key]
            if key == "asked":
                before, after = _select_common(before, after)
            elif key == "host" and isinstance(before, dict) and isinstance(after, dict):
                # Later versions read more facts.
                after = {name: value for name, value in after.items() if name in before}
            if changes := "; ".join(_list_differences(before, after)):
                raise ConfigError(
                    f"the run cannot be resumed: its {what} changed: {changes}",
                    hint="start a new run, without --resume",
                )


def requested(spec: CampaignSpec) -> dict[str, JsonValue]:
    """The values in scenarios, profile and lab file that decide what a round measures, by `SCENARIO.KEY`.

    Workloads and depths are not included, because they are in the names of the jobs; only the digests of fio files are.
    The number of rounds and the budgets are not included, because they may change when a run is resumed.
    """
    facts: dict[str, JsonValue] = {}
    for name, scenario in spec.scenarios.items():
        profile = find_profile(scenario.profiles, spec.profile)
        facts |= {f"{name}.{key}": getattr(profile, key) for key in _OF_PROFILE}
        disks = [disk for disk in spec.host.measured if disk.name in scenario.disks]
        facts |= {f"{name}.disk.{disk.name}": disk.identity for disk in disks}
        facts |= {f"{name}.mode.{mode.name}": dump_mode(mode) for mode in scenario.modes}
        facts |= {f"{name}.file.{file.path}": f"sha256 {file.sha256}" for file in scenario.fio_files}
    return facts


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The settings of a scenario for the number of rounds and for judging. The first four are those of the plan."""

    rounds: int
    most_rounds: int
    target: float | None
    time_limit: float | None
    budgets: tuple[Budget, ...]


def describe_evaluation(spec: CampaignSpec) -> dict[str, JsonValue]:
    """The evaluation of each scenario, as plain JSON. It may change when a run is resumed."""
    plans = {group.scenario: plan for plan in spec.plans for group in plan.groups}
    scenarios = {name: spec.scenarios[name] for name in plans}
    return {
        name: adapt(Evaluation).dump_python(
            Evaluation(
                plan.rounds,
                plan.most_rounds,
                plan.target,
                plan.time_limit,
                scenarios[name].budgets,
            ),
            mode="json",
        )
        | _list_requests(scenarios[name])
        for name, plan in plans.items()
    }


def earlier_part(store: RunStore, host: str, profile: str) -> tuple[Earlier, RunId, int]:
    """The contents of the stored run, its id and its seed. The id does not depend on the name of the directory.

    Raises ConfigError if the run has another host or profile, and ResultsError if its id is not valid, if another user
    could change it, or if it cannot be continued without losing or mixing up what was measured.
    """
    store.require_own()
    run = store.read_results()
    try:
        run_id = RunId(run.run.id)
    except ValueError as error:
        raise ResultsError(
            f"{store.results_path}: run.id = {error}",
            hint="the file was changed; restore it from a backup, or start a new run, without --resume",
        ) from None
    for what, then, now in (("host", run.lab.host, host), ("profile", run.run.profile, profile)):
        if then != now:
            raise ConfigError(
                f"{store.path} cannot be resumed: its {what} is {then}, not {now}",
                hint=f"use --{what}={then}, or start a new run, without --resume",
            )
    return _read_earlier(store, run), run_id, run.run.seed


def _read_earlier(store: RunStore, run: Run) -> Earlier:
    """The run with its journal, in which each measurement is once. Raises ResultsError if they are not of one run."""
    journal = store.read_journal()
    once = {
        (slice_.arm, slice_.repeat, slice_.job, slice_.started, slice_.raw): slice_ for slice_ in journal.measurements
    }
    journal = replace(journal, measurements=tuple(once.values()))
    for path in (store.path, store.path / "raw", store.journal_path):
        if path.exists() and not os.access(path, os.W_OK):
            raise ResultsError(
                f"{store.path} cannot be resumed: {path} is read-only",
                hint="make it writable for this user (chmod, mount -o remount,rw), or resume a copy (cp -r)",
            )
    if damage := next(_find_damage(store, run, journal), None):
        raise ResultsError(
            f"{store.path} cannot be resumed: {damage}",
            hint="restore it from a backup as a whole; or keep it as it is (virt-overhead report shows it) and start a "
            "new run, without --resume",
        )
    return Earlier(journal, run)


def _find_damage(store: RunStore, run: Run, journal: Journal) -> Iterator[str]:
    """Why resuming the run would lose what it measured, or count what it did not measure."""
    for group in run.groups:
        whole = journal.whole(group.id)
        if lost := sorted(set(group.rounds) - whole):
            yield f"its {store.journal_path.name} lacks {_list_rounds(lost)} of {group.id}, but its results have them"
        if counted := sorted(set(group.abandoned) & whole):
            what = f"{_list_rounds(counted)} of {group.id}"
            yield f"its results have abandoned {what}, but its {store.journal_path.name} lacks that"
    for slice_ in journal.misplaced():
        at = _find_line(store, slice_)
        of = f"{slice_.job} by {slice_.arm}, block {slice_.block}"
        yield f"line {at} of {store.journal_path.name} ({of}) was not planned in round {slice_.round} of {slice_.group}"
    for slice_ in journal.measurements:
        of = f"a measurement of {slice_.job} in round {slice_.round} of {slice_.group}"
        if not (store.path / slice_.raw).is_file():
            yield f"fio's output of {of} is missing, {slice_.raw}; or it is of another run"
        if slice_.started > time.time() + CLOCKS_DIFFER_SECONDS:
            yield f"{of} began in the future: {store.journal_path.name} or the clock of this machine is wrong"


def _find_line(store: RunStore, slice_: Measurement) -> int:
    """The number of the last line of the journal that is this measurement. Many have the same output of fio."""
    lines = store.journal_path.read_bytes().splitlines()
    for number in range(len(lines), 0, -1):
        with suppress(ValidationError):
            if adapt(Measurement).validate_json(lines[number - 1]) == slice_:
                return number
    return len(lines)


def _list_rounds(numbers: Sequence[int]) -> str:
    return f"round{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def claim_run(store: RunStore, earlier: Earlier) -> Earlier:
    """The earlier part of a run that this process has taken for itself: as it is now, if it was read before that.

    Raises ResultsError if another process still measures it.
    """
    if store.claim() and earlier.run is not None:
        return _read_earlier(store, store.read_results())
    return earlier


def choose_limit(earlier: Earlier, requested: RunLimit | None) -> RunLimit | None:
    """The limit of the bytes written of a run that is resumed: the requested one, else that of the stored run.

    Raises ConfigError if a limit is requested for a run whose bytes were not counted from its beginning.
    """
    stored = earlier.run.run.max_writes if earlier.run is not None else None
    limit = find_brought(FeatureLimit)
    if limit is None:
        if stored is not None:
            raise ConfigError(
                f"the run has a limit of the bytes written ({stored}), which this installation cannot keep"
            )
        return None
    if requested is None:
        return limit.parse(stored) if stored is not None else None
    if stored is None:
        raise ConfigError(
            f"{limit.flag}={requested.text} cannot be used with --resume of a run that had no limit: "
            "the bytes that it wrote were not counted",
            hint=f"start a new run with {limit.flag}, or resume this one without it",
        )
    return requested


def _list_requests(scenario: Scenario) -> dict[str, JsonValue]:
    requests_by_key: dict[str, JsonValue] = {}
    for tables in list_brought(FeatureTables):
        requests: dict[str, Any] = scenario.requests_of(tables.table)
        if tables.evaluated:
            form = TypeAdapter[Any](tables.table)
            requests_by_key[tables.evaluated] = [
                {"name": name, **form.dump_python(table, mode="json")} for name, table in requests.items()
            ]
    return requests_by_key


def _select_common(before: JsonValue, after: JsonValue) -> tuple[JsonValue, JsonValue]:
    """The common keys of two requests. A run may be resumed with more or fewer scenarios."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return None, None
    common = before.keys() & after.keys()
    return _normalise_request(before, common), _normalise_request(after, common)


def _normalise_request(request: Mapping[str, JsonValue], keys: Iterable[str]) -> dict[str, JsonValue]:
    """These keys of a request. The name of a scenario has no dot, so `SCENARIO.mode.MODE` is unambiguous."""
    return {key: normalise_mode(request[key]) if key.split(".")[1:2] == ["mode"] else request[key] for key in keys}


def _list_differences(before: JsonValue, after: JsonValue, key: str = "") -> Iterator[str]:
    """Each difference in words, by its key: `optane.mode.lvm.attach.aio was native, is threads`."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted((before.keys() | after.keys()) - {BUILT_AT}):
            yield from _list_differences(before.get(name), after.get(name), f"{key}.{name}".lstrip("."))
    elif comparable_fact(key, before) != comparable_fact(key, after):
        yield f"{key} was {_format_value(before)}, is {_format_value(after)}".lstrip()


def _format_value(value: JsonValue) -> str:
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def collect_fio_texts(spec: CampaignSpec) -> dict[str, JsonValue]:
    """The texts of the fio files among the workloads; empty without such files."""
    entries: dict[str, JsonValue] = {
        name: {file.path: dict(file.texts) for file in scenario.fio_files}
        for name, scenario in spec.scenarios.items()
        if scenario.fio_files
    }
    return {FIO_FILES: entries} if entries else {}
