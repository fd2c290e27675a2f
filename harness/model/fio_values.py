"""Values of fio's options: sizes, patterns, engines. Raises ValueError, which says what is allowed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.config.names import choices

DEFAULT_ENGINE = "psync"
"""fio's own default on Linux."""
QUEUEING_ENGINES = ("libaio", "io_uring", "posixaio")
"""Engines that keep `iodepth` I/Os in flight. The others wait for each I/O."""
ENGINES = (*QUEUEING_ENGINES, "psync", "sync", "pvsync", "pvsync2")
"""Engines that read and write the target itself, and that fio has on host and guest."""
EQUIVALENT_ENGINES: Mapping[str, str] = {"windowsaio": "libaio", "linuxaio": "libaio", "aio": "libaio"}
"""Other names of engines, and that of another system, with what they are on Linux."""

DEFAULT_BS = 4096
"""fio's own default, in bytes."""
_LARGEST_BS = 16 * 1024**2
_SIZE = re.compile(
    r"(?:(?P<hex>0x[0-9a-f]{1,12})|(?P<number>[0-9]{1,15}))(?P<unit>[kmgtp]?)(?P<ending>b|i|ib)?", re.I | re.A
)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
KB_BASE = 1024
"""fio's default for `kb_base`."""
_OTHER_BASE = {1024: 1000, 1000: 1024}
# A size is a number with its unit, at the beginning or after one of these marks. In bssplit, a share follows "/".
_SIZES = {
    "ba": re.compile(r"(?P<before>^|,)(?P<size>[^,]+)"),
    "bs": re.compile(r"(?P<before>^|,)(?P<size>[^,]+)"),
    "bsrange": re.compile(r"(?P<before>^|[,:-])(?P<size>[^,:-]+)"),
    "bssplit": re.compile(r"(?P<before>^|[,:])(?P<size>[^,:/]+)"),
}
_FORMS = {
    "ba": (re.compile(r"[^,:/-]+(,[^,:/-]+){0,2}"), "4k, or 4k,64k for reads and writes"),
    "bs": (re.compile(r"[^,:/-]+(,[^,:/-]*){0,2}|,[^,:/-]+(,[^,:/-]*)?"), "4k, or 4k,64k for reads and writes"),
    "bsrange": (re.compile(r"[^,:/-]+[:-][^,:/-]+(,[^,:/-]+[:-][^,:/-]+){0,2}"), "4k-64k"),
    "bssplit": (
        re.compile(
            r"[^,:/-]+(/[0-9]{0,3})?(:[^,:/-]+(/[0-9]{0,3})?)*(,[^,:/-]+(/[0-9]{0,3})?(:[^,:/-]+(/[0-9]{0,3})?)*){0,2}"
        ),
        "4k/60:64k/40",
    ),
}
_PATTERN = re.compile(r"(?P<rw>[a-z]+)(:[0-9]{1,12}[kmg]?)?")
_PATTERNS = ("read", "write", "randread", "randwrite", "rw", "readwrite", "randrw")


