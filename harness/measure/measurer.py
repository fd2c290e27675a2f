"""What a campaign and a calibration need of the thing that measures: the protocol, and the values that it exchanges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import JsonValue

from harness.errors import GuestError, HostError
from harness.model.budget import LabKind
from harness.model.effective import Effective
from harness.model.mode import Arm
from harness.results import ConditioningRecord, LabInfo, Measurement
from harness.scenario.plan import Group, Plan


@dataclass(frozen=True, slots=True)
class LabFound:
    """What the host turned out to be. `provenance` holds its versions and settings, as plain JSON values."""

    info: LabInfo
    kind: LabKind
    provenance: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A group that is ready to be measured. `span` is what each arm works on, in bytes.

    By mode, `skipped` says why the host cannot have it, and `effective` how its disk is really attached. `notes` say by
    the arm's id what differs between the arms beside the arm itself. `provenance` is of the guest and the disks.
    """

    span: int
    conditioning: ConditioningRecord
    skipped: Mapping[str, str] = field(default_factory=dict)
    effective: Mapping[str, Effective] = field(default_factory=dict)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    provenance: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """The part of one arm in a round. `again` is 2 where the arm was measured in the same round before."""

    arm: Arm
    again: int = 1
    name: str = ""
    """What progress messages call it; the arm's id where it is empty."""

    def __str__(self) -> str:
        return self.name or self.arm.id


class Measurer(Protocol):
    """Makes groups ready on one host, and measures them arm by arm."""

    @property
    def restarts(self) -> Sequence[str]:
        """One sentence for each time that a simulated lab failed and was made ready again."""

    def ready(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> Prepared:
        """Make the group ready; what serves it already stays as it is.

        `examined` is called with what the host is before anything is built, and may raise. Raises NothingToCompare,
        Unsupported, HostError, GuestError, LabUnavailable, SafetyError.
        """

    def measure(self, group: Group, turn: Turn, number: int) -> list[Measurement]:
        """Measure one arm in round `number` of the group that was made ready last; all is in the journal then.

        Raises MeasurementError, HostError, GuestError, SafetyError.
        """

    def start_again(self, error: HostError | GuestError, what: str) -> None:
        """Take down a simulated lab that failed, for `ready` to make it again; `what` says what failed.

        Raises `error` on a real host, and where the lab keeps failing.
        """

    def went_well(self) -> None:
        """A round was measured: what fails after it is another failure."""

    def close(self) -> None:
        """Take everything down that was built."""
