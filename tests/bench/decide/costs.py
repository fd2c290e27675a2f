"""What each cell of a stored run cost in seconds of fio, and its verdict. Reads the files of all versions.

It does not use the harness's own records, because they accept only the files of their own version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import ResultsError

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
        lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
        cells = results["cells"]
        seconds = dict.fromkeys((cell["id"] for cell in cells), 0.0)
        abandoned = {(line["group"], line["round"]) for line in lines if line.get("event") == "abandoned"}
        for line in lines:
            if "event" in line or (line["group"], line["round"]) in abandoned:
                continue
            sharing = [cell for cell in cells if _needs(cell, line)]
            for cell in sharing:
                seconds[cell["id"]] += (line["seconds"] + cell["job"]["ramp"]) / len(sharing)
        found = {cell["id"]: Cost(cell["verdict"], seconds[cell["id"]], _overhead(cell)) for cell in cells}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{run}: the results cannot be read: {error!r}", hint="measure it again") from error
    if not found:
        raise ResultsError(f"{run}: the run has no cell", hint="measure it again")
    return found


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
    ]


def _times(old: Sequence[Cost], new: Sequence[Cost]) -> str:
    was, now = (sum(cost.fio_s for cost in costs) for costs in (old, new))
    return f"{was:.1f} s of fio with the old version, {now:.1f} s with the new one: {_ratio(was, now)} : 1"


def _words(cost: Cost) -> str:
    return f"{cost.verdict} ({cost.overhead})"


def _ratio(old: float, new: float) -> str:
    return f"{old / new:.1f}" if new else "-"
