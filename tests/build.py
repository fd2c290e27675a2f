"""Builders for tests: cells, counters, measurements and runs. A test names only what matters to it.

The values of `synthetic_run` are made up but plausible; nothing here was measured.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Literal, ParamSpec, TypeVar

from pydantic import JsonValue, TypeAdapter

from harness.analysis import Sequential
from harness.config.names import RunId
from harness.features.steady.measuring import make_record
from harness.features.variants import Variant, in_variants
from harness.lab.transport.base import Runner
from harness.measure.series import LabFound, OpenSession, PreparedGroup, RoundSegment
from harness.model.attach import Attach
from harness.model.counters import Counters
from harness.model.job import Job, Workload, parse_workload
from harness.model.layout import Layout
from harness.model.mode import Arm, Budget, Cell, ConcurrentJob, Mode, Place
from harness.model.option import BUSES, NOTHING, Effective
from harness.model.workloads import Profile, parse_workloads
from harness.results import (
    SCHEMA_VERSION,
    CellContext,
    ConditioningRecord,
    Efficiency,
    GroupRecord,
    LabInfo,
    Measurement,
    PartRecord,
    Run,
    RunInfo,
    RunStatus,
    ValidityCheck,
    assemble,
)
from harness.results.journal import BackupCounts
from harness.results.judging import correct_records
from harness.results.validity import drift_checks, drift_notes, host_drift
from harness.scenario.plan import Plan, plan_for
from harness.scenario.scenario import PRESETS, Scenario
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice, backed_up

T = TypeVar("T")

RUN_ID = RunId("20260101-120000-0001")
STARTED = 1_760_000_000.0
WHY = "nested KVM: QEMU emulates the disk, so its latency is the emulator's"

# Seconds of one I/O at depth 1 and the IOPS at saturation, of an imagined host.
_HOST = {
    "randread": (10e-6, 200_000.0),
    "randwrite": (11e-6, 190_000.0),
    "seqread": (105e-6, 10_300.0),
    "seqwrite": (125e-6, 7_900.0),
}
# What a layout adds to each I/O, and what it leaves of the peak.
_LAYER = {"device": (0.0, 1.0), "lvm": (0.4e-6, 0.985), "raw": (1.9e-6, 0.93)}
# What each guest adds to each I/O, and its own limit of IOPS.
_GUEST = {"passthrough": (38e-6, 44_000.0), "lvm": (41e-6, 41_000.0), "raw": (36e-6, 37_000.0)}


CALIBRATION: Mapping[str, JsonValue] = {
    "written": "2026-01-01",
    "host": "lab1",
    "disk": "optane",
    "disk_identity": "/dev/disk/by-id/nvme-alpha (serial A)",
    "run": "20260101-000000-abcd",
    "seed": 7,
    "false_alarms": 1,
    "groups": 40,
    "rounds": 3,
    "smallest_detectable": {"3": 0.0662, "5": 0.0347},
    "noise_sd": 0.021,
    "noise_sd_by_job": {},
    "delay": {
        "set_s": 0.001,
        "found_s": [0.00098, 0.00101, 0.00104],
        "host_found_s": [0.00099, 0.001, 0.00101],
        "detected": 5,
        "recovered": 5,
        "of": 5,
        "rounds": 6,
        "job": "randread-4k-qd1",
    },
    "slices": [],
    "slice_s": 1.0,
    "boots": {
        "job": "randread-4k-qd32",
        "boots": 5,
        "blocks": 5,
        "sd": 0.0,
        "sd_of_blocks": 0.021,
        "share": [0.0, 0.0, 0.3],
    },
    "conditions": {"kernel": "6.12", "qemu": "10.0", "accel": "kvm", "images": {}},
    "lab_kind": "bare-metal",
    "schema": 2,
    "stale": [],
}

Speed = Callable[[Arm, Job], float]
"""What an arm does in a job."""

Shape = Sequence[tuple[float, float]]
"""A histogram: latencies as multiples of the mean, and the share of I/Os that each has."""
FOUR_BINS: Shape = ((0.9, 0.6), (1.1, 0.385), (3.1, 0.01), (6.0, 0.005))


def real_shape(bins: int = 60) -> Shape:
    """A shape with as many bins as a real disk's histogram has: a bell on the logarithmic axis with a long tail."""
    places = [6.0 * number / (bins - 1) - 2 for number in range(bins)]
    weights = [math.exp(-2 * place**2) + 1e-3 * math.exp(-abs(place)) for place in places]
    return tuple((math.exp(place), weight / sum(weights)) for place, weight in zip(places, weights, strict=True))


