"""When a group has enough rounds: each cell decides, and a cell that cannot be decided does not delay the group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from harness.analysis import Reason, Sequential, Verdict
from harness.measure.interim_analysis import Looking, find_reasons_to_stop, find_settled, reason_to_stop
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import Job
from harness.model.layout import Lvm
from harness.model.mode import Budget, Cell, Mode
from harness.results import CellContext, CellRecord, Measurement, ValidityCheck, assemble
from harness.scenario.plan import Plan, group_cells
from tests.build import build_measurement

JOB = Job("randread", 4096, iodepth=32, ramp=0, seconds=3)
HOST = Cell("optane", "optane", Mode("host", Device(), None), JOB)
CELL = Cell("optane", "optane", Mode("passthrough", Device(), Attach()), JOB)
OTHER = Cell("optane", "optane", Mode("blk", Device(), Attach("virtio-blk")), JOB)
LVM = Cell("optane", "optane", Mode("lvm", Lvm(), Attach()), JOB)
PLAN = Plan("optane", tuple(group_cells([HOST, CELL, OTHER, LVM], 300)), 3, 64 << 20, 1 << 30, most_rounds=12)
LOOKS = Sequential(3, 12)

QUIET = (0.901, 0.900, 0.899, 0.900, 0.901)
LOUD = (0.76, 0.97, 0.9, 0.83, 1.04)
CHECK = ValidityCheck("bytes", ok=False, detail="cached")
BUDGET = {"iops": Budget("iops", 0.2)}


def record(
    cell: Cell,
    ratios: Sequence[float] = (),
    budgets: Mapping[str, Budget] | None = None,
    *,
    final: bool = False,
    validity: tuple[ValidityCheck, ...] = (),
    skipped: str | None = None,
) -> CellRecord:
    """The cell after rounds with these guest-to-host ratios, made as a campaign makes it, each in a boot of its own."""
    measurements = [
        _at_iops(arm.id, number, 10_000 * (ratio if arm.mode else 1))
        for number, ratio in enumerate(ratios, start=1)
        for arm in cell.arms
    ]
    context = CellContext(
        "lab", "optane-batch1", 64 << 20, budgets or {}, LOOKS, final=final, validity=validity, skipped=skipped
    )
    return assemble([cell], measurements, {cell.id: context})[0]


def _at_iops(arm: str, number: int, iops: float) -> Measurement:
    started, metrics = 1000.0 * number, {"iops": iops}
    return build_measurement(arm, number, job=JOB, group="optane-batch1", started=started, metrics=metrics, boot=number)


def stop(
    *records: tuple[Cell, CellRecord],
    budgets: Mapping[str, Budget] | None = None,
    target: float | None = None,
    family: int = 1,
    spent: Reason | None = None,
) -> str | None:
    found = {cell.id: each for cell, each in records}
    return reason_to_stop([cell for cell, _ in records], found, looking(found, budgets, target, family, spent))


def looking(
    records: Mapping[str, CellRecord],
    budgets: Mapping[str, Budget] | None = None,
    target: float | None = None,
    family: int = 1,
    spent: Reason | None = None,
) -> Looking:
    own = dict.fromkeys(records, budgets or {})
    return Looking(replace(PLAN, target=target), LOOKS, own, family, spent, reachable=None)


def test_a_cell_whose_interval_decides_its_budget_needs_no_further_round() -> None:
    assert stop((CELL, record(CELL, QUIET[:3], BUDGET)), budgets=BUDGET) == Reason.BUDGET


def test_a_cell_that_its_rounds_do_not_decide_goes_on() -> None:
    assert stop((CELL, record(CELL, LOUD[:3], BUDGET)), budgets=BUDGET) is None


def test_a_group_goes_on_until_the_last_of_its_cells_is_decided() -> None:
    quiet, loud = record(CELL, QUIET[:3], BUDGET), record(OTHER, LOUD[:3], BUDGET)
    assert stop((CELL, quiet), (OTHER, loud), budgets=BUDGET) is None


def test_a_cell_with_two_budgets_goes_on_until_both_are_decided() -> None:
    two = {**BUDGET, "bw": Budget("bw", 0.1)}
    found = record(CELL, QUIET[:3], BUDGET)
    undecided = replace(found, metrics={**found.metrics, "bw": record(CELL, LOUD[:3]).metrics["iops"]})
    assert stop((CELL, undecided), budgets=two) is None


def test_a_cell_without_a_budget_is_decided_at_the_target() -> None:
    found = record(CELL, QUIET[:3])
    assert stop((CELL, found), target=0.05) == Reason.NARROW
    assert stop((CELL, found), target=0.0001) is None
    assert stop((CELL, found)) is None


def test_nothing_is_decided_between_two_looks() -> None:
    assert stop((CELL, record(CELL, QUIET[:4], BUDGET)), budgets=BUDGET) is None


def test_exceeding_ends_early_only_if_the_correction_for_all_cells_cannot_change_it() -> None:
    tight = {"iops": Budget("iops", 0.09)}
    found = record(CELL, QUIET[:3], tight)
    assert found.verdict == "exceeds"
    assert stop((CELL, found), budgets=tight, family=1) == Reason.BUDGET
    assert stop((CELL, found), budgets=tight, family=200) is None


@pytest.mark.parametrize("spent", [Reason.TIME, Reason.BYTES])
def test_spent_time_or_bytes_end_an_undecided_group(spent: Reason) -> None:
    assert stop((CELL, record(CELL, LOUD, BUDGET)), budgets=BUDGET, spent=spent) == spent


def test_all_reasons_are_reported() -> None:
    quiet, loud = record(CELL, QUIET, BUDGET), record(OTHER, LOUD, BUDGET)
    assert stop((CELL, quiet), (OTHER, loud), budgets=BUDGET, spent=Reason.TIME) == "budget decided, time spent"


def test_a_last_look_may_decide_what_the_same_look_could_not_if_more_were_to_come() -> None:
    ratios = (0.86, 0.93, 0.90)
    undecided, last = record(CELL, ratios, BUDGET), record(CELL, ratios, BUDGET, final=True)
    assert (undecided.verdict, last.verdict) == ("inconclusive", "within")
    assert stop((CELL, undecided), budgets=BUDGET) is None
    assert stop((CELL, last), budgets=BUDGET, spent=Reason.TIME) == Reason.BUDGET


# --- what has nothing to decide ---


def test_a_void_cell_does_not_hold_up_its_group() -> None:
    void = record(OTHER, LOUD[:3], BUDGET, validity=(CHECK,))
    assert stop((CELL, record(CELL, QUIET[:3], BUDGET)), (OTHER, void), budgets=BUDGET) == Reason.BUDGET


def test_a_metric_that_could_not_be_measured_does_not_hold_up_its_cell() -> None:
    both = {**BUDGET, "clat_p999": Budget("clat_p999", 0.1)}
    reasons = f"{Reason.BUDGET}, {Reason.FEW_IOS}"
    assert stop((CELL, record(CELL, QUIET[:3], both)), budgets=both) == reasons


P99 = {"clat_p99": Budget("clat_p99", 0.1)}


def with_ios(ios: int) -> CellRecord:
    """The cell after three rounds with this number of I/Os in each block of the guest."""
    return replace(record(CELL, QUIET[:3], P99), ios={"host": (2 * ios,) * 3, "guest": (ios,) * 3})


def test_a_percentile_that_further_rounds_give_enough_ios_goes_on() -> None:
    # 12 rounds of 84 I/Os are more than 1000.
    assert stop((CELL, with_ios(84)), budgets=P99) is None
    assert stop((CELL, with_ios(83)), budgets=P99) == Reason.FEW_IOS


def test_a_percentile_that_the_time_left_does_not_give_enough_ios_ends() -> None:
    found = {CELL.id: with_ios(100)}
    for reachable, reason in ((12, None), (10, None), (9, Reason.FEW_IOS)):
        assert reason_to_stop([CELL], found, replace(looking(found, P99), reachable=reachable)) == reason


def test_a_percentile_without_a_sample_ends_with_the_time() -> None:
    assert stop((CELL, with_ios(200)), budgets=P99, spent=Reason.TIME) == Reason.FEW_IOS


def test_a_group_in_which_nothing_can_be_decided_has_its_fewest_rounds() -> None:
    for rounds, reason in ((2, None), (3, "nothing to decide")):
        void = record(CELL, QUIET[:rounds], BUDGET, validity=(CHECK,))
        assert stop((HOST, record(HOST, QUIET[:rounds])), (CELL, void), budgets=BUDGET) == reason


def test_a_group_without_a_supported_mode_needs_no_round() -> None:
    assert stop((LVM, record(LVM, skipped="no device-mapper")), budgets=BUDGET) == "nothing to decide"


def test_a_decided_cell_is_settled_while_another_one_goes_on() -> None:
    records = {CELL.id: record(CELL, QUIET[:3], BUDGET), OTHER.id: record(OTHER, LOUD[:3], BUDGET)}
    found = find_reasons_to_stop([CELL, OTHER], records, looking(records, BUDGET))
    assert found == {CELL.id: [Reason.BUDGET]}
    assert find_settled([CELL, OTHER], records, found) == [CELL.id]


def test_a_void_cell_is_settled_but_not_one_whose_host_drifts() -> None:
    quiet = record(CELL, QUIET[:3], BUDGET)
    for check, settled in (("bytes host", [CELL.id]), ("drift", [])):
        void = replace(quiet, verdict=Verdict.VOID, validity=(ValidityCheck(check, ok=False, detail="wrong"),))
        assert find_settled([CELL], {CELL.id: void}, ()) == settled


def test_the_host_is_measured_as_long_as_a_guest_needs_it() -> None:
    host, guest = record(HOST, QUIET[:3]), record(CELL, QUIET[:3], BUDGET)
    records = {HOST.id: host, CELL.id: guest}
    assert find_settled([HOST, CELL], records, ()) == []
    assert find_settled([HOST, CELL], records, [HOST.id]) == []
