"""Played-back campaigns on disks of different speed, stored as runs are: for tests of comparisons."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from harness.config.names import RunId
from harness.events import Events
from harness.lab.inventory import DiskById
from harness.measure.campaign import Campaign
from harness.measure.phases import Phases
from harness.measure.resume import Earlier
from harness.measure.series import CampaignSpec
from harness.results import RunStore
from tests.unit.draining import draining_scenario
from tests.unit.killed_campaign import HOST, measured, plan
from tests.unit.recorded_campaign import RecordedMeasurer, write_recording

NOISE = 0.05
"""The standard deviation of the logarithm of a slice's IOPS."""


def store_run(
    reports: Path,
    run_id: str,
    *,
    disk: str = "optane",
    speed: float = 1.0,
    guest: float = 0.8,
    jobs: Sequence[str] = ("randread-4k", "randwrite-4k"),
    runtime: float = 1.0,
    names: Mapping[str, str] | None = None,
) -> RunStore:
    """A run of two rounds of six blocks on a disk that is `speed` times as fast as the recording's.

    `guest` is the guest's share of the host's IOPS, and `names` has new names of modes. Scenario and disk have the
    name `disk`.
    """

    slices = count()

    class Disk(RecordedMeasurer):
        def disturbed(self, iops: float, previous: str | None, discarded: float) -> float:  # noqa: ARG002
            chance = random.Random(f"{run_id} {next(slices)}")
            return iops * speed * math.exp(chance.gauss(0, NOISE))

    found = draining_scenario(*jobs, runtime=runtime)
    modes = tuple(replace(mode, name=(names or {}).get(mode.name, mode.name)) for mode in found.modes)
    scenario = replace(found, name=disk, disk=disk, disks=(disk,), modes=modes)
    write_recording(Path("recording.json"), {f"{job}-qd32": {"guest": [guest], "disk": 1.0} for job in jobs})
    host = replace(HOST, disks=(DiskById(disk, f"/dev/disk/by-id/{disk}", disk.upper(), destroy=True),))
    spec = CampaignSpec(
        RunId(run_id), host, (plan(scenario),), {disk: scenario}, "smoke", seed=len(run_id), command="pytest"
    )
    store = RunStore.create(reports, RunId(run_id))
    phases = Phases(Events())
    measured(Campaign(spec, store, Disk(spec, store, None, phases), phases, Earlier()))
    return store
