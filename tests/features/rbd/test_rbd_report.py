"""krbd or librbd, with the interval; and whether the disks of the OSDs wrote the replicas of fio's bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from harness.feature import ReportPlace
from harness.features.rbd.report import (
    METADATA_BYTES,
    REPORT,
    OsdBytes,
    RbdRecord,
    account_cells,
    find_clients,
    list_replicated,
    replica_blocks,
)
from harness.model.counters import FioCounts, Transferred
from harness.model.job import Job
from harness.model.mode import Arm, Place
from harness.model.workloads import parse_workloads
from harness.report.contents import blocks_at
from harness.report.html import render_html
from harness.report.markdown import markdown_table
from harness.report.section import Section, find_sections
from harness.report.terminal import render_lines
from harness.results import Run
from harness.results.assemble import AssembledRun
from harness.scenario.load import load_scenario
from harness.scenario.plan import plan_for
from tests.build import measure, synthetic_run

KIB, MIB = 1024, 1024**2
WORKLOADS = ["randwrite-4k", "seqwrite-1m"]
SCENARIO = load_scenario(Path(__file__).parents[3] / "scenarios" / "rbd.toml")
CELL = "rbd-krbd-randwrite-4k-qd32"


def speed_of(librbd: float) -> Callable[[Arm, Job], float]:
    def speed(arm: Arm, _job: Job) -> float:
        if arm.place is not Place.GUEST or arm.mode is None:
            return 10_000.0
        return {"krbd": 8_000.0, "librbd": librbd}.get(arm.mode.name, 9_000.0)

    return speed


def measured(librbd: float = 10_000.0, *, noise: float = 0.002) -> Run:
    return synthetic_run(scenario=SCENARIO, workloads=WORKLOADS, speed=speed_of(librbd), rounds=6, noise=noise)


def section_of(run: Run) -> Section:
    (section,) = find_sections(run)
    return section


def lines_of(run: Run) -> str:
    return "\n".join(render_lines(blocks_at(ReportPlace.DIFFERENCES, section_of(run))))


def test_the_report_answers_krbd_or_librbd_with_an_interval() -> None:
    run = measured()
    assert [(clients.krbd, clients.librbd) for clients in find_clients(section_of(run))] == [
        ("krbd", "librbd"),
        ("krbd", "librbd-writeback"),
    ]
    assert "krbd or librbd? `librbd`: `librbd` delivers +25." in lines_of(run)
    (lead, _) = REPORT.leads(section_of(run))
    assert lead.startswith("krbd or librbd? `librbd`: `librbd` delivers +25.")
    assert "] against `krbd`, over " in lead
    for text in (render_html(run), markdown_table(run)):
        assert "krbd or librbd?" in text


def test_no_client_is_named_if_they_cannot_be_told_apart() -> None:
    assert "krbd or librbd? Not decided: `librbd` delivers " in lines_of(measured(8_000.0, noise=0.1))


def with_bytes(fio: int, disks: int, *, replicas: str = "2") -> Run:
    run = measured()
    record = RbdRecord(CELL, {"guest": OsdBytes(Transferred(0, fio), Transferred(5, disks))})
    (disk,) = {cell.disk for cell in run.cells}
    pool: dict[str, JsonValue] = {f"disk.{disk}": {"storage": "Ceph pool vms", "replicas": replicas}}
    return replace(run, of_features={"rbd": (record,)}, provenance={**run.provenance, **pool})


@pytest.mark.parametrize(
    ("extra", "reconciles"),
    [(-0.03, False), (0.0, True), (1.0, True), (2 * 2 * METADATA_BYTES / (4 * KIB), False)],
)
def test_the_disks_write_each_byte_as_often_as_the_pool_has_replicas(extra: float, reconciles: bool) -> None:
    fio = 64 * MIB
    run = with_bytes(fio, round(fio * (2 + 2 * extra)))
    (arm,) = list_replicated(section_of(run))
    assert arm.reconciles is reconciles
    lines = "\n".join(render_lines(replica_blocks(section_of(run))))
    assert ("in all 1 arm" in lines) is reconciles
    assert ("did not write the replicas of fio's bytes in 1 of 1 arm" in lines) is not reconciles


def test_nothing_is_said_of_osds_on_other_hosts() -> None:
    assert list(replica_blocks(section_of(measured()))) == []


def test_the_bytes_of_a_cell_are_those_of_its_slices_that_no_other_overlapped() -> None:
    plan = plan_for(replace(SCENARIO, workloads=tuple(parse_workloads("randwrite-4k"))), "smoke")
    slices = []
    for group in plan.groups:
        for number, slice_ in enumerate(measure(group, 2, speed=speed_of(1_000.0))):
            counters = replace(slice_.counters, storage=Transferred(10, 200), fio=FioCounts(read=0, written=100, ios=1))
            overlap = "twin:krbd" if number % 5 == 4 else None
            slices.append(replace(slice_, counters=counters, overlap=overlap))
    records = account_cells(AssembledRun(plan.cells, {}, slices, groups=plan.groups))
    assert {record.cell.split("-")[1] for record in records} == {"krbd", "librbd"}
    for record in records:
        assert {arm: moved.copies for arm, moved in record.arms.items()} == dict.fromkeys(record.arms, 2.0)
    uncounted = [replace(slice_, counters=replace(slice_.counters, storage=None)) for slice_ in slices]
    assert account_cells(AssembledRun(plan.cells, {}, uncounted, groups=plan.groups)) == ()
