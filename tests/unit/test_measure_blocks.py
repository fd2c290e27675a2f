"""The blocks of one timetable on this machine: fio, the host's counters and perf run at the same time.

The scripts, the clocks, the counters and their assignment to slices are real. Where fio is installed, so is fio; its
mistakes come from a stand-in (paced_fio.py). Host and guest are this machine.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest

from harness.errors import HostError, MeasurementError
from harness.feature import cost_per_io
from harness.features.neighbours import make_neighbour_mode
from harness.guest.protocol import Backup
from harness.lab.counters import CycleCounting, VmThreads
from harness.lab.facts import Acceleration, HostFacts
from harness.lab.hosts import GuestFiles, Host
from harness.lab.inventory import HostSpec
from harness.lab.transport.base import Completed, Runner
from harness.lab.transport.local import LocalRunner
from harness.layout import BlockSource
from harness.layout.build import Layouts
from harness.measure.host_measurer import measure_timetable
from harness.measure.phases import Pauses
from harness.measure.platform import Clocks, Startup
from harness.measure.series import RoundSegment
from harness.measure.session import Guests, Idle, IdleReads, Session
from harness.model.attach import Attach
from harness.model.counters import Transferred
from harness.model.job import Job, parse_workload
from harness.model.layout import Lvm
from harness.model.mode import Arm, Cell, Mode, Neighbour, Place
from harness.model.option import NOTHING, Effective
from harness.results import ConditioningRecord, Measurement, RunStore
from harness.results.byte_counts import PROBED
from harness.results.journal import CLOCK_CHANGED
from harness.scenario.setups import Group
from harness.scenario.timetable import ScheduledArm, Slice, Timetable, timetables
from tests.build import RUN_ID
from tests.unit import paced_fio
from tests.unit.granted import granted
from tests.unit.loop_disks import loop, require, sparse
from tests.unit.paced_fio import Mistakes
from tests.unit.processes import ends

MIB = 1024**2
SPAN = 16 * MIB
READ = Job("randread", 4096, iodepth=4, ramp=0, seconds=0.25)
WRITE = Job("write", 64 * 1024, iodepth=2, ramp=0, seconds=0.25)
LVM = Mode("lvm", Lvm(), Attach())
SEVERAL = replace(LVM, guests=2)
BESIDE = make_neighbour_mode(LVM, Neighbour(parse_workload("randwrite-4k"), 8))
ARMS = (Arm(Place.HOST), Arm(Place.TWIN, LVM), Arm(Place.GUEST, LVM))
HOST_ONLY = ARMS[:1]
DISK = next((path.name for path in Path("/sys/class/block").iterdir()), "")
# Every tenth of a second, a thousand cycles of the guest and 90 times as many of the host's kernel.
PERF = """\
n=0
while [ $n -lt 80 ]; do
    n=$((n + 1))
    for each in uG:1000 kG:2000 uH:70000 kH:900000; do
        echo "     $((n / 10)).$((n % 10))00000000,${each#*:},,cycles:${each%:*},100,100.00,,"
    done
