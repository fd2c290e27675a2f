"""Lists of CPUs or NUMA nodes as the kernel writes them: `0-3,8`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Strict

HIGHEST = 8191
"""The highest CPU number of a Linux kernel for x86-64 (CONFIG_NR_CPUS)."""
_LIST = re.compile(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*")


def cpus_in(text: str) -> tuple[int, ...]:
    """The numbers in a list, sorted, each once. Raises ValueError for anything else."""
    compact = text.replace(" ", "")
    if not _LIST.fullmatch(compact):
        raise ValueError('not a list of CPUs or nodes; allowed: for example "2", "2-5" or "0-3,8"')
    found: set[int] = set()
    for part in compact.split(","):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not begin <= end <= HIGHEST:
            raise ValueError(
                f"not a range of CPUs or nodes: {part}; allowed: the smaller number first, up to {HIGHEST}"
            )
        found.update(range(begin, end + 1))
    return tuple(sorted(found))


def as_list(numbers: Iterable[int]) -> str:
    """The list of these numbers, with ranges: `0-3,8`."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def kernels_form(text: str) -> str:
    """The same list as the kernel writes it, so that both can be compared. Raises ValueError."""
    return as_list(cpus_in(text))


NumberList = Annotated[str, Strict(), AfterValidator(kernels_form)]
"""A list of CPUs or of NUMA nodes in a file or a record."""
