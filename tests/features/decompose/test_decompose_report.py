"""Waterfalls and arrays in the report: the same figures and doubts on the page, in the terminal and in Markdown."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harness.analysis import Estimate
from harness.features.arrays.records import Bottleneck, MemberRecord, ScalingMetric, ScalingRecord
from harness.features.decompose.records import Decomposition, DecompositionRecord, decompose_run
from harness.features.decompose.report import list_changes
from harness.report.markdown import markdown_table
from harness.report.terminal import summary_lines
from harness.results import Run
from harness.results.assemble import AssembledRun
from harness.scenario.plan import plan_for
from harness.scenario.scenario import Requested
from tests.build import optane, synthetic_run, with_records
from tests.unit.pages import Page, page

STEPS = ("host", "twin:lvm", "guest:lvm", "guest:raw")
CELL = "optane-lvm-randread-4k-qd32"
CALLED = ["bare device -> lvm", "virtualisation (virtio-scsi, cache none, aio native, iothread)", "lvm -> raw"]


def decompositions_of(run: Run) -> tuple[DecompositionRecord, ...]:
    scenario = replace(optane(), requests=(Requested("layers", Decomposition(STEPS)),))
    by_id = {cell.id: cell for cell in run.cells}
    groups = plan_for(scenario, "smoke").groups
    return tuple(decompose_run(AssembledRun((), by_id, (), (), (scenario,), groups)))


def with_decompositions(run: Run, *records: DecompositionRecord) -> Run:
    return with_records(run, "decompositions", records or decompositions_of(run))


def array(cell: str = CELL, doubt: str = "") -> ScalingRecord:
    speedup = Estimate(2.9, 2.7, 3.1, 3)
    of_all = Estimate(0.725, 0.675, 0.775, 3)
    metric = ScalingMetric(speedup, of_all, of_all)
    return ScalingRecord(
        cell=cell,
        level=5,
        disks=4,
        legs=1,
        ideal=4.0,
        why_ideal="4 disks, each read uses one of them",
        metrics={"iops": metric, "bw": metric},
        members=(MemberRecord("ssd1", 1e8, 0.9, 4.0),),
        bottleneck=Bottleneck.QUEUE,
        evidence="a member has 8 I/Os in flight",
        doubt=doubt,
    )


@pytest.fixture(scope="module")
def run() -> Run:
    return with_records(with_decompositions(synthetic_run()), "scalings", (array(),))


@pytest.fixture(scope="module")
def html(run: Run) -> Page:
    return page(run)


def test_a_step_that_saves_exits_shows_them() -> None:
    run = with_decompositions(synthetic_run())
    assert "KVM exits per I/O" not in page(run).text
    cells = []
    for cell in run.cells:
        cost = cell.accounting.get("exits")
        if cell.mode == "raw" and cost is not None:
            fewer = {"exits": replace(cost, guest=(1.0, 1.0)), "halt_exits": replace(cost, guest=(0.1, 0.1))}
            cells.append(replace(cell, accounting=cell.accounting | fewer))
        else:
            halts = {} if cost is None else {"halt_exits": replace(cost, guest=(1.0,))}
            cells.append(replace(cell, accounting=cell.accounting | halts))
    changed = replace(run, cells=tuple(cells))
    assert rows_of(changed, "lvm -> raw")[0][-1] == "2.50 -> 1.00, by HLT 1.00 -> 0.100"
    (line,) = [line for line in summary_lines(changed) if "lvm -> raw" in line and " us " in line][:1]
    assert line.endswith("KVM exits per I/O 2.50 -> 1.00, by HLT 1.00 -> 0.100)")


def rows_of(run: Run, change: str) -> list[list[str]]:
    """The rows of the page's tables for these steps."""
    return [row for row in page(run).rows if row[1:2] == [change]]


def test_the_page_has_a_row_for_each_step_and_one_for_all_of_them(run: Run, html: Page) -> None:
    rows = [row[1:] for row in html.rows if len(row) == 9 and row[1] in (*CALLED, "all steps")]
    assert len(rows) == 4 * len(run.of(DecompositionRecord))
    assert [row[0] for row in rows[:4]] == [*CALLED, "all steps"]
    first = run.of(DecompositionRecord)[0]
    assert first.added is not None
    assert rows[3][1] == f"{first.added.point * 1e6:.3g}"
    assert rows[3][2].startswith("[")


def test_the_chart_starts_each_step_where_the_one_before_ended(run: Run, html: Page) -> None:
    figures = html.json("figures")
    (bars,) = figures["disk1-fall1"]["depths"]["1"]["data"]
    record = run.of(DecompositionRecord)[0]
    ends = [base + added for base, added in zip(bars["base"], bars["x"], strict=True)]
    assert bars["base"][1:3] == pytest.approx(ends[:2])
    assert ends[2] == pytest.approx(ends[3])
    assert bars["base"][3] == 0
    assert record.added is not None
    assert bars["x"][3] == pytest.approx(record.added.point * 1e6)
    assert math.fsum(bars["x"][:3]) == pytest.approx(bars["x"][3])
    for added, up, down, step in zip(
        bars["x"], bars["error_x"]["array"], bars["error_x"]["arrayminus"], record.steps[1:], strict=False
    ):
        assert step.added is not None
        assert [added + up, added - down] == pytest.approx(
            [(end or 0) * 1e6 for end in (step.added.high, step.added.low)]
        )


