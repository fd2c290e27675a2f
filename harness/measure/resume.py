"""Going on with a run that was cut short: whole rounds count, a round that was only begun is measured anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from harness.errors import ConfigError, ResultsError
from harness.measure.ledger import Order
from harness.results import Measurement, RunStore
from harness.run_id import RunId
from harness.scenario.library import profile_of
from harness.scenario.model import Arm
from harness.scenario.plan import Group

_SAME = {"host": "host", "images": "images", "acceleration": "acceleration", "asked": "scenario or lab file"}
"""What of the provenance must not have changed in between, or the rounds would not be of one population; in words."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier part of the run measured, and where."""

    measurements: tuple[Measurement, ...] = ()
    provenance: Mapping[str, JsonValue] | None = None

    def rounds(self, group: Group, arms: Sequence[Arm]) -> dict[int, list[Measurement]]:
        """The measurements of each round of `group` in which every job of every arm (twice where it is there twice)."""
        visits = Counter(arm.id for arm in arms)
        wanted = {
            (arm.id, job.id, visit)
            for arm in arms
            for job in group.jobs_of(arm)
            for visit in range(1, visits[arm.id] + 1)
        }
        found: dict[int, dict[tuple[str, str, int], Measurement]] = {}
        for each in self.measurements:
            if each.group == group.id:
                # Of a round that was begun twice the later part counts.
                found.setdefault(each.round, {})[each.arm, each.job, each.visit] = each
        return {number: list(round_.values()) for number, round_ in found.items() if round_.keys() == wanted}

    def require_same(self, now: Mapping[str, JsonValue]) -> None:
        """Raise ConfigError where host, images or what was asked for are not what they were."""
        for key, what in _SAME.items() if self.provenance else ():
            before, after = (self.provenance or {}).get(key), now.get(key)
            if key == "asked":
                before, after = _of_both(before, after)
            if before != after:
                raise ConfigError(
                    f"the run cannot be resumed: its {what} changed: {_difference(before, after)}",
                    hint="measure anew, without --resume",
                )


def asked(order: Order) -> dict[str, JsonValue]:
    """What of scenarios, profile and lab file decides what a round measures, by `SCENARIO.KEY`.

    Workloads and depths are in the jobs' own names. How many rounds there are, and budgets, may well be others when a
    run goes on.
    """
    found: dict[str, JsonValue] = {}
    for name, scenario in order.scenarios.items():
        profile = profile_of(scenario.profiles, order.profile)
        found |= {f"{name}.{key}": getattr(profile, key) for key in ("ramp", "runtime", "span", "conditioning")}
        disks = [disk for disk in order.host.measured if disk.name in scenario.disks]
        found |= {f"{name}.disk.{disk.name}": disk.identity for disk in disks}
        found |= {f"{name}.mode.{mode.name}": f"{mode.layout}, {mode.attach}" for mode in scenario.modes}
    return found


def earlier_part(store: RunStore, host: str, profile: str) -> tuple[Earlier, RunId, int]:
    """What the stored run holds, its id and its seed; the id is the stored one, wherever the directory is now.

    ConfigError where it was measured on another host or with another profile, ResultsError where its id is not one.
    """
    run = store.read_results()
    try:
        run_id = RunId(run.run.id)
    except ValueError as error:
        raise ResultsError(
            f"{store.results_path}: run.id = {error}",
            hint="the file was changed; take it from a backup, or measure anew, without --resume",
        ) from None
    for what, then, now in (("host", run.lab.host, host), ("profile", run.run.profile, profile)):
        if then != now:
            raise ConfigError(
                f"{store.path} cannot be resumed: its {what} is {then}, not {now}",
                hint=f"give --{what}={then}, or measure anew, without --resume",
            )
    return Earlier(store.read_journal().measurements, run.provenance or None), run_id, run.run.seed


def _of_both(before: JsonValue, after: JsonValue) -> tuple[JsonValue, JsonValue]:
    """Of two tables what both have: a run may go on with more scenarios, or fewer."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return None, None
    common = before.keys() & after.keys()
    return {key: before[key] for key in common}, {key: after[key] for key in common}


def _difference(before: JsonValue, after: JsonValue) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        return "; ".join(
            f"{key} was {before.get(key)}, is {after.get(key)}"
            for key in sorted(before.keys() | after.keys())
            if before.get(key) != after.get(key)
        )
    return f"was {before}, is {after}"
