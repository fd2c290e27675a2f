"""`python prefixes.py JOBS`, with PYTHONPATH for the harness of a checkout: what it decides after how many blocks.

JOBS is a JSON list as `replay.py` writes it. Prints a JSON list with a record for each pair of arms of a job: a guest
against its host with a budget, and each two guests. The harness looks at the first 6 blocks, then at half as many more
each time, up to 200, at the levels that it has for these looks. If the recorded blocks are fewer, they follow again in
the same order, as if the run went on like this. A record has what is decided, the number of blocks until then, and half
of the 95 % interval of log(right/left) from the recorded blocks, without interim looks. It imports nothing else of this
repository, and takes the names that older versions have.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

FIRST, MOST = 6, 200
"""The first and the last look, in blocks."""
BUDGET = 0.1
_analysis: Any = import_module("harness.analysis")
_find_change: Any = getattr(_analysis, "estimate_paired_change", None) or getattr(_analysis, "paired_change", None)

Block = dict[str, dict[str, Any]]
"""The slices of a block that count, by arm."""


def decide(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The records of the pairs of a job."""
    guests = sorted({arm for block in job["blocks"] for arm in block if arm.startswith("guest:")})
    for guest in guests:
        yield from _look_at(job, "host", guest, guests, _judge_budget)
    for one, other in combinations(guests, 2):
        yield from _look_at(job, one, other, (), _judge_comparison)


Judge = Callable[[Sequence[float], Sequence[float], Any, Any, Any], str | None]


def _look_at(
    job: dict[str, Any], left: str, right: str, correlated: Sequence[str], judge: Judge
) -> Iterator[dict[str, Any]]:
    def compare(until: Sequence[Block]) -> tuple[list[float], list[float], Any]:
        whole = [block for block in until if left in block and right in block]
        boots = tuple(block[right]["boot"] for block in whole)
        values = [_adjust(whole, arm) for arm in (left, right)]
        return values[0], values[1], _make_samples(until, values, correlated, boots)

    recorded = sum(left in block and right in block for block in job["blocks"])
    if recorded < FIRST:
        return
    plan = _analysis.Sequential(FIRST, MOST)
    blocks = _repeat(job["blocks"], math.ceil(MOST / recorded))
    places = [place for place, block in enumerate(blocks, start=1) if left in block and right in block]
    decided, until = None, 0
    for count in plan.looks:
        until = places[count - 1]
        lefts, rights, samples = compare(blocks[:until])
        decided = judge(lefts, rights, plan, plan.look(count), samples)
        if decided is not None:
            break
    lefts, rights, samples = compare(job["blocks"])
    whole = _find_change(lefts, rights, confidence=0.95, samples=samples)
    half = None if whole.low is None else math.log(whole.high / whole.low) / 2
    yield {"job": job["name"], "left": left, "right": right, "decided": decided, "blocks": until, "half": half}


def _repeat(blocks: Sequence[Block], times: int) -> list[Block]:
    """The blocks again and again, each time later by the time that they took."""
    starts = [slice_["started"] for block in blocks for slice_ in block.values()]
    took = (max(starts) - min(starts)) * len(blocks) / (len(blocks) - 1)
    return [
        {arm: slice_ | {"started": slice_["started"] + number * took} for arm, slice_ in block.items()}
        for number in range(times)
        for block in blocks
    ]


def _adjust(blocks: Sequence[Block], arm: str) -> list[float]:
    """An arm's values, adjusted if this harness does so."""
    if not hasattr(_analysis, "adjust_values"):
        return [block[arm]["value"] for block in blocks]
    arms = sorted({arm for block in blocks for arm in block})
    logs = [[math.log(block[arm]["value"]) if arm in block else math.nan for arm in arms] for block in blocks]
    times = [[block[arm]["started"] if arm in block else math.nan for arm in arms] for block in blocks]
    return [math.exp(row[arms.index(arm)]) for row in _analysis.adjust_values(logs, times)]


def _make_samples(
    blocks: Sequence[Block], values: Sequence[Sequence[float]], guests: Sequence[str], boots: tuple[int, ...]
) -> Any:
    """Older versions estimate the correlation of neighbouring blocks: of a job's guests to their host together."""
    if not hasattr(_analysis, "pooled_correlation"):
        return _analysis.Samples(boots)
    if len(set(boots)) > 1:
        return _analysis.Samples(boots, None)
    series = [
        {
            number: math.log(block[guest]["value"] / block["host"]["value"])
            for number, block in enumerate(blocks)
            if guest in block and "host" in block
        }
        for guest in guests
    ] or [{number: math.log(right / left) for number, (left, right) in enumerate(zip(*values, strict=True))}]
    return _analysis.Samples(boots, _analysis.pooled_correlation(series))


def _judge_budget(left: Sequence[float], right: Sequence[float], plan: Any, look: Any, samples: Any) -> str | None:
    budget = _analysis.Limit(share=BUDGET)
    reason = _analysis.decided(
        left, right, plan, higher_is_better=True, budget=budget, target=None, cells=1, samples=samples
    )
    if reason != _analysis.Reason.BUDGET:
        return None
    verdict = _analysis.judge_look(left, right, budget, look, higher_is_better=True, samples=samples).verdict
    return str(verdict.value)


def _judge_comparison(left: Sequence[float], right: Sequence[float], _plan: Any, look: Any, samples: Any) -> str | None:
    change = _find_change(left, right, confidence=look.confidence, samples=samples)
    if change.excludes_one:
        return "better" if change.ratio > 1 else "worse"
    return "equal" if change.is_within(_analysis.MARGIN) else None


if __name__ == "__main__":
    print(json.dumps([record for job in json.loads(Path(sys.argv[1]).read_text()) for record in decide(job)]))
