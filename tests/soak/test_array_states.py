"""Arrays of every level, without a member, and recoveries, for real: what is written is read back, nothing is left."""

from __future__ import annotations

from contextlib import ExitStack, suppress

from harness.lab.counters import ArrayStatus
from harness.lab.created import read_log
from harness.lab.facts import HostFacts
from harness.lab.transport.base import Runner
from harness.lab.transport.ssh import SshRunner
from harness.measure.reap import reap
from harness.model.attach import Attach
from harness.model.base import Device, Md
from harness.model.layout import Layout, Lvm, Qcow2, RawFile
from harness.model.mode import Mode
from tests.e2e.conftest import host
from tests.e2e.machines import traces
from tests.e2e.test_layouts import DISKS, KIB, RUN, build, facts, hold_what_is_written, status
from tests.patience import patience
from tests.unit.loop_disks import NO_HYPERVISOR

__all__ = ["facts", "host"]

# RAID 1 is that of the two legs.
ARRAYS = {
    "raid0": Md(0, 4),
    "raid5": Md(5, 4, chunk=64 * KIB),
    "raid6": Md(6, 4),
    "raid10": Md(10, 4),
    "two-legs": Md(1, 4, legs=2),
    "last-disks": Md(0, 2, starts=(3,)),
}
DEGRADED = {
    "raid1": Md(1, 2, state="degraded"),
    "raid5": Md(5, 4, chunk=64 * KIB, state="degraded"),
    "raid6": Md(6, 4, chunk=64 * KIB, state="degraded"),
    "raid10": Md(10, 4, chunk=64 * KIB, state="degraded"),
}
REBUILDING = Md(5, 3, chunk=64 * KIB, state="rebuilding", spares=1)


def test_arrays_of_every_level_and_what_stands_on_one_hold_what_is_written(host: SshRunner, facts: HostFacts) -> None:
    five = ARRAYS["raid5"]
    on_five: dict[str, Layout] = {
        "md-lvm": Lvm(on=five),
        "md-raw": RawFile(on=five),
        "md-qcow2": Qcow2(on=five),
    }
    with build(host, facts, DISKS, {"plain": Device(), **ARRAYS, **on_five}) as layouts:
        assert layouts.disks(None) == ("sim_ssd1",)
        assert len(layouts.regions) == 1 + len(ARRAYS) + len(on_five)
        hold_what_is_written(host, layouts)
        for name, array in ARRAYS.items():
            mode = Mode(name, array, Attach())
            assert layouts.disks(mode) == tuple(f"sim_ssd{place + 1}" for place in array.places)
            device = layouts.guest(mode).path.rpartition("/")[2]
            level = "raid0" if array.legs == 2 else f"raid{array.level}"
            assert host.run(["cat", f"/sys/block/{device}/md/level"], deadline=patience(10)).stdout.strip() == level
            if array.level in (5, 6):
                assert mismatches(host, device) == 0


def mismatches(host: Runner, name: str) -> int:
    """Sectors whose parity is not that of their data, of the whole array."""
    script = """cd "/sys/block/$1/md" && echo check >sync_action &&
        while [ "$(cat sync_action)" != idle ]; do sleep 0.1; done; cat mismatch_cnt"""
    return int(host.run(["sh", "-c", script, "sh", name], deadline=patience(60)).stdout)


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