done
"""


@dataclass
class LocalGuest:
    """A guest whose machine is this one, and whose disk is a span of a file here."""

    path: str
    runner: Runner = field(default_factory=lambda: LocalRunner("guest here"))
    threads: VmThreads | None = field(default_factory=lambda: VmThreads(os.getpid(), {os.getpid(): "vcpu"}, None))
    evidence: Mapping[str, str] = field(default_factory=dict)
    boot_seconds: float = 1.0
    windows: bool = False
    fio: str = "fio"
    asked: int = 0

    def device(self, disk: str) -> str:
        assert disk in ("lvm", "lvm-g2")
        return self.path

    def transferred(self, disks: Sequence[str]) -> Mapping[str, Transferred]:
        """A MiB read between two questions."""
        self.asked += 1
        return dict.fromkeys(disks, Transferred(read=self.asked * MIB))

    @contextmanager
    def holding(self, disk: str) -> Iterator[None]:
        del disk
        yield

    def effective(self, disk: str) -> Effective:
        del disk
        return NOTHING

    def backup(self, disk: str, target: str) -> Backup:
        raise NotImplementedError

    def post_mortem(self) -> str | None:
        return None


def session(device: str, disk: str, *, counted: bool, version: str) -> Session:
    facts = HostFacts({"fio": version})
    host = Host(
        spec=HostSpec("here", "local", ssh=None, disks=()),
        runner=LocalRunner("host here"),
        ssh=None,
        target=None,
        facts=facts,
        guest_files=GuestFiles("", "", Path(), ""),
        acceleration=Acceleration("kvm", "as said"),
        cycles=CycleCounting(counted, "as said"),
    )
    grant = granted(device)
    sources = [BlockSource(device, "file", number * SPAN, SPAN, grant=grant) for number in range(2)]
    guests = Guests("here", {"": lambda: nullcontext(LocalGuest(device, evidence={"fio": version}))}, {"": ["lvm"]})
    layouts = Layouts(sources[0], {"lvm": sources[1]}, SPAN, disk)
    return Session(host, layouts, guests, {}, {}, ConditioningRecord("fill", None, (), None))


@dataclass
class Ran:
    """A session on this machine, and what was measured on it."""

    at: Session
    store: RunStore
    pacing: Path
    began: list[Slice] = field(default_factory=list)

    def table(self, jobs: Sequence[Job] = (READ,), arms: Sequence[Arm] = ARMS, blocks: int = 2) -> Timetable:
        (table,) = timetables(
            {job: [ScheduledArm(arm) for arm in arms] for job in jobs},
            blocks,
            chance=random.Random(3),
            pause=lambda job, arm: Pauses().after(job, in_guest=arm.in_guest, rotational=False) + 0.1,
        )
        return table

    def measure(self, table: Timetable) -> list[Measurement]:
        cells = tuple(Cell("s", "disk", LVM, job) for job in dict.fromkeys(each.job for each in table.slices))
        segment = RoundSegment(4, 1, 3, table)
        group = Group("g", "disk", "s", cells)
        return measure_timetable(
            lambda _turn: self.at, self.at, self.store, group, segment, seed=1, began=self.began.append
        )


@dataclass(frozen=True)
class Alternated:
    """What two blocks of two jobs on all arms left, with the stand-in for fio."""

    ran: Ran
    table: Timetable
    found: Sequence[Measurement]
    earliest: float
    """The time on the clock at the start."""


def programs_in(directory: Path, patch: pytest.MonkeyPatch) -> Path:
    """A new directory there where a script is a program of this machine. What paces fio is beside it."""
    found = directory / "programs"
    found.mkdir()
    patch.setenv("PATH", f"{found}:{os.environ['PATH']}")
    patch.setattr("harness.measure.platform.LEASE_DIRECTORY", str(directory / "pacing"))
    return found


def ran_in(directory: Path, device: str, disk: str, *, version: str) -> Ran:
    at = session(device, disk, counted=False, version=version)
    return Ran(at, RunStore.create(directory / "reports", RUN_ID), directory / "pacing")


def with_the_stand_in(directory: Path, programs: Path) -> Ran:
    paced_fio.install(programs)
    return ran_in(directory, str(sparse(directory / "disk", 2 * SPAN)), DISK, version="fio-3.39")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return programs_in(tmp_path, monkeypatch)


@pytest.fixture
def ran(programs: Path, tmp_path: Path) -> Ran:
    return with_the_stand_in(tmp_path, programs)


@pytest.fixture(scope="module")
def alternated(tmp_path_factory: pytest.TempPathFactory) -> Alternated:
    """Once for all tests that only look, because a timetable runs in real time."""

    def once() -> Alternated:
        directory = tmp_path_factory.mktemp("alternated")
        with pytest.MonkeyPatch.context() as patch:
            ran = with_the_stand_in(directory, programs_in(directory, patch))
            table, earliest = ran.table((READ, WRITE)), time.time()
            return Alternated(ran, table, ran.measure(table), earliest)

    return undisturbed(once, lambda tried: tried.found)


T = TypeVar("T")


def undisturbed(once: Callable[[], T], found: Callable[[T], Sequence[Measurement]]) -> T:
    """What `once` returns, at the first of five tries in which this machine was on time for every slice and reading."""
    for _ in range(4):
        tried = once()
        if all(each.counters.disk is not None and each.overlap is None for each in found(tried)):
            return tried
    return once()


def script(programs: Path, name: str, text: str) -> None:
    (programs / name).write_text(f"#!/bin/sh\n{text}\n")
    (programs / name).chmod(0o755)


def counting_cycles(ran: Ran) -> None:
    ran.at = replace(ran.at, host=replace(ran.at.host, cycles=CycleCounting(True, "as said")))


# --- with fio ---


def test_real_slices_of_host_twin_and_guest_alternate_and_the_hosts_disk_shows_the_bytes_of_each(
    programs: Path, tmp_path: Path
) -> None:
    require("fio")
    del programs
    with loop(sparse(tmp_path / "disk", 2 * SPAN)) as device:
        version = LocalRunner().run(["fio", "--version"], deadline=10).stdout.strip()
        ran = ran_in(tmp_path, device, Path(device).name, version=version)
        table = ran.table((replace(READ, seconds=0.4), replace(WRITE, seconds=0.4)))
        found = undisturbed(lambda: ran.measure(table), list)
    assert [(each.arm, each.job, each.block) for each in found] == [
        (each.arm.id, each.job.id, each.block) for each in table.slices
    ]
    assert not [each.overlap for each in found if each.overlap]
    for each in found:
        assert each.seconds >= 0.35, "fio waits for the last I/Os, on a busy machine for longer"
        assert each.metrics["iops"] > 0
        disk, fio = each.counters.disk, each.counters.fio
        assert disk is not None
        # A slice may begin a little late on a busy machine, so its last bytes may count for the next one.
        assert disk.read == pytest.approx(fio.read, rel=0.3, abs=MIB)
        assert disk.written == pytest.approx(fio.written, rel=0.3, abs=MIB)
    for direction in ("read", "written"):
        by_disk = sum(getattr(each.counters.disk, direction) for each in found)
        # Others look at every block device of the machine, for signatures and partitions: udev, and tests beside this.
        assert by_disk == pytest.approx(sum(getattr(each.counters.fio, direction) for each in found), rel=0.01, abs=MIB)
    reads = [each.counters for each in found if each.job == READ.id]
    assert sum(each.disk_requests or 0 for each in reads) == pytest.approx(
        sum(each.fio.ios or 0 for each in reads), rel=0.1
    )


def test_fio_reads_a_job_file_of_slices_with_ramps_and_several_processes(programs: Path, tmp_path: Path) -> None:
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    del programs
    version = LocalRunner().run(["fio", "--version"], deadline=10).stdout.strip()
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(2 * SPAN))
    ran = ran_in(tmp_path, str(disk), DISK, version=version)
    several = replace(READ, numjobs=3, ramp=0.2, seconds=0.3)
    found = ran.measure(ran.table((several,), blocks=1))
    assert [each.seconds >= 0.25 for each in found] == [True] * 3
    for each in found:
        # The ramp counts for the counters, but not for the metrics.
        assert each.counters.fio.read > each.io_bytes > 0


# --- with the stand-in ---


def test_each_slice_has_its_measurement_in_the_journal_in_the_order_of_time(alternated: Alternated) -> None:
    table, found = alternated.table, alternated.found
    assert tuple(alternated.ran.store.read_journal().measurements) == tuple(found)
    assert [(each.group, each.round, each.boot, each.repeat) for each in found] == [("g", 4, 3, 1)] * 12
    assert [(each.arm, each.job, each.block) for each in found] == [
        (each.arm.id, each.job.id, each.block) for each in table.slices
    ]
    started = [each.started for each in found]
    assert started == sorted(started)
    assert alternated.earliest < started[0] < alternated.earliest + 300
    for each, planned in zip(started, table.slices, strict=True):
        assert each - started[0] == pytest.approx(planned.start - table.slices[0].start, abs=5)
    assert {each.overlap for each in found} == {None}


def test_the_beginning_of_each_block_is_reported_once(alternated: Alternated) -> None:
    assert alternated.ran.began == [alternated.table.slices[at] for at in (0, 3, 6, 9)]


def test_each_slice_has_the_hosts_counters_between_the_slices(alternated: Alternated) -> None:
    found = alternated.found
    for each in found:
        assert each.counters.disk is not None
        assert each.counters.host is not None
        assert each.counters.threads is not None
        assert 0 <= (each.counters.host_cpu_busy or 0.0) <= 1
        assert 0 <= (each.counters.cpu_busy or 0.0) <= 1
        assert each.counters.cycles is None
    # All times between the readings together are at most those of all CPUs.
    busy = sum(each.counters.host.busy_s for each in found if each.counters.host)
    assert 0 < busy <= 1.1 * sum(READ.seconds + 0.3 for _ in found) * (os.cpu_count() or 1)


def test_udev_may_have_read_in_a_slice_that_writes_on_the_host_and_shortly_after_it(alternated: Alternated) -> None:
    for each in alternated.found:
        assert each.counters.background is not None
        if each.job == WRITE.id and not each.arm.startswith("guest"):
            assert each.counters.background.probed == PROBED


def test_what_the_slice_before_had_in_flight_may_be_in_the_counts_of_a_slice(alternated: Alternated) -> None:
    nothing, *others = [each.counters.background for each in alternated.found]
    assert nothing is not None
    assert nothing.earlier == Transferred()
    for before, background in zip(alternated.table.slices, others, strict=False):
        assert background is not None
        assert background.earlier == Transferred(before.job.depth * before.job.bs, before.job.depth * before.job.bs).of(
            before.job
        )


def test_without_writes_on_the_host_only_what_polls_read_before_is_expected(ran: Ran) -> None:
    ran.at = replace(ran.at, idle=Idle({DISK: IdleReads(rate=50_000.0, burst=500_000)}))
    found = undisturbed(lambda: ran.measure(ran.table((READ,), blocks=1)), list)
    for each in found:
        background = each.counters.background
        assert background is not None
        assert (background.probed, background.burst) == (0, 500_000)
        # The counters are read in the middle of the pauses.
        assert background.expected == pytest.approx(50_000 * (READ.seconds + 0.3), rel=0.5)


def test_qemu_is_asked_once_before_and_once_after_and_its_bytes_are_those_of_all_slices(
    alternated: Alternated,
) -> None:
    found = alternated.found
    guest = [each for each in found if each.arm == "guest:lvm"]
    assert len(guest) == 4
    by_fio = [each.counters.fio for each in guest]
    for each in guest:
        assert each.counters.arm is not None
        assert each.counters.arm.qemu == Transferred(read=MIB)
        assert each.counters.arm.fio == Transferred(sum(fio.read for fio in by_fio), sum(fio.written for fio in by_fio))
    assert {each.counters.arm for each in found if each.arm != "guest:lvm"} == {None}


def test_the_outputs_of_host_and_guest_and_the_counters_are_stored(alternated: Alternated) -> None:
    assert {each.arm: each.raw for each in alternated.found} == {
        "host": "raw/g-round4-host.json",
        "twin:lvm": "raw/g-round4-host.json",
        "guest:lvm": "raw/g-round4-guest.json",
    }
    stored = {path.name for path in (alternated.ran.store.path / "raw").iterdir()}
    assert {"g-round4-host.json", "g-round4-guest.json", "g-round4-counters.txt"} <= stored


def test_nothing_is_left_of_what_paced_fio(alternated: Alternated) -> None:
    assert list(alternated.ran.pacing.iterdir()) == []


def with_two_guests(ran: Ran) -> Ran:
    """Each guest has a volume of its own. QEMU reads a MiB from each between two questions."""
    device, span = ran.at.layouts.device, ran.at.layouts.by_mode["lvm"]
    host, disks = LocalGuest(device.path, evidence={"fio": "fio-3.39"}), {"": ["lvm"], "g2": ["lvm-g2"]}
    # The same process has all threads, so the counters of both guests are the same.
    guests = Guests("here", {name: lambda: nullcontext(replace(host)) for name in disks}, disks)
    layouts = replace(ran.at.layouts, by_mode={"lvm": span, "lvm-g2": replace(span, offset=0)})
    return replace(ran, at=replace(ran.at, guests=guests, layouts=layouts))


class NotedClocks(Clocks):
    """Notes how often each machine's jobs were late."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[int] = []

    def started(self, runner: Runner, late: Sequence[float]) -> None:
        self.noted.append(len(late))
        super().started(runner, late)


