"""The types of a scenario file's values: text with units becomes numbers, and what is out of range is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from harness.units import format_duration, format_size, parse_added, parse_duration, parse_rate, parse_share, parse_size

_SPAN_STEP = 4 * 1024**2  # one LVM extent, so that a volume and a file can be equally large
SHORTEST_RUN = 0.1
"""Seconds. fio is told whole milliseconds, and with none it runs until the whole region is done."""

T = TypeVar("T")


class Table(BaseModel):
    """A table of the file: unknown keys are refused, and "4" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def from_text(parse: Callable[[str], T], example: str) -> Callable[[object], T]:
    """A validator that parses text, and tells who gives anything else of `example`."""

    def convert(value: object) -> T:
        if not isinstance(value, str):
            raise ValueError(f'must be text in quotes; allowed: for example "{example}"')
        return parse(value)

    return convert


def power_of_two(low: int, high: int | None = None, *, sizes: bool = True) -> Callable[[int], int]:
    """A validator for powers of two from `low` to `high`: of sizes in bytes, else of counts."""
    said = format_size if sizes else str
    allowed = f"{said(low)} to {said(high)}" if high is not None else f"{said(low)} and more"

    def check(number: int) -> int:
        if number < low or (high is not None and number > high) or number & (number - 1):
            raise ValueError(f"allowed: powers of two, {allowed}")
        return number

    return check


def _or_none(parse: Callable[[str], float]) -> Callable[[str], float | None]:
    """TOML has no null: "none" takes back what the profile of the library has."""

    def convert(text: str) -> float | None:
        return None if text.strip() == "none" else _more_than_nothing(parse(text))

    return convert


def _span(size: int) -> int:
    if size < 4 * _SPAN_STEP or size % _SPAN_STEP:
        raise ValueError("no usable span; allowed: 16 MiB and more, in steps of 4 MiB")
    return size


def _more_than_nothing(number: float) -> float:
    if number <= 0:
        raise ValueError("allowed: more than 0")
    return number


def _measurable(seconds: float) -> float:
    if seconds < SHORTEST_RUN:
        raise ValueError(f"allowed: {format_duration(SHORTEST_RUN)} and more")
    return seconds


def _none_or_measurable(seconds: float) -> float:
    if 0 < seconds < SHORTEST_RUN:
        raise ValueError(f"allowed: 0 s, or {format_duration(SHORTEST_RUN)} and more")
    return seconds


Seconds = Annotated[float, BeforeValidator(from_text(parse_duration, "10 s"))]
SomeSeconds = Annotated[Seconds, AfterValidator(_more_than_nothing)]
Runtime = Annotated[Seconds, AfterValidator(_measurable)]
Ramp = Annotated[Seconds, AfterValidator(_none_or_measurable)]
SecondsOrNone = Annotated[float | None, PlainValidator(from_text(_or_none(parse_duration), "2 h"))]
ShareOrNone = Annotated[float | None, PlainValidator(from_text(_or_none(parse_share), "5 %"))]
Share = Annotated[float, BeforeValidator(from_text(parse_share, "30 %"))]
Added = Annotated[float, BeforeValidator(from_text(parse_added, "+50 us"))]
Size = Annotated[int, BeforeValidator(from_text(parse_size, "64 KiB"))]
Span = Annotated[int, BeforeValidator(from_text(parse_size, "4 GiB")), AfterValidator(_span)]
Rate = Annotated[int, BeforeValidator(from_text(parse_rate, "500 MiB/s")), AfterValidator(_more_than_nothing)]
Iodepth = Annotated[int, Field(ge=1, le=1024)]
Rounds = Annotated[int, Field(ge=1, le=10_000)]
