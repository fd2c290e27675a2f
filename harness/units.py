"""Parses and formats sizes, durations and shares as people and fio write them: bytes, seconds and fractions.

The ValueErrors say what is allowed. Who catches one names the text.
"""

from __future__ import annotations

import re

# Python would also accept the digits of other scripts, and would convert very long numbers to infinity.
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
_SIZE = re.compile(rf"(?P<number>{_NUMBER})\s*(?P<unit>[a-zA-Z]*)")
_SIZE_UNITS = {"": 1, "b": 1} | {
    spelling: 1024**power
    for power, letter in enumerate("kmgt", start=1)
    for spelling in (letter, f"{letter}i", f"{letter}ib")
}
_ENDURANCE = re.compile(rf"(?P<number>{_NUMBER})\s*TBW", re.IGNORECASE)
_DECIMAL_UNITS = frozenset({"kb", "mb", "gb", "tb"})

_DURATION = re.compile(rf"(?P<number>{_NUMBER})\s*(?P<unit>[a-zA-Zµ]*)")
_DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_SHARE = re.compile(rf"(?P<percent>{_NUMBER})\s*%")


def parse_size(text: str) -> int:
    """The size in bytes from `text`: "4k" (k is 1024, as in fio), "256 KiB", "64 GiB", "4096".

    "64 GB" raises ValueError: fio reads it as 64 x 2^30 bytes, but on the label of a disk it means 64 x 10^9.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match["unit"].lower() if match else ""
    if unit in _DECIMAL_UNITS:
        raise ValueError(f"{unit.upper()} is ambiguous; allowed: {unit[0].upper()}iB (powers of 1024)")
    if match is None or unit not in _SIZE_UNITS:
        raise ValueError("not a valid size; allowed: for example 4k, 256 KiB, 64 MiB or 1 GiB")
    size = float(match["number"]) * _SIZE_UNITS[unit]
    if size != int(size):
        raise ValueError("not a whole number of bytes")
    if size >= 2**63:
        raise ValueError("more than any disk has; allowed: less than 8388608 TiB")
    return int(size)


def parse_endurance(text: str) -> int:
    """The rated endurance in bytes from `text`, in terabytes written as vendors state it: "600 TBW" is 600 x 10^12."""
    match = _ENDURANCE.fullmatch(text.strip())
    if match is None or not float(match["number"]):
        raise ValueError('not an endurance; allowed: terabytes written, as in the data sheet: "600 TBW"')
    return round(float(match["number"]) * 1e12)


def parse_rate(text: str) -> int:
    """The rate in bytes per second from `text`: "2 GiB/s", "500 MiB/s". "500 MB/s" raises ValueError, as in sizes."""
    size, per_second, rest = text.partition("/s")
    if not per_second or rest.strip():
        raise ValueError("not a valid rate; allowed: for example 500 MiB/s or 2 GiB/s")
    return parse_size(size)


def parse_duration(text: str) -> float:
    """The duration in seconds from `text`: "10 us", "1.5 s", "2 min". A number without a unit raises ValueError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or match["unit"] not in _DURATION_UNITS:
        allowed = ", ".join(unit for unit in _DURATION_UNITS if unit != "µs")
        raise ValueError(f"not a valid duration; allowed: a number and one of {allowed}, for example 10 us or 30 s")
    return float(match["number"]) * _DURATION_UNITS[match["unit"]]


def parse_share(text: str) -> float:
    """The fraction from `text`: "30 %" is 0.3. A number without % raises ValueError."""
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a valid share; allowed: a number and %, for example 30 %")
    return float(match["percent"]) / 100


def parse_added(text: str) -> float:
    """The added duration in seconds from `text`: "+50 us" is 5e-5. Text without + raises ValueError.

    The sign distinguishes an added duration from an absolute one.
    """
    sign, rest = text.strip()[:1], text.strip()[1:]
    if sign != "+":
        raise ValueError("not a valid added duration; allowed: +, a number and a unit, for example +50 us")
    return parse_duration(rest)


def short_size(size_bytes: int) -> str:
    """The size in the form of fio and of cell ids: 4096 -> "4k", 262144 -> "256k", 512 -> "512"."""
    for power, letter in ((4, "t"), (3, "g"), (2, "m"), (1, "k")):
        if size_bytes and size_bytes % 1024**power == 0:
            return f"{size_bytes // 1024**power}{letter}"
    return str(size_bytes)


def format_size(size_bytes: float) -> str:
    """The size in a readable form: 67108864 -> "64 MiB", 1610612736 -> "1.5 GiB"."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def format_duration(seconds: float) -> str:
    """The duration with 3 significant digits: 0.000213 -> "213 us", 0.0042 -> "4.2 ms", 95 -> "1 min 35 s"."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds == 0:
        return "0 s"
    if seconds < 60:
        value = float(f"{seconds:.3g}")  # rounded before the unit is chosen: 0.0009996 is 1 ms, not 1e+03 us
        for per_second, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
            if value * per_second >= 1:
                return f"{value * per_second:.3g} {unit}"
        return f"{value * 1e9:.3g} ns"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s".removesuffix(" 0 s")
    minutes = round(whole / 60)
    return f"{minutes // 60} h {minutes % 60} min".removesuffix(" 0 min")
