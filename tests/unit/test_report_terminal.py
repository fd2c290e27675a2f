"""The terminal's and the job summary's view of a run: every cell, every figure, within the width."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.report.markdown import markdown_table
from harness.report.numbers import microseconds, percent, short, significant
from harness.report.terminal import SHORT_LINES, print_run, short_lines, summary_lines
from harness.results import CellRecord, Run
from tests.build import synthetic_run
from tests.replay import overhead_text

LVM = "optane-lvm-randread-4k-qd32"


@pytest.fixture(scope="module")
def run() -> Run:
    return synthetic_run()


def with_a_guest(run: Run) -> list[str]:
    return [cell.id for cell in run.cells if cell.mode != "host"]


def test_wide_table_has_a_row_per_cell_with_all_its_figures(run: Run) -> None:
    rows = {line.split()[0]: line.split() for line in overhead_text(run, width=120).splitlines()}
    assert set(with_a_guest(run)) <= rows.keys()
    overhead = run.cell(LVM).metrics["iops"].overhead
    assert overhead is not None
    assert overhead.low is not None
    assert overhead.high is not None
    assert rows[LVM][1:] == [
        "198k",
        "40.8k",
        "IOPS",
        f"{overhead.point:.1%}".rstrip("%"),
        f"[{overhead.low * 100:.1f},",
        f"{overhead.high * 100:.1f}]",
        "3",
        "+604",
        "inconclusive",
    ]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("profile", ["smoke", "standard"])
def test_table_is_plain_text_that_keeps_within_the_width(width: int, profile: str) -> None:
    run = synthetic_run(profile=profile)
    text = overhead_text(run, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    for cell in run.cells:
        metric = cell.metrics["iops" if cell.job.pattern.startswith("rand") else "bw"]
        if metric.overhead is not None:
            assert f"{percent(metric.overhead.point)} [{percent(metric.overhead.low)}" in text


def test_narrow_table_names_workload_depth_and_mode(run: Run) -> None:
    lines = overhead_text(run, width=80).splitlines()
    start = lines.index("optane randread-4k")
    assert lines[start + 1].split()[:2] == ["host", "guest"]
    assert lines[start + 2].split()[:2] == ["IOPS", "IOPS"]
    assert lines[start + 4].split()[:4] == ["qd1", "lvm", "79.4k", "15.3k"]


def test_one_round_shows_no_interval() -> None:
    assert "[" not in overhead_text(synthetic_run(rounds=1), width=120).partition("\n")[2]


def test_void_and_skipped_cells_have_no_overhead() -> None:
    run = synthetic_run(void=[LVM], skipped=["raw"])
    rows = {line.split()[0]: line.split() for line in overhead_text(run, width=120).splitlines()}
    assert rows[LVM][-4:] == ["-", "-", "-", "void"]
    assert rows["optane-raw-randread-4k-qd1"][-4:] == ["-", "-", "-", "skipped"]


def test_table_without_guests_says_so() -> None:
    assert overhead_text(synthetic_run(modes=["host"]), width=80) == "no cell with a guest was planned"


def test_summary_has_headline_efficiency_and_path(run: Run) -> None:
    lines = summary_lines(run, Path("reports/one/index.html"))
    assert lines[0].startswith("Relative only: nested KVM")
    assert any(line.startswith("optane: `passthrough` loses least (55.6 %") for line in lines)
    assert lines[-3] == "fio ran 221 s of 245 s: 0.90"
    assert lines[-1] == "report: reports/one/index.html"


def test_printed_run_is_the_table_and_its_summary(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    print_run(run, verbose=True)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert printed.index("qd32 lvm") < printed.index("optane: `passthrough` loses least (55.6 %")


def test_a_run_ends_with_a_dozen_lines_that_answer(capsys: pytest.CaptureFixture[str]) -> None:
    run = synthetic_run(profile="standard", void=[LVM], budget=0.01)
    page = Path("reports/one/index.html")
    print_run(run, page, verbose=False)
    printed = capsys.readouterr().out
    lines = short_lines(run, page)
    assert len(lines) <= SHORT_LINES < len(summary_lines(run, page))
    assert len(printed.splitlines()) == len(lines)
    table = next(number for number, line in enumerate(lines) if line.startswith("optane "))
    assert re.split(" {2,}", lines[table]) == ["optane", "attach as", "guest against its host", "other modes"]
    use, mode, loss, rivals = re.split(" {2,}", lines[table + 1])
    assert (use, mode) == ("general VM storage", "passthrough")
    assert re.fullmatch(r"[0-9.]+ % fewer IOPS \([0-9.]+ to [0-9.]+\)", loss)
    assert re.search(r"[0-9.]+ % more IOPS than \w+|as good", rivals)
    assert any(line.startswith("exceeds (") for line in lines)
    assert any(line.startswith("void, left out of all comparisons (1): ") for line in lines)
    assert lines[-2].startswith("cells: ")
    assert lines[-1] == f"report: {page}"


def test_lines_without_room_are_counted() -> None:
    run = synthetic_run()
    many = replace(run, run=replace(run.run, status="interrupted"), cells=_on_disks(run, 12))
    *_, more, counts = short_lines(many)
    assert re.fullmatch(r"and [0-9]+ more lines: -v, or the report", more)
    assert counts.startswith("cells: ")
    assert len(short_lines(many)) == SHORT_LINES


def _on_disks(run: Run, number: int) -> tuple[CellRecord, ...]:
    """The run's cells on so many disks, each in a scenario of its own."""
    names = [f"disk{each}" for each in range(number)]
    return tuple(
        replace(cell, id=cell.id.replace("optane", name, 1), scenario=name, disk=name)
        for name in names
        for cell in run.cells
    )


