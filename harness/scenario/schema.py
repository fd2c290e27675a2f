"""The shape of a scenario file: every key, its type, and what may stand there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    model_validator,
)

from harness.analysis.metrics import METRICS
from harness.analysis.verdict import Both
from harness.config.names import choices
from harness.scenario.attach import Aio, Attach, Bus, Cache
from harness.scenario.layouts import Filesystem
from harness.scenario.library import PRESETS, PROFILES, parse_workload
from harness.scenario.model import Conditioning, LabKind, Workload
from harness.units import format_duration, parse_added, parse_duration, parse_rate, parse_share, parse_size

_PRESET_NAMES = tuple(mode.name for mode in PRESETS)
_PROFILE_NAMES = tuple(profile.name for profile in PROFILES)
_MODE_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LATENCIES = tuple(name for name, metric in METRICS.items() if metric.is_latency)
_SPAN_STEP = 4 * 1024**2  # one LVM extent, so that a volume and a file can be equally large

T = TypeVar("T")


def _from_text(parse: Callable[[str], T], example: str) -> Callable[[object], T]:
    def convert(value: object) -> T:
        if not isinstance(value, str):
            raise ValueError(f'must be text in quotes; allowed: for example "{example}"')
        return parse(value)

    return convert


def _or_none(parse: Callable[[str], float]) -> Callable[[str], float | None]:
    """TOML has no null: "none" takes back what the profile of the library has."""

    def convert(text: str) -> float | None:
        return None if text.strip() == "none" else _more_than_nothing(parse(text))

    return convert


def _own_mode_name(name: str) -> str:
    if name in _PRESET_NAMES:
        raise ValueError("is a preset, which means the same in every scenario; allowed: any other name")
    if not _MODE_NAME.fullmatch(name):
        raise ValueError("no name of a mode; allowed: lower case letters, digits and single hyphens")
    return name


def _decomposition_name(name: str) -> str:
    if not _MODE_NAME.fullmatch(name):
        raise ValueError("no name of a decomposition; allowed: lower case letters, digits and single hyphens")
    return name


def _known_mode(name: str, info: ValidationInfo) -> str:
    own: tuple[str, ...] = info.context["own_modes"] if info.context else ()
    names = tuple(dict.fromkeys((*_PRESET_NAMES, *own)))
    if name not in names:
        raise ValueError(f"no such mode; {choices(name, names)}")
    return name


def _known_profile(name: str) -> str:
    if name not in _PROFILE_NAMES:
        raise ValueError(f"no such profile; {choices(name, _PROFILE_NAMES)}")
    return name


def _known_metric(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"no such metric; {choices(name, METRICS)}")
    return name


def _span(size: int) -> int:
    if size < 4 * _SPAN_STEP or size % _SPAN_STEP:
        raise ValueError("no usable span; allowed: 16 MiB and more, in steps of 4 MiB")
    return size


def _more_than_nothing(number: float) -> float:
    if number <= 0:
        raise ValueError("allowed: more than 0")
    return number


Seconds = Annotated[float, BeforeValidator(_from_text(parse_duration, "10 s"))]
SomeSeconds = Annotated[Seconds, AfterValidator(_more_than_nothing)]
SecondsOrNone = Annotated[float | None, PlainValidator(_from_text(_or_none(parse_duration), "2 h"))]
ShareOrNone = Annotated[float | None, PlainValidator(_from_text(_or_none(parse_share), "5 %"))]
Share = Annotated[float, BeforeValidator(_from_text(parse_share, "30 %"))]
Added = Annotated[float, BeforeValidator(_from_text(parse_added, "+50 us"))]
Span = Annotated[int, BeforeValidator(_from_text(parse_size, "4 GiB")), AfterValidator(_span)]
Rate = Annotated[int, BeforeValidator(_from_text(parse_rate, "500 MiB/s")), AfterValidator(_more_than_nothing)]
ModeName = Annotated[str, AfterValidator(_known_mode)]
OwnModeName = Annotated[str, AfterValidator(_own_mode_name)]
DecompositionName = Annotated[str, AfterValidator(_decomposition_name)]
ProfileName = Annotated[str, AfterValidator(_known_profile)]
WorkloadText = Annotated[Workload, PlainValidator(_from_text(parse_workload, "randread-4k"))]
Iodepth = Annotated[int, Field(ge=1, le=1024)]
MetricName = Annotated[str, AfterValidator(_known_metric)]


class Table(BaseModel):
    """A table of the file: unknown keys are refused, and "4" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DeviceTable(Table):
    kind: Literal["device"]


class LvmTable(Table):
    kind: Literal["lvm"]


class RawFileTable(Table):
    kind: Literal["raw"]
    filesystem: Filesystem = "ext4"


