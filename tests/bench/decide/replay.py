"""Two versions of the statistics on the same slices of stored runs, block by block, until each decides.

Nothing is measured, so neither the state of the machine nor the order of the two versions matters. The slices, their
lengths and their order are those of the run. Only the evaluation differs, and the levels of the looks.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness.errors import ConfigError, ResultsError
from tests.bench.coverage.labels import METRIC, read_slices
from tests.bench.decide import prefixes


@dataclass(frozen=True, slots=True)
class Decision:
    """What one version decides about two arms of a job, and the seconds of fio of both arms until then."""

    is_budget: bool
    decided: str | None
    """None if 200 blocks are not enough."""
    fio_s: float
    is_recorded: bool
    """Whether the recorded blocks were enough, without repeating them."""
    half_width: float
    """Of the interval from the recorded blocks, as a logarithm."""


def replay_runs(runs: Iterable[Path], checkouts: Sequence[Path]) -> list[dict[str, Decision]]:
    """The decisions of each checkout's harness on the slices of these runs, by the names of the pairs.

    Raises ResultsError if a run cannot be read, or a harness fails; ConfigError for a directory without one.
    """
    jobs = [job for run in runs for job in read_jobs(run)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "jobs.json")
        path.write_text(json.dumps(jobs))
        return [_decide(jobs, path, checkout) for checkout in checkouts]


def read_jobs(run: Path) -> list[dict[str, Any]]:
    """The jobs of a run with all their blocks: the slices of each that overlapped no other one, by arm."""
    by_job: dict[tuple[Any, ...], dict[tuple[int, int], dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for line in read_slices(run):
        key = line["group"], line["job"], line["rate"], line.get("longer_s"), line["discarded_s"]
        block = by_job[key][line["round"], line["block"]]
        if line["overlap"] is None and line["repeat"] == 1 and line["rate"] is None:
            fields = {name: line[name] for name in ("started", "boot", "seconds")}
            block[line["arm"]] = {"value": line["metrics"][METRIC], **fields}
    return [
        {"name": f"{run.name}, {group}, {job}, {number}", "blocks": [blocks[key] for key in sorted(blocks)]}
        for number, ((group, job, *_), blocks) in enumerate(by_job.items())
        if any(blocks.values())
    ]


def _decide(jobs: Sequence[Mapping[str, Any]], path: Path, checkout: Path) -> dict[str, Decision]:
    if not (checkout / "harness").is_dir():
        raise ConfigError(f"{checkout} is not a checkout of virt-overhead: it has no harness", hint="git worktree add")
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve())}
    command = [sys.executable, prefixes.__file__, str(path)]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ResultsError(
            f"the harness of {checkout} cannot evaluate the slices: {done.stderr.strip().splitlines()[-1]}",
            hint="name a checkout of version 0.2 or later",
        )
    blocks = {job["name"]: job["blocks"] for job in jobs}
    decisions = {}
    for record in json.loads(done.stdout):
        name = f"{record['job']}: {record['right']} against {record['left']}"
        decisions[name] = _find_decision(record, blocks[record["job"]])
    return decisions


def _find_decision(record: Mapping[str, Any], blocks: Sequence[Mapping[str, Mapping[str, float]]]) -> Decision:
    used = (blocks[number % len(blocks)] for number in range(record["blocks"]))
    fio_s = sum(block[arm]["seconds"] for block in used for arm in (record["left"], record["right"]) if arm in block)
    half = math.inf if record["half"] is None else record["half"]
    return Decision(record["left"] == "host", record["decided"], fio_s, record["blocks"] <= len(blocks), half)


def summarise_replay(old: Mapping[str, Decision], new: Mapping[str, Decision]) -> list[str]:
    """A table of the budgets and the comparisons, and what its columns are."""
    rows = [
        "| question | pairs | decided | by the recorded blocks | the same | seconds of fio | old/new | width |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for question, is_budget in (("a budget of 10 %", True), ("a comparison of two modes", False)):
        pairs = [(old[name], new[name]) for name in old if name in new and old[name].is_budget is is_budget]
        if pairs:
            rows.append(f"| {' | '.join((question, str(len(pairs)), *_compare_sides(pairs)))} |")
    return [
        *rows,
        "",
        "By the old and the new version: how many are decided, in 200 blocks or by the recorded ones alone; the same",
        "decision, of those that both decided; the median seconds of fio until then, and the old ones as a multiple of",
        "the new ones; the median interval of the recorded blocks as a multiple of the new one, and its square: the",
        "seconds for the same interval.",
    ]


def _compare_sides(pairs: Sequence[tuple[Decision, Decision]]) -> Iterator[str]:
    sides = list(zip(*pairs, strict=True))
    yield ", ".join(str(sum(one.decided is not None for one in side)) for side in sides)
    yield ", ".join(str(sum(one.decided is not None and one.is_recorded for one in side)) for side in sides)
    both = [(one.decided, other.decided) for one, other in pairs if one.decided and other.decided]
    yield f"{sum(one == other for one, other in both)} of {len(both)}"
    medians = [median(one.fio_s for one in side) for side in sides]
    yield ", ".join(f"{seconds:.1f}" for seconds in medians)
    yield f"{medians[0] / medians[1]:.1f}"
    wider = median(one.half_width / other.half_width for one, other in pairs)
    yield f"{wider:.2f}, {wider**2:.1f}"