def test_every_workload_has_its_waterfall_and_every_depth_its_figure(html: Page) -> None:
    figures = html.json("figures")
    falls = {key: sorted(figure["depths"]) for key, figure in figures.items() if "-fall" in key}
    assert falls == {f"disk1-fall{number}": ["1", "32"] for number in (1, 2, 3, 4)}
    assert {attributes.get("id") for tag, attributes in html.tags if tag == "div"} >= set(falls)


def test_the_terminal_shows_the_smallest_depth_of_each_workload(run: Run) -> None:
    lines = summary_lines(run)
    heads = [number for number, line in enumerate(lines) if line.startswith("layers, ")]
    assert [lines[head].split()[1:3] for head in heads][2] == ["randread-4k", "qd1,"]
    block = lines[heads[2] : heads[2] + 6]
    assert "mean latency [95 % each]. Host " in block[0]
    assert [line.split("%  ")[1].removesuffix(" (not beyond chance)") for line in block[1:4]] == CALLED
    assert block[4].endswith("%  all steps, to guest:raw")
    assert block[5] == "  and 1 larger depth: see the report"


def test_markdown_has_the_same_steps(run: Run) -> None:
    text = markdown_table(run)
    assert "**layers, randread-4k qd1.** Host " in text
    assert text.count("| lvm -\\> raw |") == 4
    assert text.count("| all steps |") == 4


def test_a_step_that_chance_explains_says_so_everywhere(run: Run) -> None:
    record = run.of(DecompositionRecord)[0]
    steps = (*record.steps[:3], replace(record.steps[3], shown=False))
    doubtful = with_decompositions(run, replace(record, steps=steps))
    assert list_changes(doubtful.of(DecompositionRecord)[0])[2].remark == "not beyond chance"
    assert any(line.endswith("lvm -> raw (not beyond chance)") for line in summary_lines(doubtful))
    assert "| not beyond chance |" in markdown_table(doubtful)
    assert rows_of(doubtful, "lvm -> raw")[0][-1] == "no"


def test_a_step_from_or_to_an_arm_with_a_failed_check_is_not_a_result(run: Run) -> None:
    record = run.of(DecompositionRecord)[0]
    steps = (*record.steps[:2], replace(record.steps[2], doubt="bytes guest:lvm"), record.steps[3])
    doubtful = with_decompositions(run, replace(record, steps=steps))
    shown = list_changes(doubtful.of(DecompositionRecord)[0])
    assert [step.doubt for step in shown] == ["", "bytes guest:lvm", "bytes guest:lvm", ""]
    assert "not a result: bytes guest:lvm" in page(doubtful).text
    bars = page(doubtful).json("figures")["disk1-fall1"]["depths"]["1"]["data"][0]
    assert bars["marker"]["pattern"]["shape"] == ["", "/", "/", ""]


def test_rounds_that_are_not_used_are_named() -> None:
    plain = synthetic_run()
    record = replace(decompositions_of(plain)[0], left_out=(2, 5))
    words = "3 blocks; blocks of rounds 2 and 5 lack an arm and are not used"
    assert words in page(with_decompositions(plain, record)).text


def test_a_skipped_decomposition_gives_its_reason() -> None:
    run = synthetic_run(skipped=["raw"])
    run = with_decompositions(run)
    reason = "guest:raw: the kernel of lab1 has no device-mapper"
    assert any(line.endswith(f"no decomposition: {reason}") for line in summary_lines(run))
    assert reason in page(run).text
    assert f"**: {reason}" in markdown_table(run)
    assert not any("-fall" in key for key in page(run).json("figures"))


def test_one_round_is_shown_without_intervals_and_judges_nothing() -> None:
    run = synthetic_run(rounds=1)
    run = with_decompositions(run)
    assert [step.beyond_chance for step in list_changes(run.of(DecompositionRecord)[0])] == [None] * 4
    assert page(run).json("figures")["disk1-fall1"]["depths"]["1"]["data"][0].get("error_x") is None


def test_an_array_is_compared_with_its_disks_and_its_level_and_has_its_limit(run: Run, html: Page) -> None:
    (row,) = [row for row in html.rows if row[:2] == ["RAID 5 over 4", CELL]]
    assert row[2:] == [
        "2.90 [2.70, 3.10]",
        "72.5 [67.5, 77.5]",
        "4\N{MULTIPLICATION SIGN}",
        "72.5 [67.5, 77.5]",
        "queue not deep enough: a member has 8 I/Os in flight",
    ]
    assert "RAID 5 over 4, randread-4k: 4 times one disk (4 disks, each read uses one of them)" in html.text
    assert (
        f"{CELL}: RAID 5 over 4 delivers 2.90 [2.70, 3.10] x one disk, 72.5 [67.5, 77.5] % of 4 disks and "
        "72.5 [67.5, 77.5] % of what the level can deliver (4 x); "
        "limit: queue not deep enough: a member has 8 I/Os in flight"
    ) in summary_lines(run)
    assert f"| RAID 5 over 4 | `{CELL}` | 2.90 [2.70, 3.10] |" in markdown_table(run)


def test_an_array_whose_check_failed_has_no_result(run: Run) -> None:
    doubtful = replace(run, of_features={"scalings": (array(doubt="bytes twin:lvm"),)})
    assert "not a result: bytes twin:lvm" in page(doubtful).text
    assert any(line.endswith("; not a result: bytes twin:lvm") for line in summary_lines(doubtful))


def test_a_run_without_steps_or_arrays_does_not_mention_them() -> None:
    text = page(synthetic_run()).text
    assert "Step by step" not in text
    assert "Arrays against their disks" not in text
