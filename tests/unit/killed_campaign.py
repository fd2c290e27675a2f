"""A played-back campaign that is killed (SIGKILL) at each moment at which it has written something, one after another.

`python -m tests.unit.killed_campaign` leaves in the working directory `killed-N` for the N-th moment, and `whole`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

from harness.events import Event, Events
from harness.image import ImageSet
from harness.lab.inventory import DiskById, HostSpec
from harness.measure.ledger import Order
from harness.measure.resume import earlier_part
from harness.model.budget import Budget
from harness.model.job import parse_workload
from harness.model.profile import profile_of
from harness.results import Run, RunStore
from harness.scenario.plan import Plan, plan_for
from harness.scenario.scenario import Scenario
from tests.unit.recorded_campaign import Played, RecordedCampaign, write_recording
from tests.unit.runs import RUN_ID, optane

ROUNDS = 2
HOST = HostSpec("node1", "ssh", None, (DiskById("optane", "/dev/disk/by-id/a", "A", destroy=True),))
IMAGES = cast(ImageSet, None)  # A campaign that is played back reads none.


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
    store: RunStore, *, resume: bool, of: Scenario | None = None, heard: Callable[[Event], None] = lambda _: None
) -> RecordedCampaign:
    chosen = of or scenario()
    order = Order(RUN_ID, HOST, (plan(chosen),), {chosen.name: chosen}, "smoke", seed=7, command="pytest")
    if not resume:
        return RecordedCampaign(order, store, IMAGES, Events(heard))
    earlier, run_id, seed = earlier_part(store, HOST.name, "smoke")
    return RecordedCampaign(replace(order, run_id=run_id, seed=seed), store, IMAGES, Events(heard), earlier)


def measured(campaign: RecordedCampaign) -> Run:
    """The run after all of its cells were measured."""
    for each in campaign.order.plans:
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
