"""exp and expm1 that stay finite: an extremely wide interval ends at a large number, not in an OverflowError."""

from __future__ import annotations

import math

# Above this value, exp() overflows. Only an extremely wide interval (n = 2, rounds far apart) reaches it.
_LARGEST_LOG = 709.0


def finite_exp(value: float) -> float:
    """e ** `value`, finite for any finite value."""
    return math.exp(min(value, _LARGEST_LOG))


def finite_expm1(value: float) -> float:
    """e ** `value` - 1, precise near 0, finite for any finite value: from a log ratio to a relative change."""
    return math.expm1(min(value, _LARGEST_LOG))
