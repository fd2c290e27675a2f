"""Cached cells: declared, measured against a twin in the same state of the cache, and in no comparison with others."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis import Verdict
from harness.features.answers.advice import list_advice, map_results
from harness.features.answers.decision import compare_options, get_answers, select_results
from harness.features.cached import count_copies, describe_state, find_change, measure_share
from harness.features.cached.report import cached_blocks, describe_cell
from harness.features.exchange.exporting import label_cell
from harness.features.heat_map.report import make_heat_map
from harness.features.variants import Variant
from harness.lab.counters import CounterFiles, parse_samples, read_samples
from harness.lab.transport.local import LocalRunner
from harness.measure.fio import Target, TimedSection, job_file
from harness.measure.session import find_cached_engine
from harness.model.attach import Attach
from harness.model.base import Md
from harness.model.layout import Lvm, RawFile
from harness.model.mode import Arm, Cell, Mode, Place, arms_of
from harness.report.contents import headline_of
from harness.report.html import render_html
from harness.report.markdown import markdown_table
from harness.report.section import Section, find_sections
from harness.report.terminal import answers_json, difference_lines, short_lines, summary_lines
from harness.report.verdicts import find_verdicts
from harness.results import Run
from harness.results.byte_counts import check_bytes
from harness.results.cells import CachedRecord
from tests.build import build_cell, build_measurement, synthetic_run
from tests.replay import overhead_text
from tests.unit.test_scenario_load import complaint, good_but, load

CACHED = Mode("raw-cached", RawFile(), Attach(cache="writeback", aio="io_uring"), cached=True)
FAST = "raw-cached"
SERVED = 0.75
"""What the planted cache of `synthetic_run` serves: its disk moves a quarter of the bytes."""


@pytest.fixture(scope="module")
def declared() -> Run:
    return synthetic_run(cached=[FAST], declared=[FAST], rounds=6)


@pytest.fixture(scope="module")
def section(declared: Run) -> Section:
    (only,) = find_sections(declared)
    return only


# -------------------------------------------------------------------------------------------- declaration

OWN = """
[mode.own]
layout = { kind = "raw" }
attach = { cache = "writeback", aio = "io_uring" }
"""


def test_a_mode_declares_that_memory_serves_it(tmp_path: Path) -> None:
    text = good_but('"lvm"', '"own"') + OWN
    assert [mode.cached for mode in load(tmp_path, text).modes] == [False, False]
    own = load(tmp_path, text + "cached = true\n").modes[1]
    assert (own.cached, own.detail.cached, own.on(own.guest).cached) == (True, True, True)


def test_a_disk_whose_guest_has_it_for_itself_has_no_cache_of_the_host(tmp_path: Path) -> None:
    own = '[mode.own]\nlayout = { kind = "device" }\nattach = { device = "vfio" }\ncached = true\n'
    assert (
        'mode.own: cached conflicts with attach.device = "vfio", because the guest\'s I/O passes no cache of the host; '
        "allowed: device disk, or no cached" in complaint(tmp_path, good_but('"lvm"', '"own"') + own)
    )


def test_the_baseline_of_a_cached_cell_is_its_twin_and_the_disk_is_beside_it() -> None:
    assert arms_of(CACHED) == {
        Place.HOST: Arm(Place.TWIN, CACHED),
        Place.DIRECT: Arm(Place.HOST),
        Place.GUEST: Arm(Place.GUEST, CACHED),
    }
    assert not CACHED.has_twin
    assert not CACHED.detail.has_bare_host


def test_fio_with_direct_io_leaves_the_page_cache_as_it_is_if_a_mode_is_cached() -> None:
    job = build_cell(CACHED).job
    targets = (Target("/dev/d", 0, 4096, direct=True), Target("/dev/d", 0, 4096, direct=True, invalidate=False))
    lines = [job_file([TimedSection("a", job, target)], 1).splitlines() for target in targets]
    assert [{line for line in text if line.startswith("invalidate")} for text in lines] == [
        {"invalidate=1"},
        {"invalidate=0"},
    ]


def test_the_twin_of_a_cached_mode_has_the_engine_of_qemu() -> None:
    threads = replace(CACHED, attach=Attach(cache="writeback", aio="threads"))
    undeclared = replace(CACHED, cached=False)
    arms = [Arm(Place.TWIN, mode) for mode in (CACHED, threads, undeclared)]
    assert [find_cached_engine(arm) for arm in (*arms, Arm(Place.GUEST, CACHED), Arm(Place.HOST))] == [
        "io_uring",
        "",
        "",
        "",
        "",
    ]
    target = Target("/dev/d", 0, 4096, direct=False, engine="io_uring")
    lines = job_file([TimedSection("a", build_cell(CACHED).job, target)], 1).splitlines()
    assert [line for line in lines if line.startswith("ioengine")][1:] == ["ioengine=io_uring"] * 2


# -------------------------------------------------------------------------------------------- what memory served


def test_the_share_that_memory_served_is_that_of_the_counters(declared: Run) -> None:
    cells = [cell for cell in declared.cells if cell.mode == FAST]
    assert len(cells) == 8
    for cell in cells:
        assert cell.cached is not None
        shares = cell.cached.writes if cell.job.writes else cell.cached.reads
        assert shares[Place.GUEST].share == pytest.approx(SERVED, rel=0.02)
        assert shares[Place.GUEST].low <= shares[Place.GUEST].share <= shares[Place.GUEST].high
        assert shares[Place.GUEST].slices == len(cell.rounds)
        assert shares[Place.GUEST].fio == pytest.approx(4 * shares[Place.GUEST].disk, rel=1e-6)
        assert cell.cached.working_set_bytes == 64 << 20


def test_a_declared_cache_makes_no_cell_void_and_an_undeclared_one_does() -> None:
    verdicts = {}
    for modes in ([FAST], []):
        run = synthetic_run(cached=[FAST], declared=modes, budget=None)
        verdicts[len(modes)] = {cell.verdict for cell in run.cells if cell.mode == FAST}
    assert verdicts == {1: {Verdict.UNJUDGED}, 0: {Verdict.VOID}}
    cell = run.cell("optane-raw-cached-randread-4k-qd32")
    assert cell.cached is None
    assert any("declare it with cached = true" in check.detail for check in cell.validity if not check.ok)


def test_bytes_that_qemu_does_not_count_make_a_cached_cell_void_all_the_same() -> None:
    counts = {"fio_read": 4000 << 20, "disk_read": 0, "qemu_read": 1000 << 20}
    slices = [build_measurement("guest:raw-cached", 1, counts=counts)]
    (check,) = check_bytes(slices, 4096, cached=True)
    assert not check.ok
    assert "QEMU 1000 MiB" in check.detail


def test_the_overhead_is_against_the_twin_and_the_disk_has_a_figure_of_its_own(declared: Run) -> None:
    cell = declared.cell("optane-raw-cached-randread-4k-qd32")
    metric, cached = cell.metrics["iops"], cell.cached
    assert cached is not None
    assert cached.against_direct is not None
    assert metric.overhead is not None
    assert metric.twin == metric.host
    assert metric.layer is None
    # The planted guest does three times the IOPS of the bare device.
    assert cached.direct == declared.cell("optane-host-randread-4k-qd32").metrics["iops"].host
    assert cached.against_direct.point == pytest.approx(-2, abs=0.2)
    assert metric.overhead.point != pytest.approx(cached.against_direct.point, abs=0.1)
    assert not cell.better_than_host
    assert not cell.ranked


def test_reads_beyond_those_of_fio_are_not_a_negative_share() -> None:
    slices = [build_measurement(counts={"fio_read": 100, "disk_read": 130})]
    share = measure_share(slices, "read")
    assert share is not None
    assert (share.share, share.disk) == (0.0, 130)
    assert measure_share([build_measurement(counts={"fio_read": 100})], "read") is None


def test_a_mirror_writes_each_byte_twice() -> None:
    mirror = Mode("raw-cached", Lvm(on=Md(1, 2)), Attach(cache="writeback"), cached=True)
    cell = build_cell(mirror, "randwrite-4k")
    assert count_copies(cell, "written") == 2
    assert count_copies(cell, "read") == 1
    slices = [build_measurement(counts={"fio_written": 1000, "disk_written": 500})]
    share = measure_share(slices, "written", count_copies(cell, "written"))
    assert share is not None
    assert (share.share, share.low, share.high) == (0.75, 0.75, 0.75)


def test_disks_that_move_more_than_fio_say_nothing_about_an_idle_cache() -> None:
    amplified = measure_share([build_measurement(counts={"fio_read": 1000, "disk_read": 3200})], "read")
    (note,) = describe_state(record(reads={Place.HOST: amplified, Place.GUEST: amplified}))
    assert note.startswith("the disks moved 3.2 times the bytes read by fio")


def record(**changes: object) -> CachedRecord:
    whole = measure_share([build_measurement(counts={"fio_read": 1000, "disk_read": 10})], "read")
    assert whole is not None
    shares = {str(Place.HOST): whole, str(Place.GUEST): whole}
    return replace(CachedRecord(64 << 20, 4 << 30, 2 << 30, shares, {}, "iops", (), None), **changes)  # type: ignore[arg-type]


def test_a_working_set_beyond_the_memory_is_partly_cached() -> None:
    assert list(describe_state(record())) == []
    (note,) = describe_state(record(working_set_bytes=3 << 30))
    assert note.startswith("partly cached: the job uses 3 GiB, and only 2 GiB of the host's memory were available")


def test_two_states_of_the_cache_and_a_cache_that_served_nothing_are_noted() -> None:
    cold = measure_share([build_measurement(counts={"fio_read": 1000, "disk_read": 900})], "read")
    none = measure_share([build_measurement(counts={"fio_read": 1000, "disk_read": 1000})], "read")
    (note,) = describe_state(record(reads={**record().reads, Place.GUEST: cold}))
    assert "memory served 10.0% of the bytes read in the guest and 99.0% in its twin" in note
    (note,) = describe_state(record(reads={Place.HOST: none, Place.GUEST: none}))
    assert note.startswith("declared as cached, but memory served nothing")
    (note,) = describe_state(record(reads={}))
    assert note.startswith("how much memory served is not known")


def test_a_share_that_changes_during_the_run_is_noted() -> None:
    cell = build_cell(CACHED)
    slices = [
        build_measurement("guest:raw-cached", number, counts={"fio_read": 1000, "disk_read": 900 if number < 4 else 0})
        for number in range(1, 7)
    ]
    (note,) = find_change(slices, cell)
    assert "changed during the run, from 10.0% to 100.0%" in note
    assert not list(find_change(slices[:2], cell))


def test_the_memory_of_the_host_is_read_with_its_counters() -> None:
    runner = LocalRunner()
    files = CounterFiles((), memory=True)
    now = float(Path("/proc/uptime").read_text().split()[0])
    printed = read_samples(runner, files, [now], deadline=30)
    (sample,) = parse_samples(printed, files, runner.name, expected=1)
    memory = sample.counters.memory
    assert memory is not None
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert memory.total == total
    assert 0 < memory.available <= total


# -------------------------------------------------------------------------------------------- in no comparison


def test_no_cached_cell_is_in_anything_that_ranks_or_compares_modes(declared: Run, section: Section) -> None:
    """The guest of the mode is three times as fast as all others: wherever it took part, it would be first."""
    answers = get_answers(section)
    ranked: dict[str, object] = {
        "headline": headline_of(section),
        "comparison": section.comparison,
        "modes": section.modes,
        "heat map": make_heat_map(section),
        "charts": [workload.series("throughput") for workload in section.workloads],
        "splits": [workload.split(32) for workload in section.workloads],
        "cells of workloads": [cell.mode for workload in section.workloads for cell in workload.cells],
        "alone": [cell.mode for cell in section.alone],
        "answers": answers,
        "options": compare_options(select_results(section)),
        "advice": [(view.answer, view.advice) for view in list_advice(declared)],
        "what advice is verified with": list(map_results(declared)),
        "table in a terminal": overhead_text(declared, width=140) + overhead_text(declared, width=60),
        "faster than the host": find_verdicts(declared.cells).faster,
    }
    assert answers
    for name, value in ranked.items():
        assert FAST not in repr(value), name


def test_the_page_markdown_and_terminal_have_cached_cells_in_a_table_of_their_own(
    declared: Run, section: Section, tmp_path: Path
) -> None:
    page = render_html(declared)
    assert "Served from memory" in page
    assert 'id="cell-optane-raw-cached-randread-4k-qd32"' in page
    figures = json.dumps(answers_json(declared, tmp_path))
    assert "in no comparison" not in figures
    (of_disk,) = answers_json(declared, tmp_path)["sections"]
    assert [cell["id"] for cell in of_disk["cached"]] == [cell.id for cell in declared.cells if cell.mode == FAST]
    assert of_disk["cached"][0]["read_from_memory"][Place.GUEST] == pytest.approx(SERVED, rel=0.02)
    for text in (markdown_table(declared), "\n".join(summary_lines(declared))):
        for line in text.splitlines():
            assert FAST not in line or "memory" in line or "| `" in line, line
    sentence = describe_cell(declared.cell("optane-raw-cached-randread-4k-qd32"))
    assert sentence in "\n".join(summary_lines(declared))
    assert "75.0 % of the bytes read from memory" in sentence
    # Only the planted guest has a cache.
    assert "better than the twin by 2" in sentence
    assert "times the disk with direct I/O, by memory" in sentence
    assert list(cached_blocks(section))


def test_a_run_of_cached_cells_only_says_that_no_figure_is_about_the_disk() -> None:
    run = synthetic_run(modes=["host", FAST], cached=[FAST], declared=[FAST], rounds=6)
    (only,) = find_sections(run)
    assert "served from memory" in headline_of(only).sentence
    assert any("no figure is about the disk" in line for line in summary_lines(run))
    (summary,) = (
        line for line in short_lines(run) if line.startswith(f"{FAST} is served from memory, not by the disk")
    )
    assert re.search(r": [0-9.]+ % (less|more) throughput \(.*\) than its host from the same cache, ", summary)
    assert "every cell with a guest is served from memory" in overhead_text(run, width=120)
    assert "Served from memory" in render_html(run)
    assert markdown_table(run)


def test_a_guest_that_loses_against_its_twin_says_how_much() -> None:
    run = synthetic_run(declared=["raw"], rounds=6)
    sentence = describe_cell(run.cell("optane-raw-randread-4k-qd32"))
    assert "0.0 % of the bytes read from memory (twin 0.0 %)" in sentence
    assert "] % lost against the twin with the same cache" in sentence
    assert any(note.startswith("declared as cached") for note in run.cell("optane-raw-randread-4k-qd32").notes)


def test_a_run_without_cached_cells_has_nothing_of_them() -> None:
    run = synthetic_run(modes=["host", "lvm"])
    (only,) = find_sections(run)
    assert list(cached_blocks(only)) == []
    assert "cached" not in answers_json(run, Path("x"))["sections"][0]


def test_a_cell_of_several_cached_guests_has_no_disk_beside_it() -> None:
    several = replace(CACHED, guests=2, layout=Lvm())
    assert list(Cell("d", "d", several, build_cell(CACHED).job).by_role) == [Place.HOST, Place.GUEST]


@pytest.mark.parametrize(
    ("tables", "line"),
    [
        (
            '[search.load]\nworkload = "randread-4k"\nmetric = "clat_p99"\nbound = "1 ms"\nmodes = ["raw-cached"]\n',
            'search.load.modes[0] = "raw-cached": memory serves it; allowed: modes without cached = true',
        ),
        (
            '[decompose.all]\nsteps = ["host", "twin:raw-cached", "guest:raw-cached"]\n',
            'steps[1] = "twin:raw-cached": memory serves this arm; allowed: arms of modes without cached = true',
        ),
    ],
)
def test_a_search_or_a_waterfall_has_no_cached_mode(tmp_path: Path, tables: str, line: str) -> None:
    assert line in "\n".join(complaint(tmp_path, good_but('"lvm"]', '"lvm", "raw-cached"]') + tables))


def test_variants_of_a_cached_mode_have_a_table_of_their_own() -> None:
    variants = {"old": Variant(), "slow": Variant()}
    run = synthetic_run(modes=["host", "lvm", FAST], declared=[FAST], rounds=6, variants=variants)
    direct, of_memory = difference_texts(run)
    assert "lvm" in direct
    assert FAST not in direct
    assert "served from memory" in of_memory
    assert "lvm" not in of_memory


def difference_texts(run: Run) -> list[str]:
    """What the terminal says of each table of variants."""
    text = "\n".join(difference_lines(run))
    return [f"slow against old{part}" for part in text.split("slow against old")[1:]]


def test_the_gauges_of_a_cached_cell_are_labelled(declared: Run) -> None:
    labels = [label_cell(cell).get("cached") for cell in declared.cells]
    assert {(cell.is_cached, label) for cell, label in zip(declared.cells, labels, strict=True)} == {
        (True, "yes"),
        (False, None),
    }
