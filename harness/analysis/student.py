"""Student's t distribution: quantiles for intervals around the mean of a few rounds, and tails for p values.

scipy computes them. The first call imports it, because it takes longer to load than the rest of this package.
"""

from __future__ import annotations

import math


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


def noncentrality(t: float, df: float, power: float) -> float:
    """The noncentrality at which the noncentral t (Owen 1968) exceeds `t` with probability `power`.

    It has `df` degrees of freedom; `power` is above P(T > `t`) of the central t and below 1.
    """
    from scipy.special import nctdtrinc  # noqa: PLC0415

    return float(nctdtrinc(_check_freedom(df), 1 - power, t))


def _check_freedom(df: float) -> float:
    if not 1 <= df < math.inf:
        raise ValueError(f"Student's t needs at least one degree of freedom, not {df}")
    return df
