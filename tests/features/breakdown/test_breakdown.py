"""Where the microseconds go: from recorded traces to the parts of an I/O, what a run stores, and what a report says."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise, permutations, product
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from harness.errors import Unsupported
from harness.events import Events
from harness.features.breakdown import FLAG
from harness.features.breakdown.measuring import BLOCKS, Switching, Traced, TracingRequest, parse_trace, trace_devices
from harness.features.breakdown.parts import (
    BreakdownRecord,
    Passed,
    PathPart,
    PathPoint,
    PathTimes,
    TracedBlock,
    average_times,
    break_down,
    follow_ios,
    split_in_guest,
    split_on_host,
)
from harness.features.breakdown.report import MEASURED, SUM
from harness.lab.transport.base import Completed
from harness.lab.transport.local import LocalRunner
from harness.measure.campaign import Campaign
from harness.measure.phases import Phases
from harness.measure.resume import Earlier
from harness.measure.series import CampaignSpec, OpenSession
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.disk import DiskFacts, DiskRecord, NetworkPath
from harness.model.job import parse_workload
from harness.model.mode import Cell, Mode, Place
from harness.report.markdown import markdown_table
from harness.report.terminal import short_lines, summary_lines
from harness.results import Run, RunStore
from tests.build import RUN_ID
from tests.unit import killed_campaign
from tests.unit.killed_campaign import HOST, plan
from tests.unit.pages import figures, page
from tests.unit.recorded_campaign import RecordedMeasurer

TRACES = Path(__file__).parent / "data" / "traces"
US = 1e-6
MODE = Mode("passthrough-blk", Device(), Attach("virtio-blk"))


def recorded(machine: str) -> list[Passed]:
    """Five I/Os of fio in a guest of the embedded lab, as the kernels of guest and host printed them."""
    return list(parse_trace((TRACES / f"{machine}.txt").read_text().splitlines()))


def times(passed: Iterable[Passed]) -> PathTimes:
    found = average_times(follow_ios(passed))
    assert found is not None
    return found


def rounded(parts: dict[PathPart, float]) -> dict[str, float]:
    return {part.name: round(seconds / US, 1) for part, seconds in parts.items()}


def test_the_parts_of_recorded_ios_are_the_durations_that_the_traces_show() -> None:
    guest, host = times(recorded("guest")), times(recorded("host"))
    assert (guest.ios, host.ios) == (5, 5)
    assert (host.kicked, host.interrupted) == (1.0, 1.0)
    # Summed up by hand from the recorded lines, and divided by five.
    assert rounded(split_in_guest(2000 * US, guest, host)) == {
        "FIO": 462.8,
        "GUEST_BLOCK": 91.2,
        "VIRTIO": 513.0,
        "QEMU": 688.4,
        "HOST_BLOCK": 33.6,
        "DEVICE": 211.0,
    }
    assert rounded(split_on_host(300 * US, host)) == {"FIO": 55.4, "HOST_BLOCK": 33.6, "DEVICE": 211.0}


def an_io(at: float, **points: float) -> list[Passed]:
    """An I/O that passes these points so many us after `at`; the keys are those of its own device."""
    keys = {PathPoint.KICK: "0xfe00", PathPoint.INTERRUPT: "42"}
    return [Passed((at + us) * US, PathPoint(name), keys.get(PathPoint(name), "")) for name, us in points.items()]


GUEST_IO = {"kick": 0, "queued": 10, "issued": 12, "completed": 42, "interrupt": 50}


def test_notifications_and_interrupts_of_other_devices_do_not_count() -> None:
    events: list[Passed] = []
    for number in range(30):
        events += an_io(1000.0 * number, **GUEST_IO)
    own = times(events)
    events += [Passed(9 * US, PathPoint.KICK, "0xee00"), Passed(43 * US, PathPoint.INTERRUPT, "40")]
    assert times(sorted(events, key=lambda each: each.moment)) == own
    assert own.submit == pytest.approx(10 * US)
    assert own.finish == pytest.approx(8 * US)


def test_an_io_that_qemu_finds_by_polling_has_no_exit() -> None:
    polled = {name: us for name, us in GUEST_IO.items() if name != "kick"}
    found = times([*an_io(0, **GUEST_IO), *an_io(1000, **polled)])
    assert found.kicked == 0.5
    assert found.submit == pytest.approx(5 * US)


def test_an_io_through_several_devices_and_requests_is_one() -> None:
    def passed(*points: tuple[float, PathPoint]) -> list[Passed]:
        return [Passed(us * US, point) for us, point in points]

    queued, issued, completed = PathPoint.QUEUED, PathPoint.ISSUED, PathPoint.COMPLETED
    events = passed((0, queued), (3, queued), (5, issued), (6, issued), (30, completed), (45, completed), (90, queued))
    (found,) = follow_ios(events)
    assert [found[point].moment for point in (queued, issued, completed)] == [0, 5 * US, 45 * US]


def test_the_lines_of_other_kernels_are_read() -> None:
    lines = [
        "       CPU 0/KVM-7     [001] .....     1.000000: kvm_mmio: mmio read len 4 gpa 0xfebf7000 val 0x0",
        "       CPU 0/KVM-7     [001] .....     1.000001: kvm_fast_mmio: fast mmio at gpa 0xfe003000",
        "  a: odd [name]-8      [000] ....      1.000010: block_rq_issue: 259,0 R 4096 () 8 + 8 [IO iothread1]",
        "CPU:1 [LOST 12 EVENTS]",
    ]
    assert list(parse_trace(lines)) == [
        Passed(1.000001, PathPoint.KICK, "0xfe003000"),
        Passed(1.00001, PathPoint.ISSUED),
    ]


# --- traced slices ---


@dataclass
class ByAgent:
    """A machine where a program cannot be held, as with the guest agent."""

    name: str

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        raise NotImplementedError

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        raise NotImplementedError

    def close(self) -> None: ...


def test_a_file_that_is_on_no_block_device_cannot_be_traced() -> None:
    tracing = trace_devices(LocalRunner("host here"), ["/proc/self/status"], None)
    with pytest.raises(Unsupported, match="host here: there is no block device below /proc/self/status"):
        tracing.__enter__()


def test_a_guest_without_linux_or_without_a_login_cannot_be_traced() -> None:
    runner = LocalRunner("guest here")
    with pytest.raises(Unsupported, match="guest here: only Linux has the kernel's trace events"):
        trace_devices(runner, [r"\\.\PhysicalDrive1"], None).__enter__()
    by_agent = ByAgent("VM vm1")
    with pytest.raises(Unsupported, match="VM vm1: tracing needs a login that stays open"):
        trace_devices(by_agent, ["/dev/vda"], None).__enter__()


def request(seconds: float) -> TracingRequest:
    job = parse_workload("randread-4k").job(1, ramp=0.5, seconds=seconds)
    return TracingRequest(Cell("o", "optane", MODE, job), pause=0.1)


def test_slices_with_and_without_tracing_follow_each_other() -> None:
    table = request(3.0).limit_seconds(0.2).plan_table(random.Random(1), 64)
    assert [each.job.seconds for each in table.slices] == [0.2] * 64 * 5
    assert {round(other.start - one.end, 6) for one, other in pairwise(table.slices)} == {0.25}
    orders = Counter(
        (place, tuple(Traced(each.turn.again) for each in slices))
        for (_, place), slices in groupby(table.slices, key=lambda each: (each.block, each.arm.place))
    )
    on_host = permutations([Traced.NOTHING, Traced.HOST])
    assert set(orders) == {*product([Place.HOST], on_host), *product([Place.GUEST], permutations(Traced))}
    assert sum(orders.values()) == 64 * 2
    assert request(0.1).limit_seconds(0.2) == request(0.1)


def test_tracing_is_switched_only_between_slices_that_differ() -> None:
    states: list[Traced] = []
    table = request(0.2).plan_table(random.Random(1), 6)
    begun = time.monotonic()
    found = Switching(states.append)
    # All of the timetable is in the past, so nothing waits.
    found.run(table, begun - table.seconds - 1.0, Event())
    wanted = [Traced(planned.turn.again) for planned in table.slices]
    assert states == [after for before, after in pairwise([Traced.NOTHING, *wanted]) if before != after]
    assert len(found.switched) == len(states)
    assert found.disturbs(begun, time.monotonic())
    assert not found.disturbs(begun - 2.0, begun - 1.0)
    found.end()
    found.end()
    assert states[-1] is Traced.NOTHING
    assert len(states) == len(found.switched)


def test_tracing_is_not_switched_any_more_after_a_failure() -> None:
    states: list[Traced] = []
    stopped = Event()
    stopped.set()
    Switching(states.append).run(request(0.2).plan_table(random.Random(1), 6), time.monotonic() + 1.0, stopped)
    assert states == []


@pytest.mark.parametrize(("ios", "blocks"), [(100, [BLOCKS]), (2232, [8] * 4), (1e6, [1] * BLOCKS)])
def test_the_traces_of_a_timetable_fit_into_their_buffers(ios: float, blocks: list[int]) -> None:
    assert [each.blocks for each in request(0.4).plan_tables(random.Random(1), ios)] == blocks


# --- from traced slices to a record ---

PATH = PathTimes(1000, block=2 * US, device=10 * US)
BELOW = PathTimes(1000, block=2 * US, device=10 * US, submit=12 * US, finish=6 * US, kicked=1.0, interrupted=1.0)
INSIDE = PathTimes(1000, block=3 * US, device=45 * US)
BLOCK = TracedBlock(
    host_latency=18 * US,
    guest_latency=60 * US,
    host_traced=18.1 * US,
    guest_traced=60.5 * US,
    below_traced=60.3 * US,
    host=PATH,
    guest=INSIDE,
    below=BELOW,
    followed=1.0,
)


def blocks_of(block: TracedBlock) -> list[TracedBlock]:
    """Six such blocks with a little noise."""
    noise = (0.0, 0.1, -0.1, 0.05, -0.05, 0.02)
    return [replace(block, guest_latency=block.guest_latency + each * US) for each in noise]


def test_the_parts_add_up_to_what_the_guest_adds() -> None:
    found = break_down(request(1.0).cell, "kvm1", blocks_of(BLOCK))
    assert found.sum is not None
    assert found.measured is not None
    assert sum(part.added.point for part in found.parts) == pytest.approx(found.sum.point)
    assert found.sum.point == pytest.approx(42.4 * US)
    assert found.measured.point == pytest.approx(42 * US, rel=0.001)
    assert found.deviation == pytest.approx(0.0095, rel=0.1)
    assert (found.adds_up, found.notes, found.mode, found.baseline) == (True, (), "passthrough-blk", "host")
    by_name = {part.part: part for part in found.parts}
    assert by_name[PathPart.VIRTIO].guest == pytest.approx(15 * US)
    assert by_name[PathPart.VIRTIO].host is None
    assert by_name[PathPart.DEVICE].added.point == pytest.approx(0)


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        (replace(BLOCK, guest_traced=70 * US), "the parts add up to 124% of the measured added latency"),
        (replace(BLOCK, guest_traced=63 * US), "tracing the guest adds 5.0% to its latency, so its parts"),
        (
            replace(BLOCK, below_traced=66 * US),
            "tracing the host adds 10.0% to the latency of the guest, so the parts below",
        ),
        (replace(BLOCK, host_traced=19.8 * US), "tracing the host adds 10.0% to the latency on the host, so its parts"),
        (replace(BLOCK, followed=0.5), "the traces show 50% of the I/Os"),
        (replace(BLOCK, below=replace(BELOW, kicked=0.3)), "the guest exited to KVM for 30% of its I/Os"),
        (replace(BLOCK, below=replace(BELOW, interrupted=0.0)), "the interrupt of 0% of the I/Os"),
        (replace(BLOCK, guest_latency=17 * US), "the guest adds no latency here"),
    ],
)
def test_what_limits_a_breakdown_is_said(changed: TracedBlock, note: str) -> None:
    assert any(note in each for each in break_down(request(1.0).cell, "kvm1", blocks_of(changed)).notes)


# --- in a run ---


class Traces(RecordedMeasurer):
    """Traces every request with the same result."""

    requests: list[TracingRequest]

    def use_session(self, work: Callable[[OpenSession], Any]) -> Any:
        assert isinstance(work, partial)
        self.requests = [*getattr(self, "requests", []), work.args[0]]
        return break_down(work.args[0].cell, HOST.name, blocks_of(BLOCK))


class CannotTrace(RecordedMeasurer):
    def use_session(self, work: Callable[[OpenSession], Any]) -> Any:  # noqa: ARG002
        raise Unsupported("guest: no trace events", hint="mount tracefs")


CACHED = Mode("cached", Device(), Attach("virtio-blk", "writeback", "threads"))


def measured(store: RunStore, measurer: type[RecordedMeasurer], earlier: Earlier | None = None) -> RecordedMeasurer:
    """Run a campaign with `--breakdown` to its end: `passthrough-blk`, and a mode with a host cache, at depth 32."""
    whole = killed_campaign.scenario()
    modes = (whole.modes[0], MODE, CACHED)
    scenario = replace(whole, name="first", modes=modes, workloads=whole.workloads[:1])
    spec = CampaignSpec(
        RUN_ID, HOST, (plan(scenario),), {"first": scenario}, "smoke", 7, "pytest", switches=frozenset({FLAG})
    )
    phases = Phases(Events())
    measures = measurer(spec, store, None, phases)
    campaign = Campaign(spec, store, measures, phases, earlier or Earlier())
    for cell in spec.plans[0].cells:
        campaign.record(cell)
    campaign.close(interrupted=False)
    return measures


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    here: Path = tmp_path_factory.mktemp("traced")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        killed_campaign.record()
        store = RunStore.create(here / "reports", RUN_ID)
        measures = measured(store, Traces)
        assert isinstance(measures, Traces)
        # One I/O in flight, although the cells have 32.
        assert {request.job.depth for request in measures.requests} == {1}
        return store.read_results()


def test_a_run_stores_a_breakdown_of_each_mode_or_why_there_is_none(run: Run) -> None:
    found = {each.mode: each for each in run.of(BreakdownRecord)}
    assert found["passthrough-blk"].id == "first-passthrough-blk-randread-4k-qd1"
    assert found["passthrough-blk"].skipped is None
    assert found["cached"].skipped == "the host's page cache is between QEMU and the disk"


def test_a_host_that_cannot_trace_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    killed_campaign.record()
    store = RunStore.create(tmp_path / "reports", RUN_ID)
    measured(store, CannotTrace)
    run = store.read_results()
    assert run.run.status == "complete"
    assert {each.skipped for each in run.of(BreakdownRecord) if each.mode == "passthrough-blk"} == {
        "guest: no trace events; mount tracefs"
    }


def test_the_report_shows_the_parts_everywhere(run: Run) -> None:
    lines = "\n".join(summary_lines(run))
    assert re.search(r"^  QEMU +18\.0 +\+18\.0 \[18\.0, 18\.0\]$", lines, re.M)
    assert (
        "the parts add up to the added latency measured without tracing: +0.9 % in 6 blocks; tracing changes the"
        in lines
    )
    sentence = "`passthrough-blk` adds 42.4 us to an I/O of randread-4k-qd1: QEMU 18.0, virtio and VM exits 15.0"
    assert any(line.startswith(sentence) for line in short_lines(run))
    assert "| virtio and VM exits |" in markdown_table(run)
    text = page(run).text
    assert "Where the microseconds go" in text
    assert "the host's page cache is between QEMU and the disk" in text


def test_the_device_of_a_disk_on_a_network_includes_the_network(run: Run) -> None:
    network = NetworkPath("NVMe/TCP", "nqn.2026-11.x:disk", ("192.0.2.1:4420",))
    disk = DiskRecord(name=run.cells[0].disk, facts=DiskFacts(device="nvme0n1", network=network))
    assert re.search(r"^  device ", "\n".join(summary_lines(run)), re.M)
    lines = "\n".join(summary_lines(replace(run, disks=(disk,))))
    assert re.search(r"^  network and device \(NVMe/TCP\) ", lines, re.M)
    assert not re.search(r"^  device ", lines, re.M)


def test_the_bars_of_the_chart_end_where_the_next_begin(run: Run) -> None:
    (bars,) = (figure["data"][0] for key, figure in figures(run).items() if "-parts" in key)
    assert bars["y"] == [*PathPart, SUM, MEASURED]
    parts = len(PathPart)
    ends = [base + added for base, added in zip(bars["base"][:parts], bars["x"][:parts], strict=True)]
    assert bars["base"][1:parts] == pytest.approx(ends[:-1])
    assert ends[-1] == pytest.approx(bars["x"][parts])
