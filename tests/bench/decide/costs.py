"""What the cells of a stored run cost in seconds of fio until their budgets and the comparisons of guests are decided.

Reads the files of all versions. It does not use the harness's own records, because they accept only the files of their
own version. What depends on the version's statistics is computed by its own harness (guests.py).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from harness.analysis import PRACTICAL
from harness.errors import ResultsError
from tests.bench.decide import guests

DECIDED = ("within", "exceeds")


@dataclass(frozen=True, slots=True)
class Cost:
    """A cell's verdict and the seconds of fio that it took, with ramps. `overhead` has its interval, in words."""

    verdict: str
    fio_s: float
    overhead: str


def costs(run: Path) -> dict[str, Cost]:
    """The cells of the run in this directory, by id. Raises ResultsError if its files cannot be read, or have no cell.

    The seconds of an arm are shared equally by the cells whose raw outputs and job they are.
    """
    try:
        results = json.loads((run / "results.json").read_text())
        cells = results["cells"]
        seconds = dict.fromkeys((cell["id"] for cell in cells), 0.0)
        for line in _read_slices(run):
            sharing = [cell for cell in cells if _needs(cell, line)]
            for cell in sharing:
                seconds[cell["id"]] += (line["seconds"] + cell["job"]["ramp"]) / len(sharing)
        found = {cell["id"]: Cost(cell["verdict"], seconds[cell["id"]], _overhead(cell)) for cell in cells}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{run}: the results cannot be read: {error!r}", hint="measure it again") from error
    if not found:
        raise ResultsError(f"{run}: the run has no cell", hint="measure it again")
    return found


def _read_slices(run: Path) -> list[dict[str, Any]]:
    """The lines of the journal that are slices of rounds that count."""
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    abandoned = {(line["group"], line["round"]) for line in lines if line.get("event") == "abandoned"}
    return [line for line in lines if "event" not in line and (line["group"], line["round"]) not in abandoned]


