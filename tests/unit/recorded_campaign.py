"""A campaign whose rounds are played back: what pytest makes of measurements, without a host to make them on.

Everything but the measuring is the real campaign: its rounds, when they end, budgets, checks, the store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from harness.errors import HostError
from harness.lab.accel import Acceleration
from harness.lab.facts import HostFacts
from harness.lab.hosts import GuestFiles, Host
from harness.lab.transport.local import LocalRunner
from harness.layout.build import Layouts
from harness.layout.source import BlockSource
from harness.measure.campaign import Campaign, visited
from harness.measure.session import Session
from harness.model.job import Job
from harness.model.mode import Place
from harness.results import ConditioningRecord, LabInfo, Measurement
from harness.scenario.order import round_order
from harness.scenario.plan import Group, Plan

HOST_IOPS = 10_000.0
SECONDS = 3.0
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


class RecordedCampaign(Campaign):
    """Plays `recording.json` of the working directory."""

    def _ready(self, group: Group, plan: Plan) -> Session:  # noqa: ARG002 - as it is called
        self._ledger.lab = LabInfo("node1", "ssh", "kvm", representative=True, why="KVM on bare metal")
        self._ledger.family = self.order.family("bare-metal")
        device = BlockSource(f"/dev/{group.disk}", "block", 1 << 20, 64 << 20)
        host = Host(
            spec=self.order.host,
            runner=LocalRunner("host node1"),
            ssh=None,
            target=None,
            facts=HostFacts({}),
            guest_files=GuestFiles("", "", Path(), ""),
            acceleration=Acceleration("kvm", "a guest was booted"),
        )
        skipped = json.loads(RECORDING.read_text())["skipped"]
        return Session(host, Layouts(device, {}, device.size, group.disk), None, skipped, {}, _filled())

    def _round(self, at: Session, group: Group, plan: Plan, number: int) -> None:  # noqa: ARG002 - as it is called
        recording: dict[str, Played] = json.loads(RECORDING.read_text())["jobs"]
        for arm in visited(round_order(group, self.order.seed, number), at):
            for job in group.jobs_of(arm):
                played = recording[job.id]
                if not played["guest"]:
                    raise HostError(f"{at.host.runner.name}: connection lost", hint="look at its console")
                share = played["guest"][min(number, len(played["guest"])) - 1] if arm.place is Place.GUEST else 1.0
                raw = self.store.save_raw(f"{group.id}-round{number}-{arm.id}.json", f"{share}\n", command="fio -")
                found = _measurement(group, arm.id, job, number, raw, iops=share * HOST_IOPS, disk=played["disk"])
                self.store.append(found)
                self._ledger.add([found], fio_seconds=0.0)


def _measurement(group: Group, arm: str, job: Job, number: int, raw: str, *, iops: float, disk: float) -> Measurement:
    moved = iops * job.bs * SECONDS
    direction = "written" if job.writes else "read"
    seen = disk * moved if arm.startswith("guest") else moved
    return Measurement(
        group=group.id,
        round=number,
        arm=arm,
        visit=1,
        job=job.id,
        started=1_760_000_000.0 + 60 * number,
        seconds=SECONDS,
        wall=SECONDS,
        metrics={"iops": iops, "bw": iops * job.bs, "lat_mean": job.iodepth / iops},
        io_bytes=round(moved),
        raw=raw,
        counters={f"fio_{direction}": moved, f"disk_{direction}": seen},
    )


def _filled() -> ConditioningRecord:
    return ConditioningRecord("fill", None, (), None)
