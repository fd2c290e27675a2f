"""How thoroughly to measure: the profiles, and what a scenario can change in them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, Strict, create_model

from harness.config.names import choices
from harness.errors import ConfigError
from harness.model.values import (
    Flag,
    Iodepth,
    Ramp,
    Rounds,
    Runtime,
    SecondsOrNone,
    ShareOrNone,
    SomeSeconds,
    Span,
    TomlTable,
)

Conditioning = Literal["fill", "steady"]


@dataclass(frozen=True, slots=True)
class Profile:
    """How thoroughly to measure. `rounds` is the minimum. More rounds follow until the cells are decided.

    The number of rounds is fixed if `most_rounds` is not set or is below `rounds`.
    """

    name: str
    ramp: Ramp
    """Seconds at the beginning of each slice that are not measured."""
    runtime: Runtime
    """Seconds of measured time of each slice."""
    rounds: Rounds
    iodepth: Annotated[tuple[Iodepth, ...], Field(min_length=1), Strict(False)]
    span: Span
    """Bytes of the largest region that an arm uses."""
    round_limit: SomeSeconds
    """Seconds of fio that one round over all arms may take."""
    blocks: Rounds = 1
    """Blocks of each job in a round: how often each arm runs the job, in slices that alternate with the other arms."""
    most_rounds: Rounds = 0
    target: ShareOrNone = None
    """Half width of the overhead's 95 % interval, as a fraction. A cell without a budget is decided at this width."""
    time_limit: SecondsOrNone = None
    """Seconds for measuring the scenario. No round begins that would end later."""
    conditioning: Conditioning = "fill"
    """How a region is prepared: filled once, or brought to a steady state."""
    reboot: Flag = False
    """Whether each round begins with a new boot of the guest. Then the samples are the boots and not the blocks."""

    own_times: Flag = True
    """Whether workloads that have a duration of their own run for it."""

    def __post_init__(self) -> None:
        if self.most_rounds < self.rounds:
            object.__setattr__(self, "most_rounds", self.rounds)

    def changed(self, changes: TomlTable | None) -> Profile:
        """The profile with the changes of a scenario, a `ProfileTable`."""
        return replace(self, **(changes.model_dump(exclude_unset=True) if changes is not None else {}))


def _make_profile_table() -> type[TomlTable]:
    """A table whose keys are the fields of Profile. A scenario changes only the keys that it sets."""
    hints = get_type_hints(Profile, include_extras=True)
    names = [field.name for field in fields(Profile) if field.name != "name"]
    keys: dict[str, Any] = {name: (hints[name] | None, None) for name in names}
    return create_model("ProfileTable", __base__=TomlTable, __doc__="What a scenario changes in a profile.", **keys)


PROFILE_TABLE = _make_profile_table()

_DEPTHS = tuple(2**power for power in range(9))  # 1..256
_MIB, _GIB = 1024**2, 1024**3

PROFILES = (
    Profile(
        "smoke",
        ramp=0,
        runtime=0.25,
        rounds=2,
        iodepth=(32,),
        span=64 * _MIB,
        round_limit=5 * 60,
        blocks=10,
        most_rounds=2,
        own_times=False,
    ),
    Profile(
        "standard",
        ramp=0,
        runtime=0.5,
        rounds=4,
        iodepth=_DEPTHS,
        span=4 * _GIB,
        round_limit=10 * 60,
        blocks=2,
        most_rounds=24,
        target=0.03,
        time_limit=3600,
        conditioning="steady",
        reboot=True,
    ),
    Profile(
        "publish",
        ramp=0,
        runtime=1,
        rounds=5,
        iodepth=_DEPTHS,
        span=64 * _GIB,  # as in the study of Proxmox VE, whose LVM and RAW disks had 64 GB
        round_limit=20 * 60,
        blocks=2,
        most_rounds=54,
        target=0.01,
        time_limit=10 * 3600,
        conditioning="steady",
        reboot=True,
    ),
)


def find_profile(profiles: tuple[Profile, ...], name: str) -> Profile:
    """The profile with this name. Raises ConfigError, which lists the names that exist."""
    by_name = {profile.name: profile for profile in profiles}
    if name not in by_name:
        raise ConfigError(f'profile "{name}": no such profile; {choices(name, by_name)}')
    return by_name[name]