Ready = Literal["filled", "steady", "not steady"]
"""How the disk was conditioned: once filled, or worked until steady, or in vain."""


def optane() -> Scenario:
    """The optane matrix, whatever the scenario that ships is changed to. Its modes declare no cache."""
    names = ("host", "passthrough", "lvm", "raw", "raw-cached")
    return Scenario(
        name="optane",
        title="A fast disk: host, passthrough, LVM and RAW",
        disk="optane",
        modes=tuple(replace(mode, cached=False) for mode in PRESETS if mode.name in names),
        workloads=tuple(map(parse_workload, ("seqread-256k", "seqwrite-256k", "randread-4k", "randwrite-4k"))),
        write_rate=2 << 30,
        profiles=(
            Profile("smoke", ramp=0, runtime=1, rounds=3, iodepth=(1, 32), span=64 << 20, round_limit=300),
            Profile("standard", 2, 10, 5, iodepth=tuple(2**power for power in range(9)), span=4 << 30, round_limit=600),
        ),
    )


PROVENANCE: Mapping[str, JsonValue] = {
    "kernel": "6.1.0-test",
    "cpu": {"model": "Synthetic CPU", "count": 2, "mitigations": {"spectre_v2": "IBRS"}},
    "governor": None,
    "tools": {"fio": "3.36", "qemu": "10.0.2", "images": ["guest sha256:0000"]},
}
"""Of each synthetic run."""
REMEMBERED_RUNS = 24
Wanted = ParamSpec("Wanted")


def _make_once(make: Callable[Wanted, Run]) -> Callable[Wanted, Run]:
    """Each of the latest runs is made once in a process, because many tests ask for the same one.

    Functions are not compared, so a run with one is always made.
    """
    made: dict[str, Run] = {}

    @wraps(make)
    def run(*args: Wanted.args, **kwargs: Wanted.kwargs) -> Run:
        if args or any(callable(value) for value in kwargs.values()):
            return make(*args, **kwargs)
        key = repr(sorted(kwargs.items()))
        if key not in made:
            if len(made) == REMEMBERED_RUNS:
                del made[next(iter(made))]
            made[key] = make(*args, **kwargs)
        return replace(made[key], provenance=deepcopy(made[key].provenance))

    return run


def with_records(run: Run, key: str, records: tuple[Any, ...]) -> Run:
    """The run with other records under the key of a feature."""
    return replace(run, of_features={**run.of_features, key: records})


