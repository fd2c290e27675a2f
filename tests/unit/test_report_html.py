"""The page: what it shows without scripts, that it loads nothing, and that no text of a result becomes markup."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs
from pydantic import JsonValue

from harness.analysis import Estimate
from harness.features.heat_map import report as heat_map
from harness.features.heat_map.report import make_heat_map, split_heat_map
from harness.model.attach import Attach
from harness.model.base import Md
from harness.model.guest import GIB, GuestOptions
from harness.model.mode import ModeDetail
from harness.model.option import Effective
from harness.report import page as report_page
from harness.report.background import Facts, about_run, configuration, differing, provenance
from harness.report.html import render_html, write_report
from harness.report.section import Notes, ReportNote, find_sections, notes_of
from harness.results import CellRecord, Run, RunStore
from tests.build import RUN_ID, synthetic_run
from tests.unit.pages import Page, page

HOSTILE = "</script><script>alert(1)</script>"
MINUS = "\N{MINUS SIGN}"


@pytest.fixture(scope="module")
def smoke() -> Run:
    return synthetic_run()


@pytest.fixture(scope="module")
def smoke_html(smoke: Run) -> str:
    return render_html(smoke)


@pytest.fixture(scope="module")
def smoke_page(smoke_html: str) -> Page:
    return Page(smoke_html)


def overhead(cell: CellRecord) -> Estimate | None:
    return cell.metrics["iops" if cell.job.pattern.startswith("rand") else "bw"].overhead


def test_headline_names_best_and_worst_mode_with_intervals(smoke_page: Page) -> None:
    assert re.search(
        r"optane: passthrough loses least \(55\.6 % \[55\.4, 55\.8\]\), raw-cached loses most "
        r"\(67\.7 % \[67\.5, 67\.9\]\) of the host's throughput .* Geometric mean over 8 jobs in 3 blocks",
        smoke_page.text,
    )


def test_lab_that_is_not_representative_is_named_with_its_reason(smoke: Run, smoke_page: Page) -> None:
    assert f"Relative only: {smoke.lab.why}. Figures compare modes with the host" in smoke_page.text
    assert "Relative only" not in page(synthetic_run(modes=["host", "lvm"], representative=True)).text


def test_every_cell_is_in_a_table_with_its_overhead_and_verdict(smoke: Run, smoke_page: Page) -> None:
    rows = [row for row in smoke_page.rows if len(row) == 14 and row[0] != "iodepth"]
    assert len(rows) == len(smoke.cells)
    for cell, row in zip(smoke.cells, rows, strict=True):
        estimate = overhead(cell)
        if estimate is None:
            assert row[12] == "baseline"
            continue
        assert estimate.low is not None
        assert row[:2] == [str(cell.job.iodepth), cell.mode]
        assert row[5] == f"{estimate.point * 100:.1f}".replace("-", MINUS)
        assert row[6].startswith(f"[{estimate.low * 100:.1f},".replace("-", MINUS))
        assert row[7] == "3"
        assert row[12] == cell.verdict


def test_charts_and_heat_map_hold_the_same_overheads(smoke: Run, smoke_page: Page) -> None:
    figures = smoke_page.json("figures")
    shown = [text for row in figures["disk1-heat1"]["data"][0]["text"] for text in row if text]
    expected = [f"{found.point * 100:.1f}" for cell in smoke.cells if (found := overhead(cell)) is not None]
    assert sorted(shown) == sorted(expected)
    arms = {trace.get("meta") for trace in figures["disk1-w3-throughput"]["data"]}
    guests = ("passthrough", "lvm", "raw", "raw-cached")
    assert arms == {"host"} | {f"{line}:{mode}" for mode in guests for line in ("guest", "budget")} | {
        f"twin:{mode}" for mode in guests[1:]
    }
    assert all(identifier in {each.get("id") for _, each in smoke_page.tags} for identifier in figures)


def test_page_holds_plotly_once_and_loads_nothing(smoke_html: str, smoke_page: Page) -> None:
    assert smoke_page.unpacked("plotly") == get_plotlyjs()
    loads = [attributes[key] or "" for _, attributes in smoke_page.tags for key in ("src", "href") if key in attributes]
    assert loads
    assert all(load.startswith(("#", "raw/")) for load in loads)
    assert not {tag for tag, _ in smoke_page.tags} & {"link", "iframe", "img", "base", "object"}
    assert "default-src 'none'" in smoke_html
    assert "://" not in smoke_html


def test_the_page_of_a_large_run_keeps_its_tables_packed_and_small(
    monkeypatch: pytest.MonkeyPatch, smoke: Run, smoke_page: Page
) -> None:
    monkeypatch.setattr(report_page, "MOST_INLINE", 10)
    found = page(smoke)
    parts = found.json("parts")
    places = {each["data-part"] for _, each in found.tags if "data-part" in each}
    assert places < parts.keys()
    assert {f"proof-{cell.id}" for cell in smoke.cells} <= parts.keys()
    inside = Page("".join(parts.values()))
    assert not places & {each["data-part"] for _, each in inside.tags if "data-part" in each}
    assert [row for row in smoke_page.rows if len(row) == 14] == [row for row in inside.rows if len(row) == 14]
    assert found.json("figures").keys() <= {each.get("id") for _, each in (*found.tags, *inside.tags)}
    assert "so do the tables" in found.text


def test_names_from_results_never_become_markup() -> None:
    run = synthetic_run(disk=HOSTILE, modes=["host", "lvm"])
    cells = tuple(
        replace(cell, mode=f"lvm{HOSTILE}", notes=(HOSTILE,), raw=("javascript:alert(1)", "raw/../../x"))
        if cell.mode == "lvm"
        else cell
        for cell in run.cells
    )
    hostile = replace(run, cells=cells, provenance={HOSTILE: HOSTILE}, lab=replace(run.lab, why=HOSTILE))
    html = render_html(hostile)
    assert "<script>alert(1)" not in html
    found = Page(html)
    assert len(found.scripts) == 5
    assert f"{HOSTILE}: lvm{HOSTILE} loses 57.4 %" in found.text
    assert not [each for _, each in found.tags if "javascript" in (each.get("href") or "")]
    labels = found.json("figures")["disk1-heat1"]["layout"]["yaxis"]["ticktext"]
    assert all("<" not in label for label in labels)


def test_one_block_shows_no_interval_and_says_why() -> None:
    found = page(synthetic_run(rounds=1))
    assert "One block: A block is a sample, and the spread of one sample is unknown" in found.text
    assert not [row for row in found.rows if len(row) == 14 and row[6].startswith("[")]
    assert "`" not in found.text


def test_interrupted_run_says_so_first_and_shows_what_was_measured() -> None:
    run = synthetic_run(profile="standard", status="interrupted", measured=0.5)
    text = page(run).text
    said = text.index("This run was interrupted: 90 of 180 cells measured; the report shows these.")
    assert said < text.index("lose least")
    assert "Geometric mean over 18 of 36 jobs in 3 blocks" in text
    assert text.count("no block in which every arm was measured") == 90


def test_run_without_a_measurement_still_makes_a_report() -> None:
    found = page(synthetic_run(status="failed", measured=0))
    assert "This run failed: None of its 40 cells was measured" in found.text
    assert "optane: no attach mode was measured" in found.text
    assert found.json("figures") == {}


def test_a_failed_run_says_why_and_nothing_about_a_lab_that_measured_nothing() -> None:
    run = synthetic_run(status="failed", measured=0)
    cause = "host lab1: disk optane: /dev/nvme0n1 is mounted on /srv\n  -> unmount it"
    text = page(replace(run, run=replace(run.run, cause=cause))).text
    assert "This run failed: host lab1: disk optane: /dev/nvme0n1 is mounted on /srv -> unmount it. None of " in text
    assert "Relative only" not in text


def test_void_cells_keep_their_figures_and_skipped_ones_have_none_and_both_give_the_reason() -> None:
    run = synthetic_run(void=["optane-raw-randread-4k-qd32"], skipped=["lvm"], budget=0.2)
    found = page(run)
    rows = [row for row in found.rows if row and row[-1] == "evidence" and row[0] != "iodepth"]
    assert [row[2] for row in rows if row[1] == "lvm"] == ["the kernel of lab1 has no device-mapper"] * 8
    (void,) = (row for row in rows if len(row) == 14 and row[12] == "void")
    assert void[:2] == ["32", "raw"]
    assert [row for row in found.rows if row[1:] and row[1].startswith("bytes: fio 412 MiB, block device 96 MiB")]
    assert "void doubtful" in {attributes.get("class") for tag, attributes in found.tags if tag == "tr"}
    assert "exceeds" in {row[12] for row in rows if len(row) == 14}
    assert "Not in this comparison, because there are no usable values of the same jobs: lvm" in found.text


def test_disks_get_a_section_each() -> None:
    one, two = synthetic_run(modes=["host", "lvm"]), synthetic_run(modes=["host", "raw"], disk="hdd")
    both = replace(one, cells=one.cells + tuple(replace(cell, scenario="hdd") for cell in two.cells))
    assert [section.name for section in find_sections(both)] == ["optane", "hdd"]
    assert re.search(r"optane: lvm loses 57\.4 % .* hdd: raw loses 58\.\d %", page(both).text)


def test_report_is_made_from_the_store_alone(tmp_path: Path, smoke: Run, smoke_html: str) -> None:
    store = RunStore.create(tmp_path, RUN_ID)
    store.write_results(smoke)
    written = write_report(RunStore.open(tmp_path / "latest"))
    assert written.name == "index.html"
    assert written.read_text(encoding="utf-8") == smoke_html


def test_options_in_bytes_are_shown_as_sizes_and_what_was_requested_is_shown_once() -> None:
    run = synthetic_run(modes=["host", "lvm"])
    cells = []
    for cell in run.cells:
        attach = Attach(logical_block_size=4096) if cell.mode == "lvm" else None
        detail = ModeDetail(Md(0, 2, chunk=524288), attach)
        cells.append(replace(cell, mode_detail=detail))
    asked: dict[str, JsonValue] = {"asked": {"optane.mode.lvm": "an array"}}
    rows = page(replace(run, cells=tuple(cells), provenance={**run.provenance, **asked})).rows
    assert ["requested, layout: chunk", "512 KiB"] in rows
    assert ["requested, attach: logical_block_size", "4 KiB"] in rows
    assert not any(row[0].startswith("asked.") for row in rows if row)


def test_time_configuration_and_provenance_are_shown(smoke_page: Page) -> None:
    assert "fio ran 221 s of 245 s: 0.90" in smoke_page.text
    assert ["requested, attach: cache", "none", "none", "none", "writeback"] in smoke_page.rows
    assert ["read back: qemu_cache_direct", "yes", "yes", "yes", "no"] in smoke_page.rows
    assert ["requested, attach: queues", "the hypervisor's default"] in smoke_page.rows
    assert ["cpu.mitigations.spectre_v2", "IBRS"] in smoke_page.rows
    assert ["governor", "not known"] in smoke_page.rows
    assert "raw is not aligned with the others (every cell of raw)" in smoke_page.text


def test_a_note_is_once_for_all_cells_of_some_modes_and_beside_the_figures_if_a_measured_one_lacks_it() -> None:
    note, left_out = "the fan was loud", "optane-lvm-seqread-256k-qd1"
    cells = tuple(
        cell if cell.mode == "host" or cell.id == left_out else replace(cell, notes=(note,))
        for cell in synthetic_run().cells
    )
    scattered = _notes(cells)
    assert note not in {each.text for each in scattered.general}
    assert scattered.own["optane-raw-seqread-256k-qd1"] == (note,)
    skipped = tuple(replace(cell, metrics={}) if cell.id == left_out else cell for cell in cells)
    assert ReportNote(note, "every cell of a guest") in _notes(skipped).general


def _notes(cells: tuple[CellRecord, ...]) -> Notes:
    return notes_of(replace(synthetic_run(), cells=cells).cells)


def test_options_that_a_passed_through_disk_does_not_have_are_no_differences_of_the_others() -> None:
    table = Facts(
        ("", "lvm", "raw", "vfio"),
        (
            ("requested, layout: filesystem", "", "ext4", ""),
            ("requested, attach: device", "disk", "disk", "vfio"),
            ("requested, attach: cache", "none", "none", ""),
            ("requested, attach: aio", "native", "io_uring", ""),
        ),
    )
    apart, same = differing(table)
    assert [row[0].split(": ")[1] for row in apart.rows] == ["filesystem", "device", "aio"]
    assert same.rows == (("requested, attach: cache", "none"),)


def test_a_wide_heat_map_is_in_parts_of_whole_workloads(monkeypatch: pytest.MonkeyPatch, smoke: Run) -> None:
    section = find_sections(smoke)[0]
    assert [part.columns for part in split_heat_map(section)] == [make_heat_map(section).columns]
    monkeypatch.setattr(heat_map, "MOST_COLUMNS", 5)
    parts = split_heat_map(section)
    assert [len(part.columns) for part in parts] == [4, 4]
    assert parts[0].columns + parts[1].columns == make_heat_map(section).columns
    assert parts[1].values[0] == make_heat_map(section).values[0][4:]
    found = page(smoke)
    assert {"disk1-heat1", "disk1-heat2"} <= found.json("figures").keys()
    assert "seqread-256k to seqwrite-256k" in found.text


def test_checksums_of_images_are_apart_from_other_versions(smoke: Run) -> None:
    images: JsonValue = {"guest": {"fio": "fio-3.39", "sha256": {"vmlinux": "00ff"}}}
    facts, checksums = provenance(replace(smoke, provenance={"images": images}))
    assert facts.rows == (("images.guest.fio", "fio-3.39"),)
    assert checksums.rows == (("images.guest.sha256.vmlinux", "00ff"),)


def test_the_guests_size_is_one_line_of_the_run(smoke: Run) -> None:
    two, four = Effective(qemu_vcpus=2, qemu_memory=GIB), Effective(qemu_vcpus=4, qemu_memory=GIB)
    same = replace(smoke, cells=tuple(replace(cell, effective=two) for cell in smoke.cells))
    assert ("guest", "2 vCPUs, 1 GiB") in about_run(same).rows
    mode = smoke.cells[0].mode
    sizes = tuple(replace(cell, effective=two if cell.mode == mode else four) for cell in smoke.cells)
    rows = {row[0]: row[1] for row in about_run(replace(smoke, cells=sizes)).rows if row[0].startswith("guest")}
    assert rows[f"guest of {mode}"] == "2 vCPUs, 1 GiB"
    assert set(rows.values()) == {"2 vCPUs, 1 GiB", "4 vCPUs, 1 GiB"}


def test_the_requested_options_of_a_guest_are_beside_those_of_its_disk(smoke: Run) -> None:
    asked = GuestOptions(vcpus=2, pin_vcpus=("2", "3"))
    cells = tuple(replace(cell, mode_detail=replace(cell.mode_detail, guest=asked)) for cell in smoke.cells)
    shown = {row[0] for row in configuration(replace(smoke, cells=cells).cells).rows}
    assert {"requested, guest: vcpus", "requested, guest: pin_vcpus"} <= shown
    assert "requested, guest: memory" not in shown
