"""The variance of boots, against published figures and simulated boots."""

from __future__ import annotations

import numpy as np
import pytest

from harness.features.calibrate.noise import estimate_boot_variance


def test_components_by_hand() -> None:
    # Means 1 and 5 of two blocks each; mean squares 16 among boots and 2 within, so (16 - 2) / 2 between.
    found = estimate_boot_variance([[0.0, 2.0], [4.0, 6.0]])
    assert (found.between, found.within, found.boots) == pytest.approx((7.0, 2.0, 2))
    assert found.share == pytest.approx(7 / 9)


def test_the_share_of_shrout_and_fleiss() -> None:
    """ICC(1) of the six targets and four judges in Shrout & Fleiss (1979), Psychological Bulletin 86: 0.17."""
    targets = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
    found = estimate_boot_variance(targets)
    assert round(found.share, 2) == 0.17
    # Published by R's psych::ICC for these data: -0.13 to 0.72; a share is at least 0.
    assert (round(found.low, 2), round(found.high, 2)) == (0.0, 0.72)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_interval_of_the_share_covers_as_often_as_stated(share: float) -> None:
    chance = np.random.default_rng(2)
    covered = 0
    for _ in range(1000):
        blocks = chance.normal(0, share**0.5, (5, 1)) + chance.normal(0, (1 - share) ** 0.5, (5, 8))
        found = estimate_boot_variance(blocks.tolist())
        covered += found.low <= share <= found.high
    # At 0, only the lower end can be wrong. Three standard deviations.
    assert covered / 1000 == pytest.approx(0.975 if share == 0 else 0.95, abs=0.021)


def test_boots_may_have_different_numbers_of_blocks() -> None:
    found = estimate_boot_variance([[0.0, 0.1, 0.2], [1.0], [], [2.0, 2.1]])
    assert found.boots == 3
    assert found.low > 0
    assert found.between == pytest.approx(1.0, rel=0.3)


def test_boots_without_spread_within() -> None:
    assert estimate_boot_variance([[1.0, 1.0], [2.0, 2.0]]).share == 1.0
    assert estimate_boot_variance([[1.0, 1.0], [1.0, 1.0]]).share == 0.0


@pytest.mark.parametrize(
    ("ratios", "says"),
    [([[1.0, 2.0]], "at least two boots"), ([[1.0], [2.0]], "two blocks"), ([[1.0, float("nan")], [1.0]], "finite")],
)
def test_boots_that_show_nothing_are_refused(ratios: list[list[float]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        estimate_boot_variance(ratios)
