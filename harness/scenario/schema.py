"""The shape of a scenario file: every key, its type, and what may stand there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import AfterValidator, Field, PlainValidator, ValidationInfo, model_validator

from harness.analysis.metrics import METRICS
from harness.analysis.verdict import Both
from harness.config.names import choices, plain_name, short_name
from harness.config.values import one_line
from harness.scenario.fields import (
    Added,
    Iodepth,
    Ramp,
    Rate,
    Rounds,
    Runtime,
    SecondsOrNone,
    Share,
    ShareOrNone,
    SomeSeconds,
    Span,
    Table,
    from_text,
)
from harness.scenario.library import PRESETS, PROFILES, parse_workload
from harness.scenario.mode_tables import ModeTable
from harness.scenario.model import Conditioning, LabKind, Workload
from harness.units import format_duration

_PRESET_NAMES = tuple(mode.name for mode in PRESETS)
_PROFILE_NAMES = tuple(profile.name for profile in PROFILES)
_MODE_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# A mode's volume bears its name, beside the pools of thin ones; lvm(8) keeps two beginnings for itself. What is no
# mode's in tables by mode is called `device`.
_RESERVED = ("device",)
_RESERVED_BEGINNINGS = ("pool-", "pvmove", "snapshot")
_LATENCIES = tuple(name for name, metric in METRICS.items() if metric.is_latency)


def _own_mode_name(name: str) -> str:
    if name in _PRESET_NAMES:
        raise ValueError("is a preset, which means the same in every scenario; allowed: any other name")
    if not _MODE_NAME.fullmatch(name):
        raise ValueError("no name of a mode; allowed: lower case letters, digits and single hyphens")
    if name in _RESERVED or name.startswith(_RESERVED_BEGINNINGS):
        reserved = ", ".join((*_RESERVED, *(f"{beginning}..." for beginning in _RESERVED_BEGINNINGS)))
        raise ValueError(f"is reserved, for LVM's own volumes or ours; allowed: any but {reserved}")
    return short_name(name)


def _decomposition_name(name: str) -> str:
    if not _MODE_NAME.fullmatch(name):
        raise ValueError("no name of a decomposition; allowed: lower case letters, digits and single hyphens")
    return short_name(name)


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


DiskName = Annotated[str, AfterValidator(plain_name)]
ModeName = Annotated[str, AfterValidator(_known_mode)]
OwnModeName = Annotated[str, AfterValidator(_own_mode_name)]
DecompositionName = Annotated[str, AfterValidator(_decomposition_name)]
ProfileName = Annotated[str, AfterValidator(_known_profile)]
WorkloadText = Annotated[Workload, PlainValidator(from_text(parse_workload, "randread-4k"))]
MetricName = Annotated[str, AfterValidator(_known_metric)]


class ProfileTable(Table):
    """What this scenario changes in a profile of the library; what is not set is unchanged."""

    ramp: Ramp | None = None
    runtime: Runtime | None = None
    rounds: Rounds | None = None
    iodepth: Annotated[list[Iodepth], Field(min_length=1)] | None = None
    span: Span | None = None
    round_limit: SomeSeconds | None = None
    most_rounds: Rounds | None = None
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
    lab: list[LabKind] = Field(min_length=1, default=["bare-metal"])
    metric: MetricName
    share: Share | None = None
    absolute: Added | None = None
    both: Both | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        problems = list(self._problems())
        if problems:
            raise ValueError("\n".join(problems))
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

    title: Annotated[str, AfterValidator(one_line)]
    disk: DiskName | None = None
    disks: Annotated[list[DiskName], Field(min_length=1)] | None = None
    modes: Annotated[list[ModeName], Field(min_length=1)]
    workloads: Annotated[list[WorkloadText], Field(min_length=1)]
    write_rate: Rate
    published: Annotated[str, Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$")] | None = None
    expect_void: Annotated[list[str], Field(min_length=1)] | None = None
    mode: dict[OwnModeName, ModeTable] = Field(default_factory=dict)
    profile: dict[ProfileName, ProfileTable] = Field(default_factory=dict)
    budget: list[BudgetTable] = Field(default_factory=list)
    decompose: dict[DecompositionName, DecomposeTable] = Field(default_factory=dict)
