"""The smallest overhead that each cell can show, before it is measured, and where its noise is known from."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from harness.analysis import Verdict
from harness.config.names import RunId
from harness.features.calibrate.calibration import find_calibration, find_path, write_calibration
from harness.features.calibrate.detectable import (
    MOST_RUNS,
    Detectable,
    KnownNoise,
    describe_boots,
    describe_missing,
    describe_slice,
    describe_smallest,
    list_detectable,
    measure_scatter,
)
from harness.features.calibrate.noise import smallest_detectable
from harness.lab.inventory import DiskById, HostSpec
from harness.model.mode import Budget
from harness.results import Run, RunStore
from harness.scenario.plan import FIO_SHARE, Plan, plan_for
from tests.build import optane, synthetic_run
from tests.features.calibrate.calibrations import CALIBRATION

DISK = DiskById("optane", "/dev/disk/by-id/nvme-optane", "S1", destroy=True)
HOST = HostSpec("lab1", "local", ssh=None, disks=(DISK,))
LVM = "optane-lvm-randread-4k-qd32"
KNOWN = KnownNoise(HOST, calibration=replace(CALIBRATION, noise_sd=0.05, noise_sd_by_job={"randread-4k-qd32": 0.02}))


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def plan(*, rounds: int = 3, reboot: bool = False, cells: str = "") -> Plan:
    scenario = optane()
    whole = plan_for(scenario, "smoke")
    chosen = plan_for(scenario, "smoke", [cell for cell in whole.cells if cells in cell.id])
    return replace(chosen.with_rounds(rounds), reboot=reboot)


def shares(plan: Plan, known: KnownNoise = KNOWN) -> dict[str, float | None]:
    return {each.cell.id: each.share for each in list_detectable(plan, optane(), known)}


def run_of(*, identity: str = DISK.identity, rounds: int = 6) -> Run:
    """A run of one cell of the optane scenario on `HOST`, and of its host."""
    provenance: dict[str, JsonValue] = {"asked": {"optane.disk.optane": identity}, "host": {"hypervisor": ""}}
    return replace(measured(rounds), provenance=provenance)


@cache
def measured(rounds: int) -> Run:
    return synthetic_run(modes=["host", "lvm"], workloads=["randread-4k"], rounds=rounds)


# --- from the calibration ---


def test_the_noise_of_a_job_is_that_of_the_calibration_or_of_its_jobs_together() -> None:
    found = shares(plan())
    assert found[LVM] == pytest.approx(smallest_detectable(0.02, 3))
    assert found["optane-lvm-randwrite-4k-qd32"] == pytest.approx(smallest_detectable(0.05, 3))
    assert not any("-host-" in cell for cell in found)


def test_more_rounds_show_less_and_the_last_look_has_only_a_part_of_the_error() -> None:
    fixed, longer = shares(plan(rounds=12))[LVM], shares(replace(plan(), most_rounds=12))[LVM]
    assert fixed == pytest.approx(smallest_detectable(0.02, 12))
    first = shares(plan())[LVM]
    assert fixed is not None
    assert longer is not None
    assert first is not None
    assert fixed < longer < first


def test_the_samples_of_a_plan_with_boots_are_the_boots() -> None:
    boots = KnownNoise(HOST, calibration=replace(CALIBRATION, noise_sd_by_job={"randread-4k-qd32": 0.02}))
    assert CALIBRATION.boots is not None
    expected = smallest_detectable(0.02, 1, boots=5, sd_of_boots=CALIBRATION.boots.sd)
    assert shares(plan(rounds=5, reboot=True), boots)[LVM] == pytest.approx(expected)


def test_the_number_of_rounds_follows_from_the_time() -> None:
    seconds = sum(group.round_seconds for group in plan().groups)
    timed = plan().with_time(10.5 * seconds / FIO_SHARE)
    found = {each.cell.id: each for each in list_detectable(timed, optane(), KNOWN)}
    assert (found[LVM].blocks, found[LVM].boots) == (10, 1)


def test_a_host_is_recognised_by_the_calibrated_disk_without_a_connection() -> None:
    assert find_calibration(HOST) is None
    mine = replace(CALIBRATION, disk_identity=DISK.identity, host="renamed")
    write_calibration(
        find_path("other"), replace(CALIBRATION, disk_identity="/dev/disk/by-id/x (serial X)", host="lab1")
    )
    assert find_calibration(HOST) is None
    write_calibration(find_path("mine"), mine)
    find_path("damaged").write_text("{")
    assert find_calibration(HOST) == mine


def test_the_newest_calibration_of_a_host_counts() -> None:
    for age, noise in ((100, 0.5), (10, 0.1), (1000, 0.9)):
        path = find_path(f"host{age}")
        write_calibration(path, replace(CALIBRATION, disk_identity=DISK.identity, noise_sd=noise))
        os.utime(path, (2e9 - age, 2e9 - age))
    found = find_calibration(HOST)
    assert found is not None
    assert found.noise_sd == 0.1


def test_the_embedded_lab_has_its_own_calibration() -> None:
    write_calibration(find_path("embedded"), CALIBRATION)
    embedded = replace(HOST, kind="embedded")
    assert find_calibration(embedded) == CALIBRATION
    assert find_calibration(HOST) is None


def test_with_one_boot_a_line_says_how_much_boots_differed() -> None:
    (line,) = describe_boots("optane", plan(), KNOWN)
    assert line.startswith("optane: all blocks of a cell are of one boot; boots of this host differed by ")
    assert not describe_boots("optane", plan(reboot=True), KNOWN)
    assert not describe_boots("optane", plan(), KnownNoise(HOST))


# --- from earlier runs ---


def test_an_earlier_run_of_the_cell_is_better_than_the_calibration() -> None:
    run = run_of()
    known = KnownNoise(HOST, (run,), KNOWN.calibration)
    scatter = measure_scatter(run.cell(LVM), "iops")
    assert scatter is not None
    (found,) = list_detectable(plan(cells=LVM), optane(), known)
    assert found.share == pytest.approx(smallest_detectable(scatter.sd, 3))
    assert found.source == f"run {run.run.id}"


def of_cells(**changes: Any) -> Run:
    """A run with these changes to the cell."""
    return replace(run_of(), cells=(replace(run_of().cell(LVM), **changes),))


@pytest.mark.parametrize(
    "run",
    [
        run_of(identity="/dev/disk/by-id/nvme-optane (serial S2)"),
        run_of(rounds=2),
        replace(run_of(), provenance={}),
        of_cells(verdict=Verdict.VOID),
        of_cells(skipped="no device-mapper"),
        of_cells(job=replace(run_of().cell(LVM).job, seconds=9.0)),
    ],
    ids=["another disk", "too few blocks", "unknown disk", "void", "skipped", "slices of another length"],
)
def test_a_run_of_something_else_does_not_count(run: Run) -> None:
    (found,) = list_detectable(plan(cells=LVM), optane(), KnownNoise(HOST, (run,), KNOWN.calibration))
    assert found.source == "calibration"


def test_the_newest_runs_of_the_host_are_read_and_damaged_ones_are_left_out(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    for number in range(MOST_RUNS + 3):
        run_id = RunId(f"20260101-1200{number:02}-0001")
        host = "lab2" if number == 12 else "lab1"
        own = run_of()
        own = replace(own, run=replace(own.run, id=run_id), lab=replace(own.lab, host=host))
        RunStore.create(reports, run_id).write_results(own)
    (reports / "20260101-120011-0001" / "results.json").write_text("{")
    (reports / "README.md").touch()
    known = KnownNoise.of(HOST, reports, None)
    assert [run.run.id[13:15] for run in known.runs] == ["10", "09", "08", "07", "06", "05", "04", "03"]
    assert KnownNoise.of(HOST, tmp_path / "absent", None).runs == ()


# --- budgets ---


def judged(*budgets: Budget, rounds: int = 3, known: KnownNoise = KNOWN) -> Detectable:
    scenario = replace(optane(), budgets=budgets)
    (found,) = list_detectable(plan(rounds=rounds, cells=LVM), scenario, known)
    return found


def test_a_budget_that_the_cell_cannot_show_is_reported_with_the_time_that_it_needs() -> None:
    budget = Budget("iops", 0.02)
    (small,) = judged(budget).small_budgets
    assert small.budget == budget
    assert small.share == pytest.approx(smallest_detectable(0.02, 3))
    assert small.seconds is not None
    (enough,) = list_detectable(
        plan(cells=LVM).with_time(small.seconds + 1), replace(optane(), budgets=(budget,)), KNOWN
    )
    assert enough.small_budgets == ()
    (short,) = list_detectable(
        plan(cells=LVM).with_time(small.seconds * 0.8), replace(optane(), budgets=(budget,)), KNOWN
    )
    assert len(short.small_budgets) == 1


def test_a_budget_that_no_time_can_show_says_so() -> None:
    (small,) = judged(Budget("iops", 1e-6)).small_budgets
    assert small.seconds is None


@pytest.mark.parametrize(
    "budget",
    [
        Budget("iops", 0.5),
        Budget("clat_mean", absolute=1e-6),
        Budget("clat_mean", 0.001, 1e-3, "looser"),
        Budget("clat_p99", 0.001),
        Budget("iops", 0.001, lab=("emulated",)),
    ],
    ids=["large", "an amount", "an amount is enough", "a percentile without an earlier run", "another kind of lab"],
)
def test_no_warning_without_a_reason(budget: Budget) -> None:
    assert judged(budget).small_budgets == ()


def test_a_percentile_is_judged_by_its_own_scatter_in_an_earlier_run() -> None:
    run = run_of()
    (small,) = judged(Budget("clat_p99", 0.001), known=KnownNoise(HOST, (run,), None)).small_budgets
    scatter = measure_scatter(run.cell(LVM), "clat_p99")
    assert scatter is not None
    assert small.share == pytest.approx(smallest_detectable(scatter.sd, 3, higher_is_better=False))


# --- what the user reads ---


def test_many_cells_are_one_line_with_the_best_and_the_worst() -> None:
    cells = list_detectable(plan(), optane(), KNOWN)
    (line,) = describe_smallest("optane", cells, verbose=False)
    assert line == (
        "optane: the smallest overhead that a cell can show is 6.3 % (optane-passthrough-randread-4k-qd32) to 15.1 % "
        "(optane-raw-cached-randwrite-4k-qd32), median 15.1 %; noise from: calibration (4), calibration with other "
        "jobs (28)"
    )


def test_every_cell_has_a_line_with_v() -> None:
    cells = list_detectable(plan(cells="lvm-randread"), optane(), KNOWN)
    assert describe_smallest("optane", cells, verbose=True)[1:] == [
        "  optane-lvm-randread-4k-qd1: 15.1 % with 3 blocks (calibration with other jobs)",
        "  optane-lvm-randread-4k-qd32: 6.3 % with 3 blocks (calibration)",
    ]
    (boots,) = list_detectable(plan(rounds=5, reboot=True, cells=LVM), optane(), KNOWN)
    assert "with 5 boots of 1 block" in describe_smallest("optane", [boots], verbose=True)[1]


def test_one_block_shows_nothing() -> None:
    (cell,) = list_detectable(plan(rounds=1, cells=LVM), optane(), KNOWN)
    assert describe_smallest("optane", [cell], verbose=False) == [
        "optane: 1 cell with one block cannot show any overhead; use --rounds=3"
    ]


def test_small_budgets_are_named_with_the_remedy() -> None:
    scenario = replace(optane(), budgets=(Budget("iops", 0.02),))
    cells = list_detectable(plan(cells="lvm"), scenario, KNOWN)
    _, *warnings = describe_smallest("optane", cells, verbose=False)
    assert warnings[0] == (
        "  optane-lvm-seqread-256k-qd1: the budget of 2.0 % in iops is smaller than 15.1 %, the smallest overhead that "
        "3 blocks can show; use --time=31m, or a longer profile"
    )
    assert warnings[3:] == ["  and 5 further budgets like these; -v names them"]
    assert sum("the budget of" in line for line in describe_smallest("optane", cells, verbose=True)) == 8
    (never,) = [judged(Budget("iops", 1e-6))]
    assert "no time is enough with this noise" in describe_smallest("optane", [never], verbose=False)[1]


def test_a_host_without_calibration_and_runs_is_one_line_with_the_command() -> None:
    cells = list_detectable(plan(), optane(), KnownNoise(HOST))
    assert describe_smallest("optane", cells, verbose=False) == []
    what = (
        "lab1: the smallest overhead that 32 cells can show is not known, because this host was never calibrated; run: "
    )
    assert describe_missing(HOST, cells, "lab.toml") == [f"{what}virt-overhead calibrate --lab=lab.toml --host=lab1"]
    assert describe_missing(HOST, cells, None) == [f"{what}virt-overhead calibrate"]
    (storages_only,) = describe_missing(replace(HOST, disks=()), cells, "lab.toml")
    assert storages_only.endswith("never calibrated; a calibration needs a disk that a guest may overwrite")
    assert describe_missing(HOST, list_detectable(plan(), optane(), KNOWN), None) == []


def test_a_better_length_of_a_slice_is_recommended_with_as_many_blocks_as_fit() -> None:
    # Noise that longer slices do not reduce: the shortest slices are best.
    series = tuple(replace(each, gap_s=0.1, within=0.0, between=1e-3) for each in CALIBRATION.slices)
    flicker = replace(CALIBRATION, slices=series, disk_identity=DISK.identity)
    profile = replace(optane().profiles[0], blocks=2)
    (line,) = describe_slice("optane", profile, DISK.identity, flicker)
    assert line == (
        "optane: slices of 1 s (profile smoke); by the calibration, slices of 200 ms give 48 % narrower intervals in "
        'the same time: in [profile.smoke] of the scenario, set runtime = "200 ms" and blocks = 7'
    )
    assert describe_slice("optane", replace(profile, runtime=0.2), DISK.identity, flicker) == []
    # Another disk of this host may need another length.
    assert describe_slice("optane", profile, "/dev/disk/by-id/hdd (serial H)", flicker) == []
    assert describe_slice("optane", profile, DISK.identity, replace(flicker, slices=())) == []
    assert describe_slice("optane", profile, DISK.identity, None) == []
