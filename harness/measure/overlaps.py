"""Which slices ran at the same time, and which ran alone between two readings of the counters. Pure.

A slice may start so late that it runs during any of the later ones, so each is compared with all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE = 0.001
"""Seconds by which a reading of the counters may overlap a slice: fio reports starts and times in milliseconds."""


@dataclass(frozen=True, slots=True)
class Times:
    """From when to when a slice ran, with its ramp, or counters were read. Moments of one clock, in seconds."""

    first: float
    ended: float


def overlapping(slices: Sequence[Times], number: int) -> int | None:
    """The number of the first slice that ran at the same time as the one with this number; None if none did."""
    own = slices[number]
    return next(
        (
            other
            for other, each in enumerate(slices)
            if other != number and each.first < own.ended and own.first < each.ended
        ),
        None,
    )


def alone_between(slices: Sequence[Times], number: int, before: Times, after: Times) -> bool:
    """Whether between these readings, and during them, the slice with this number ran from start to end, and no other.

    Only then is what the counters show of this slice alone.
    """
    own = slices[number]
    inside = before.ended <= own.first + TOLERANCE and own.ended - TOLERANCE <= after.first
    return inside and all(
        each.ended <= before.first + TOLERANCE or after.ended - TOLERANCE <= each.first
        for other, each in enumerate(slices)
        if other != number
    )