def test_interrupted_run_says_first_how_much_was_measured() -> None:
    lines = summary_lines(synthetic_run(profile="standard", status="interrupted", measured=0.5))
    assert lines[0] == "This run was interrupted: 90 of 180 cells measured; the report shows these."


def test_markdown_is_a_table_with_every_cell(run: Run) -> None:
    text = markdown_table(run)
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == with_a_guest(run)
    assert {row.count("|") for row in rows} == {9}
    assert "| 198k | 40.8k | IOPS | 79.4 [77.5, 81.2] | 3 | +604 | inconclusive |" in text


def test_markdown_cannot_be_broken_by_a_name(run: Run) -> None:
    hostile = replace(run, cells=tuple(replace(cell, disk="<b>|x") for cell in run.cells))
    assert "\\<b\\>\\|x" in markdown_table(hostile)


@pytest.mark.parametrize(
    ("value", "text"),
    [(35123, "35 100"), (4.2, "4.20"), (99.96, "100"), (0, "0"), (0.04118, "0.0412"), (-1234.5, "-1 230")],
)
def test_values_have_three_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text


def test_narrow_values_use_a_letter_and_percent_has_no_negative_zero() -> None:
    assert [short(999.9), short(35123), short(2.15e6), short(None)] == ["1.00k", "35.1k", "2.15M", "-"]
    assert [percent(-0.0002), percent(0.9999), percent(4.518), percent(33.57)] == ["0.0", "100", "452", "3360"]
    assert [percent(-12.0), percent(1e300), percent(-1e300)] == ["-1200", ">99900", "<-99900"]
    assert microseconds(0.000213, signed=True) == "+213"


def test_uses_that_were_not_measured_share_a_line() -> None:
    run = synthetic_run()
    few = replace(run, cells=tuple(cell for cell in run.cells if cell.job.id == "randread-4k-qd32"))
    (line,) = (line for line in short_lines(few) if line.startswith("Not measured: "))
    assert line.count("(workload ") == 3


def test_of_jobs_that_flush_the_latency_of_a_flush_is_compared_and_no_throughput() -> None:
    run = synthetic_run(
        modes=["host", "lvm"], workloads=["wal"], budget=None, flush=lambda arm, _job: 8e-3 if arm.in_guest else 2e-4
    )
    assert "optane: its jobs compare latencies, not throughput" in "\n".join(summary_lines(run))
    (cell,) = (cell for cell in run.cells if not cell.is_baseline)
    host, guest = (cell.mean(cell.metrics["sync_mean"], arm) for arm in ("host", "guest"))
    assert host is not None
    assert guest is not None
    assert cell.added is not None
    assert cell.added.point == pytest.approx(guest.point - host.point, rel=0.1)


def test_jobs_that_flush_were_measured_also_if_every_figure_is_void() -> None:
    run = synthetic_run(modes=["host", "lvm"], workloads=["wal"], budget=None, void=["optane-lvm-wal"])
    (cell,) = (cell for cell in run.cells if not cell.is_baseline)
    assert not cell.usable
    assert "no attach mode was measured" not in "\n".join(summary_lines(run))


def test_of_jobs_that_only_trim_no_throughput_is_compared() -> None:
    run = synthetic_run(modes=["host", "lvm"], workloads=["randtrim-64k"], budget=None, speed=lambda *_: 1e3)
    assert "optane: its jobs trim, which a mode may drop, so no throughput is compared" in "\n".join(summary_lines(run))


def test_the_jobs_of_a_single_mode_are_told_apart_and_each_has_the_figure_that_shows_its_loss() -> None:
    workloads = ["seqread-64k", "seqread-64k-buffered", "randread-4k-i1000", "wal"]
    run = synthetic_run(
        modes=["host", "lvm"],
        workloads=workloads,
        budget=None,
        speed=lambda *_: 1e3,
        flush=lambda *_: 1e-3,
    )
    rows = [re.split(" {2,}", line) for line in short_lines(run)]
    units = {row[0]: row[1].rpartition(" ")[2] for row in rows if len(row) == 4 and row[0] != "optane"}
    assert units == {
        "read 64k, sequential, 32 at a time": "MB/s",
        "read 64k, sequential, 1 at a time": "MB/s",
        "read 64k, sequential, 1 at a time, through the page cache": "MB/s",
        "read 4k, random, 1000 per second": "us",
        "write 4k, fsync after each, 1 at a time": "fsync/s",
    }