def size_of(text: str, kb_base: int = KB_BASE) -> int:
    """The size in bytes as fio reads it, with its option `kb_base` (1024 or 1000). Raises ValueError.

    `4k`, `4kb` and `4ki` are 4 x kb_base. Only `4kib` has the other base: 4000 bytes by default, which surprises.
    Source: __get_mult_bytes in fio's parse.c. fio ignores what it does not know (`4.5k` is 4 bytes); that is an error.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or ((match["ending"] or "b").lower() != "b" and not match["unit"]):
        raise ValueError(f'"{text.strip()}" is not a size; allowed: for example 4096 or 4k (k is 1024)')
    if match["hex"]:
        return int(match["hex"], 16)  # fio ignores units after it
    base = _OTHER_BASE[kb_base] if (match["ending"] or "").lower() == "ib" else kb_base
    factor: int = base ** _POWERS[match["unit"].lower()]
    return int(match["number"]) * factor


def check_block_sizes(option: str, value: str) -> None:
    """Raise ValueError if the value of bs, ba, bsrange or bssplit is not one that fio accepts on a disk.

    Sizes that are no multiple of the disk's blocks are rounded up later.
    """
    form, example = _FORMS[option]
    if form.fullmatch(value) is None:
        raise ValueError(f"not block sizes of reads and writes; allowed: for example {example}")
    for match in _SIZES[option].finditer(value):
        if not 0 < size_of(match["size"]) <= _LARGEST_BS:
            raise ValueError(f'"{match["size"]}" is not a block size; allowed: 1 byte to 16m')


def block_sizes(values: Mapping[str, str]) -> tuple[int, ...]:
    """Every block size in bytes of a section with these options. fio prefers bssplit to bsrange, and both to bs."""
    for option in ("bssplit", "bsrange", "bs"):
        if option in values:
            value = values[option]
            sizes = tuple(size_of(match["size"], base_of(values)) for match in _SIZES[option].finditer(value))
            # In `,8k`, the size of reads is fio's default.
            return (DEFAULT_BS, *sizes) if value.startswith(",") or value.endswith(",") else sizes
    return (DEFAULT_BS,)


def base_of(values: Mapping[str, str]) -> int:
    """What k stands for in the sizes of a section with these options."""
    return int(values.get("kb_base", KB_BASE))


def rounded_up(option: str, value: str, block: int, kb_base: int = KB_BASE) -> str:
    """The value of an option, with block sizes rounded up to multiples of `block` bytes. Other values are unchanged."""
    if option not in _SIZES:
        return value

    def in_blocks(match: re.Match[str]) -> str:
        size = size_of(match["size"], kb_base)
        return match[0] if size % block == 0 else f"{match['before']}{-(-size // block) * block}"

    return _SIZES[option].sub(in_blocks, value)


def pattern_of(value: str) -> str:
    """fio's name of the pattern in the option rw: "randread" of "randread:8"."""
    match = _PATTERN.fullmatch(value)
    if re.fullmatch(r"[a-z]+:-[0-9]+[a-z]*", value):
        raise ValueError("backwards patterns would leave the arm's region; remove the part after the colon")
    if match is None or match["rw"] not in _PATTERNS:
        trims = "; trims are not measured" if "trim" in value else ""
        raise ValueError(f"no such pattern{trims}; {choices(value, _PATTERNS)}")
    return "rw" if match["rw"] == "readwrite" else match["rw"]


def check_engine(value: str) -> None:
    """Raise ValueError for an engine that bypasses the disk under test, or that is not everywhere."""
    allowed = (*ENGINES, *EQUIVALENT_ENGINES)
    if value not in allowed:
        raise ValueError(f"this engine is not one that reads and writes the disk under test; {choices(value, allowed)}")


def number_in(value: str, low: int, high: int) -> int:
    """The whole number in `value`, within these limits."""
    if not re.fullmatch(r"[0-9]{1,9}", value) or not low <= int(value) <= high:
        raise ValueError(f"allowed: a whole number, {low} to {high}")
    return int(value)


def rates_of(value: str, kb_base: int = KB_BASE) -> tuple[int, int]:
    """The I/Os per second of reads and of writes, of one process; 0 for no limit. One value is for both."""
    limits = [size_of(limit, kb_base) if limit.strip() else 0 for limit in value.split(",")]
    if len(limits) > 3:
        raise ValueError("allowed: the rates of reads, of writes and of trims")
    return limits[0], limits[1] if len(limits) > 1 else limits[0]


_DURATION = re.compile(r"(?P<number>[0-9]{1,12})(?P<unit>[a-z]*)")
_SECONDS = {
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("us", "usec"), 1e-6),
}
_DISTRIBUTION = re.compile(r"(random|zipf|pareto|normal|gauss|zoned)(:[0-9.,:/]+)?")


def seconds_of(value: str, default: str = "s") -> float:
    """The time as fio reads it, in seconds. `default` is the unit of a number without one. Raises ValueError."""
    match = _DURATION.fullmatch(value.strip().lower())
    if match is None or (match["unit"] or default) not in _SECONDS:
        raise ValueError("allowed: a number with a unit, for example 100us or 5s")
    return int(match["number"]) * _SECONDS[match["unit"] or default]


def check_shares(value: str) -> None:
    """Raise ValueError if the value is not a share of reads, and perhaps one of writes and of trims, in percent."""
    shares = value.split(",")
    if len(shares) > 3:
        raise ValueError("allowed: at most three shares in percent, for example 50,30")
    for share in shares:
        number_in(share.strip(), 0, 100)


def check_distribution(value: str) -> None:
    """Raise ValueError if the value is not a distribution over the region, whatever its size."""
    if value.startswith("zoned_abs"):
        raise ValueError("zones of a fixed size do not fit every region; allowed: zoned, with shares of the region")
    if _DISTRIBUTION.fullmatch(value) is None:
        raise ValueError("allowed: random, zipf, pareto, normal or zoned with numbers, for example zipf:1.2")
