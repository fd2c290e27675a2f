"""A played-back campaign that is killed (SIGKILL) at each moment at which it has written something, one after another.

`python -m tests.unit.killed_campaign SHARE` leaves in the working directory `killed-N` for the N-th moment, and
`whole`. SHARE is the share of the time that writing results.json may take.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

from harness.events import Event, Events
from harness.lab.inventory import DiskById, HostSpec
from harness.measure import recorder
from harness.measure.campaign import Campaign
from harness.measure.phases import Phases
from harness.measure.resume import Earlier, earlier_part
from harness.measure.spec import CampaignSpec
from harness.model.budget import Budget
from harness.model.job import parse_workload
from harness.model.profile import profile_of
from harness.results import Run, RunStore
from harness.scenario.plan import Plan, plan_for
from harness.scenario.scenario import Scenario
from tests.unit.recorded_campaign import Played, RecordedMeasurer, write_recording
from tests.unit.runs import RUN_ID, optane

ROUNDS = 2
HOST = HostSpec("node1", "ssh", None, (DiskById("optane", "/dev/disk/by-id/a", "A", destroy=True),))


def scenario(*, budget: float = 0.1, rounds: int = ROUNDS) -> Scenario:
    """Two jobs, each a group of its own, on the host and in one guest."""
    profile = profile_of(optane().profiles, "smoke")
    return replace(
        optane(),
        modes=tuple(mode for mode in optane().modes if mode.name in ("host", "passthrough")),
        workloads=(parse_workload("randread-4k"), parse_workload("randwrite-4k")),
        profiles=(replace(profile, iodepth=(32,), round_limit=1, rounds=rounds, most_rounds=rounds),),
        budgets=(Budget("iops", budget),),
    )


def plan(of: Scenario | None = None) -> Plan:
    return plan_for(of or scenario(), "smoke")


def record() -> None:
    """Have the campaigns of the working directory play this."""
    played: Played = {"guest": [0.97, 0.98, 0.96, 0.975], "disk": 1.0}
    write_recording(Path("recording.json"), {"randread-4k-qd32": played, "randwrite-4k-qd32": played})


def campaign(
    store: RunStore,
    *,
    resume: bool,
    of: Scenario | None = None,
    heard: Callable[[Event], None] = lambda _: None,
    measurer: type[RecordedMeasurer] = RecordedMeasurer,
) -> Campaign:
    chosen = of or scenario()
    spec = CampaignSpec(RUN_ID, HOST, (plan(chosen),), {chosen.name: chosen}, "smoke", seed=7, command="pytest")
    earlier = Earlier()
    if resume:
        earlier, run_id, seed = earlier_part(store, HOST.name, "smoke")
        spec = replace(spec, run_id=run_id, seed=seed)
    phases = Phases(Events(heard))
    return Campaign(spec, store, measurer(spec, store, None, phases), phases, earlier)


def measured(campaign: Campaign) -> Run:
    """The run after all of its cells were measured."""
    for each in campaign.spec.plans:
        for cell in each.cells:
            campaign.record(cell)
    return campaign.close(interrupted=False)


def _kill_at(moment: int) -> None:
    """Have this process end at so manieth of the moments at which something is to be on the disk."""
    moments = count(1)
    to_disk = os.fsync

    def fsync(file: int) -> None:
        if next(moments) == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        to_disk(file)

    os.fsync = fsync  # type: ignore[assignment]


def main() -> None:
    recorder.WRITING_SHARE = float(sys.argv[1])
    record()
    for moment in count(1):
        reports = Path(f"killed-{moment}")
        child = os.fork()
        if child == 0:
            _kill_at(moment)
            measured(campaign(RunStore.create(reports, RUN_ID), resume=False))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            continue
        if status != 0:
            sys.exit(f"the campaign ended with {status}")
        reports.rename("whole")
        return


if __name__ == "__main__":
    main()
