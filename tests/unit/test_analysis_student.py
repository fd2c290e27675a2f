"""Student's t against published tables and closed forms. The tests of the estimates check more of its figures."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from harness.analysis import t_cdf, t_quantile

# Upper 5 %, 2.5 %, 1 %, 0.5 % and 0.05 %: Abramowitz & Stegun, table 26.10; Fisher & Yates, table III.
TABLE = {
    1: (6.314, 12.706, 31.821, 63.657, 636.619),
    2: (2.920, 4.303, 6.965, 9.925, 31.599),
    3: (2.353, 3.182, 4.541, 5.841, 12.924),
    4: (2.132, 2.776, 3.747, 4.604, 8.610),
    9: (1.833, 2.262, 2.821, 3.250, 4.781),
    26: (1.706, 2.056, 2.479, 2.779, 3.707),
    120: (1.658, 1.980, 2.358, 2.617, 3.373),
}


@pytest.mark.parametrize("df", TABLE)
def test_quantiles_and_tails_are_those_of_the_printed_table(df: int) -> None:
    for tail, t in zip((0.05, 0.025, 0.01, 0.005, 0.0005), TABLE[df], strict=True):
        assert round(t_quantile(1 - tail, df), 3) == t
        assert t_cdf(-t, df) == pytest.approx(tail, rel=5e-3)  # t has three decimals


@pytest.mark.parametrize("t", [-1e4, -30.0, -2.5, -0.1, 0.0, 1e-6, 0.7, 2.0, 12.7, 500.0, 1e8])
def test_tails_of_one_and_two_degrees_of_freedom_are_their_closed_forms(t: float) -> None:
    # Of 1, the Cauchy distribution; of 2, 1/2 - t / (2 sqrt(2 + t^2)). Rearranged where they would cancel.
    cauchy = math.atan2(1, t) / math.pi
    root = math.sqrt(2 + t * t)
    second = 1 / (root * (root + t)) if t > 0 else (root - t) / (2 * root)
    assert t_cdf(-t, 1) == pytest.approx(cauchy, rel=1e-9)
    assert t_cdf(-t, 2) == pytest.approx(second, rel=1e-9)


@pytest.mark.parametrize("df", [1, 2, 5, 26])
@pytest.mark.parametrize("p", [1e-6, 0.0125, 0.4, 0.5, 0.975, 0.9999])
def test_the_quantile_is_the_inverse_of_the_tail(p: float, df: int) -> None:
    assert t_cdf(t_quantile(p, df), df) == pytest.approx(p, rel=1e-9)


def test_a_t_beyond_all_bounds_has_no_tail() -> None:
    assert t_cdf(-math.inf, 3) == pytest.approx(0, abs=1e-300)
    assert t_cdf(-1e200, 1) == pytest.approx(0, abs=1e-100)
    assert t_cdf(math.inf, 3) == 1


@pytest.mark.parametrize(("t", "df"), [(math.nan, 3), (1.0, 0), (1.0, math.inf), (1.0, math.nan)])
def test_a_tail_that_does_not_exist_is_refused(t: float, df: float) -> None:
    with pytest.raises(ValueError, match=r"needs a number|degree of freedom"):
        t_cdf(-t, df)


def test_starting_up_does_not_wait_for_scipy() -> None:
    code = "import sys, harness.cli, harness.plugin, harness.report; print(*{'numpy', 'scipy'} & sys.modules.keys())"
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert started.stdout.split() == []