@_make_once
def synthetic_run(
    *,
    profile: str = "smoke",
    modes: Collection[str] | None = None,
    rounds: int = 3,
    status: RunStatus = "complete",
    measured: float = 1.0,
    budget: float | None = 0.8,
    budgets: Sequence[Budget] = (),
    void: Collection[str] = (),
    cached: Collection[str] = (),
    declared: Collection[str] = (),
    faster: Collection[str] = (),
    skipped: Collection[str] = (),
    disk: str = "optane",
    representative: bool = False,
    most_rounds: int = 0,
    ready: Ready = "filled",
    drift: float = 0.0,
    calibrated: bool = False,
    workloads: Sequence[str | Workload] = (),
    scenario: Scenario | None = None,
    speed: Speed | None = None,
    flush: Speed | None = None,
    noise: float = 0.015,
    variants: Mapping[str, Variant] = {},
    shape: Shape = FOUR_BINS,
) -> Run:
    """A run over the optane scenario, or over some of its `modes`.

    `measured` is the share of fio runs that were made before the run ended. `void` names ids of cells whose byte
    counts disagree, `skipped` names modes that the host could not do. `budget` is the share of IOPS that may be lost,
    `budgets` are further ones. Guests of modes in `cached` are served by the host's page cache, and of those in
    `declared` the scenario says so. Those in `faster` outrun their host and no check says why. Rounds may be looked at
    early where `most_rounds` is above `rounds`. The disk loses the share `drift` of its speed while a group is
    measured. `workloads` take the place of the scenario's.
    With a `scenario`, this one is measured instead; `speed` gives the IOPS of an arm, `flush` the seconds of its
    fdatasync, and values scatter by the share `noise`. With `variants`, the guests of the one called `slow` reach 95 %
    of the others. `shape` is that of the histogram of every slice.
    """
    scenario = _narrow_scenario(scenario or replace(optane(), disk=disk), modes, workloads, declared)
    scenario = in_variants(scenario, variants)
    plan = plan_for(scenario, profile)
    quick = (*cached, *faster)
    of_arms = partial(
        measure, cached=cached, quick=quick, drift=drift, speed=speed, flush=flush, noise=noise, shape=shape
    )
    measurements = [measurement for group in plan.groups for measurement in of_arms(group, rounds, skipped)]
    measurements = measurements[: round(len(measurements) * measured)]
    groups = _groups(plan, measurements, ready, rounds, max(rounds, most_rounds))
    rules = [*([Budget("iops", budget)] if budget is not None else []), *budgets]
    sequential = Sequential(rounds, most_rounds) if most_rounds > rounds else None
    contexts = {
        cell.id: replace(context, budgets={rule.key: rule for rule in rules if rule.covers(cell, "bare-metal")})
        for cell, context in _contexts(plan, groups, void, skipped, sequential)
    }
    cells = assemble(plan.cells, measurements, contexts)
    family = sum(len(context.budgets) for context in contexts.values())
    return Run(
        schema=SCHEMA_VERSION,
        run=_run_info(scenario, profile, status, measurements),
        lab=LabInfo("lab1", "embedded", "kvm", representative, "real hardware" if representative else WHY),
        provenance={**PROVENANCE, **({"calibration": dict(CALIBRATION)} if calibrated else {})},
        groups=groups,
        cells=tuple(correct_records(cells, family=family, error_rate=0.025)),
    )


def _contexts(
    plan: Plan,
    groups: Sequence[GroupRecord],
    void: Collection[str],
    skipped: Collection[str],
    sequential: Sequential | None,
) -> Iterator[tuple[Cell, CellContext]]:
    """Each cell with its context, before its last look."""
    for group in plan.groups:
        for cell in group.cells:
            context = _context(cell, group.id, plan.span, void=cell.id in void, skipped=skipped)
            yield cell, replace(_with_drift(context, cell, groups), sequential=sequential, final=False)


def _narrow_scenario(
    scenario: Scenario, modes: Collection[str] | None, workloads: Sequence[str | Workload], declared: Collection[str]
) -> Scenario:
    """The scenario with only these modes, unless None, and with these workloads, if there are some.

    The modes `declared` are cached.
    """
    of_memory = (replace(mode, cached=mode.cached or mode.name in declared) for mode in scenario.modes)
    scenario = replace(scenario, modes=tuple(of_memory))
    if workloads:
        named = (each for own in workloads for each in ((own,) if isinstance(own, Workload) else parse_workloads(own)))
        scenario = replace(scenario, workloads=tuple(named))
    if modes is not None:
        scenario = replace(scenario, modes=tuple(mode for mode in scenario.modes if mode.name in modes))
    return scenario