def test_jobs_of_several_guests_and_of_fio_on_their_volumes_run_at_the_same_time(ran: Ran) -> None:
    clocks = NotedClocks()
    ran = replace(ran, at=replace(ran.at, clocks=clocks))
    arms = [Arm(Place.TWIN, SEVERAL), Arm(Place.GUEST, SEVERAL)]
    twin, guest = sorted(with_two_guests(ran).measure(ran.table((READ,), arms, blocks=1)), key=lambda each: each.arm)[
        ::-1
    ]
    assert [(each.arm, len(each.parts)) for each in (twin, guest)] == [("twin:lvm", 2), ("guest:lvm", 2)]
    for each in (twin, guest):
        assert each.overlap is None
        assert each.together is not None
        assert each.together > 0.5
        one, other = each.parts
        assert (one.number, other.number, one.job, other.job) == (1, 2, READ.id, READ.id)
        assert each.metrics["iops"] == pytest.approx(one.metrics["iops"] + other.metrics["iops"])
        assert each.io_bytes == one.io_bytes + other.io_bytes == each.counters.fio.read
    assert [part.raw.rpartition("round4-")[2] for part in twin.parts] == ["host.json", "host-2.json"]
    assert [part.raw.rpartition("round4-")[2] for part in guest.parts] == ["guest.json", "guest-g2.json"]
    assert guest.counters.arm is not None
    assert (guest.counters.arm.qemu.read, guest.counters.arm.fio.read) == (2 * MIB, guest.io_bytes)
    assert ran.store.path.joinpath(twin.parts[1].raw).exists()
    assert clocks.noted == [2, 2], "the clock of a machine is corrected once, however many fio it runs"


