"""The types of values in files and records, and the limits of a disk's I/O. A file has texts with units."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    Strict,
    ValidationInfo,
)

from harness.config.names import arm_name, path_name, raw_path
from harness.config.problems import matching
from harness.units import format_duration, format_size, parse_added, parse_duration, parse_rate, parse_share, parse_size
from harness.untrusted import LARGEST

_SPAN_STEP = 4 * 1024**2  # one LVM extent: a volume and a file can then have the same size
SHORTEST_RUN = 0.1
"""Seconds. fio accepts whole milliseconds. With 0, it would run until it has processed the whole region."""

T = TypeVar("T")

STORED: Mapping[str, bool] = {"stored": True}
"""The pydantic context for reading records. There, numbers are numbers and not text with a unit."""

# A domain value is one frozen dataclass for the table of a TOML file, the record in results.json, and the code.
# pydantic refuses unknown keys. Strict mode would not accept a table of a file, so the single fields are strict.
VALUE = ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)
STRICT = ConfigDict(**VALUE, strict=True)


class FileValue:
    """The base of a domain value that a TOML file may have."""

    __slots__ = ()
    __pydantic_config__ = VALUE


class RecordValue:
    """The base of a domain value that only records have: nothing is converted."""

    __slots__ = ()
    __pydantic_config__ = STRICT


class TomlTable(BaseModel):
    """A table of a file. It refuses unknown keys, and "4" is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


def from_text(parse: Callable[[str], T], example: str) -> Callable[[object, ValidationInfo], T]:
    """A validator that parses text. Errors show `example`, its attribute. A record has the number, not text."""

    def convert(value: object, info: ValidationInfo) -> Any:
        if info.context == STORED:
            return value
        if isinstance(value, str):
            return parse(value)
        raise ValueError(f'must be text in quotes; allowed: for example "{example}"')

    convert.example = example  # type: ignore[attr-defined]
    return convert


class Bytes:
    """Marks a field with a number of bytes. Messages show it with a unit."""


class BytesPerSecond:
    """Marks a field with a rate in bytes per second. Messages show it with a unit."""


def format_field(value: object, name: str) -> str:
    """The field of a dataclass in TOML notation: sizes with their unit, text in quotes."""
    content = getattr(value, name)
    hint = get_type_hints(type(value), include_extras=True)[name]
    if isinstance(content, int) and _is_marked(hint, Bytes):
        return f'"{format_size(content)}"'
    if isinstance(content, int) and _is_marked(hint, BytesPerSecond):
        return f'"{format_size(content)}/s"'
    if isinstance(content, tuple):
        return str(list(content))
    return f'"{content}"' if isinstance(content, str) else str(content).lower()


def names_of(value: Any) -> list[str]:
    """The names of a dataclass's fields, in order."""
    return [field.name for field in fields(value)]


def _is_marked(hint: Any, marker: type) -> bool:
    metadata = getattr(hint, "__metadata__", ())
    return marker in metadata or any(_is_marked(part, marker) for part in getattr(hint, "__args__", ()))


def power_of_two(low: int, high: int | None = None, *, sizes: bool = True) -> Callable[[int], int]:
    """A validator for powers of two from `low` to `high`. With `sizes`, messages show bytes with a unit."""
    words = format_size if sizes else str
    allowed = f"{words(low)} to {words(high)}" if high is not None else f"{words(low)} or more"

    def check(number: int) -> int:
        if number < low or (high is not None and number > high) or number & (number - 1):
            raise ValueError(f"allowed: powers of two, {allowed}")
        return number

    return check


def _accept_none(parse: Callable[[str], float]) -> Callable[[str], float | None]:
    """TOML has no null, so "none" removes the default of the profile."""

    def convert(text: str) -> float | None:
        return None if text.strip() == "none" else _check_positive(parse(text))

    return convert


def _check_span(size: int) -> int:
    if size < 4 * _SPAN_STEP or size % _SPAN_STEP:
        raise ValueError("not a valid span; allowed: 16 MiB or more, in steps of 4 MiB")
    return size


def _check_positive(number: float) -> float:
    if number <= 0:
        raise ValueError("allowed: more than 0")
    return number