def measure(
    group: Group,
    rounds: int,
    skipped: Collection[str] = (),
    *,
    cached: Collection[str] = (),
    quick: Collection[str] = (),
    drift: float = 0.0,
    speed: Speed | None = None,
    flush: Speed | None = None,
    noise: float = 0.015,
    shape: Shape = FOUR_BINS,
) -> list[Measurement]:
    """Made-up measurements of a group, in the order in which a campaign would take them.

    Guests of `cached` modes read from a cache, so that the disk sees a quarter; those of `quick` ones are three times
    as fast as the device itself.
    """
    measurements: list[Measurement] = []
    clock = STARTED
    for number in range(1, rounds + 1):
        for arm in _shuffled(group.arms, group, number):
            if arm.mode is not None and arm.mode.name in skipped:
                continue
            wanted = group.jobs_of(arm)
            for job in (job for job in _shuffled(group.jobs, group, number) if job in wanted):
                mode = arm.mode.name if arm.mode is not None and arm.place is Place.GUEST else ""
                iops = 3 * _iops(Arm(Place.HOST), job) if mode in quick else (speed or _iops)(arm, job)
                iops *= (1 - drift) ** (number / rounds)
                found = _measurement(
                    group.id,
                    number,
                    arm,
                    job,
                    started=clock,
                    iops=iops,
                    seen=mode not in cached,
                    noise=noise,
                    shape=shape,
                )
                measurements.append(_flushed(found, flush(arm, job), noise) if flush and job.syncs else found)
                clock += measurements[-1].wall
    return measurements


def _shuffled(items: Sequence[T], group: Group, number: int) -> list[T]:
    return random.Random(f"{group.id} {number}").sample(items, len(items))


def _measurement(
    group: str,
    number: int,
    arm: Arm,
    job: Job,
    *,
    started: float,
    iops: float,
    seen: bool,
    noise: float,
    shape: Shape,
) -> Measurement:
    """`iops` is what the arm can do, `seen` whether the disk sees every byte that fio counts."""
    draw = random.Random(f"{group} {number} {arm.id} {job.id}")
    iops *= math.exp(draw.gauss(0, noise))
    clat = job.iodepth * job.numjobs / iops * 0.97
    iops = min(iops, job.rate or math.inf)
    ios = iops * job.seconds
    raw = f"raw/{group}-round{number}-{arm.id.replace(':', '-')}-{job.id}"
    measured = Measurement(
        group=group,
        round=number,
        arm=arm.id,
        repeat=1,
        job=job.id,
        started=started,
        seconds=job.seconds,
        wall=job.wall + 0.15,
        metrics={
            "iops": iops,
            "bw": iops * job.bs,
            "lat_mean": clat * 1.02,
            "clat_mean": clat,
            "clat_p50": clat * 0.9,
            "clat_p99": clat * 3.1,
        },
        io_bytes=round(iops * job.bs * job.seconds),
        raw=f"{raw}.json",
        counters=counters(_counters(arm, job, ios * job.bs, seen=seen)),
        backup=BackupCounts(1.0, 400 * 1024**2) if backed_up(arm) else None,
        histogram={round(clat * factor * 1e9): round(ios * share) for factor, share in shape},
    )
    parts = arm.parts(job)
    if len(parts) == 1:
        return measured
    return replace(measured, together=0.99, parts=tuple(_part(part, measured, parts) for part in parts))


_GOT = (0.4, 0.3, 0.2, 0.1)
"""What each of four guests gets. fio on the host gets the same on each volume."""


def _part(part: ConcurrentJob, measured: Measurement, parts: Sequence[ConcurrentJob]) -> PartRecord:
    share = 1.0
    if not any(each.neighbour for each in parts):
        share = _GOT[part.number - 1] if part.arm.in_guest else 1 / len(parts)
    return PartRecord(
        number=part.number,
        neighbour=part.neighbour,
        job=part.job.id,
        seconds=measured.seconds,
        metrics={**measured.metrics, **{name: measured.metrics[name] * share for name in ("iops", "bw")}},
        io_bytes=round(measured.io_bytes * share),
        raw=measured.raw.replace(".json", f"-{part.machine}.json"),
        histogram={latency: round(number * share) for latency, number in measured.histogram.items()},
    )


def _flushed(measured: Measurement, seconds: float, noise: float) -> Measurement:
    """With a p99 of fdatasync of about `seconds`."""
    p99 = seconds * math.exp(random.Random(f"{measured.raw} flush").gauss(0, noise))
    latencies = {"sync_mean": p99 / 2, "sync_p99": p99}
    return replace(measured, metrics=measured.metrics | latencies)