def test_a_neighbour_runs_beside_the_guest_and_is_not_in_its_figures(ran: Ran) -> None:
    alone, beside = Arm(Place.GUEST, LVM), Arm(Place.GUEST, BESIDE)
    found = {each.arm: each for each in with_two_guests(ran).measure(ran.table((READ,), [alone, beside], blocks=1))}
    with_it, without = found["guest:lvm-neighbour"], found["guest:lvm"]
    assert (without.parts, without.together, without.neighbour) == ((), None, None)
    own, other = with_it.parts
    assert with_it.neighbour == other
    assert (own.neighbour, other.neighbour, other.job) == (False, True, "randwrite-4k-qd8")
    assert with_it.metrics == own.metrics
    assert with_it.io_bytes == own.io_bytes
    # The disks move the bytes of both, so these are compared. What an I/O costs cannot be told.
    assert (with_it.counters.fio.read, with_it.counters.fio.written) == (own.io_bytes, other.io_bytes)
    assert with_it.counters.fio.ios is None
    bytes_of_both = with_it.counters.arm
    assert bytes_of_both is not None
    assert bytes_of_both == without.counters.arm, "both arms use the same disk"
    assert bytes_of_both.fio == Transferred(own.io_bytes + without.io_bytes, other.io_bytes)


def test_a_machine_without_a_slice_runs_no_fio(ran: Ran) -> None:
    found = ran.measure(ran.table(arms=HOST_ONLY))
    assert [each.arm for each in found] == ["host", "host"]
    assert not (ran.store.path / "raw" / "g-round4-guest.json").exists()