def _check_measurable(seconds: float) -> float:
    if seconds < SHORTEST_RUN:
        raise ValueError(f"allowed: {format_duration(SHORTEST_RUN)} or more")
    return seconds


def _check_none_or_measurable(seconds: float) -> float:
    if 0 < seconds < SHORTEST_RUN:
        raise ValueError(f"allowed: 0 s, or {format_duration(SHORTEST_RUN)} or more")
    return seconds


Name = Annotated[str, AfterValidator(path_name)]
"""In records: the name of a host, disk, scenario, mode, job, cell or group. It may become the name of a file."""
ArmName = Annotated[str, AfterValidator(arm_name)]
Measured = Annotated[float, Field(ge=1 / LARGEST, le=LARGEST)]
"""In records: a value that was measured, of which ratios and logarithms are taken."""
Amount = Annotated[float, Field(ge=0, le=LARGEST)]
Counted = Annotated[int, Field(ge=0, lt=1 << 63)]
Number = Annotated[int, Field(ge=1, lt=1 << 31)]
Figure = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Confidence = Annotated[float, Field(gt=0, lt=1)]
PValue = Annotated[float, Field(ge=0, le=1)]
Moment = Annotated[float, Field(ge=0, lt=253_402_300_800)]
"""In records: seconds since 1970-01-01 UTC."""
RawPath = Annotated[str, AfterValidator(raw_path)]
"""In records: the path of an output, relative to the directory of the run."""
Seconds = Annotated[float, BeforeValidator(from_text(parse_duration, "10 s"))]
_POSITIVE = AfterValidator(_check_positive)
SomeSeconds = Annotated[Seconds, _POSITIVE]
Runtime = Annotated[Seconds, AfterValidator(_check_measurable)]
Ramp = Annotated[Seconds, AfterValidator(_check_none_or_measurable)]
SecondsOrNone = Annotated[float | None, PlainValidator(from_text(_accept_none(parse_duration), "2 h"))]
ShareOrNone = Annotated[float | None, PlainValidator(from_text(_accept_none(parse_share), "5 %"))]
Share = Annotated[float, BeforeValidator(from_text(parse_share, "30 %"))]
Added = Annotated[float, BeforeValidator(from_text(parse_added, "+50 us"))]
Size = Annotated[int, Strict(), BeforeValidator(from_text(parse_size, "64 KiB")), Bytes]
Span = Annotated[int, BeforeValidator(from_text(parse_size, "4 GiB")), AfterValidator(_check_span)]
Rate = Annotated[int, BeforeValidator(from_text(parse_rate, "500 MiB/s")), _POSITIVE, BytesPerSecond]
Iodepth = Annotated[int, Strict(), Field(ge=1, le=1024)]
MOST_ROUNDS = 10_000
_OPTION = "[a-z][a-z0-9_]{0,30}(=[A-Za-z0-9_.-]{1,60})?"
MountOptions = Annotated[str, matching(f"({_OPTION}(,{_OPTION}){{,9}})?", "options of mount: `noatime,discard`")]
Rounds = Annotated[int, Strict(), Field(ge=1, le=MOST_ROUNDS)]
Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict()]
PollTime = Annotated[Count, Field(ge=0, le=1_000_000_000)]
"""Nanoseconds for which a thread polls."""


def require_whole_number(value: object) -> object:
    """Refuses 1.0 and true. In Python both equal 1, so a literal would accept them."""
    if type(value) is not int:
        raise ValueError("must be a whole number, without quotes")
    return value


