"""Student's t distribution: quantiles for intervals around the mean of a few rounds, and tails for p values.

scipy computes them. The first call imports it, because it takes longer to load than the rest of this package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def t_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = `p` for `df` degrees of freedom.

    ValueError unless 0 < p < 1 and df >= 1.
    """
    from scipy.special import stdtrit  # noqa: PLC0415

    if not 0 < p < 1:
        raise ValueError(f"a quantile needs a probability between 0 and 1, not {p}")
    return float(stdtrit(_check_freedom(df), p))


def t_cdf(t: float, df: float) -> float:
    """P(T <= `t`) for `df` degrees of freedom. ValueError if `t` is not a number, or df < 1."""
    from scipy.special import stdtr  # noqa: PLC0415

    if math.isnan(t):
        raise ValueError("a tail of Student's t needs a number, not nan")
    return float(stdtr(_check_freedom(df), t))


def t_mixture_survival(
    distance: float, df: float | Sequence[float], scales: Sequence[float], weights: Sequence[float]
) -> float:
    """P(S T > `distance`): the scale S is `scales[i]` with probability `weights[i]`, T is Student's t.

    T has `df` degrees of freedom, or `df[i]` with scale i. All scales are above 0.
    """
    import numpy as np  # noqa: PLC0415
    from scipy.special import stdtr  # noqa: PLC0415

    return float(np.dot(weights, stdtr(_check_freedoms(df), -distance / np.asarray(scales))))


def t_mixture_quantile(
    tail: float, df: float | Sequence[float], scales: Sequence[float], weights: Sequence[float]
) -> float:
    """The distance with P(S T > distance) = `tail`, for the mixture of `t_mixture_survival` and 0 < `tail` < 0.5.

    Newton's method on logarithmic scales, in which the tail is nearly a line. A step that leaves the bracket, at first
    the smallest and the largest quantile of the parts, is replaced by its middle.
    """
    import numpy as np  # noqa: PLC0415
    from scipy.special import gammaln, stdtr, stdtrit  # noqa: PLC0415

    freedom, scale, weight = np.asarray(_check_freedoms(df)), np.asarray(scales), np.asarray(weights)
    peak = np.exp(gammaln((freedom + 1) / 2) - gammaln(freedom / 2)) / np.sqrt(freedom * math.pi)
    quantiles = stdtrit(freedom, 1 - tail) * scale
    low, high = math.log(float(quantiles.min())), math.log(float(quantiles.max()))
    at = math.log(math.sqrt(float(np.dot(weight, quantiles * quantiles))))
    for _ in range(200):
        t = math.exp(at) / scale
        tail_at_t = float(np.dot(weight, stdtr(freedom, -t)))
        excess = math.log(tail_at_t / tail)
        low, high = (at, high) if excess > 0 else (low, at)
        slope = float(np.dot(weight, peak * t * (1 + t * t / freedom) ** (-(freedom + 1) / 2))) / tail_at_t
        following = at + excess / slope
        if not low <= following <= high:
            following = (low + high) / 2
        if abs(following - at) <= 1e-13 or high - low <= 1e-13:
            break
        at = following
    return math.exp(at)


def noncentrality(t: float, df: float, power: float) -> float:
    """The noncentrality at which the noncentral t (Owen 1968) exceeds `t` with probability `power`.

    It has `df` degrees of freedom; `power` is above P(T > `t`) of the central t and below 1.
    """
    from scipy.special import nctdtrinc  # noqa: PLC0415

    return float(nctdtrinc(_check_freedom(df), 1 - power, t))


def _check_freedoms(df: float | Sequence[float]) -> float | list[float]:
    return [_check_freedom(degrees) for degrees in df] if isinstance(df, Sequence) else _check_freedom(df)


def _check_freedom(df: float) -> float:
    if not 1 <= df < math.inf:
        raise ValueError(f"Student's t needs at least one degree of freedom, not {df}")
    return df
