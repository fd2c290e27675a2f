"""A played-back campaign that is killed (SIGKILL) when it has written something.

What a process that is killed leaves are its files at that moment: `kept_at_every_moment` copies them, so that one
campaign shows every moment. `python -m tests.unit.killed_campaign STORE STEP` really kills: it resumes the run, and
again, and each time kills it STEP moments later than before.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from harness.events import Event, Events
from harness.lab.inventory import DiskById, HostSpec
from harness.measure import recorder
from harness.measure.campaign import Campaign
from harness.measure.phases import Phases
from harness.measure.resume import Earlier, earlier_part
from harness.measure.series import CampaignSpec
from harness.model.job import parse_workload
from harness.model.mode import Budget
from harness.model.workloads import find_profile
from harness.results import Run, RunStore
from harness.scenario.plan import Plan, plan_for
from harness.scenario.scenario import Scenario
from tests.build import RUN_ID, optane
from tests.unit.recorded_campaign import Played, RecordedMeasurer, write_recording

ROUNDS = 2
HOST = HostSpec("node1", "ssh", None, (DiskById("optane", "/dev/disk/by-id/a", "A", destroy=True),))


def scenario(*, budget: float = 0.1, rounds: int = ROUNDS) -> Scenario:
    """Two jobs, each a group of its own, on the host and in one guest."""
    profile = find_profile(optane().profiles, "smoke")
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


@contextmanager
def at_moments(do: Callable[[int], None]) -> Iterator[None]:
    """`do` is called, with its number, at each moment at which something is to be on the disk."""
    moments = count(1)
    to_disk = os.fsync

    def fsync(file: int) -> None:
        do(next(moments))
        to_disk(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


def kept_at_every_moment(share: float) -> None:
    """Leaves in the working directory `killed-N` for the N-th moment, and `whole`.

    `share` is the share of the time that writing results.json may take.
    """
    record()
    whole = Path("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "WRITING_SHARE", share)
        # What Python has not written yet is in no file: a process that is killed loses it too.
        with at_moments(lambda moment: _copy(whole, Path(f"killed-{moment}"))):
            measured(campaign(RunStore.create(whole, RUN_ID), resume=False))


def _copy(reports: Path, to: Path) -> None:
    shutil.copytree(reports, to, symlinks=True)


def _kill_at(last: int) -> Callable[[int], None]:
    def kill(moment: int) -> None:
        if moment == last:
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


def main(store: Path, step: int) -> None:
    for last in count(step, step):
        child = os.fork()
        if child == 0:
            with at_moments(_kill_at(last)):
                measured(campaign(RunStore.open(store), resume=True))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            continue
        if status != 0 or last == step:
            sys.exit(f"the campaign ended with {status}, to be killed at moment {last}")
        return


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
