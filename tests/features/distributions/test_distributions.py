"""Latency distributions, latency over load, and the order of blocks: the same figures in charts, tables and records."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from harness.analysis import Calls, LatencyHistogram, percentile, reduce_bins
from harness.features.distributions.order import arm_blocks, blocks_by_depth, order_sentence
from harness.features.distributions.report import find_distributions, find_load_curves, group_by_depth, quantiles
from harness.features.variants import Variant
from harness.report.draw import log_axis
from harness.report.section import WorkloadCells, find_sections
from harness.results import CellRecord, Run
from tests.build import lognormal, optane, synthetic_run
from tests.unit.pages import Page, figures, page

MODES = ["host", "passthrough", "lvm"]
ARMS = ["host", "guest passthrough", "twin lvm", "guest lvm"]


@pytest.fixture(scope="module")
def run() -> Run:
    return synthetic_run(modes=MODES, workloads=["randread-4k"], rounds=5)


@pytest.fixture(scope="module")
def drawn(run: Run) -> dict[str, Any]:
    return charts(run)


@pytest.fixture(scope="module")
def shown(run: Run) -> Page:
    return page(run)


def charts(run: Run) -> dict[str, Any]:
    return figures(run)


def figure(found: dict[str, Any], name: str, depth: int | None = None) -> Any:
    document = found[f"disk1-w1-{name}"]
    return document["depths"][str(depth)] if depth is not None else document


def workload(run: Run) -> WorkloadCells:
    (section,) = find_sections(run)
    return section.workloads[0]


def one_depth() -> Run:
    scenario = optane()
    smoke = replace(scenario.profiles[0], iodepth=(32,))
    return synthetic_run(modes=MODES, workloads=["randread-4k"], scenario=replace(scenario, profiles=(smoke,)))


def changed(run: Run, **changes: Any) -> Run:
    return replace(run, cells=tuple(replace(cell, **changes) for cell in run.cells))


def lvm(run: Run) -> CellRecord:
    return run.cell("optane-lvm-randread-4k-qd32")


# --- the record ---


def test_a_cell_has_the_ios_of_every_arm_that_its_blocks_counted(run: Run) -> None:
    cell = lvm(run)
    assert {arm: found.ios for arm, found in cell.histograms["ios"].items()} == {
        arm: sum(ios) for arm, ios in cell.ios.items()
    }
    assert "syncs" not in cell.histograms
    assert list(cell.times) == sorted(cell.times)
    assert len(cell.times) == len(cell.rounds)
    assert all(run.run.started - 1 < time < run.run.started + 1000 for time in cell.times)


# --- distributions ---


def test_every_arm_has_a_curve_of_percentiles_up_to_its_last_ten_ios(run: Run, drawn: dict[str, Any]) -> None:
    traces = figure(drawn, "percentiles-ios", 32)["data"]
    curves = {trace["name"]: trace for trace in traces if trace["mode"] == "lines"}
    assert list(curves) == ARMS
    for arm in ("twin", "guest"):
        trace = curves[f"{arm} lvm"]
        assert trace["y"] == sorted(trace["y"])
        ios = lvm(run).histograms["ios"][arm].ios
        assert trace["x"][-1] == pytest.approx(math.log10(ios / 10), abs=0.1)
    assert curves["twin lvm"]["line"]["dash"] == "dash"


def test_the_markers_are_the_percentiles_of_the_tables_with_their_intervals(run: Run, drawn: dict[str, Any]) -> None:
    (marks,) = [
        trace
        for trace in figure(drawn, "percentiles-ios", 32)["data"]
        if trace["name"] == "guest lvm" and trace["mode"] == "markers"
    ]
    assert marks["x"] == pytest.approx([0.301, 2, 3], abs=0.001)
    for place, name in enumerate(("clat_p50", "clat_p99", "clat_p999")[: len(marks["y"])]):
        pooled = lvm(run).metrics[name].pooled["guest"]
        assert marks["y"][place] == pytest.approx(pooled.value * 1e6, rel=1e-3)
        reach = marks["error_y"]["array"][place] + marks["error_y"]["arrayminus"][place]
        assert reach == pytest.approx((pooled.high - pooled.low) * 1e6, rel=1e-2, abs=1e-2)


def test_the_axis_of_shares_is_logarithmic_towards_100_percent(drawn: dict[str, Any]) -> None:
    axis = figure(drawn, "percentiles-ios", 32)["layout"]["xaxis"]
    assert axis["ticktext"][:5] == ["0", "50", "90", "99", "99.9"]
    assert axis["tickvals"][:5] == pytest.approx([0, 0.301, 1, 2, 3], abs=0.001)


def test_each_row_of_the_histogram_has_all_ios_of_its_arm(drawn: dict[str, Any]) -> None:
    rows_of = figure(drawn, "histogram-ios", 32)
    assert [trace["name"] for trace in rows_of["data"]] == ARMS
    for trace in rows_of["data"]:
        widths = [math.log2(high / low) for low, high in zip(trace["x"], trace["x"][1:], strict=False)]
        shares = [share * width for share, width in zip(trace["y"], widths, strict=False)]
        assert sum(shares) == pytest.approx(100, rel=0.02)
        assert trace["y"][-1] == 0
    rows = [rows_of["layout"][trace["yaxis"].replace("y", "yaxis")] for trace in rows_of["data"]]
    assert [row["ticktext"] for row in rows] == [[arm] for arm in ARMS]
    assert rows[0]["domain"][0] >= rows[1]["domain"][1]


def test_bins_of_different_width_are_comparable(run: Run) -> None:
    # The same number of I/Os in two neighbouring bins, of which the second is as wide on the logarithmic axis.
    own = LatencyHistogram(1, {1024: 50, 2048: 50})
    cells = changed(run, histograms={"ios": {"host": own}})
    (trace,) = figure(charts(cells), "histogram-ios", 1)["data"]
    assert (trace["x"], trace["y"]) == ([1.024, 2.048, 4.096], [50, 50, 0])


def test_fdatasync_has_charts_of_its_own(run: Run) -> None:
    cell = lvm(run)
    slow: dict[Calls, dict[str, LatencyHistogram]] = {"syncs": {"guest": LatencyHistogram(8, {2_097_152: 500})}}
    found = page(
        replace(run, cells=tuple(replace(each, histograms=slow) if each == cell else each for each in run.cells))
    )
    assert [trace["name"] for trace in figure(found.json("figures"), "histogram-syncs", 32)["data"]] == ["guest lvm"]
    assert "Latency of fdatasync that a share of the calls does not exceed" in found.text
    assert "table of latencies of fdatasync" in found.text


def test_void_cells_are_in_no_distribution() -> None:
    name = "optane-lvm-randread-4k-qd32"
    by_depth = group_by_depth(workload(synthetic_run(modes=MODES, workloads=["randread-4k"], void=[name])).cells)
    assert [each.arm.label for each in by_depth["ios"][32]] == ARMS[:2]
    assert [each.arm.label for each in by_depth["ios"][1]] == ARMS


def test_a_run_of_an_older_version_has_no_distributions(run: Run) -> None:
    older = changed(run, histograms={}, times=())
    assert find_distributions(workload(older).cells) == ()
    found = page(older)
    assert not [name for name in found.json("figures") if "percentiles" in name or "histogram" in name]
    assert "does not exceed" not in found.text


def test_the_table_of_latencies_has_the_figures_of_the_charts(run: Run, shown: Page) -> None:
    head = next(row for row in shown.rows if row[:2] == ["iodepth, arm", "I/Os"])
    assert head[2:] == ["IOPS", "mean, us", "interval, 95 %", "p50, us", "p99, us", "p99.9, us"]
    row = next(row for row in shown.rows[shown.rows.index(head) :] if row[0] == "32 guest lvm")
    assert row[1] == f"{lvm(run).histograms['ios']['guest'].ios:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    p99 = lvm(run).metrics["clat_p99"].pooled["guest"].value * 1e6
    assert float(row[6].split(" [")[0].replace("\N{NARROW NO-BREAK SPACE}", "")) == pytest.approx(p99, rel=0.01)


# --- latency over load ---


def test_latency_over_load_has_host_and_guests_with_mean_and_p99(run: Run, drawn: dict[str, Any]) -> None:
    traces = {trace["name"]: trace for trace in figure(drawn, "load")["data"]}
    assert set(traces) == {f"{arm}, {what}" for arm in ARMS if arm != "twin lvm" for what in ("mean", "p99")}
    mean = traces["guest lvm, mean"]
    assert mean["text"] == ["1", "32"]
    assert traces["guest lvm, p99"]["line"]["dash"] == "dot"
    for depth, x, y in zip((1, 32), mean["x"], mean["y"], strict=True):
        cell = next(each for each in workload(run).cells if (each.mode, each.iodepth) == ("lvm", depth))
        throughput, latency = cell.mean(cell.throughput, "guest"), cell.mean(cell.latency, "guest")
        assert throughput is not None
        assert latency is not None
        assert (x, y) == pytest.approx((throughput.point, latency.point * 1e6))
    assert mean["error_x"]["array"][0] > 0
    assert mean["error_y"]["array"][0] > 0


def test_a_guest_that_is_faster_than_its_host_has_a_curve_like_any_other() -> None:
    faster = synthetic_run(modes=MODES, workloads=["randread-4k"], faster=["lvm"])
    labels = [curve.arm.label for curve in find_load_curves(workload(faster).cells)]
    assert labels == ["host", "guest passthrough", "guest lvm"]


def test_one_depth_and_a_fixed_rate_have_no_latency_over_load() -> None:
    rated = synthetic_run(modes=MODES, workloads=["randread-4k-i500"])
    for found in (charts(one_depth()), charts(rated)):
        assert not [name for name in found if name.endswith("-load")]


# --- one depth ---


def test_one_depth_has_a_dot_with_its_interval_for_each_arm() -> None:
    found = page(one_depth())
    dots = {trace["name"]: trace for trace in figure(found.json("figures"), "throughput")["data"]}
    assert set(ARMS) <= set(dots)
    assert all(dots[arm]["y"] == [arm] for arm in ARMS)
    assert all(dots[arm]["error_x"]["array"][0] > 0 for arm in ARMS)
    assert dots["budget of lvm"]["y"] == ["guest lvm"]
    assert "IOPS at iodepth 32, with intervals; vertical marks: what budgets allow" in found.text


# --- axes ---


def test_a_reader_may_choose_linear_and_logarithmic_axes(drawn: dict[str, Any]) -> None:
    layout = figure(drawn, "throughput")["layout"]
    scales = layout["meta"]["scales"]["yaxis"]
    assert layout["yaxis"]["range"] == scales["linear"]["range"]
    assert scales["log"]["type"] == "log"
    assert figure(drawn, "latency")["layout"]["yaxis"]["type"] == "log"
    assert set(figure(drawn, "load")["layout"]["meta"]["scales"]) == {"xaxis", "yaxis"}


@pytest.mark.parametrize(
    ("values", "most", "ticks"),
    [
        ([3, 40], 8, [5, 10, 20, 50]),
        ([1, 5000], 8, [1, 5, 10, 50, 100, 500, 1000, 5000]),
        ([1, 5000], 4, [1, 10, 100, 1000]),
    ],
)
def test_a_logarithmic_axis_has_as_many_ticks_as_fit(values: list[float], most: int, ticks: list[float]) -> None:
    assert log_axis(values, most)["tickvals"] == ticks


# --- the order of blocks ---


def test_ios_faster_than_the_step_of_the_clock_are_left_out_of_a_logarithmic_axis() -> None:
    assert log_axis([0.0, 1.0, 10.0]) == log_axis([1.0, 10.0])
    assert log_axis([0.0])["type"] == "log"


def test_each_block_is_a_dot_at_its_time_in_the_row_of_its_arm(run: Run, drawn: dict[str, Any], shown: Page) -> None:
    order = figure(drawn, "order", 32)
    assert [trace["name"] for trace in order["data"]] == ARMS
    guest = order["data"][-1]
    assert guest["y"] == pytest.approx(lvm(run).metrics["iops"].guest, rel=1e-3)
    minutes = [(time - run.run.started) / 60 for time in lvm(run).times]
    assert guest["x"] == pytest.approx(minutes, abs=0.01)
    low, high = order["layout"]["yaxis4"]["range"]
    assert low < min(guest["y"]) <= max(guest["y"]) < high
    assert low * high > 0
    assert "block by block, order and drift (5 blocks in 5 rounds)" in shown.text


def test_a_drift_is_in_the_table_of_blocks() -> None:
    run = synthetic_run(modes=["host", "lvm"], workloads=["randread-4k"], rounds=8, drift=0.4, noise=0.001)
    found = {each.arm.label: each for each in blocks_by_depth(workload(run).cells, run.run.started)[32]}
    drift = found["guest lvm"].drift
    assert drift is not None
    assert drift.low is not None
    assert drift.high is not None
    assert drift.low < 0.6 ** (7 / 8) - 1 < drift.high
    rows = [row for row in page(run).rows if row[0] == "32 guest lvm" and len(row) == 6]
    assert rows[0][5] == found["guest lvm"].change.replace("-", "\N{MINUS SIGN}")


def test_blocks_of_an_older_run_are_numbered(run: Run) -> None:
    older = changed(run, times=())
    found = arm_blocks([cell for cell in workload(older).cells if cell.iodepth == 1], older.run.started)
    assert [block.at for block in found[0].blocks] == [1, 2, 3, 4, 5]
    assert figure(charts(older), "order", 1)["layout"]["xaxis"]["title"]["text"].startswith("block (rows:")


def test_a_boot_of_the_guest_is_a_dotted_line(run: Run) -> None:
    booted = changed(run, boots=(1, 1, 1, 4, 4))
    by_depth = blocks_by_depth(workload(booted).cells, booted.run.started)
    assert order_sentence(by_depth) == "5 blocks in 5 rounds and 2 boots"
    (line,) = shapes(booted, "line")
    assert line["x0"] == line["x1"] == pytest.approx((lvm(booted).times[3] - booted.run.started) / 60)


def test_a_round_is_shaded_from_the_first_to_the_last_block_of_all_arms(run: Run) -> None:
    several = changed(run, rounds=(1, 1, 2, 2, 3), blocks=(1, 2, 1, 2, 1))
    starts = [cell.times for cell in several.cells if cell.job.iodepth == 32 and cell.mode != "host"]
    minutes = [
        ((min(times[first] for times in starts), max(times[last] for times in starts)))
        for first, last in ((0, 1), (2, 3), (4, 4))
    ]
    shaded = [(each["x0"], each["x1"]) for each in shapes(several, "rect")]
    assert shaded == [pytest.approx([(end - run.run.started) / 60 for end in ends]) for ends in minutes]


def shapes(run: Run, kind: str) -> list[Any]:
    return [each for each in figure(charts(run), "order", 32)["layout"]["shapes"] if each["type"] == kind]


def test_variants_are_shown_by_their_names() -> None:
    variants = {"fast": Variant(), "slow": Variant()}
    run = synthetic_run(modes=["host", "lvm"], workloads=["randread-4k"], variants=variants)
    names = [trace["name"] for trace in figure(charts(run), "histogram-ios", 32)["data"]]
    assert names[0] == "host"
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99, 0.999])
def test_its_quantiles_differ_by_less_than_a_bin_from_those_of_fio(sigma: float, share: float) -> None:
    bins = lognormal(sigma)
    few = reduce_bins(bins)
    (found,) = quantiles(few, [share])
    exact = percentile(bins, share)
    assert exact is not None
    assert found == pytest.approx(exact, rel=1 / few.per_octave)


def test_quantiles_end_where_fewer_than_ten_ios_are_slower() -> None:
    histogram = LatencyHistogram(8, {1024: 900, 8192: 100})
    assert quantiles(histogram, [0.99, 0.5, 0.991, 0.0]) == [
        pytest.approx(9.1136e-6),
        pytest.approx(1.0951e-6, rel=1e-3),
        None,
        pytest.approx(1.024e-6),
    ]
