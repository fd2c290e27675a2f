"""Two runs cell by cell: which cells belong together, what changed, what else differs, and what is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace

import jsonschema
import pytest
from pydantic import TypeAdapter

from harness.errors import ConfigError
from harness.features.compare.comparison import compare, pair_names, select_scenario
from harness.features.compare.records import ArmChange, ChangeFinding, RunComparison, comparison_json
from harness.model.attach import Attach
from harness.model.mode import Place
from harness.results import CellRecord, Run
from tests.build import synthetic_run

AFTER = "20260102-120000-000b"
MODES = ("host", "passthrough", "lvm")
JOBS = ("randread-4k", "randwrite-4k")


def run(modes: Collection[str] = MODES, workloads: Collection[str] = JOBS, **changes: Collection[str]) -> Run:
    """A made-up run with a synthetic disk."""
    return synthetic_run(modes=modes, workloads=tuple(workloads), budget=None, rounds=6, **changes)  # type: ignore[arg-type]


def later(of: Run, cell: Callable[[CellRecord], CellRecord] = lambda each: each) -> Run:
    """Another run with the cells that `cell` makes of these."""
    return replace(of, run=replace(of.run, id=AFTER), cells=tuple(map(cell, of.cells)))


def renamed(scenario: str, modes: dict[str, str] | None = None) -> Callable[[CellRecord], CellRecord]:
    """Cells of another scenario on another disk, with these new names of modes."""

    def change(cell: CellRecord) -> CellRecord:
        mode = (modes or {}).get(cell.mode, cell.mode)
        return replace(cell, id=f"{scenario}-{mode}-{cell.job.id}", scenario=scenario, disk=scenario, mode=mode)

    return change


def times(factor: float) -> Callable[[CellRecord], CellRecord]:
    """Cells with this multiple of the throughput of every arm."""

    def change(cell: CellRecord) -> CellRecord:
        iops = cell.metrics["iops"]
        host, twin, guest = (tuple(factor * each for each in values) for values in (iops.host, iops.twin, iops.guest))
        adjusted = {place: tuple(factor * value for value in values) for place, values in iops.adjusted.items()}
        faster = replace(iops, host=host, twin=twin, guest=guest, adjusted=adjusted)
        return replace(cell, metrics={**cell.metrics, "iops": faster})

    return change


def arm(comparison: RunComparison, place: Place, job: str, mode: str = "") -> ArmChange:
    name = str(place) if place is Place.HOST else f"{place}:{mode}"
    return next(
        each
        for scenario in comparison.scenarios
        for each in scenario.arms
        if each.arm_before == name and each.job == job
    )


def reasons(comparison: RunComparison) -> dict[str, str]:
    return {f"{each.run} {each.cell}": each.why for each in comparison.left_out}


# --- which cells belong together ---


def test_scenarios_disks_and_modes_may_have_other_names() -> None:
    before = run()
    found = compare(before, later(before, renamed("nvme", {"lvm": "thick", "passthrough": "whole"})))
    (scenario,) = found.scenarios
    assert (scenario.scenario_after, scenario.disk_after) == ("nvme", "nvme")
    pairs = {(each.arm_before, each.arm_after) for each in scenario.arms}
    assert pairs == {
        ("host", "host"),
        ("guest:passthrough", "guest:whole"),
        ("twin:lvm", "twin:thick"),
        ("guest:lvm", "guest:thick"),
    }
    assert not found.left_out


def test_names_belong_together_if_they_are_equal_or_the_last_ones() -> None:
    assert pair_names(["a"], ["b"]) == [("a", "b")]
    assert pair_names(["a", "b"], ["c", "a"]) == [("a", "a"), ("b", "c")]
    assert pair_names(["a", "b"], ["a"]) == [("a", "a")]
    assert pair_names(["a", "b"], ["c"]) == []


def test_a_mode_of_the_same_name_with_another_attachment_is_no_counterpart() -> None:
    before = run()

    def with_io_uring(cell: CellRecord) -> CellRecord:
        if cell.mode != "lvm":
            return cell
        return replace(cell, mode_detail=replace(cell.mode_detail, attach=Attach(aio="io_uring")))

    found = compare(before, later(before, with_io_uring))
    assert {each.arm_before for each in found.scenarios[0].arms} == {"host", "guest:passthrough"}
    why = reasons(found)
    for side in ("before", "after"):
        assert why[f"{side} optane-lvm-randread-4k-qd32"].startswith("no counterpart: the other run has no mode")


def test_jobs_and_modes_of_one_run_only_are_named() -> None:
    found = compare(
        run(("host", "lvm"), ("randread-4k", "randwrite-4k")),
        later(run(("host", "lvm", "passthrough"), ("randread-4k", "seqread-256k"))),
    )
    assert {each.job for each in found.scenarios[0].arms} == {"randread-4k-qd1", "randread-4k-qd32"}
    why = reasons(found)
    assert "this job in this mode" in why["before optane-lvm-randwrite-4k-qd32"]
    assert "this job in this mode" in why["after optane-lvm-seqread-256k-qd32"]
    assert "its host in this job" in why["before optane-host-randwrite-4k-qd32"]
    assert "no mode with this layout" in why["after optane-passthrough-randread-4k-qd32"]
    lvm = next(each for each in found.scenarios[0].overall if each.arm_before == "guest:lvm")
    assert set(lvm.missing) == {f"{job}-qd{depth}" for job in ("randwrite-4k", "seqread-256k") for depth in (1, 32)}


def test_hosts_are_compared_without_a_cell_of_the_host() -> None:
    found = compare(run(("lvm",)), later(run(("passthrough",))))
    assert {each.place for each in found.scenarios[0].arms} == {Place.HOST}
    assert arm(found, Place.HOST, "randread-4k-qd1").cell_before == "optane-lvm-randread-4k-qd1"


def test_of_several_modes_with_one_attachment_those_of_the_same_name_belong_together() -> None:
    def twice(of: Run, name: str) -> Run:
        copies = [renamed("optane", {"lvm": name})(cell) for cell in of.cells if cell.mode == "lvm"]
        return replace(of, cells=(*of.cells, *(replace(cell, disk="optane") for cell in copies)))

    one = run(("host", "lvm"))
    found = compare(twice(one, "again"), later(twice(one, "again")))
    assert {(each.arm_before, each.arm_after) for each in found.scenarios[0].arms if each.place is Place.GUEST} == {
        ("guest:lvm", "guest:lvm"),
        ("guest:again", "guest:again"),
    }
    found = compare(twice(one, "again"), later(one, renamed("optane", {"lvm": "thick"})))
    assert {each.place for each in found.scenarios[0].arms} == {Place.HOST}
    assert "several modes" in reasons(found)["before optane-again-randread-4k-qd32"]


def test_scenarios_without_a_clear_counterpart_are_left_out_until_one_is_chosen() -> None:
    one = run()
    two = replace(one, cells=(*map(renamed("nvme"), one.cells), *map(renamed("ssd"), one.cells)))
    with pytest.raises(ConfigError, match="no cell that can be compared") as refused:
        compare(one, later(two))
    assert "--after-scenario" in str(refused.value)
    found = compare(one, select_scenario(later(two), "ssd"))
    assert found.scenarios[0].scenario_after == "ssd"
    with pytest.raises(ConfigError, match=r'no scenario "sdd"; allowed: nvme, ssd .did you mean "ssd"'):
        select_scenario(two, "sdd")


def test_two_scenarios_of_one_run_are_compared() -> None:
    one = run()
    both = replace(one, cells=(*one.cells, *map(times(2), map(renamed("nvme"), one.cells))))
    found = compare(select_scenario(both, "optane"), select_scenario(both, "nvme"))
    assert arm(found, Place.HOST, "randread-4k-qd1").metrics["iops"].change.ratio == pytest.approx(2)


def test_a_run_is_not_compared_with_itself() -> None:
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare(run(), run())


# --- what is left out ---


def test_void_and_skipped_cells_are_left_out_and_named() -> None:
    job = "randread-4k-qd32"
    before, after = run(void=[f"optane-lvm-{job}"]), later(run(skipped=["passthrough"]))
    found = compare(before, after)
    why = reasons(found)
    assert why[f"before optane-lvm-{job}"] == "void: bytes: fio 412 MiB, block device 96 MiB, QEMU 412 MiB"
    assert why[f"after optane-passthrough-{job}"] == "skipped: the kernel of lab1 has no device-mapper"
    assert {each.arm_before for each in found.scenarios[0].arms if each.job == job} == {"host"}
    assert {each.arm_before for each in found.scenarios[0].arms} == {"host", "twin:lvm", "guest:lvm"}
    lvm = next(each for each in found.scenarios[0].overall if each.arm_before == "guest:lvm")
    assert lvm.missing == (job,)


def test_a_guest_that_is_better_than_its_host_is_compared_and_named() -> None:
    found = compare(run(faster=["lvm"]), later(run()))
    arms = {each.arm_before for each in found.scenarios[0].arms}
    assert arms == {"host", "guest:passthrough", "twin:lvm", "guest:lvm"}
    assert not found.left_out
    assert {(each.run, each.cell) for each in found.doubtful} == {
        ("before", cell.id) for cell in run().cells if cell.mode == "lvm"
    }
    assert all("needs an explanation" in each.why for each in found.doubtful)


def test_one_block_gives_a_ratio_without_an_interval_and_no_direction() -> None:
    one = synthetic_run(modes=MODES, workloads=JOBS, budget=None, rounds=1)
    iops = arm(compare(one, later(one, times(5))), Place.HOST, "randread-4k-qd1").metrics["iops"]
    assert iops.change.ratio == pytest.approx(5)
    assert iops.change.low is None
    assert iops.finding is ChangeFinding.UNDECIDED


def test_jobs_at_a_fixed_rate_are_compared_by_their_latency_and_are_in_no_overall_figure() -> None:
    one = run(workloads=("randread-4k", "randread-4k-i1000"))
    found = compare(one, later(one))
    rated = [each for each in found.scenarios[0].arms if each.job.endswith("-i1000")]
    assert {each.headline for each in rated} == {"clat_mean"}
    assert all("i1000" not in job for each in found.scenarios[0].overall for job in (*each.jobs, *each.missing))


def test_a_single_job_has_no_overall_figure() -> None:
    one = run(workloads=("randread-4k-i1000",))
    assert compare(one, later(one)).scenarios[0].overall == ()


def test_values_that_no_disk_has_are_an_error_before_runs_are_compared() -> None:
    before = run()
    with pytest.raises(ValueError, match="values of the host or the guest are missing or impossible"):
        later(before, times(0))


# --- directions, confidence, differences, JSON ---


def test_less_throughput_and_more_latency_are_worse() -> None:
    before = run()
    found = compare(before, later(before, times(0.25)))
    assert arm(found, Place.GUEST, "randread-4k-qd32", "lvm").metrics["iops"].finding is ChangeFinding.WORSE
    latency = arm(found, Place.GUEST, "randread-4k-qd32", "lvm").metrics["lat_mean"]
    assert (latency.better, latency.finding) == ("lower", ChangeFinding.EQUAL)


def test_a_cell_with_interim_looks_has_the_higher_confidence() -> None:
    before = run()
    looked = later(before, lambda cell: replace(cell, confidence=0.99))
    one, other = (arm(compare(before, after), Place.HOST, "randread-4k-qd1") for after in (later(before), looked))
    assert (one.confidence, other.confidence) == (0.95, 0.99)
    assert width(other) > width(one)


def width(change: ArmChange) -> float:
    found = change.metrics["iops"].change
    assert found.low is not None
    assert found.high is not None
    return math.log(found.high / found.low)


def test_profiles_versions_and_the_attachment_that_was_read_back_are_differences() -> None:
    before = run()
    after = later(
        before,
        lambda cell: replace(cell, span_bytes=4 << 30, effective=replace(cell.effective, qemu_aio="io_uring")),
    )
    after = replace(
        after,
        run=replace(after.run, profile="standard"),
        lab=replace(after.lab, host="node2"),
        provenance={**after.provenance, "tools": {"fio": "3.39", "qemu": "10.0.2"}},
    )
    found = {each.what: (each.before, each.after) for each in compare(before, after).differences}
    assert found["run.profile"] == ("smoke", "standard")
    assert found["lab.host"] == ("lab1", "node2")
    assert found["tools.fio"] == ("3.36", "3.39")
    assert found["tools.images"] == (["guest sha256:0000"], None)
    assert found["span_bytes"] == (64 << 20, 4 << 30)
    assert found["effective.qemu_aio"] in {("native", "io_uring"), (None, "io_uring")}
    assert "tools.qemu" not in found


def test_runs_of_two_profiles_are_compared_at_the_depths_that_both_have() -> None:
    standard = replace(synthetic_run(profile="standard", modes=("host", "lvm"), workloads=JOBS, budget=None), groups=())
    found = compare(run(("host", "lvm")), later(standard))
    assert {each.job for each in found.scenarios[0].arms} == {f"{job}-qd{depth}" for job in JOBS for depth in (1, 32)}
    assert "this job in this mode" in reasons(found)["after optane-lvm-randread-4k-qd256"]
    list_differences = {each.what: (each.before, each.after) for each in found.differences}
    assert list_differences["run.profile"] == ("smoke", "standard")
    assert list_differences["job.seconds"] == (1.0, 10.0)


def test_a_run_of_version_0_1_has_a_round_for_each_block_and_is_compared() -> None:
    before = run()
    old = later(before, lambda cell: replace(times(2)(cell), blocks=(), boots=(), ios={}))
    assert arm(compare(before, old), Place.HOST, "randread-4k-qd1").metrics["iops"].finding is ChangeFinding.BETTER


def test_the_json_document_is_the_comparison() -> None:
    before = run()
    found = compare(before, later(before, times(2)))
    adapter = TypeAdapter(RunComparison)
    text = comparison_json(found)
    jsonschema.Draft202012Validator(adapter.json_schema(mode="serialization")).validate(
        adapter.dump_python(found, mode="json")
    )
    assert '"finding": "better"' in text
    assert adapter.validate_json(text, context={"stored": True}) == found
