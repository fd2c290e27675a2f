"""Sections of a user's own fio file, as they are measured. harness/model/fio_file.py reads them from the file. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Strict

from harness.model.fio_values import base_of, block_sizes, rounded_up
from harness.model.values import VALUE, Count


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
        return block_sizes(values)

    @property
    def text(self) -> str:
        """The options in one line."""
        return " ".join(f"{option.name}={option.value}" for option in self.options)

    def options_for(self, block: int) -> tuple[FioOption, ...]:
        """The options for a disk whose logical blocks have `block` bytes: other block sizes are rounded up."""
        base = base_of({option.name: option.value for option in self.options})
        rounded = (
            FioOption(option.name, rounded_up(option.name, option.value, block, base)) for option in self.options
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