def let_one_be_late(table: Timetable, programs: Path) -> tuple[int, Slice]:
    """Let a slice start 0.4 s late. Returns its number and the slice.

    Its successor is on the other machine, because fio itself keeps those of one machine apart.
    """
    late = next(
        number
        for number, (each, after) in enumerate(pairwise(table.slices))
        if number and (each.arm.place is Place.GUEST) != (after.arm.place is Place.GUEST)
    )
    planned = table.slices[late]
    on_machine = [
        each for each in table.slices if (each.arm.place is Place.GUEST) == (planned.arm.place is Place.GUEST)
    ]
    name = f"{on_machine.index(planned) + 1}-{planned.turn}-".replace(":", "-")
    paced_fio.install(programs, Mistakes(late={name: 0.4}))
    return late, planned


def test_a_slice_that_starts_late_and_runs_into_the_next_one_is_void_and_so_is_that_one(
    ran: Ran, programs: Path
) -> None:
    table = ran.table()
    late, planned = let_one_be_late(table, programs)
    found = ran.measure(table)
    assert {number for number, each in enumerate(found) if each.overlap is not None} == {late, late + 1}
    assert found[late].overlap == str(table.slices[late + 1].turn)
    assert found[late + 1].overlap == str(planned.turn)
    # The counters were read while it ran, so they belong to neither.
    assert found[late].counters.disk is None
    assert found[late + 1].counters.disk is None
    assert found[late].counters.fio.ios
    assert found[late - 1].counters.disk is not None


