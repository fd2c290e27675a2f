"""Student's t distribution: quantiles for intervals around the mean of a few rounds, and tails for p values.

scipy computes them. The first call imports it, because it takes longer to load than the rest of this package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def t_quantile(p: float, df: int) -> float:
    """The t with P(T <= t) = `p` for `df` degrees of freedom.

    ValueError unless 0 < p < 1 and df >= 1.
    """
    from scipy.special import stdtrit  # noqa: PLC0415

    if not 0 < p < 1:
        raise ValueError(f"a quantile needs a probability between 0 and 1, not {p}")
    return float(stdtrit(_freedom(df), p))


def t_survival(t: float, df: int) -> float:
    """P(T > `t`) for `df` degrees of freedom: the one-sided p value of an observed t.

    ValueError if t is not a number, or df < 1.
    """
    return t_cdf(-t, df)


def t_cdf(t: float, df: int) -> float:
    """P(T <= `t`) for `df` degrees of freedom. ValueError as for `t_survival`."""
    from scipy.special import stdtr  # noqa: PLC0415

    if math.isnan(t):
        raise ValueError("a tail of Student's t needs a number, not nan")
    return float(stdtr(_freedom(df), t))


def t_mixture_survival(distance: float, df: int, scales: Sequence[float], weights: Sequence[float]) -> float:
    """P(S T > `distance`): the scale S is `scales[i]` with probability `weights[i]`, T is Student's t.

    T has `df` degrees of freedom. All scales are above 0.
    """
    import numpy as np  # noqa: PLC0415
    from scipy.special import stdtr  # noqa: PLC0415

    return float(np.dot(weights, stdtr(_freedom(df), -distance / np.asarray(scales))))


def t_mixture_quantile(tail: float, df: int, scales: Sequence[float], weights: Sequence[float]) -> float:
    """The distance with P(S T > distance) = `tail`, for the mixture of `t_mixture_survival` and 0 < `tail` < 0.5.

    Newton's method on logarithmic scales, in which the tail is nearly a line. A step that leaves the bracket, at first
    the quantiles of the smallest and the largest scale, is replaced by its middle.
    """
    import numpy as np  # noqa: PLC0415
    from scipy.special import stdtr  # noqa: PLC0415

    scale, weight = np.asarray(scales), np.asarray(weights)
    peak = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    quantile = t_quantile(1 - tail, df)
    low, high = math.log(quantile * float(scale.min())), math.log(quantile * float(scale.max()))
    at = math.log(quantile * math.sqrt(float(np.dot(weight, scale * scale))))
    for _ in range(200):
        t = math.exp(at) / scale
        found = float(np.dot(weight, stdtr(df, -t)))
        excess = math.log(found / tail)
        low, high = (at, high) if excess > 0 else (low, at)
        slope = peak * float(np.dot(weight, t * (1 + t * t / df) ** (-(df + 1) / 2))) / found
        following = at + excess / slope
        if not low <= following <= high:
            following = (low + high) / 2
        if abs(following - at) <= 1e-13 or high - low <= 1e-13:
            break
        at = following
    return math.exp(at)


def noncentrality(t: float, df: int, power: float) -> float:
    """The noncentrality at which the noncentral t (Owen 1968) exceeds `t` with probability `power`.

    It has `df` degrees of freedom; `power` is above P(T > `t`) of the central t and below 1.
    """
    from scipy.special import nctdtrinc  # noqa: PLC0415

    return float(nctdtrinc(_freedom(df), 1 - power, t))


def _freedom(df: int) -> int:
    if not 1 <= df < math.inf:
        raise ValueError(f"Student's t needs at least one degree of freedom, not {df}")
    return df
