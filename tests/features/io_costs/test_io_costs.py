"""What an I/O costs: each second of the host counts once, and there is no figure if nothing was counted."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from harness.analysis import IN_ORDER
from harness.features.io_costs import CPU_PARTS, CYCLE_COSTS, IO_COSTS, cost_per_io, find_samples
from harness.model.base import Device
from harness.model.job import Job
from harness.model.mode import Arm, Cell, Mode, Place
from harness.results import CellContext, CellRecord, Measurement, assemble
from harness.results.judging import mark_better
from tests.build import build_measurement, optane
from tests.build import counters as counters_of

JOB = Job("randread", 4096, iodepth=1, ramp=0, seconds=10, rate=1000)
LVM = next(mode for mode in optane().modes if mode.name == "lvm")
CELL = Cell("optane", "optane", LVM, JOB)

HOST = {
    "ios": 10_000,
    "host_busy_s": 1.0,
    "host_switches": 30_000,
    "fio_user_s": 0.2,
    "fio_system_s": 0.3,
    # The guest is up and idle meanwhile.
    "qemu_guest_s": 0.02,
    "qemu_vcpu_s": 0.03,
    "qemu_iothread_s": 0.0,
    "qemu_worker_s": 0.0,
    "qemu_main_s": 0.05,
    "qemu_waits": 900,
    "qemu_preemptions": 100,
}
GUEST = {
    "ios": 10_000,
    "host_busy_s": 5.0,
    "host_switches": 80_000,
    "fio_user_s": 0.9,
    "fio_system_s": 0.4,
    "qemu_guest_s": 2.0,
    "qemu_vcpu_s": 1.0,
    "qemu_iothread_s": 0.75,
    "qemu_worker_s": 0.0,
    "qemu_main_s": 0.25,
    "qemu_waits": 40_000,
    "qemu_preemptions": 1_000,
    "kvm_exits": 60_000,
    "kvm_halt_exits": 10_000,
}
CYCLES = {
    "cycles_guest_user": 30e6,
    "cycles_guest_kernel": 50e6,
    "cycles_host_user": 20e6,
    "cycles_host_kernel": 90e6,
    "cycles_share": 1.0,
}


def us(seconds: float) -> float:
    return seconds * 1e6


def test_a_guests_io_is_paid_by_vcpus_threads_and_kernel() -> None:
    costs = cost_per_io(counters_of(GUEST), in_guest=True)
    parts = {cost.name: us(costs[cost.name]) for cost in CPU_PARTS if cost.name in costs}
    assert parts == pytest.approx(
        {
            "cpu_guest_mode": 110,
            "cpu_vcpu": 100,
            "cpu_iothread": 75,
            "cpu_worker": 0,
            "cpu_main": 25,
            "cpu_rest": 100,
        }
    )
    assert us(costs["cpu"]) == pytest.approx(410) == pytest.approx(sum(parts.values()))
    assert us(costs["cpu_fio"]) == pytest.approx(90)
    assert (costs["exits"], costs["halt_exits"]) == (6.0, 1.0)
    assert (costs["switches"], costs["qemu_switches"], costs["qemu_preemptions"]) == (8.0, 4.1, 0.1)


def test_a_hosts_io_is_paid_by_fio_and_kernel_and_not_by_the_idle_guest() -> None:
    costs = cost_per_io(counters_of(HOST), in_guest=False)
    parts = {cost.name: us(costs[cost.name]) for cost in CPU_PARTS if cost.name in costs}
    assert parts == pytest.approx({"cpu_fio_system": 30, "cpu_rest": 40})
    assert us(costs["cpu"]) == pytest.approx(70)
    assert us(costs["cpu_fio"]) == pytest.approx(20)
    assert costs["switches"] == pytest.approx(2.9)
    assert not {"exits", "qemu_switches"} & costs.keys()


def test_the_total_is_never_less_than_its_parts() -> None:
    costs = cost_per_io(counters_of(GUEST | {"host_busy_s": 3.9, "qemu_worker_s": -0.02}), in_guest=True)
    assert costs["cpu_rest"] == 0
    assert costs["cpu_worker"] == 0
    assert us(costs["cpu"]) == pytest.approx(310)


def test_ticks_cannot_give_the_guest_more_time_than_it_got() -> None:
    costs = cost_per_io(counters_of(GUEST | {"qemu_guest_s": 3.2, "qemu_vcpu_s": -0.2}), in_guest=True)
    assert costs["cpu_vcpu"] == 0
    assert us(costs["cpu_guest_mode"]) == pytest.approx(300 - 90)


def test_how_long_fio_waits_in_its_loop_changes_no_cost() -> None:
    waits = {"fio_user_s": 0.3, "host_busy_s": 1.1}
    assert cost_per_io(counters_of(HOST | waits), in_guest=False)["cpu"] == pytest.approx(
        cost_per_io(counters_of(HOST), in_guest=False)["cpu"]
    )
    waits = {"fio_user_s": 1.9, "host_busy_s": 6.0, "qemu_guest_s": 3.0}
    assert cost_per_io(counters_of(GUEST | waits), in_guest=True)["cpu"] == pytest.approx(
        cost_per_io(counters_of(GUEST), in_guest=True)["cpu"]
    )


def test_a_guest_whose_threads_are_not_known_has_only_the_total() -> None:
    costs = cost_per_io(counters_of({"ios": 10_000, "host_busy_s": 5.0, "fio_user_s": 0.9}), in_guest=True)
    assert {name: us(value) for name, value in costs.items()} == pytest.approx(
        {"cpu": 410, "cpu_rest": 410, "cpu_fio": 90}
    )


def cycles(counters: dict[str, float], *, in_guest: bool) -> dict[str, float]:
    costs = cost_per_io(counters_of(counters), in_guest=in_guest)
    return {cost.name: costs[cost.name] for cost in CYCLE_COSTS if cost.name in costs}


def test_cycles_of_a_guests_io_are_its_kernels_and_the_hosts_but_not_fios() -> None:
    assert cycles(GUEST | CYCLES, in_guest=True) == {
        "cycles": 16_000,
        "cycles_guest_kernel": 5_000,
        "cycles_host_user": 2_000,
        "cycles_host_kernel": 9_000,
        "cycles_fio": 3_000,
    }


def test_cycles_of_a_hosts_io_are_its_kernels_and_none_of_the_idle_guests() -> None:
    assert cycles(HOST | CYCLES, in_guest=False) == {"cycles": 9_000, "cycles_host_kernel": 9_000, "cycles_fio": 2_000}


def test_counters_that_find_no_cycles_in_a_guest_that_ran_are_not_evidence() -> None:
    blind = CYCLES | {"cycles_guest_user": 0.0, "cycles_guest_kernel": 0.0}
    assert cycles(GUEST | blind, in_guest=True) == {}
    # An emulated guest has no guest mode: all of it is QEMU's.
    assert cycles(GUEST | blind | {"qemu_guest_s": 0.0}, in_guest=True)["cycles"] == 11_000


def test_without_cycles_the_other_figures_are_what_they_were() -> None:
    counted = cost_per_io(counters_of(GUEST | CYCLES), in_guest=True)
    names = {cost.name for cost in CYCLE_COSTS}
    assert {name: value for name, value in counted.items() if name not in names} == cost_per_io(
        counters_of(GUEST), in_guest=True
    )


@pytest.mark.parametrize("counters", [{}, {"ios": 5}, {"host_busy_s": 1.0}, HOST | {"ios": 0}])
def test_what_was_not_counted_has_no_cost(counters: dict[str, float]) -> None:
    assert cost_per_io(counters_of(counters), in_guest=False) == {}


def test_merged_ios_are_less_than_one_request_each() -> None:
    for in_guest in (True, False):
        counted = counters_of(GUEST | {"disk_requests": 5_000})
        assert cost_per_io(counted, in_guest=in_guest)["disk_requests"] == 0.5


def test_every_figure_has_a_unit_and_a_title() -> None:
    figures = cost_per_io(counters_of(GUEST | CYCLES), in_guest=True) | cost_per_io(
        counters_of(HOST | CYCLES), in_guest=False
    )
    assert figures.keys() <= IO_COSTS.keys()
    assert len({cost.title for cost in IO_COSTS.values()}) == len(IO_COSTS)


# --- of a cell ---


def spend(place: Place, number: int, counts: dict[str, float], *, iops: float = 1000.0) -> Measurement:
    """A slice with these counters."""
    arm = Arm(place, None if place is Place.HOST else LVM)
    return build_measurement(
        arm.id,
        number,
        job=JOB,
        started=100.0 * number + len(arm.id),
        metrics={"iops": iops, "bw": iops * 4096, "clat_mean": 1e-4 if place is Place.HOST else 2e-4},
        raw=f"raw/{number}-{place}.json",
        counts=counts,
    )


def rounds(*, host: dict[str, float] = HOST, guest: dict[str, float] = GUEST, number: int = 2) -> list[Measurement]:
    return [
        spend(place, each, counters)
        for each in range(1, number + 1)
        for place, counters in ((Place.HOST, host), (Place.TWIN, host), (Place.GUEST, guest))
    ]


def cell(measurements: list[Measurement]) -> CellRecord:
    return assemble([CELL], measurements, {CELL.id: CellContext(host="lab", group="g", span_bytes=1)})[0]


def test_a_cell_has_what_each_arms_io_costs_and_what_the_guest_adds() -> None:
    cpu = cell(rounds()).accounting["cpu"]
    assert cpu.unit == "s/IO"
    assert [us(value) for value in (*cpu.host, *cpu.twin, *cpu.guest)] == pytest.approx([70, 70, 70, 70, 410, 410])
    assert cpu.added is not None
    assert us(cpu.added.point) == pytest.approx(340)
    assert cpu.added.n == 2


def test_a_cell_has_the_cycles_that_the_guest_adds() -> None:
    cost = cell(rounds(host=HOST | CYCLES, guest=GUEST | CYCLES)).accounting["cycles"]
    assert (cost.unit, cost.host, cost.guest) == ("1/IO", (9_000, 9_000), (16_000, 16_000))
    assert cost.added is not None
    assert cost.added.point == pytest.approx(7_000)


def test_the_samples_of_a_cost_are_boots_as_those_of_the_metrics() -> None:
    several = [replace(slice_, boot=1 + slice_.round // 4) for slice_ in rounds(number=9)]
    found = cell(several)
    cpu = found.accounting["cpu"]
    assert cpu.added is not None
    assert found.metrics["clat_mean"].overhead is not None
    assert (cpu.added.boots, found.metrics["clat_mean"].overhead.boots) == (3, 3)
    assert find_samples(found, cpu.guest).boots == found.boots
    assert find_samples(found, cpu.guest[1:]) == IN_ORDER


def test_parts_of_only_one_side_add_nothing() -> None:
    costs = cell(rounds()).accounting
    assert costs["cpu_iothread"].host == ()
    assert costs["cpu_iothread"].added is None
    assert costs["cpu_fio_system"].guest == ()
    assert costs["cpu_rest"].added is not None


def test_a_block_whose_counters_of_the_host_were_read_too_late_is_left_out_of_all_arms() -> None:
    lacking = [
        replace(each, counters=replace(each.counters, host=None)) if each.arm == "host" and each.round == 2 else each
        for each in rounds(number=3)
    ]
    found = cell(lacking)
    assert len(found.rounds) == 3
    assert (len(found.accounting["cpu"].host), len(found.accounting["cpu"].guest)) == (2, 2)
    assert found.accounting["cpu"].added is not None


def test_a_figure_that_one_block_lacks_is_left_out_of_that_arm() -> None:
    lacking = [
        replace(each, counters=replace(each.counters, fio=replace(each.counters.fio, ios=None)))
        if each.arm == "host" and each.round == 2
        else each
        for each in rounds()
    ]
    costs = cell(lacking).accounting
    assert costs["cpu"].host == ()
    assert len(costs["cpu"].guest) == 2
    assert costs["cpu"].added is None


def test_a_cell_without_counts_has_no_accounting() -> None:
    assert cell(rounds(host={}, guest={})).accounting == {}


@pytest.mark.parametrize(
    ("of_host", "of_guest", "why"),
    [
        (10_000, 5_000, "the disk got 0.5 requests for each I/O of the guest and 1 for the host's, larger ones"),
        (10_000, 9_500, "no check explains it: find out why"),
        (5_000, 5_000, "no check explains it: find out why"),
        (5_000, 10_000, "no check explains it: find out why"),
    ],
    ids=["merged", "hardly merged", "merged on both", "merged on the host"],
)
def test_a_guest_is_explained_that_is_faster_because_its_ios_were_merged(of_host: int, of_guest: int, why: str) -> None:
    own = rounds(host=HOST | {"disk_requests": of_host}, guest=GUEST | {"disk_requests": of_guest}, number=12)
    chance = random.Random(12)
    faster = [
        replace(each, metrics={"clat_mean": chance.uniform(9e-4, 9.1e-4) / (2 if each.arm.startswith("guest") else 1)})
        for each in own
    ]
    (found,) = mark_better([cell(faster)])
    (note,) = (note for note in found.notes if "better than its host" in note)
    assert note == f"the guest is better than its host by more than 5 % in clat_mean; {why}"


def test_the_mode_host_has_the_hosts_own_costs() -> None:
    host = Cell("optane", "optane", Mode("host", Device(), None), JOB)
    context = {host.id: CellContext(host="lab", group="g", span_bytes=1)}
    costs = assemble([host], rounds(), context)[0].accounting
    assert us(costs["cpu"].host[0]) == pytest.approx(70)
    assert costs["cpu"].guest == ()