def test_a_slice_that_runs_into_the_ramp_of_the_next_one_is_void_too(ran: Ran, programs: Path) -> None:
    table = ran.table((replace(READ, ramp=0.6),))
    late, _ = let_one_be_late(table, programs)
    found = ran.measure(table)
    # It had ended when the next one was measured, but not when its ramp began.
    assert found[late].started + found[late].seconds < found[late + 1].started
    assert {number for number, each in enumerate(found) if each.overlap is not None} == {late, late + 1}


def test_a_slice_that_starts_a_little_late_counts_and_keeps_its_counters(ran: Ran, programs: Path) -> None:
    paced_fio.install(programs, Mistakes(late={"1-host": 0.03}))
    found = ran.measure(ran.table(blocks=1))
    assert {each.overlap for each in found} == {None}
    assert all(each.counters.disk is not None for each in found)


class PausedRunner(LocalRunner):
    """A guest that is paused for two seconds after its first fio: its clock stands still meanwhile."""

    behind = 0.0

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        done = super().run(argv, deadline=deadline, stdin=stdin, check=check)
        if list(argv) == ["cat", "/proc/uptime"]:
            up, *rest = done.stdout.split()
            return replace(done, stdout=" ".join([f"{float(up) - self.behind:.2f}", *rest]))
        if stdin:
            self.behind = 2.0
        return done