LayoutTable = Annotated[DeviceTable | LvmTable | RawFileTable, Field(discriminator="kind")]
LAYOUT_TABLES: dict[str, type[Table]] = {"device": DeviceTable, "lvm": LvmTable, "raw": RawFileTable}


class AttachTable(Table):
    """How the guest gets the layout; what is left out is as in the presets."""

    bus: Bus = Attach().bus
    cache: Cache = Attach().cache
    aio: Aio = Attach().aio
    iothread: bool = Attach().iothread

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        problems = []
        if self.aio == "native" and not self.attach.direct:
            problems.append(
                f"{self._said('aio')} does not go with {self._said('cache')}, which is no direct I/O; "
                "allowed: cache none or directsync, or aio threads or io_uring"
            )
        if self.bus == "sata" and self.iothread:
            problems.append(
                f"{self._said('iothread')} does not go with {self._said('bus')}, whose requests QEMU's main thread "
                "serves; allowed: iothread = false, or bus virtio-blk or virtio-scsi"
            )
        if problems:
            raise ValueError("; and ".join(problems))
        return self

    def _said(self, key: str) -> str:
        value: Any = getattr(self, key)
        text = f'"{value}"' if isinstance(value, str) else str(value).lower()
        return f"{key} = {text}" + ("" if key in self.model_fields_set else " (the default)")

    @property
    def attach(self) -> Attach:
        return Attach(self.bus, self.cache, self.aio, self.iothread)


class ModeTable(Table):
    """A mode of the scenario's own."""

    layout: LayoutTable
    attach: AttachTable


class ProfileTable(Table):
    """What this scenario changes in a profile of the library; what is not set is unchanged."""

    ramp: Seconds | None = None
    runtime: SomeSeconds | None = None
    rounds: Annotated[int, Field(ge=1)] | None = None
    iodepth: Annotated[list[Iodepth], Field(min_length=1)] | None = None
    span: Span | None = None
    round_limit: SomeSeconds | None = None
    most_rounds: Annotated[int, Field(ge=1)] | None = None
    target: ShareOrNone = None
    time_limit: SecondsOrNone = None
    conditioning: Conditioning | None = None
    bracket: bool | None = None


class BudgetTable(Table):
    """The overhead allowed to some cells. Whether its modes, workloads and depths are measured is checked later."""

    modes: Annotated[list[str], Field(min_length=1)] | None = None
    workloads: Annotated[list[WorkloadText], Field(min_length=1)] | None = None
    iodepth: Annotated[list[Iodepth], Field(min_length=1)] | None = None
    # A lab that cannot speak for hardware is judged only by budgets written for it.
    lab: Annotated[list[LabKind], Field(min_length=1)] = ["bare-metal"]
    metric: MetricName
    share: Share | None = None
    absolute: Added | None = None
    both: Both | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        problems = list(self._problems())
        if problems:
            raise ValueError("; and ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        metric = METRICS[self.metric]
        if self.share is None and self.absolute is None:
            yield "says no amount; allowed: share, absolute, or the two with both"
        if self.absolute is not None and not metric.is_latency:
            yield (
                f'absolute = "+{format_duration(self.absolute)}" does not go with metric = "{metric.name}"; '
                f"allowed: share, or a latency ({', '.join(_LATENCIES)})"
            )
        if self.share is not None and self.share >= 1 and metric.higher_is_better:
            yield (
                f'share = "{self.share * 100:g} %" of metric = "{metric.name}" can never be exceeded; '
                "allowed: less than 100 %"
            )
        together = self.share is not None and self.absolute is not None
        if together and self.both is None:
            yield 'share and absolute do not say which counts; allowed: with them both = "looser" or both = "stricter"'
        if self.both is not None and not together:
            yield f'both = "{self.both}" has nothing to choose from; allowed: only with share and absolute'


class DecomposeTable(Table):
    """Arms from the host on, each with one change against the one before. Whether that is so is checked later."""

    steps: Annotated[list[str], Field(min_length=2)]
    workloads: Annotated[list[WorkloadText], Field(min_length=1)] | None = None


class ScenarioTable(Table):
    """The whole file. Validate with `context={"own_modes": (...)}`: what `modes` may name beside the presets."""

    title: Annotated[str, Field(min_length=1)]
    disk: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")] | None = None
    modes: Annotated[list[ModeName], Field(min_length=1)]
    workloads: Annotated[list[WorkloadText], Field(min_length=1)]
    write_rate: Rate
    published: Annotated[str, Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$")] | None = None
    expect_void: Annotated[list[str], Field(min_length=1)] | None = None
    mode: dict[OwnModeName, ModeTable] = {}
    profile: dict[ProfileName, ProfileTable] = {}
    budget: list[BudgetTable] = []
    decompose: dict[DecompositionName, DecomposeTable] = {}
