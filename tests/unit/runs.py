"""Synthetic runs for tests: the optane matrix with made-up but plausible values; nothing here was measured."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import replace

from harness.results import (
    SCHEMA_VERSION,
    BudgetRecord,
    CellContext,
    Efficiency,
    LabInfo,
    Measurement,
    Run,
    RunInfo,
    RunStatus,
    ValidityCheck,
    assemble,
)
from harness.scenario.library import PRESETS, parse_workload
from harness.scenario.model import Arm, Cell, Job, Place, Profile, Scenario
from harness.scenario.plan import Group, job_order, plan_for, round_order

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


def optane() -> Scenario:
    """The optane matrix, whatever the scenario that ships is changed to."""
    return Scenario(
        name="optane",
        title="Intel Optane 900P: host, passthrough, LVM and RAW",
        disk="optane",
        modes=tuple(mode for mode in PRESETS if mode.name in ("host", "passthrough", "lvm", "raw", "raw-cached")),
        workloads=tuple(map(parse_workload, ("seqread-256k", "seqwrite-256k", "randread-4k", "randwrite-4k"))),
        write_rate=2 << 30,
        profiles=(
            Profile("smoke", ramp=0, runtime=1, rounds=3, iodepth=(1, 32), span=64 << 20, round_limit=300),
            Profile("standard", 2, 10, 5, iodepth=tuple(2**power for power in range(9)), span=4 << 30, round_limit=600),
        ),
    )


def synthetic_run(
    *,
    profile: str = "smoke",
    modes: Collection[str] | None = None,
    rounds: int = 3,
    status: RunStatus = "complete",
    measured: float = 1.0,
    budget: float | None = 0.8,
    void: Collection[str] = (),
    skipped: Collection[str] = (),
    disk: str = "optane",
    representative: bool = False,
) -> Run:
    """A run over the optane scenario, or over some of its `modes`.

    `measured` is the share of fio runs that were made before the run ended. `void` names ids of cells whose byte
    counts disagree, `skipped` names modes that the host could not do. `budget` is the share of IOPS that may be lost.
    """
    scenario = replace(optane(), disk=disk)
    if modes is not None:
        scenario = replace(scenario, modes=tuple(mode for mode in scenario.modes if mode.name in modes))
    plan = plan_for(scenario, profile)
    measurements = [m for group in plan.groups for m in measure(group, rounds, skipped)]
    measurements = measurements[: round(len(measurements) * measured)]
    contexts = {
        cell.id: _context(cell, group.id, plan.span, budget=budget, void=cell.id in void, skipped=skipped)
        for group in plan.groups
        for cell in group.cells
    }
    return Run(
        schema=SCHEMA_VERSION,
        run=_run_info(scenario, profile, status, measurements),
        lab=LabInfo("lab1", "embedded", "kvm", representative, "real hardware" if representative else WHY),
        provenance={
            "kernel": "6.1.0-test",
            "cpu": {"model": "Synthetic CPU", "count": 2, "mitigations": {"spectre_v2": "IBRS"}},
            "governor": None,
            "tools": {"fio": "3.36", "qemu": "10.0.2", "images": ["guest sha256:0000"]},
        },
        cells=tuple(assemble(plan.cells, measurements, contexts)),
    )


def measure(group: Group, rounds: int, skipped: Collection[str] = ()) -> list[Measurement]:
    """Made-up measurements of a group, in the order in which a campaign would take them."""
    measurements: list[Measurement] = []
    clock = STARTED
    for number in range(1, rounds + 1):
        for arm in round_order(group, 7, number):
            if arm.mode is not None and arm.mode.name in skipped:
                continue
            wanted = group.jobs_of(arm)
            for job in (job for job in job_order(group, 7, number) if job in wanted):
                measurements.append(_measurement(group.id, number, arm, job, clock))
                clock += measurements[-1].wall
    return measurements


def _measurement(group: str, number: int, arm: Arm, job: Job, started: float) -> Measurement:
    draw = random.Random(f"{group} {number} {arm.id} {job.id}")
    iops = _iops(arm, job) * math.exp(draw.gauss(0, 0.015))
    clat = job.iodepth * job.numjobs / iops * 0.97
    return Measurement(
        group=group,
        round=number,
        arm=arm.id,
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
        raw=f"raw/{group}-round{number}-{arm.id.replace(':', '-')}-{job.id}.json",
    )


def _iops(arm: Arm, job: Job) -> float:
    """What a closed loop of `iodepth` I/Os reaches: the depth over the latency, bending towards the peak."""
    latency, peak = _HOST[job.pattern]
    small = job.pattern.startswith("rand")
    if arm.mode is not None:
        more, kept = _LAYER[arm.mode.layout.kind]
        latency, peak = latency + more, peak * kept
        if arm.place is Place.GUEST:
            more, limit = _GUEST.get(arm.mode.name, (60e-6, 24_000.0))
            latency, peak = latency + more, limit if small else peak * 0.96
    return peak * (1 - math.exp(-job.iodepth / (latency * peak)))


def _context(
    cell: Cell, group: str, span: int, *, budget: float | None, void: bool, skipped: Collection[str]
) -> CellContext:
    attach = cell.mode.attach
    return CellContext(
        host="lab1",
        group=group,
        span_bytes=span,
        budget=BudgetRecord("iops", budget) if budget is not None else None,
        validity=(
            ValidityCheck("engine", ok=True, detail="fio 3.36, libaio on both sides"),
            ValidityCheck("bytes", ok=not void, detail="fio 412 MiB, block device 96 MiB, QEMU 412 MiB")
            if void
            else ValidityCheck("bytes", ok=True, detail="fio, block device and QEMU agree within 0.1 %"),
        ),
        effective={
            "bus": attach.bus,
            "blockdev": {"cache.direct": attach.direct, "aio": attach.aio},
            "iothread": attach.iothread,
        }
        if attach
        else {},
        notes=("raw is not aligned with the others",) if cell.mode.name == "raw" else (),
        skipped="the kernel of lab1 has no device-mapper" if cell.mode.name in skipped else None,
    )


def _run_info(scenario: Scenario, profile: str, status: RunStatus, measurements: Sequence[Measurement]) -> RunInfo:
    fio = sum(measurement.wall for measurement in measurements)
    wall = fio / 0.9 if fio else 12.0
    return RunInfo(
        id="20260101-120000-test",
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