def test_nothing_counts_of_a_timetable_in_which_a_guest_was_paused(ran: Ran, tmp_path: Path) -> None:
    guest = LocalGuest(str(tmp_path / "disk"), runner=PausedRunner("guest here"), evidence={"fio": "fio-3.39"})
    ran.at = replace(ran.at, guests=Guests("here", {"": lambda: nullcontext(guest)}, {"": ["lvm"]}))
    paused = ran.measure(ran.table(blocks=1))
    assert {each.overlap for each in paused} == {CLOCK_CHANGED}
    assert {each.counters.disk for each in paused} == {None}
    # The next one knows the clock as it is now.
    assert {each.overlap for each in ran.measure(ran.table(blocks=1))} == {None}


def test_if_fio_is_ready_too_late_only_the_first_slices_are_late(ran: Ran, programs: Path) -> None:
    table = ran.table(blocks=4)
    # It is ready half a second after the planned start of the first slice.
    paced_fio.install(programs, Mistakes(ready=Startup().seconds(len(table.slices)) + 0.5))
    found = ran.measure(table)
    early = [each.started - planned.start for each, planned in zip(found, table.slices, strict=True)]
    late = [each - min(early) for each in early]
    assert late[0] > 0.3
    assert max(late[4:]) < late[0]


def test_a_fio_that_fails_on_one_machine_ends_everything_at_once(ran: Ran, programs: Path, tmp_path: Path) -> None:
    counting_cycles(ran)
    script(programs, "perf", f"echo $$ >{tmp_path}/perf; exec sleep 600")
    paced_fio.install(programs, Mistakes(fails="guest-lvm"))
    started = time.monotonic()
    with pytest.raises(MeasurementError, match=r"guest here: fio ended with status 1: .*Input/output error") as caught:
        ran.measure(ran.table(blocks=15))
    assert "is gone: see `dmesg` on guest here; its output is in " in str(caught.value.hint)
    assert time.monotonic() - started < 300, "it did not wait for perf"
    assert ran.store.read_journal().measurements == ()
    assert list(ran.pacing.iterdir()) == []
    assert ends(int((tmp_path / "perf").read_text()))
    # What fio printed is there to look at.
    assert (ran.store.path / "raw" / "g-round4-guest.json").exists()


def test_a_device_that_is_gone_is_an_error_and_ends_everything_at_once(ran: Ran) -> None:
    ran.at = replace(ran.at, layouts=replace(ran.at.layouts, disk="voh-gone"))
    with pytest.raises(HostError, match="voh-gone"):
        ran.measure(ran.table(blocks=15))
    assert not list(ran.pacing.glob("*"))


# --- cycles ---


def test_a_slice_has_the_cycles_that_were_counted_while_it_ran(ran: Ran, programs: Path) -> None:
    counting_cycles(ran)
    script(programs, "perf", PERF)
    for found in undisturbed(lambda: ran.measure(ran.table()), list):
        assert found.counters.cycles is not None
        assert found.counters.cycles.host_kernel == pytest.approx(900_000 * found.seconds / 0.1, rel=0.01)
        assert found.counters.cycles.guest_user == pytest.approx(1_000 * found.seconds / 0.1, rel=0.01)
        assert found.notes == ()
        assert cost_per_io(found.counters, in_guest=found.arm == "guest:lvm")["cycles"] > 0


def test_a_failure_of_perf_loses_the_cycles_but_not_the_measurement(ran: Ran, programs: Path) -> None:
    counting_cycles(ran)
    script(programs, "perf", "echo 'no memory' >&2; exit 1")
    for found in ran.measure(ran.table(blocks=1)):
        assert found.notes == ("perf counted nothing: no memory",)
        assert found.metrics["iops"] > 0
        assert "cycles" not in cost_per_io(found.counters, in_guest=False)


def test_a_host_that_cannot_count_cycles_is_not_queried(ran: Ran, programs: Path, tmp_path: Path) -> None:
    script(programs, "perf", f"touch {tmp_path}/asked; {PERF}")
    (found,) = ran.measure(ran.table(arms=HOST_ONLY, blocks=1))
    assert not (tmp_path / "asked").exists()
    assert found.counters.cycles is None
    assert found.notes == ()