def _counters(arm: Arm, job: Job, size_bytes: float, *, seen: bool) -> dict[str, float]:
    direction = "written" if job.writes else "read"
    counters = {
        f"fio_{direction}": size_bytes,
        f"disk_{direction}": size_bytes if seen else size_bytes / 4,
        "cpu_busy": 0.99 if arm.place is Place.GUEST and job.id == "randread-4k-qd32" else 0.3,
        "host_cpu_busy": 0.4,
    }
    guest = {f"qemu_{direction}": size_bytes} if arm.place is Place.GUEST else {}
    return counters | guest | _spent(arm, round(size_bytes / job.bs))


# Microseconds of CPU per I/O, by who spends them.
_GUEST_SPENDS = {"qemu_guest_s": 12, "qemu_vcpu_s": 6, "qemu_iothread_s": 9, "qemu_worker_s": 0, "qemu_main_s": 1}
_FIO_SPENDS = {"fio_user_s": 1, "fio_system_s": 3}


def _spent(arm: Arm, ios: float) -> dict[str, float]:
    """What `ios` I/Os cost: 34 us of the host's CPUs for a guest's, 6 us for its own; 1 us of each is fio's."""
    in_guest = arm.place is Place.GUEST
    spends = _GUEST_SPENDS
    if arm.mode is not None and isinstance(arm.mode.attach, Attach) and not arm.mode.attach.threads:
        spends = spends | {"qemu_iothread_s": 0, "qemu_main_s": 9}
    per_io = {
        **_FIO_SPENDS,
        **(spends if in_guest else dict.fromkeys(spends, 0)),
        "host_busy_s": 34 if in_guest else 6,
    }
    counts = {"ios": ios, "host_switches": ios * (4 if in_guest else 2)}
    if in_guest:
        counts |= {"kvm_exits": 2.5 * ios, "kvm_irq_injections": ios, "qemu_waits": 3 * ios, "qemu_preemptions": 0.0}
    return counts | {name: us * 1e-6 * ios for name, us in per_io.items()}


def _groups(
    plan: Plan, measurements: Sequence[Measurement], ready: Ready, rounds: int, most_rounds: int
) -> tuple[GroupRecord, ...]:
    found = []
    for group in plan.groups:
        own = [m for m in measurements if m.group == group.id]
        done = sorted({m.round for m in own})
        found.append(
            GroupRecord(
                id=group.id,
                disk=group.disk,
                orders=tuple(tuple(arm.id for arm in _shuffled(group.arms, group, number)) for number in done),
                looks=Sequential(rounds, most_rounds).looks,
                stopped="budget decided" if len(done) == rounds else None,
                conditioning=_conditioning(ready),
                drift=host_drift(own),
                rounds=tuple(done),
            )
        )
    return tuple(group for group in found if group.orders)


def _conditioning(ready: Ready) -> ConditioningRecord:
    if ready == "filled":
        return ConditioningRecord("fill", None, (), None)
    device = make_record("device", [310_000, 255_000, 214_000, 203_000, 199_000, 201_000, 200_000, 198_000])
    falling = [300_000 * 0.93**number for number in range(25)]
    raw = make_record("raw", falling if ready == "not steady" else falling[:1] + [180_000] * 5)
    return ConditioningRecord("steady", "randwrite-4k-qd32", (device, raw), device.steady and raw.steady)


def _with_drift(context: CellContext, cell: Cell, groups: Sequence[GroupRecord]) -> CellContext:
    """With the failed check or the note, where the host drifted too much in the cell's job."""
    drifts = [drift for group in groups if group.id == context.group for drift in group.drift]
    checks, notes = drift_checks(drifts, cell, [cell.mode]), drift_notes(drifts, cell, [cell.mode])
    return replace(context, validity=(*context.validity, *checks), notes=(*context.notes, *notes))


