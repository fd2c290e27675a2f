"""Arrays without a member, and recoveries, for real: what is written is read back, and nothing is left."""

from __future__ import annotations

from contextlib import ExitStack, suppress

from harness.lab.created import read_log
from harness.lab.facts import HostFacts
from harness.lab.md_status import ArrayStatus
from harness.lab.transport.ssh import SshRunner
from harness.measure.reap import reap
from harness.model.base import Device, Md
from harness.model.layout import Lvm
from tests.e2e.conftest import host
from tests.e2e.machines import traces
from tests.e2e.test_layouts import DISKS, KIB, RUN, build, facts, hold_what_is_written, status
from tests.unit.loop_disks import NO_HYPERVISOR

__all__ = ["facts", "host"]

DEGRADED = {
    "raid1": Md(1, 2, state="degraded"),
    "raid5": Md(5, 4, chunk=64 * KIB, state="degraded"),
    "raid6": Md(6, 4, chunk=64 * KIB, state="degraded"),
    "raid10": Md(10, 4, chunk=64 * KIB, state="degraded"),
}
REBUILDING = Md(5, 3, chunk=64 * KIB, state="rebuilding", spares=1)


def test_arrays_without_a_member_hold_what_is_written(host: SshRunner, facts: HostFacts) -> None:
    with build(host, facts, DISKS, {"plain": Device(), **DEGRADED, "lvm": Lvm(on=DEGRADED["raid5"])}) as layouts:
        assert {mode: status(host, layouts, mode) for mode in layouts.arrays} == dict.fromkeys(
            (*DEGRADED, "lvm"), ArrayStatus(missing=1)
        )
        hold_what_is_written(host, layouts)


def test_a_spare_is_rebuilt_again_and_again_while_the_array_is_used(host: SshRunner, facts: HostFacts) -> None:
    with build(host, facts, DISKS, {"plain": Device(), "md": REBUILDING}) as layouts:
        for _ in range(2):
            assert status(host, layouts, "md") == ArrayStatus(missing=1)
            with layouts.rebuilds["md"].running(5.0):
                first = status(host, layouts, "md").rebuilt
                hold_what_is_written(host, layouts)
                second = status(host, layouts, "md").rebuilt
                assert first is not None
                assert second is not None
                assert first < second
        assert status(host, layouts, "md") == ArrayStatus(missing=1)
        hold_what_is_written(host, layouts)


def test_a_run_that_was_killed_during_a_recovery_leaves_nothing_behind(host: SshRunner, facts: HostFacts) -> None:
    before = traces(host)
    stack = ExitStack()
    layouts = stack.enter_context(build(host, facts, DISKS, {"md": REBUILDING}))
    stack.enter_context(layouts.rebuilds["md"].running(60.0))
    assert status(host, layouts, "md").rebuilt is not None
    reap(host, NO_HYPERVISOR, [entry for entry in read_log(host) if entry.run_id == RUN])
    assert traces(host) == before
    with suppress(Exception):  # nothing is left to remove, and a killed run would not have come to this
        stack.close()
    assert traces(host) == before
