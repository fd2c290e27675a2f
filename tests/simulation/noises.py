"""Series of log ratios with a mean of 0: independent and correlated. Arrays have the shape (series, n)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.signal import lfilter

from tests.simulation.campaigns import Floats

Noise = Callable[[np.random.Generator, int, int], Floats]


def normal(chance: np.random.Generator, series: int, n: int) -> Floats:
    return chance.normal(0, 0.05, (series, n))


def autoregression(rho: float) -> Noise:
    """AR(1) in its stationary state."""

    def noise(chance: np.random.Generator, series: int, n: int) -> Floats:
        innovations = chance.normal(0, 0.05, (series, n))
        innovations[:, 1:] *= math.sqrt(1 - rho * rho)
        found: Floats = lfilter([1], [1, -rho], innovations, axis=1)
        return found

    return noise
