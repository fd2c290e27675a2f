"""Numbers as reports show them: three significant digits, percent with its interval, microseconds, samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harness.analysis import CONFIDENCE, Estimate

if TYPE_CHECKING:
    from harness.results import ArmName, CellRecord, PooledPercentile

NONE = "\N{EN DASH}"
"""The text for a missing value."""

_LARGEST_PERCENT = 99_900


def significant(value: float | None, *, grouped: str = " ") -> str:
    """Three significant digits, `grouped` between thousands: 35123 -> "35 100", 4.2 -> "4.20", 99.96 -> "100"."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    return _grouped(rounded, _decimals(rounded), grouped)


def short(value: float | None) -> str:
    """Three significant digits in a narrow column: 35123 -> "35.1k", 2150000 -> "2.15M"."""
    if value is None:
        return "-"
    for power, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(float(f"{value:.3g}")) >= power:
            return f"{significant(value / power)}{letter}"
    return significant(value)


def percent(share: float | None) -> str:
    """A share in percent without the sign: 0.38216 -> "38.2", 4.518 -> "452", 33.57 -> "3360"; at most ">99900"."""
    if share is None:
        return NONE
    value = share * 100
    if abs(value) > _LARGEST_PERCENT:
        return f">{_LARGEST_PERCENT}" if value > 0 else f"<-{_LARGEST_PERCENT}"
    text = f"{value:.1f}" if abs(value) < 99.95 else f"{float(f'{value:.3g}'):.0f}"
    return text.removeprefix("-") if float(text) == 0 else text


def round_up(share: float) -> str:
    """A bound in percent with at most one decimal, rounded up: 0.0312 -> "3.2"."""
    return f"{math.ceil(share * 1000) / 10:g}"


def signed_percent(share: float) -> str:
    """As `percent`, with a plus sign above 0: 0.031 -> "+3.1"."""
    text = percent(share)
    return f"+{text}" if share > 0 and text != "0.0" else text


def percent_interval(estimate: Estimate | None) -> str:
    """The ends in percent: "[35.2, 41.0]"; empty if there is no interval."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"[{percent(estimate.low)}, {percent(estimate.high)}]"


def percent_with_interval(estimate: Estimate | None, unit: str = "", *, signed: bool = False) -> str:
    """For tables: "38.2 [35.2, 41.0]"; "38.2" with one block. The `unit`, for example " %", is after the point."""
    if estimate is None:
        return NONE
    point = signed_percent(estimate.point) if signed else percent(estimate.point)
    return f"{point}{unit} {percent_interval(estimate)}".rstrip()


def with_interval(estimate: Estimate, show: Callable[[float], str] = significant, unit: str = "") -> str:
    """An estimate as `show` formats numbers: "2.87 [2.71, 3.04]"; "2.87" with one block. The `unit` is after the
    point."""
    point = f"{show(estimate.point)}{unit}"
    if estimate.low is None or estimate.high is None:
        return point
    return f"{point} [{show(estimate.low)}, {show(estimate.high)}]"


def say_loss(loss: Estimate, worse: str, better: str) -> str:
    """A loss in words that can be read aloud: "56.5 % fewer IOPS (45.6 to 65.2)", "3.0 % less (1.0 more to 7.0 less)".

    `worse` and `better` name the two directions, for example "fewer IOPS" and "more IOPS".
    """
    point = f"{percent(abs(loss.point))} % {worse if loss.point >= 0 else better}"
    if loss.low is None or loss.high is None:
        return point
    if loss.low >= 0 or loss.high <= 0:
        return f"{point} ({' to '.join(percent(abs(end)) for end in sorted((loss.low, loss.high), key=abs))})"
    less, more = (words.partition(" ")[0] for words in (worse, better))
    return f"{point} ({percent(-loss.low)} {more} to {percent(loss.high)} {less})"


def microseconds(seconds: float | None, *, signed: bool = False, grouped: str = " ") -> str:
    """Three significant digits: 0.000213 -> "213"; with `signed`, "+213"."""
    text = significant(None if seconds is None else seconds * 1e6, grouped=grouped)
    return f"+{text}" if signed and seconds is not None and seconds > 0 else text


def microseconds_interval(estimate: Estimate | None) -> str:
    """The ends in us, as `microseconds_range`; empty if there is no interval."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return microseconds_range(estimate.low, estimate.high)


def microseconds_range(low: float, high: float) -> str:
    """Two durations in seconds as an interval in us, to three digits of the larger: "[-3, 225]"."""
    decimals = _decimals(max(abs(low), abs(high)) * 1e6)
    ends = (_grouped(round(end * 1e6, decimals) + 0.0, decimals) for end in (low, high))  # + 0.0: no "-0"
    return f"[{', '.join(ends)}]"


def count(number: int, noun: str) -> str:
    """ "1 block", "3 blocks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def sample_count(blocks: int, boots: int | None) -> str:
    """ "6 blocks"; "3 boots" if the guest was booted several times, because the samples are the boots' means then."""
    return count(boots, "boot") if boots is not None and boots > 1 else count(blocks, "block")


def shorten(text: str, most: int) -> str:
    """The text; of a longer one, the first characters with an ellipsis, `most` together."""
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def difference_words(difference: Estimate, above: str = "worse", below: str = "better") -> str:
    """Whether an interval excludes zero, in words: `above` if it is above, `below` if it is below."""
    if difference.low is None or difference.high is None:
        return "too few blocks to show a difference"
    if difference.low > 0:
        return above
    return below if difference.high < 0 else "no difference shown"


def _decimals(value: float) -> int:
    """Decimals that give `value` three significant digits."""
    return max(0, 2 - math.floor(math.log10(abs(float(f"{value:.3g}"))))) if value else 0


def _grouped(value: float, decimals: int, by: str = " ") -> str:
    return f"{value:,.{decimals}f}".replace(",", by)


def format_pooled(percentile: PooledPercentile | None) -> str:
    """The percentile in us with its interval: "213 [210, 217]"."""
    if percentile is None:
        return NONE
    return f"{microseconds(percentile.value)} {microseconds_range(percentile.low, percentile.high)}"


def format_mean(cell: CellRecord, arm: ArmName) -> str:
    """The cell's headline metric on this arm, in its unit."""
    mean = cell.mean(cell.headline, arm)
    return short(mean.point / cell.headline_scale if mean else None)


def sample_words(cell: CellRecord) -> str:
    """For example "6 blocks" or "3 boots"."""
    return sample_count(len(cell.rounds), cell.boot_count)


def confidence_words(cells: Sequence[CellRecord]) -> str:
    """The confidence of these cells' intervals: "95 %", or "95 % over all looks" if there were interim looks."""
    early = any(cell.confidence > CONFIDENCE for cell in cells)
    return f"{CONFIDENCE * 100:.0f} %{' over all looks' if early else ''}"
