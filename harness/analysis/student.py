"""Student's t distribution: quantile, for intervals around the mean of a few rounds, and tails, for p values."""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_PRECISION = 1e-16
# Beyond it the square of t overflows; the tail there is 0 for any use.
_LARGEST_T = 1e150


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: int) -> float:
    """The t with P(T <= t) = `p` for `df` degrees of freedom, to about 12 significant digits.

    ValueError unless 0 < p < 1 and df >= 1.

    Method: P(T > t) = I_x(df/2, 1/2) / 2 with x = df / (df + t^2) for t >= 0 (Abramowitz & Stegun 26.7.1 and
    26.5.27), with I the regularised incomplete beta function, solved for t by bisection.
    """
    if not 0 < p < 1:
        raise ValueError(f"a quantile needs a probability between 0 and 1, not {p}")
    if not 1 <= df < math.inf:
        raise ValueError(f"Student's t needs at least one degree of freedom, not {df}")
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -_upper_quantile(p, df)
    return _upper_quantile(1 - p, df)


def t_survival(t: float, df: int) -> float:
    """P(T > `t`) for `df` degrees of freedom: the one-sided p value of an observed t. Method: see `t_quantile`.

    ValueError where t is not a number, or df < 1.
    """
    if math.isnan(t):
        raise ValueError("a tail of Student's t needs a number, not nan")
    if not 1 <= df < math.inf:
        raise ValueError(f"Student's t needs at least one degree of freedom, not {df}")
    if t < 0:
        return 1 - _upper_tail(min(-t, _LARGEST_T), df)
    return _upper_tail(min(t, _LARGEST_T), df)


def t_cdf(t: float, df: int) -> float:
    """P(T <= `t`) for `df` degrees of freedom. ValueError as for `t_survival`."""
    return t_survival(-t, df)


def _upper_quantile(tail: float, df: int) -> float:
    """The t >= 0 with P(T > t) = `tail`, 0 < tail < 0.5."""
    low, high = 0.0, 1.0
    while _upper_tail(high, df) > tail:
        low, high = high, high * 2
    while True:
        middle = (low + high) / 2
        if middle in (low, high) or high - low <= 1e-14 * high:
            return middle
        if _upper_tail(middle, df) > tail:
            low = middle
        else:
            high = middle


def _upper_tail(t: float, df: int) -> float:
    """P(T > t) for t >= 0."""
    square = t * t
    return incomplete_beta(df / 2, 0.5, df / (df + square), square / (df + square)) / 2


def incomplete_beta(a: float, b: float, x: float, complement: float | None = None) -> float:
    """The regularised incomplete beta function I_x(a, b) for a, b > 0 and 0 <= x <= 1.

    `complement` is 1 - x where the caller knows it more precisely than the subtraction gives it.
    Method: the continued fraction DLMF 8.17.22 (https://dlmf.nist.gov/8.17.E22), evaluated where it converges fast,
    x < (a + 1) / (a + b + 2), and elsewhere by the symmetry I_x(a, b) = 1 - I_{1-x}(b, a).
    """
    y = 1 - x if complement is None else complement
    if x <= 0:
        return 0.0
    if y <= 0:
        return 1.0
    log_front = a * math.log(x) + b * math.log(y) - (math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b))
    if x < (a + 1) / (a + b + 2):
        return math.exp(log_front) / (a * _beta_fraction(a, b, x))
    return 1 - math.exp(log_front) / (b * _beta_fraction(b, a, y))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)) of DLMF 8.17.22 by the modified Lentz method (Thompson & Barnett 1986)."""
    value, c, d = 1.0, 1.0, 0.0
    for step in range(1, 10_000):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + term * d or _TINY)
        c = 1 + term / c or _TINY
        value *= c * d
        if abs(c * d - 1) < _PRECISION * 8:
            return value
    raise ArithmeticError(f"the continued fraction of I_{x}({a}, {b}) does not converge")
