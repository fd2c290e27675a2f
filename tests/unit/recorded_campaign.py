"""A measurer that plays rounds back: what pytest makes of measurements, without a host to make them on.

Everything but the measuring is real: the campaign, its rounds, when they end, budgets, checks, the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from harness.errors import GuestError, HostError
from harness.measure.phases import Phases
from harness.measure.series import CampaignSpec, LabFound, PreparedGroup, RoundSegment
from harness.model.mode import Place
from harness.results import ConditioningRecord, LabInfo, Measurement, RunStore
from harness.scenario.plan import Plan
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice
from tests.build import StandIn, as_planned
from tests.build import counters as counters_of

HOST_IOPS = 10_000.0
SECONDS = 3.0
SPAN = 64 << 20
RECORDING = Path("recording.json")


class Played(TypedDict):
    """What to play of one job: the guest's share of the host's IOPS, and the disk's share of the guest's bytes."""

    guest: list[float]
    disk: float


def write_recording(path: Path, jobs: dict[str, Played], skipped: Mapping[str, str] | None = None) -> None:
    """Jobs by id; the last share of `guest` is that of all further rounds, and none is a host that fails.

    `skipped` says of modes why the host cannot have them.
    """
    path.write_text(json.dumps({"jobs": jobs, "skipped": dict(skipped or {})}))


class RecordedMeasurer(StandIn):
    """Plays `recording.json` of the working directory. Takes what `HostMeasurer` takes."""

    restarts: Sequence[str] = ()

    def __init__(self, spec: CampaignSpec, store: RunStore, images: object, phases: Phases) -> None:  # noqa: ARG002
        self.spec = spec
        self.store = store
        self.of_round: list[Measurement] = []
        """What was measured in the current round."""

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:  # noqa: ARG002
        info = LabInfo(self.spec.host.name, "ssh", "kvm", representative=True, why="KVM on bare metal")
        examined(LabFound(info, "bare-metal"))
        skipped = json.loads(RECORDING.read_text())["skipped"]
        return PreparedGroup(SPAN, ConditioningRecord("fill", None, (), None), skipped)

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        recording: dict[str, Played] = json.loads(RECORDING.read_text())["jobs"]
        if segment.index == 1:
            self.of_round = []
        measured = len(self.of_round)
        for planned in segment.table.slices:
            number, _ = segment.place_of(planned)
            started = 1_760_000_000.0 + 600 * segment.number + SECONDS * len(self.of_round)
            arm, job = planned.arm, planned.job
            as_asked = next(planned_job for planned_job in group.jobs if planned_job.id == job.id)
            discarded, longer = job.ramp - as_asked.ramp, job.seconds - as_asked.seconds
            played = recording[job.id]
            if not played["guest"]:
                raise HostError(f"host {self.spec.host.name}: connection lost", hint="look at its console")
            began(planned)
            share = played["guest"][min(number, len(played["guest"])) - 1] if arm.place is Place.GUEST else 1.0
            raw = self.store.save_raw(f"{group.id}-round{number}-{arm.id}.json", f"{share}\n", command="fio -")
            iops = self.disturbed(share * HOST_IOPS, self.of_round[-1].arm if self.of_round else None, discarded)
            found = _measurement(group, planned, segment, raw, started=started, iops=iops, disk=played["disk"])
            if discarded or longer:
                found = replace(_longer(found, discarded + longer), discarded_s=discarded, longer_s=longer)
            self.store.append(found)
            self.of_round.append(found)
        return self.of_round[measured:]

    def disturbed(self, iops: float, previous: str | None, discarded: float) -> float:  # noqa: ARG002
        """The value of a slice after one of the arm `previous`, if so many seconds of it are discarded."""
        return iops

    def start_again(self, error: HostError | GuestError, what: str) -> None:  # noqa: ARG002
        raise error


def _longer(of: Measurement, seconds: float) -> Measurement:
    """The measurement after so many more seconds, in which the job ran at the same speed."""
    fio, disk = of.counters.fio, of.counters.disk
    times = (SECONDS + seconds) / SECONDS
    fio = replace(fio, read=round(fio.read * times), written=round(fio.written * times))
    if disk is not None:
        disk = replace(disk, read=round(disk.read * times), written=round(disk.written * times))
    return replace(of, counters=replace(of.counters, fio=fio, disk=disk))


def _measurement(
    group: Group, planned: Slice, segment: RoundSegment, raw: str, *, started: float, iops: float, disk: float
) -> Measurement:
    job = planned.job
    moved = iops * job.bs * SECONDS
    direction = "written" if job.writes else "read"
    seen = disk * moved if planned.arm.place is Place.GUEST else moved
    return replace(
        as_planned(group, segment, planned, {"iops": iops, "bw": iops * job.bs, "lat_mean": job.iodepth / iops}),
        started=started,
        seconds=SECONDS,
        wall=SECONDS,
        io_bytes=round(moved),
        raw=raw,
        counters=counters_of({f"fio_{direction}": moved, f"disk_{direction}": seen}),
    )
