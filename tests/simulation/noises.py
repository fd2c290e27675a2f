"""Series of log ratios with a mean of 0: independent, bimodal and correlated. Arrays have the shape (series, n)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.signal import lfilter

from tests.simulation.campaigns import Floats

Noise = Callable[[np.random.Generator, int, int], Floats]


def normal(chance: np.random.Generator, series: int, n: int) -> Floats:
    return chance.normal(0, 0.05, (series, n))


def gamma(chance: np.random.Generator, series: int, n: int) -> Floats:
    """Throughputs of either arm have a gamma distribution, whose standard deviation is half of its mean."""
    ratios: Floats = np.log(chance.gamma(4, 1, (series, n))) - np.log(chance.gamma(4, 1, (series, n)))
    return ratios


def one_in_eight_is_loud(chance: np.random.Generator, series: int, n: int) -> Floats:
    """One cell in eight has five times the noise."""
    return normal(chance, series, n) * np.where(np.arange(series) % 8 == 0, 5, 1)[:, None]


def drift_inside_of_pairs(chance: np.random.Generator, series: int, n: int) -> Floats:
    """The disk loses 30 % over the run; the arms of a pair are half a block apart, in random order."""
    return normal(chance, series, n) - math.log(0.7) / (2 * n) * chance.choice([-1, 1], (series, n))


def neighbour(chance: np.random.Generator, series: int, n: int) -> Floats:
    """Bimodal: a neighbour that comes and goes for 10 s on average; blocks are 8 to 12 s apart."""
    is_there = chance.random(series) < 0.5
    found = np.empty((series, n))
    for at in range(n):
        found[:, at] = is_there
        flips = chance.random(series) < (1 - np.exp(-2 * chance.uniform(8, 12, series) / 10)) / 2
        is_there = is_there ^ flips
    return 0.3 * (found - 0.5) + chance.normal(0, 0.05, (series, n))


def autoregression(rho: float) -> Noise:
    """AR(1) in its stationary state."""

    def noise(chance: np.random.Generator, series: int, n: int) -> Floats:
        innovations = chance.normal(0, 0.05, (series, n))
        innovations[:, 1:] *= math.sqrt(1 - rho * rho)
        found: Floats = lfilter([1], [1, -rho], innovations, axis=1)
        return found

    return noise


def of_job(noise: Noise, modes: int, common: float = 0.5) -> Noise:
    """Successive cells are modes of a job, which have the share `common` of their variance in common.

    They share their host's slices. Half of the variance is the host's if host and guests are equally noisy. It is more
    if the guests are quiet, or if other load makes all guests slower.
    """

    def of_modes(chance: np.random.Generator, series: int, n: int) -> Floats:
        of_host = np.repeat(noise(chance, series // modes, n), modes, axis=0)
        found: Floats = math.sqrt(1 - common) * noise(chance, series, n) - math.sqrt(common) * of_host
        return found

    return of_modes


def two_kinds(chance: np.random.Generator, series: int, n: int) -> Floats:
    """Every second cell is correlated with 0.6, the others are independent."""
    found = normal(chance, series, n)
    found[1::2] = autoregression(0.6)(chance, series // 2, n)
    return found
