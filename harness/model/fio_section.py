"""Sections of a user's own fio file, as they are measured, and the sizes and rates in fio's options. Pure.

Functions raise ValueError, which says what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Strict

from harness.model.values import VALUE, Count

DEFAULT_ENGINE = "psync"
"""fio's own default on Linux."""
DEFAULT_BS = 4096
"""fio's own default, in bytes."""
_SIZE = re.compile(
    r"(?:(?P<hex>0x[0-9a-f]{1,12})|(?P<number>[0-9]{1,15}))(?P<unit>[kmgtp]?)(?P<ending>b|i|ib)?", re.I | re.A
)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
KB_BASE = 1024
"""fio's default for `kb_base`."""
_OTHER_BASE = {1024: 1000, 1000: 1024}
# A size is a number with its unit, at the beginning or after one of these marks. In bssplit, a share follows "/".
SIZES = {
    "ba": re.compile(r"(?P<before>^|,)(?P<size>[^,]+)"),
    "bs": re.compile(r"(?P<before>^|,)(?P<size>[^,]+)"),
    "bsrange": re.compile(r"(?P<before>^|[,:-])(?P<size>[^,:-]+)"),
    "bssplit": re.compile(r"(?P<before>^|[,:])(?P<size>[^,:/]+)"),
}


def parse_size(text: str, kb_base: int = KB_BASE) -> int:
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


def find_block_sizes(values: Mapping[str, str]) -> tuple[int, ...]:
    """Every block size in bytes of a section with these options. fio prefers bssplit to bsrange, and both to bs."""
    for option in ("bssplit", "bsrange", "bs"):
        if option in values:
            value = values[option]
            sizes = tuple(parse_size(match["size"], read_base(values)) for match in SIZES[option].finditer(value))
            # In `,8k`, the size of reads is fio's default.
            return (DEFAULT_BS, *sizes) if value.startswith(",") or value.endswith(",") else sizes
    return (DEFAULT_BS,)


def read_base(values: Mapping[str, str]) -> int:
    """What k stands for in the sizes of a section with these options."""
    return int(values.get("kb_base", KB_BASE))


def round_up_sizes(option: str, value: str, block: int, kb_base: int = KB_BASE) -> str:
    """The value of an option, with block sizes rounded up to multiples of `block` bytes. Other values are unchanged."""
    if option not in SIZES:
        return value

    def in_blocks(match: re.Match[str]) -> str:
        size = parse_size(match["size"], kb_base)
        return match[0] if size % block == 0 else f"{match['before']}{-(-size // block) * block}"

    return SIZES[option].sub(in_blocks, value)


def parse_rates(value: str, kb_base: int = KB_BASE) -> tuple[int, int]:
    """The I/Os per second of reads and of writes, of one process; 0 for no limit. One value is for both."""
    limits = [parse_size(limit, kb_base) if limit.strip() else 0 for limit in value.split(",")]
    if len(limits) > 3:
        raise ValueError("allowed: the rates of reads, of writes and of trims")
    return limits[0], limits[1] if len(limits) > 1 else limits[0]


@dataclass(frozen=True, slots=True)
class FioOption:
    """An option that fio gets as it is in the file."""

    __pydantic_config__ = VALUE

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Overridden:
    """An option of the file that virt-overhead sets itself."""

    __pydantic_config__ = VALUE

    name: str
    value: str
    """In the file; empty for an option without a value."""
    instead: str
    """What applies instead, in words."""


@dataclass(frozen=True, slots=True)
class FioSection:
    """One section of the file, with the options that it has from [global] and from included files."""

    __pydantic_config__ = VALUE

    name: str
    """As in the file."""
    options: Annotated[tuple[FioOption, ...], Strict(False)]
    processes: Count
    """fio's numjobs."""
    iodepth: Count
    """I/Os in flight of each process; 1 with an engine that waits for each I/O."""
    overridden: Annotated[tuple[Overridden, ...], Strict(False)] = ()

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Every block size in bytes, the limits of ranges, and fio's default if there is none."""
        values = {option.name: option.value for option in self.options}
        return find_block_sizes(values)

    @property
    def text(self) -> str:
        """The options in one line."""
        return " ".join(f"{option.name}={option.value}" for option in self.options)

    def options_for(self, block: int) -> tuple[FioOption, ...]:
        """The options for a disk whose logical blocks have `block` bytes: other block sizes are rounded up."""
        base = read_base({option.name: option.value for option in self.options})
        rounded = (
            FioOption(option.name, round_up_sizes(option.name, option.value, block, base)) for option in self.options
        )
        return tuple(rounded)


@dataclass(frozen=True, slots=True)
class FromFile:
    """The sections of a user's own fio file that run at the same time. fio reports them as one."""

    __pydantic_config__ = VALUE

    file: str
    """Path of the file, relative to the scenario's folder."""
    sections: Annotated[tuple[FioSection, ...], Strict(False)]
    saturating: Annotated[bool, Strict()]
    """Whether every section always keeps as many I/Os in flight as its depth allows."""
    paced: Annotated[bool, Strict()]
    """Whether every section has a rate or pauses, which limit its IOPS."""
    flushes: Annotated[bool, Strict()]
    """Whether a section calls fsync or fdatasync."""

    @property
    def depth(self) -> int:
        """I/Os in flight of all processes together."""
        return sum(section.iodepth * section.processes for section in self.sections)

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Every block size in bytes, each once, the smallest first."""
        return tuple(sorted({size for section in self.sections for size in section.block_sizes}))
