"""Series of log ratios with a mean of 0: independent and correlated. Arrays have the shape (series, n)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.simulation.campaigns import Floats

Noise = Callable[[np.random.Generator, int, int], Floats]


def normal(chance: np.random.Generator, series: int, n: int) -> Floats:
    return chance.normal(0, 0.05, (series, n))


def autoregression(rho: float) -> Noise:
    """AR(1) in its stationary state."""

    def noise(chance: np.random.Generator, series: int, n: int) -> Floats:
        values = chance.normal(0, 0.05, (series, n))
        values[:, 1:] *= math.sqrt(1 - rho * rho)
        for at in range(1, n):
            values[:, at] += rho * values[:, at - 1]
        return values

    return noise