Relation = Literal["better", "worse", "equal", "undecided"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One guest as a multiple of another in a job: the logarithm of the ratio, half of its interval, and its cost."""

    log_ratio: float
    half_width: float | None
    """None without an interval."""
    fio_s: float
    """Seconds of fio of both guests."""

    @property
    def relation(self) -> Relation:
        """What is shown; `equal` is a difference of less than 5 %."""
        if self.half_width is None:
            return "undecided"
        if self.half_width < abs(self.log_ratio):
            return "better" if self.log_ratio > 0 else "worse"
        return "equal" if abs(self.log_ratio) + self.half_width < math.log(PRACTICAL) else "undecided"

    @property
    def fio_until_decided_s(self) -> float:
        """The seconds after which the interval is expected to exclude no difference, or 5 %, whichever comes first.

        The half width shrinks with the root of the seconds, from that of all blocks.
        """
        if self.half_width is None:
            return math.inf
        needed = max(abs(self.log_ratio), math.log(PRACTICAL) - abs(self.log_ratio))
        return self.fio_s * (self.half_width / needed) ** 2


def compare_guests(run: Path, checkout: Path) -> dict[str, Comparison]:
    """The comparisons of the guests of a run by the statistics of this checkout, by name.

    Raises ResultsError if that harness cannot read the run.
    """
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve())}
    command = [sys.executable, guests.__file__, str(run.resolve())]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ResultsError(
            f"{run}: the harness of {checkout} cannot read it: {done.stderr.strip().splitlines()[-1]}",
            hint="name the checkout that measured the run",
        )
    seconds = _measure_guests(run)
    comparisons = {}
    for record in json.loads(done.stdout):
        low, high = record["low"], record["high"]
        half = None if low is None else math.log(high / low) / 2
        fio_s = sum(seconds[cell] for cell in record["cells"])
        comparisons[record["name"]] = Comparison(math.log(record["ratio"]), half, fio_s)
    return comparisons


def _measure_guests(run: Path) -> dict[str, float]:
    """The seconds of fio of each cell's guest alone."""
    cells = json.loads((run / "results.json").read_text())["cells"]
    slices = [line for line in _read_slices(run) if line["arm"].startswith("guest:")]
    return {
        cell["id"]: sum(line["seconds"] + cell["job"]["ramp"] for line in slices if _needs(cell, line))
        for cell in cells
    }


def _needs(cell: Mapping[str, Any], measurement: Mapping[str, Any]) -> bool:
    """Whether the cell uses this measurement: its job, on the host or in the cell's mode, in the cell's group."""
    arms = ("host", f"twin:{cell['mode']}", f"guest:{cell['mode']}")
    return measurement["raw"] in cell["raw"] and measurement["job"] == cell["job"]["id"] and measurement["arm"] in arms


def _overhead(cell: Mapping[str, Any]) -> str:
    """The interval of the metric with a budget."""
    for budget in cell["budget"]:
        found = cell["metrics"].get(budget["metric"], {}).get("overhead")
        if found is not None and found["low"] is not None:
            return f"{found['low']:.1%} to {found['high']:.1%}, n = {found['n']}"
    return "-"


def table(old: Mapping[str, Cost], new: Mapping[str, Cost]) -> list[str]:
    """The verdicts side by side, the seconds of fio, and the sums with their ratio. Only cells of both runs count."""
    common = [cell for cell in old if cell in new]
    lines = [f"{'cell':48} {'old':38} {'fio':>9}  {'new':38} {'fio':>9} {'old/new':>8}"]
    for cell in common:
        was, now = old[cell], new[cell]
        lines.append(
            f"{cell:48} {_words(was):38} {was.fio_s:7.1f} s  {_words(now):38} {now.fio_s:7.1f} s "
            f"{_ratio(was.fio_s, now.fio_s):>8}"
        )
    return [*lines, *_sums([old[cell] for cell in common], [new[cell] for cell in common])]


def _sums(old: Sequence[Cost], new: Sequence[Cost]) -> list[str]:
    decided = [sum(cost.verdict in DECIDED for cost in costs) for costs in (old, new)]
    both = [(a, b) for a, b in zip(old, new, strict=True) if a.verdict in DECIDED and b.verdict in DECIDED]
    same = sum(a.verdict == b.verdict for a, b in both)
    by_new = [(a, b) for a, b in zip(old, new, strict=True) if b.verdict in DECIDED]
    times_by_new = _times([a for a, _ in by_new], [b for _, b in by_new])
    return [
        f"{len(old)} cells: {_times(old, new)}",
        f"{len(by_new)} cells that the new version decided (the old one {len(both)} of them): {times_by_new}",
        f"decided: {decided[0]} with the old version, {decided[1]} with the new one",
        f"the same verdict: {same} of the {len(both)} cells that both decided",
        _medians("a budget", [cost.fio_s for cost in old], [cost.fio_s for cost in new]),
    ]


def summarise_comparisons(old: Mapping[str, Comparison], new: Mapping[str, Comparison]) -> list[str]:
    """How many seconds the comparisons of guests need with either version, and whether both say the same."""
    common = [name for name in old if name in new]
    both = [(old[name], new[name]) for name in common]
    decided = [pair for pair in both if all(of.relation != "undecided" for of in pair)]
    same = sum(one.relation == other.relation for one, other in decided)
    return [
        f"{len(common)} comparisons of two modes in one job, of which both decided {len(decided)}; the same: {same}",
        _medians("a comparison", *([pair[side].fio_until_decided_s for pair in both] for side in (0, 1))),
    ]


def _medians(of: str, old: Sequence[float], new: Sequence[float]) -> str:
    if not old:
        return f"median seconds of fio until {of} is decided: -"
    was, now = median(old), median(new)
    return f"median seconds of fio until {of} is decided: {was:.1f} and {now:.1f}, {_ratio(was, now)} : 1"


def _times(old: Sequence[Cost], new: Sequence[Cost]) -> str:
    was, now = (sum(cost.fio_s for cost in costs) for costs in (old, new))
    return f"{was:.1f} s of fio with the old version, {now:.1f} s with the new one: {_ratio(was, now)} : 1"


def _words(cost: Cost) -> str:
    return f"{cost.verdict} ({cost.overhead})"


def _ratio(old: float, new: float) -> str:
    return f"{old / new:.1f}" if new else "-"