HIGHEST = 8191
"""The highest CPU number of a Linux kernel for x86-64 (CONFIG_NR_CPUS)."""
_LIST = re.compile(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*")


def parse_cpus(text: str) -> tuple[int, ...]:
    """The numbers in a list, sorted, each once. Raises ValueError for anything else."""
    compact = text.replace(" ", "")
    if not _LIST.fullmatch(compact):
        raise ValueError('not a list of CPUs or nodes; allowed: for example "2", "2-5" or "0-3,8"')
    numbers: set[int] = set()
    for part in compact.split(","):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not begin <= end <= HIGHEST:
            raise ValueError(
                f"not a range of CPUs or nodes: {part}; allowed: the smaller number first, up to {HIGHEST}"
            )
        numbers.update(range(begin, end + 1))
    return tuple(sorted(numbers))


def format_list(numbers: Iterable[int]) -> str:
    """The list of these numbers, with ranges: `0-3,8`."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def normalise_list(text: str) -> str:
    """The same list as the kernel writes it, so that both can be compared. Raises ValueError."""
    return format_list(parse_cpus(text))


NumberList = Annotated[str, Strict(), AfterValidator(normalise_list)]
"""A list of CPUs or of NUMA nodes in a file or a record."""


LimitKind = Literal["iops", "bps"]
"""What is limited, by QEMU's name: I/Os per second, or bytes per second."""
LimitWay = Literal["total", "read", "write"]
"""Of which I/O: reads and writes together, only reads, or only writes."""
NO_LIMIT = "none"
_AT_ONCE = 0.1
"""QEMU lets through the I/O of a tenth of a second at once. Source: throttle_compute_wait in QEMU's util/throttle.c."""
_WAYS: Mapping[str, LimitWay] = {"": "total", "_rd": "read", "_wr": "write"}
_BURSTS = {"": "", "_max": "-max", "_max_length": "-max-length"}


class Limited(NamedTuple):
    """What a limit applies to, by QEMU's names."""

    kind: LimitKind
    way: LimitWay

    @property
    def option(self) -> str:
        """The option of an attachment with this limit: `iops`, `read_bw`."""
        name = "iops" if self.kind == "iops" else "bw"
        return name if self.way == "total" else f"{self.way}_{name}"

    @property
    def in_libvirt(self) -> str:
        """The element of `<iotune>` with this limit."""
        return f"{self.way}_{'iops' if self.kind == 'iops' else 'bytes'}_sec"

    def format_rate(self, rate: float) -> str:
        """For example `1000 I/Os per second`, `64 MiB/s of reads`."""
        if self.kind == "iops":
            return f"{rate:.0f} {'I/O' if self.way == 'total' else self.way}s per second"
        return f"{format_size(rate)}/s" + ("" if self.way == "total" else f" of {self.way}s")


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `rate` per second on average. For `seconds`, it may be up to `burst` per second, if that is not None."""

    rate: int
    burst: int | None = None
    seconds: int = 1

    def settings(self, limited: Limited) -> dict[str, int]:
        """The limit by QEMU's names for the properties of a throttle group."""
        name = "-".join(limited)
        properties = {name: self.rate}
        if self.burst is not None:
            properties |= {f"{name}-max": self.burst, f"{name}-max-length": self.seconds}
        return properties

    def at_once(self) -> float:
        """How much QEMU lets through at any speed after a pause, before it limits the I/O to `rate`."""
        return self.rate * _AT_ONCE if self.burst is None else float(self.burst * self.seconds)

    def allowed(self, seconds: float) -> float:
        """The most that QEMU lets through in so many seconds after a pause."""
        most = self.rate * seconds + self.at_once()
        if self.burst is not None and self.seconds > 1:
            most = min(most, self.burst * (seconds + _AT_ONCE))
        return most


def format_limits(settings: Mapping[str, int], kind: LimitKind) -> str:
    """The limits of one kind by QEMU's names, in one text: `iops-total=1000`. `none` without a limit."""
    names = (f"{kind}-{way}{burst}" for way, burst in product(_WAYS.values(), _BURSTS.values()))
    given = [(name, settings.get(name, 0)) for name in names]
    # A burst takes one second by default, also if there is none.
    shown = (f"{name}={value}" for name, value in given if value and not (name.endswith("-length") and value == 1))
    return " ".join(shown) or NO_LIMIT


def read_block_device_limits(inserted: Mapping[str, int]) -> dict[str, int]:
    """The limits that QEMU's `query-block` reports of a block device, by the names of a throttle group."""
    return {
        f"{kind}-{way}{burst}": inserted.get(f"{kind}{short}{suffix}", 0)
        for kind in ("iops", "bps")
        for (short, way), (suffix, burst) in product(_WAYS.items(), _BURSTS.items())
    }
