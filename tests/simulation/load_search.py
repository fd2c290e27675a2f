"""Whole searches for the highest load, on an arm with a known curve of latency over load."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from harness.features.search.curve import Load, SearchLimits, Sustained, next_rates, sustained
from harness.features.search.request import MOST_ROUNDS

CAPACITY = 20_000.0
"""I/Os per second."""
FULL_SPEED = 0.985 * CAPACITY
"""What the queue depth allows."""
_SAMPLING_ERROR = math.sqrt(0.99 * 0.01 / 3000) / 0.01 / math.log(100)
"""The standard deviation of the p99 of 3000 exponential latencies, as a share of the p99."""


@dataclass
class Arm:
    """The p99 of an M/M/1 system, and `fixed` seconds in addition. Each block has a load of its own in effect: it
    varies by the share `scatter` (standard deviation), as noise of the machine does."""

    fixed: float
    scatter: float
    chance: random.Random
    measured: dict[int | None, tuple[list[float], list[float]]] = field(default_factory=dict)
    rounds: int = 0

    def p99(self, load: float) -> float:
        """The true p99 in seconds."""
        return self.fixed + math.log(100) / (CAPACITY - load)

    @property
    def loads(self) -> list[Load]:
        return [Load(rate, tuple(iops), tuple(latencies)) for rate, (iops, latencies) in self.measured.items()]

    def measure(self, rate: int | None, blocks: int) -> None:
        iops, latencies = self.measured.setdefault(rate, ([], []))
        load = min(rate or FULL_SPEED, FULL_SPEED)
        for _ in range(blocks):
            in_effect = min(load * math.exp(self.chance.gauss(0, self.scatter)), FULL_SPEED)
            iops.append(load)
            latencies.append(self.p99(in_effect) * (1 + self.chance.gauss(0, _SAMPLING_ERROR)))

    def search(self, bound: float, *, blocks: int) -> Sustained | None:
        """The result of a whole search."""
        limits = SearchLimits(FULL_SPEED, lowest=110)
        while self.rounds < MOST_ROUNDS and (rates := next_rates(self.loads, bound, limits)):
            self.rounds += 1
            for rate in rates:
                self.measure(rate, blocks)
        return sustained(self.loads, bound)