def _iops(arm: Arm, job: Job) -> float:
    """What a closed loop of `iodepth` I/Os reaches: the depth over the latency, bending towards the peak."""
    latency, peak = _HOST[job.pattern]
    small = job.pattern.startswith("rand")
    if arm.mode is not None:
        more, kept = _LAYER[arm.mode.layout.kind]
        latency, peak = latency + more, peak * kept
        if arm.place is Place.GUEST:
            more, limit = _GUEST.get(arm.mode.names[-1], (60e-6, 24_000.0))
            latency, peak = latency + more, limit if small else peak * 0.96
            if arm.mode.variant_name == "slow":
                latency, peak = latency / 0.95, peak * 0.95
    return peak * (1 - math.exp(-job.iodepth / (latency * peak)))


def _effective(mode: Mode) -> Effective:
    if not isinstance(attach := mode.attach, Attach):
        return NOTHING
    return Effective(
        bus=BUSES[attach.bus].hypervisor,
        qemu_cache_direct=attach.direct,
        qemu_aio=attach.aio,
        iothread=attach.iothread,
        qemu_version={"": None, "old": "10.0.2"}.get(mode.variant_name, "10.1.0"),
    )


def _context(cell: Cell, group: str, span: int, *, void: bool, skipped: Collection[str]) -> CellContext:
    return CellContext(
        host="lab1",
        group=group,
        span_bytes=span,
        validity=(
            ValidityCheck("engine", ok=True, detail="fio 3.36, libaio on both sides"),
            ValidityCheck("bytes", ok=not void, detail="fio 412 MiB, block device 96 MiB, QEMU 412 MiB")
            if void
            else ValidityCheck("bytes", ok=True, detail="fio, block device and QEMU agree within 0.1 %"),
        ),
        effective=_effective(cell.mode),
        against=_effective(cell.mode.against) if cell.mode.against else NOTHING,
        notes=("raw is not aligned with the others",) if cell.mode.name == "raw" else (),
        skipped="the kernel of lab1 has no device-mapper" if cell.mode.name in skipped else None,
    )


def _run_info(scenario: Scenario, profile: str, status: RunStatus, measurements: Sequence[Measurement]) -> RunInfo:
    fio = sum(measurement.wall for measurement in measurements)
    wall = fio / 0.9 if fio else 12.0
    return RunInfo(
        id=RUN_ID,
        started=STARTED,
        finished=STARTED + wall if status == "complete" else None,
        command=f"pytest scenarios -k optane --profile {profile}",
        profile=profile,
        seed=7,
        status=status,
        scenarios={scenario.name: scenario.title},
        phases={"boot": wall * 0.04, "layouts": wall * 0.03, "measure": fio, "read back": wall * 0.01},
        efficiency=Efficiency.of(fio, wall),
    )


_COUNTERS = TypeAdapter(Counters)


def counters(flat: Mapping[str, float]) -> Counters:
    """The counters with these counts. A count that is not given is as in a record that lacks it."""
    record = _nest({name: _whole(name, count) for name, count in flat.items()})
    return _COUNTERS.validate_json(json.dumps(record))


def _whole(name: str, count: float) -> float:
    whole = name.endswith(("read", "written", "trimmed")) or name in ("ios", "fio_switches", "disk_requests")
    return round(count) if whole else count


A_SLICE = Measurement(
    group="g",
    round=1,
    arm="host",
    repeat=1,
    job="randread-4k-qd32",
    started=1000.0,
    seconds=1.0,
    wall=1.0,
    metrics={},
    io_bytes=4096,
    raw="raw/1.json",
)
"""A measurement to be changed: see `build_measurement`."""


def build_cell(
    mode: Mode | Layout,
    workload: str = "randread-4k",
    depth: int = 32,
    *,
    scenario: str = "d",
    disk: str = "ssd1",
    ramp: float = 0.5,
    seconds: float = 2.0,
) -> Cell:
    """A cell of this mode, or of a mode `m` that attaches this layout as usual."""
    mode = mode if isinstance(mode, Mode) else Mode("m", mode, Attach())
    return Cell(scenario, disk, mode, parse_workload(workload).job(depth, ramp=ramp, seconds=seconds))


