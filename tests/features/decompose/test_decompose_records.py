"""Decompositions of measured cells: they add up, use only complete rounds, and name what is missing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import pytest

from harness.features.decompose.records import Decomposition, DecompositionRecord, decompose_run
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import parse_workload
from harness.model.layout import Lvm
from harness.model.mode import Arm, Cell, Mode
from harness.model.workloads import PROFILES
from harness.results import (
    CellContext,
    CellRecord,
    Measurement,
    ValidityCheck,
    assemble,
)
from harness.results.assemble import AssembledRun
from harness.scenario.scenario import Requested, Scenario
from harness.scenario.setups import Group
from tests.build import A_SLICE

MODES = (
    Mode("host", Device(), None),
    Mode("blk", Lvm(), Attach("virtio-blk")),
    Mode("uring", Lvm(), Attach("virtio-blk", aio="io_uring")),
    Mode("scsi", Lvm(), Attach("virtio-scsi", aio="io_uring")),
)
STEPS = ("host", "twin:blk", "guest:blk", "guest:uring", "guest:scsi")
LATENCY = {"host": 80e-6, "twin:blk": 81e-6, "guest:blk": 120e-6, "guest:uring": 112e-6, "guest:scsi": 131e-6}
WORKLOADS = tuple(map(parse_workload, ("randread-4k", "randwrite-4k")))

Keep = Callable[[Arm, int], bool]


def always(_arm: Arm, _number: int) -> bool:
    return True


def disk(workloads: Collection[str] | None = ("randread-4k",)) -> Scenario:
    chosen = tuple(map(parse_workload, workloads)) if workloads is not None else None
    return Scenario(
        name="disk",
        title="A disk",
        disk="nvme0",
        modes=MODES,
        workloads=WORKLOADS,
        write_rate=1 << 30,
        profiles=PROFILES,
        requests=(Requested("attach", Decomposition(STEPS, chosen)),),
    )


CELLS = [
    Cell("disk", "nvme0", mode, workload.job(1, ramp=0.0, seconds=3.0)) for workload in WORKLOADS for mode in MODES
]
GROUP = Group("g", "nvme0", "disk", tuple(CELLS))


def measurements(cells: Iterable[Cell], rounds: int, keep: Keep = always) -> list[Measurement]:
    found: list[Measurement] = []
    for number in range(1, rounds + 1):
        for arm, job in dict.fromkeys((arm, cell.job) for cell in cells for arm in cell.arms):
            if not keep(arm, number):
                continue
            draw = random.Random(f"{number} {arm.id} {job.id}")
            latency = LATENCY.get(arm.id, 90e-6) * math.exp(draw.gauss(0, 0.02)) * (1 + number / 10)
            found.append(
                replace(
                    A_SLICE,
                    round=number,
                    arm=arm.id,
                    job=job.id,
                    started=float(len(found)),
                    metrics={"iops": 1 / latency, "lat_mean": latency},
                    raw=f"raw/{len(found)}.json",
                )
            )
    return found


def records(measured: Iterable[Measurement], cells: Iterable[Cell] = CELLS) -> dict[str, CellRecord]:
    own = list(cells)
    context = CellContext(host="lab1", group="g", span_bytes=64 << 20)
    return {record.id: record for record in assemble(own, measured, {cell.id: context for cell in own})}


def decompositions(
    scenario: Scenario, groups: Sequence[Group], cells: Mapping[str, CellRecord]
) -> list[DecompositionRecord]:
    return list(decompose_run(AssembledRun((), cells, (), (), (scenario,), groups)))


def decomposed(scenario: Scenario, cells: dict[str, CellRecord]) -> DecompositionRecord:
    (found,) = decompositions(scenario, [GROUP], cells)
    return found


def test_the_steps_add_up_to_what_the_last_arm_adds_to_the_host() -> None:
    found = decomposed(disk(), records(measurements(CELLS, 5)))
    assert (found.id, found.host, found.disk) == ("disk-attach-randread-4k-qd1", "lab1", "nvme0")
    assert [step.arm for step in found.steps] == list(STEPS)
    assert [step.change for step in found.steps][3:] == ["aio native -> io_uring", "bus virtio-blk -> virtio-scsi"]
    assert found.added is not None
    parts = [step.added.point for step in found.steps[1:] if step.added]
    assert math.fsum(parts) == pytest.approx(found.added.point, rel=1e-12)
    assert found.added.low is not None
    assert found.added.high is not None
    assert found.added.low < math.fsum(parts) < found.added.high
    assert found.steps[0].added is None


def test_the_whole_equals_the_figures_of_the_last_arms_cell() -> None:
    cells = records(measurements(CELLS, 5))
    found = decomposed(disk(), cells)
    assert found.added == cells["disk-scsi-randread-4k-qd1"].metrics["lat_mean"].added
    assert found.overhead == cells["disk-scsi-randread-4k-qd1"].metrics["lat_mean"].overhead


def test_only_rounds_that_have_every_arm_count_and_the_others_are_named() -> None:
    def lost(arm: Arm, number: int) -> bool:
        return (arm.id, number) not in {("guest:uring", 2), ("twin:blk", 5)}

    found = decomposed(disk(), records(measurements(CELLS, 6, lost)))
    assert (found.rounds, found.left_out) == ((1, 3, 4, 6), (2, 5))
    assert [len(step.values) for step in found.steps] == [4] * 5
    assert found.added is not None
    assert math.fsum(step.added.point for step in found.steps if step.added) == pytest.approx(found.added.point)


def test_an_arm_that_was_not_measured_is_named_and_no_step_replaces_it() -> None:
    some = [cell for cell in CELLS if cell.mode.name != "uring"]
    found = decomposed(disk(), records(measurements(some, 3), some))
    assert found.skipped == "guest:uring was not measured, or was measured in another setup"
    assert (found.steps, found.added) == ((), None)


def test_arms_of_two_setups_are_not_paired_even_if_their_rounds_have_the_same_numbers() -> None:
    apart = [
        replace(GROUP, id=name, cells=tuple(cell for cell in CELLS if (cell.mode.name == "scsi") is alone))
        for name, alone in (("g", False), ("h", True))
    ]
    (found,) = decompositions(disk(), apart, records(measurements(CELLS, 3)))
    assert found.skipped == "guest:scsi was not measured, or was measured in another setup"


def test_a_mode_that_the_host_cannot_have_gives_its_reason() -> None:
    cells = records(measurements(CELLS, 3, lambda arm, _: arm.mode is None or arm.mode.name != "uring"))
    key = "disk-uring-randread-4k-qd1"
    cells[key] = replace(cells[key], skipped="the kernel has no io_uring")
    assert decomposed(disk(), cells).skipped == "guest:uring: the kernel has no io_uring"


def test_there_is_no_decomposition_if_no_block_has_every_arm() -> None:
    cells = records(measurements(CELLS, 2, lambda arm, number: arm.id != ("guest:uring", "guest:blk")[number - 1]))
    assert decomposed(disk(), cells).skipped == "no block has every arm"


def test_there_is_one_for_each_requested_and_measured_job() -> None:
    cells = records(measurements(CELLS, 2))
    assert [each.job for each in decompositions(disk(), [GROUP], cells)] == ["randread-4k-qd1"]
    assert len(decompositions(disk(None), [GROUP], cells)) == 2
    assert decompositions(disk(), [GROUP], {}) == []


def test_a_failed_check_makes_only_its_own_arms_doubtful() -> None:
    cells = records(measurements(CELLS, 3))
    for key, check in (("disk-blk-randread-4k-qd1", "bytes guest:blk"), ("disk-scsi-randread-4k-qd1", "drift")):
        cells[key] = replace(cells[key], validity=(ValidityCheck(check, ok=False, detail="too far"),))
    doubts = {step.arm: step.doubt for step in decomposed(disk(), cells).steps}
    assert doubts["twin:blk"] == ""
    assert doubts["guest:blk"] == "bytes guest:blk"
    assert doubts["guest:uring"] == ""
    assert doubts["guest:scsi"] == "drift"


def test_the_intervals_are_those_of_the_strictest_look() -> None:
    cells = records(measurements(CELLS, 3))
    key = "disk-uring-randread-4k-qd1"
    cells[key] = replace(cells[key], confidence=0.975)
    wide, narrow = decomposed(disk(), cells), decomposed(disk(), records(measurements(CELLS, 3)))
    assert (wide.confidence, narrow.confidence) == (0.975, 0.95)
    assert wide.added is not None
    assert narrow.added is not None
    assert (wide.added.half_width or 0) > (narrow.added.half_width or 0)


def test_one_round_gives_points_that_add_up_and_no_interval() -> None:
    found = decomposed(disk(), records(measurements(CELLS, 1)))
    assert found.added is not None
    assert found.added.low is None
    assert math.fsum(step.added.point for step in found.steps if step.added) == pytest.approx(found.added.point)
    assert not any(step.shown for step in found.steps)


def test_the_blocks_of_another_job_do_not_change_the_intervals() -> None:
    plain = measurements(CELLS, 12)
    drifting = [
        replace(each, metrics={name: value * 1.2**each.round for name, value in each.metrics.items()})
        if each.job.startswith("randwrite") and each.arm.startswith("guest:")
        else each
        for each in plain
    ]
    assert decomposed(disk(), records(drifting)) == decomposed(disk(), records(plain))
