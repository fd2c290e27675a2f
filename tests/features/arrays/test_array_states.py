"""Arrays with a missing member: the state of each slice, and what it costs against the optimal array."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis import Verdict
from harness.features.arrays.records import ArrayStateRecord
from harness.features.arrays.report import state_cells, state_sentences
from harness.model.counters import ArrayCounts, Counters
from harness.report.markdown import markdown_table
from harness.report.terminal import summary_lines
from harness.results import CellRecord, Run, RunStore, ValidityCheck
from tests.build import A_SLICE, RUN_ID, synthetic_run
from tests.unit.array_state_runs import COST, IN_GUEST, RATE, Measured, measured
from tests.unit.pages import page

DEGRADED = "array_vm-raid5-degraded-randread-4k-qd32"
REBUILDING = "array_vm-raid5-rebuilding-randread-4k-qd32"


@pytest.fixture(scope="module")
def run() -> Measured:
    return measured()


def of(run: Measured, mode: str) -> ArrayStateRecord:
    return next(each for each in run.states if each.cell == f"array_vm-{mode}-randread-4k-qd32")


def check(record: CellRecord) -> ValidityCheck:
    (found,) = [each for each in record.validity if each.check == "array"]
    return found


@pytest.mark.parametrize("mode", ["raid5-degraded", "raid5-rebuilding", "raid5-lvm-degraded"])
def test_the_cost_is_what_guest_and_host_lose_of_the_same_array_when_it_is_optimal(run: Measured, mode: str) -> None:
    found = of(run, mode)
    cost = COST[found.state]
    assert found.optimal == f"array_vm-{'raid5-lvm' if 'lvm' in mode else 'raid5'}-randread-4k-qd32"
    for name in ("iops", "bw"):
        metric = found.metrics[name]
        assert metric.guest is not None
        assert metric.twin.point == pytest.approx(cost, abs=0.03)
        assert metric.guest.point == pytest.approx(cost * IN_GUEST, abs=0.03)
        assert metric.twin.low is not None
        assert metric.guest.low is not None
        assert metric.twin.low > metric.guest.low > 0
        assert metric.twin.n == 8
    assert found.metrics["lat_mean"].twin.point == pytest.approx(1 / (1 - cost) - 1, abs=0.06)
    assert found.doubt == ""


def test_only_a_rebuild_has_a_rate_and_a_share_of_slices(run: Measured) -> None:
    assert of(run, "raid5-rebuilding").rebuilding == 1.0
    assert of(run, "raid5-rebuilding").rebuild_rate == pytest.approx(RATE)
    assert (of(run, "raid5-degraded").rebuilding, of(run, "raid5-degraded").rebuild_rate) == (None, None)


def test_how_an_array_scales_is_asked_only_of_optimal_ones(run: Measured) -> None:
    assert [each.cell for each in run.scalings] == [
        "array_vm-raid5-randread-4k-qd32",
        "array_vm-raid5-lvm-randread-4k-qd32",
    ]


def test_without_the_optimal_array_there_is_no_cost() -> None:
    assert measured(["raid5-degraded", "raid5-lvm"]).states == ()


def test_the_check_says_in_how_many_slices_the_array_was_as_requested(run: Measured) -> None:
    assert check(run.record("raid5")).detail == "optimal in 16 of 16 slices"
    assert check(run.record("raid5-lvm-degraded")).detail == "degraded in 16 of 16 slices"
    rebuilding = check(run.record("raid5-rebuilding"))
    assert rebuilding.detail == "rebuilding in 16 of 16 slices, 2 MiB/s of each disk (sync_speed_max 4 MiB/s)"


@pytest.mark.parametrize(
    ("mode", "state"), [("raid5", "degraded"), ("raid5-degraded", "rebuilding"), ("raid5-degraded", None)]
)
def test_an_array_in_another_state_makes_the_cell_void(mode: str, state: str | None) -> None:
    run = measured(found={(mode, 3): state})  # type: ignore[dict-item]
    found = check(run.record(mode))
    assert not found.ok
    assert f"first in round 3 of twin:{mode}: {state or 'its state changed'}" in found.detail
    assert "/proc/mdstat" in found.detail
    assert run.record(mode).verdict is Verdict.VOID
    assert all("array" in each.doubt for each in run.states if mode in (each.cell, each.optimal))


def test_a_second_missing_member_makes_the_cell_void() -> None:
    found = check(measured(missing={"raid5-degraded": 2}).record("raid5-degraded"))
    assert not found.ok
    assert "degraded, 2 missing" in found.detail


def test_blocks_without_a_recovery_do_not_count_and_the_cell_says_so() -> None:
    mode = "raid5-rebuilding"
    run = measured(["raid5", mode], found={(mode, 2): "degraded", (mode, 7): None})
    record = run.record(mode)
    assert record.verdict is not Verdict.VOID
    assert record.rounds == (1, 3, 4, 5, 6, 8)
    assert run.record("raid5").rounds == tuple(range(1, 9))
    assert "2 of 8 blocks do not count, because the array was not rebuilding" in record.notes
    assert check(record).detail.startswith("rebuilding in 12 of 16 slices, 2 MiB/s")
    (found,) = run.states
    assert found.rebuilding == 0.75
    assert found.metrics["iops"].twin.n == 6
    assert found.metrics["iops"].twin.point == pytest.approx(COST["rebuilding"], abs=0.03)


def test_what_a_recovery_did_that_ended_in_a_slice_is_not_known_and_does_not_make_the_cell_void() -> None:
    mode = "raid5-rebuilding"
    run = measured(["raid5", mode], found={(mode, 4): None}, read=1e9, recovered={4: 9e9})
    assert [each.check for each in run.record(mode).validity if not each.ok] == []
    unexplained = measured(["raid5", mode], read=1e9, recovered={4: 9e9})
    assert [each.check for each in unexplained.record(mode).validity if not each.ok] == [
        f"bytes twin:{mode}",
        f"bytes guest:{mode}",
    ]


def test_a_recovery_that_ran_in_less_than_half_of_the_slices_makes_the_cell_void() -> None:
    mode = "raid5-rebuilding"
    found = {(mode, number): "degraded" for number in range(1, 6)}
    record = measured(["raid5", mode], found=found).record(mode)  # type: ignore[arg-type]
    assert record.verdict is Verdict.VOID
    assert check(record).detail.startswith("rebuilding in 6 of 16 slices")


def sentences(run: Measured) -> list[str]:
    views = state_cells(run.states, [*run.records])
    return state_sentences(views)


def test_the_answer_is_a_sentence_for_each_state_over_its_jobs() -> None:
    degraded, rebuilding = sentences(
        measured(["raid5", "raid5-degraded", "raid5-rebuilding"], ["randread-4k", "seqread-256k"])
    )
    assert degraded.startswith("`raid5-degraded` costs the VM 2")
    assert "] of its throughput and the array on the host " in degraded
    assert degraded.endswith(", against the optimal `raid5` (2 jobs, 8 blocks).")
    assert ". The recovery ran in 100 % of its slices, at 2.0 MiB/s of each disk." in rebuilding


def test_a_cost_that_cannot_be_told_from_none_is_not_called_one() -> None:
    nothing = measured(["raid5", "raid5-degraded"], cost={**COST, "degraded": 0.0}, noise=0.1)
    (sentence,) = sentences(nothing)
    assert sentence.endswith("(1 job, 8 blocks): no difference shown.")
    (view,) = state_cells(nothing.states, [*nothing.records])
    assert view.outcome == "no difference shown"


def test_figures_that_are_no_result_are_left_out() -> None:
    run = measured(["raid5", "raid5-degraded"], ["randread-4k", "seqread-256k"])
    first, second = run.states
    half = replace(run, states=(replace(first, doubt="array"), second))
    (sentence,) = sentences(half)
    assert "(1 job, 8 blocks). A check failed in 1 job, which are left out." in sentence
    none = replace(run, states=tuple(replace(each, doubt="array") for each in run.states))
    assert sentences(none) == ["`raid5-degraded`: a check failed in each of its jobs, so no cost is given."]
    views = state_cells(none.states, [*run.records])
    assert views[0].sentence.endswith(": not a result: array")


def stored(found: Measured) -> Run:
    """A run with these cells."""
    return replace(
        synthetic_run(),
        cells=found.records,
        of_features={"scalings": found.scalings, "array_states": found.states},
        groups=(),
    )


@pytest.fixture(scope="module")
def shown() -> Run:
    return stored(
        measured(["raid5", "raid5-degraded", "raid5-rebuilding"], found={("raid5-rebuilding", 2): "degraded"})
    )


def test_the_page_the_table_and_the_terminal_show_each_cost(shown: Run) -> None:
    html, lines, table = page(shown), summary_lines(shown), markdown_table(shown)
    assert "Arrays with a missing member" in html.text
    (degraded,) = [row for row in html.rows if row[:2] == ["RAID 5 over 6 disks, degraded", DEGRADED]]
    (rebuilding,) = [row for row in html.rows if row[:2] == ["RAID 5 over 6 disks, rebuilding", REBUILDING]]
    assert degraded[-1] == "slower"
    assert rebuilding[-1] == "slower; rebuilding in 87.5 % of the slices, 2 MiB/s of each disk"
    guest, host = (float(each.split()[0]) for each in degraded[2:4])
    assert guest == pytest.approx(20, abs=3)
    assert host == pytest.approx(40, abs=3)
    assert f"| RAID 5 over 6 disks, degraded | `{DEGRADED}` | {' | '.join(degraded[2:6])} | slower |" in table
    (line,) = [line for line in lines if line.startswith(f"{DEGRADED}: costs ")]
    costs = f"costs {degraded[2]} % of the guest's throughput and {degraded[3]} % of the array's on the host"
    assert line == f"{DEGRADED}: {costs}; slower"
    answers = [line.strip() for line in lines if line.strip().startswith("`raid5-")]
    assert [answer.split("`")[1] for answer in answers[:2]] == ["raid5-degraded", "raid5-rebuilding"]
    assert "The recovery ran in 87.5 % of its slices, at 2.0 MiB/s of each disk." in answers[1]


def test_a_run_keeps_the_costs(shown: Run, tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, RUN_ID)
    store.write_results(shown)
    assert RunStore(store.path).read_results().of(ArrayStateRecord) == shown.of(ArrayStateRecord)


def test_the_journal_keeps_the_state_of_the_array_in_each_slice(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, RUN_ID)
    array = ArrayCounts(state="rebuilding", missing=1, rebuilt=4096, seconds=1.5, limit=1024)
    slices = [replace(A_SLICE, counters=Counters(array=each)) for each in (array, replace(array, state=None), None)]
    for each in slices:
        store.append(each)
    assert store.read_journal().measurements == tuple(slices)


def test_without_such_arrays_the_page_does_not_mention_them() -> None:
    assert "Arrays with a missing member" not in page(synthetic_run()).text