def build_measurement(
    arm: str = "host",
    number: int = 1,
    *,
    job: Job | str = A_SLICE.job,
    counts: Mapping[str, float] | None = None,
    **fields: Any,
) -> Measurement:
    """A slice of `arm` in the round `number`: A_SLICE with these fields. `counts` are as for `counters`."""
    if counts is not None:
        fields["counters"] = counters(counts)
    return replace(A_SLICE, round=number, arm=arm, job=job if isinstance(job, str) else job.id, **fields)


def as_planned(group: Group, segment: RoundSegment, planned: Slice, metrics: Mapping[str, float]) -> Measurement:
    """The measurement of a slice that ran exactly as planned, with these metrics."""
    number, block = segment.place_of(planned)
    return replace(
        A_SLICE,
        group=group.id,
        round=number,
        block=block,
        boot=segment.boot,
        arm=planned.arm.id,
        repeat=planned.turn.again,
        job=planned.job.id,
        rate=planned.job.rate,
        started=planned.start,
        seconds=planned.job.seconds,
        wall=planned.job.wall,
        metrics=dict(metrics),
    )


def at_full_speed(job: Job, arm: str, number: int, iops: float, counters: Counters) -> Measurement:
    """The only slice of a round, with a full queue: its latency follows from its throughput."""
    return replace(
        A_SLICE,
        round=number,
        arm=arm,
        job=job.id,
        started=float(number),
        seconds=job.seconds,
        wall=job.wall,
        metrics={"iops": iops, "bw": iops * job.bs, "lat_mean": job.depth / iops},
        raw=f"raw/{number}-{arm.replace(':', '-')}-{job.id}.json",
        counters=counters,
    )


class StandIn:
    """What a measurer without a host has nothing to do for."""

    runner: Runner | None = None

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:  # noqa: ARG002
        return PreparedGroup(plan.span, ConditioningRecord("fill", None, (), None))

    def use_session(self, work: Callable[[OpenSession], Any]) -> Any:
        raise NotImplementedError(work)

    def boot_again(self) -> None:
        pass

    def round_measured(self) -> None:
        pass

    def close_session(self) -> None:
        pass

    def close(self) -> None:
        pass


_OWN = ("cpu_busy", "host_cpu_busy", "md_s", "disk_requests")
_MEMBER = re.compile(r"member:(?P<name>.+)_(?P<count>read|written|busy_s|queue_s)")
_ORIGINS = {"fio": "fio", "disk": "disk", "qemu": "threads", "host": "host", "kvm": "kvm", "cycles": "cycles"}


def _nest(flat: Mapping[str, float]) -> dict[str, Any]:
    """The record for these counts. Any other name is left for the validation to refuse."""
    found: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for key, stored in flat.items():
        value = int(stored) if isinstance(stored, float) and stored.is_integer() else stored
        if key in _OWN:
            found[key] = value
        elif key == "ios":
            found.setdefault("fio", {})["ios"] = value
        elif (match := _MEMBER.fullmatch(key)) is not None:
            found.setdefault("members", {}).setdefault(match["name"], {})[match["count"]] = value
        else:
            origin, _, count = key.partition("_")
            if origin not in _ORIGINS or not count:
                others[key] = value
                continue
            bytes_of_qemu = origin == "qemu" and count in ("read", "written", "trimmed")
            if bytes_of_qemu:
                arm = found.setdefault("arm", {"qemu": {}, "fio": {}})
                arm["qemu"][count] = value
            else:
                found.setdefault(_ORIGINS[origin], {})[count] = value
    if "arm" in found:
        found["arm"]["fio"] = {name: found["fio"].get(name, 0) for name in ("read", "written", "trimmed")}
    return found | others


def lognormal(sigma: float, ios: int = 20_000) -> Counter[int]:
    """Latencies around 60 us in fio's bins: 64 in each factor of two."""
    chance = random.Random(f"{sigma}")
    found: Counter[int] = Counter()
    for _ in range(ios):
        latency = round(chance.lognormvariate(11, sigma))
        width = (1 << (latency.bit_length() - 1)) // 64 or 1
        found[latency - latency % width + width // 2] += 1
    return found
