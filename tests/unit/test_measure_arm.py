"""One arm in one round: what is counted beside fio is in the journal, as far as it belongs to the job.

fio and perf are scripts here: fio's prints what fio once printed.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from harness.lab.accel import Acceleration
from harness.lab.cycles import CycleCounting, counting
from harness.lab.facts import HostFacts
from harness.lab.hosts import GuestFiles, Host
from harness.lab.inventory import HostSpec
from harness.lab.transport.local import LocalRunner
from harness.layout.build import Layouts
from harness.layout.source import BlockSource
from harness.measure import session
from harness.measure.arm import measure_arm
from harness.measure.session import Session
from harness.model.base import Device
from harness.model.counters import CycleCounts
from harness.model.job import Job
from harness.model.mode import Arm, Cell, Mode, Place
from harness.results import ConditioningRecord, Measurement, RunStore
from harness.results.io_costs import costs_per_io
from harness.scenario.plan import Group
from tests.unit.granted import granted
from tests.unit.runs import RUN_ID

FIO = Path(__file__).parent / "data" / "fio"
READ = Job("randread", 4096, iodepth=8, ramp=0, seconds=1)
RAMPED = Job("randread", 4096, iodepth=8, ramp=0.5, seconds=1)
WRITE = Job("write", 256 * 1024, iodepth=2, ramp=0, seconds=1)
HOST_MODE = Mode("host", Device(), None)
DISK = next((path.name for path in Path("/sys/class/block").iterdir()), "")
PERF = """\
while [ "$1" != -- ]; do shift; done; shift; "$@"
for each in uG:1000 kG:2000 uH:70000 kH:900000; do echo "${each#*:},,cycles:${each%:*},100,100.00,,"; done
"""


def script(programs: Path, name: str, text: str) -> None:
    (programs / name).write_text(f"#!/bin/sh\n{text}\n")
    (programs / name).chmod(0o755)


def measured(tmp_path: Path, *jobs: Job, counted: bool = True) -> list[Measurement]:
    """The journal after one run of the bare host."""
    host = Host(
        spec=HostSpec("here", "local", ssh=None, disks=()),
        runner=LocalRunner("host here"),
        ssh=None,
        target=None,
        facts=HostFacts({}),
        guest_files=GuestFiles("", "", Path(), ""),
        acceleration=Acceleration("kvm", "as said"),
        cycles=CycleCounting(counted, "as said"),
    )
    disk = tmp_path / "disk"
    disk.touch()
    device = BlockSource(str(disk), "file", 0, 1 << 20, grant=granted(str(disk)))
    at = Session(host, Layouts(device, {}, device.size, DISK), None, {}, {}, ConditioningRecord("fill", None, (), None))
    group = Group("g", "disk", "s", tuple(Cell("s", "disk", HOST_MODE, job) for job in jobs))
    store = RunStore.create(tmp_path / "reports", RUN_ID)
    return measure_arm(at, store, group, Arm(Place.HOST), seed=1, number=1)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a script is a program of this machine."""
    found = tmp_path / "programs"
    found.mkdir()
    monkeypatch.setenv("PATH", f"{found}:{os.environ['PATH']}")
    # Counts are kept beside the test, where no other test's are.
    monkeypatch.setattr(session, "counting", partial(counting, directory=str(tmp_path / "cycles")))
    return found


def test_a_job_has_the_cycles_that_were_counted_while_it_ran(programs: Path, tmp_path: Path) -> None:
    script(programs, "fio", f"cat {FIO}/note.json")
    script(programs, "perf", PERF)
    (found,) = measured(tmp_path, READ)
    assert found.counters.cycles == CycleCounts(
        guest_user=1_000, guest_kernel=2_000, host_user=70_000, host_kernel=900_000, share=1.0
    )
    assert found.counters.fio.ios is not None
    assert found.notes == ()
    costs = costs_per_io(found.counters, in_guest=False)
    assert costs["cycles"] == pytest.approx(900_000 / found.counters.fio.ios)


def test_two_jobs_of_one_fio_process_have_no_cycles_of_their_own(programs: Path, tmp_path: Path) -> None:
    script(programs, "fio", f"cat {FIO}/three_jobs.json")
    script(programs, "perf", PERF)
    found = measured(tmp_path, RAMPED, WRITE)
    assert len(found) == 2
    assert [each.counters.cycles for each in found] == [None, None]


def test_a_failure_of_perf_loses_the_cycles_but_not_the_measurement(programs: Path, tmp_path: Path) -> None:
    script(programs, "fio", f"cat {FIO}/note.json")
    script(programs, "perf", "echo 'no memory' >&2; exit 1")
    (found,) = measured(tmp_path, READ)
    assert found.notes == ("perf counted nothing: no memory",)
    assert found.metrics["iops"] > 0
    assert "cycles" not in costs_per_io(found.counters, in_guest=False)


def test_a_host_that_cannot_count_cycles_is_not_queried(programs: Path, tmp_path: Path) -> None:
    script(programs, "fio", f"cat {FIO}/note.json")
    script(programs, "perf", f"touch {tmp_path}/asked; {PERF}")
    (found,) = measured(tmp_path, READ, counted=False)
    assert not (tmp_path / "asked").exists()
    assert found.counters.cycles is None
