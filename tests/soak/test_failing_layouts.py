"""Layouts of which a command fails, for each of their commands in turn: the host is as before, or told what is left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from harness.config.names import RunId
from harness.events import Events
from harness.features.arrays.building import compute_member_need
from harness.lab.created import CreationLog, read_log
from harness.lab.facts import HostFacts
from harness.lab.inventory import DiskByFile
from harness.lab.transport.base import Runner
from harness.lab.transport.ssh import SshRunner
from harness.layout.build import Builder
from harness.layout.disks import partitioned_disks
from harness.layout.layers import plan_bases
from harness.measure.reap import reap
from harness.model.attach import Attach
from harness.model.base import Md
from harness.model.layout import LvmThin
from harness.model.mode import Mode
from tests.e2e.conftest import host
from tests.e2e.machines import traces
from tests.e2e.test_layouts import DISKS, RUN, SPAN
from tests.unit.failing import outcomes
from tests.unit.loop_disks import NO_HYPERVISOR
from tests.unit.test_layouts_local import disk, facts, require_clean_after_failures

__all__ = ["disk", "facts", "host"]

ARRAY = Mode("md", Md(1, 2), Attach())
VOLUME = Mode("thin", LvmThin(), Attach())


def test_whichever_command_of_an_array_fails_the_host_is_as_before_or_told_what_is_left(host: SshRunner) -> None:
    _, cut = plan_bases([ARRAY])
    needs = [{cut.label: compute_member_need(Md(1, 2), cut.needs.values())}] * 2
    with partitioned_disks(CreationLog(host, RunId("20260101-000000-ba5e")), DISKS[:2], needs, span=SPAN) as (
        disks,
        span,
    ):
        found = tried(host, lambda runner: place(runner, span).array(cut, Md(1, 2), disks))
    # The last commands dismantle the array, and remove its record.
    assert found[-3:] == ["left", "left", "built"]
    assert set(found[:-3]) <= {"clean", "built"}


def test_whichever_command_of_lvm_fails_the_host_is_as_before_or_told_what_is_left(host: SshRunner) -> None:
    (cut,) = plan_bases([VOLUME])
    log = CreationLog(host, RunId("20260101-000000-ba5e"))
    with partitioned_disks(log, DISKS[:1], [cut.needs], span=SPAN) as ((disk,), span):
        found = tried(host, lambda runner: place(runner, span).layers(cut, disk.regions))
    assert found[-3:] == ["left", "left", "built"]
    assert set(found[:-3]) <= {"clean", "built"}


def test_whichever_command_of_a_file_system_fails_the_host_is_as_before_or_told_what_is_left(
    disk: DiskByFile, facts: HostFacts, tmp_path: Path
) -> None:
    require_clean_after_failures(disk, facts, tmp_path, step=1)


def place(runner: Runner, span: int) -> Builder:
    return Builder(CreationLog(runner, RUN), span, Events())


def tried(host: Runner, layouts: Callable[[Runner], AbstractContextManager[object]]) -> list[str]:
    """What comes of it for each command that fails. Each time, the host has to be as it was."""
    before = traces(host)

    def check(outcome: str) -> None:
        if outcome == "left":
            reap(host, NO_HYPERVISOR, [entry for entry in read_log(host) if entry.run_id == RUN])
        assert traces(host) == before

    return outcomes(host, layouts, check)
