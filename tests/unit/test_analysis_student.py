"""Tails of Student's t against scipy; its quantile is tested with the estimates."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from harness.analysis import t_cdf, t_quantile, t_survival


@pytest.mark.parametrize("df", [1, 2, 3, 4, 9, 29, 1000])
@pytest.mark.parametrize("t", [-1e4, -30.0, -2.5, -0.1, 0.0, 1e-6, 0.7, 2.0, 12.7, 500.0, 1e8])
def test_tails_agree_with_scipy(t: float, df: int) -> None:
    assert t_survival(t, df) == pytest.approx(stats.t.sf(t, df), rel=1e-9)
    assert t_cdf(t, df) == pytest.approx(stats.t.cdf(t, df), rel=1e-9)


@pytest.mark.parametrize("df", [1, 2, 5, 26])
@pytest.mark.parametrize("p", [1e-6, 0.0125, 0.4, 0.5, 0.975, 0.9999])
def test_the_quantile_is_the_inverse_of_the_tail(p: float, df: int) -> None:
    assert t_cdf(t_quantile(p, df), df) == pytest.approx(p, rel=1e-9)


def test_a_t_beyond_all_bounds_has_no_tail() -> None:
    assert t_survival(math.inf, 3) == pytest.approx(0, abs=1e-300)
    assert t_survival(1e200, 1) == pytest.approx(0, abs=1e-100)
    assert t_survival(-math.inf, 3) == 1


@pytest.mark.parametrize(("t", "df"), [(math.nan, 3), (1.0, 0), (1.0, math.inf), (1.0, math.nan)])
def test_a_tail_that_does_not_exist_is_refused(t: float, df: float) -> None:
    with pytest.raises(ValueError, match=r"needs a number|degree of freedom"):
        t_survival(t, df)  # type: ignore[arg-type]  # df is a whole number
