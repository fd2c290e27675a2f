"""Two stored runs whose truth is known: disks that differ by a known factor, the same disk twice, other settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis import Change
from harness.features.compare.comparison import compare
from harness.features.compare.records import ArmChange, ChangeFinding, OverallChange
from harness.model.mode import Place
from harness.results import RunStore
from tests.features.compare.compared_runs import store_run

BEFORE, AFTER = "20260101-120000-000a", "20260102-120000-000b"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def factor(compared: ArmChange | OverallChange) -> float:
    """The true factor: the disk is 4.1 times as fast, and the guest's share of it falls from 0.8 to 0.4."""
    return 4.1 if compared.place is Place.HOST else 4.1 * 0.4 / 0.8


def test_the_intervals_of_two_stored_runs_contain_the_factor_between_their_disks() -> None:
    covered = []
    for number in range(6):
        reports = Path(f"reports{number}")
        before = store_run(reports, f"20260101-120000-000{number}", disk="hdd", names={"passthrough": "whole"})
        after = store_run(reports, f"20260102-120000-000{number}", disk="optane", speed=4.1, guest=0.4)
        found = compare(before.read_results(), after.read_results())
        (scenario,) = found.scenarios
        assert (scenario.scenario_before, scenario.scenario_after) == ("hdd", "optane")
        assert not found.left_out
        arms = {(each.arm_before, each.arm_after) for each in scenario.overall}
        assert arms == {("host", "host"), ("guest:whole", "guest:passthrough")}
        for overall in scenario.overall:
            assert overall.jobs == ("randread-4k-qd32", "randwrite-4k-qd32")
            assert overall.finding is ChangeFinding.BETTER
            covered.append(contains(overall.change, factor(overall)))
        for each in scenario.arms:
            covered.append(contains(each.metrics["iops"].change, factor(each)))
            covered.append(contains(each.metrics["lat_mean"].change, 1 / factor(each)))
            assert {own.finding for own in each.metrics.values()} == {ChangeFinding.BETTER}
    assert sum(covered) >= 0.9 * len(covered)


def contains(change: Change, value: float) -> bool:
    """Whether the interval does; it must be narrow enough to say something."""
    assert change.low is not None
    assert change.high is not None
    assert change.high / change.low < 1.5
    return change.low <= value <= change.high


def test_two_runs_of_the_same_disk_show_no_difference() -> None:
    stores = [store_run(Path("reports"), run_id) for run_id in (BEFORE, AFTER)]
    found = compare(*(store.read_results() for store in stores))
    (scenario,) = found.scenarios
    findings = {own.finding for each in scenario.arms for own in each.metrics.values()}
    assert findings | {each.finding for each in scenario.overall} <= {ChangeFinding.UNDECIDED, ChangeFinding.EQUAL}
    assert found.differences == ()


def test_other_times_of_a_job_and_another_disk_are_named_as_differences() -> None:
    before = store_run(Path("reports"), BEFORE, disk="hdd")
    after = store_run(Path("reports"), AFTER, runtime=2.0)
    found = compare(before.read_results(), after.read_results())
    list_differences = {each.what: each for each in found.differences}
    assert (list_differences["job.seconds"].before, list_differences["job.seconds"].after) == (1.0, 2.0)
    assert "hdd-passthrough-randread-4k-qd32" in list_differences["job.seconds"].cells
    assert list_differences["hdd.disk"].before == "/dev/disk/by-id/hdd (serial HDD)"
    assert list_differences["hdd.disk"].after == "/dev/disk/by-id/optane (serial OPTANE)"


def test_a_run_of_an_older_version_that_lacks_percentiles_of_some_blocks_is_compared_without_them() -> None:
    (path,) = (Path(__file__).parents[3] / "docs" / "gallery").glob("*/results.json")
    run = RunStore.open(path).read_results()
    (cell,) = (cell for cell in run.cells if cell.id == "optane-host-seqread-256k-qd32")
    assert len(cell.metrics["clat_p99"].host) < len(cell.rounds)
    later = replace(run, run=replace(run.run, id=AFTER))
    (scenario,) = compare(run, later).scenarios
    (arm,) = (arm for arm in scenario.arms if (arm.arm_before, arm.job) == ("host", "seqread-256k-qd32"))
    assert "clat_p99" not in arm.metrics
    assert arm.metrics["bw"].change.ratio == pytest.approx(1)
