"""Published figures beside the results, in the page, the terminal and Markdown."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

import pytest

from harness.analysis import Estimate
from harness.features.published.report import PublishedFigures, PublishedRow, describe_gains, find_published
from harness.model.attach import Attach
from harness.model.base import Md
from harness.model.disk import DiskClass, DiskFacts, DiskRecord
from harness.model.layout import Layout
from harness.model.mode import ModeDetail
from harness.report.markdown import markdown_table
from harness.report.section import find_sections, outcome_counts
from harness.report.terminal import summary_lines
from harness.results import CellRecord, Run
from tests.build import synthetic_run
from tests.unit.pages import page
from tests.unit.path_runs import measured

NO_GATE = "For comparison only: no verdict, budget or exit status depends on published figures."
JOB = "randread-4k"


def linked(run: Run, name: str = "local_disks.optane") -> Run:
    return replace(run, run=replace(run.run, published={"optane": name}))


def one_job(*, representative: bool = False, void: Collection[str] = (), modes: Collection[str] = ()) -> Run:
    """Random reads of the host and of guests at two depths, with a link to the figures of the study."""
    chosen = ["host", *(modes or ["lvm"])]
    return linked(synthetic_run(workloads=[JOB], modes=chosen, representative=representative, void=void))


def losing(run: Run, share: float, metric: str = "iops") -> Run:
    """The run with guests that all lose `share` of the host's throughput."""

    def changed(cell: CellRecord) -> CellRecord:
        found = cell.metrics[metric]
        if found.overhead is None:
            return cell
        loss = Estimate(share, share - 0.01, share + 0.01, 3)
        guest = tuple(value * (1 - share) for value in found.host)
        return replace(cell, metrics={**cell.metrics, metric: replace(found, overhead=loss, guest=guest)})

    return replace(run, cells=tuple(map(changed, run.cells)))


def on(run: Run, layout: Layout) -> Run:
    """The run with another layout under its guests. Their twins are then the layout on the host."""
    cells = (
        replace(each, mode_detail=ModeDetail(layout, Attach())) if each.mode != "host" else each for each in run.cells
    )
    return replace(run, cells=tuple(cells))


def view(run: Run) -> PublishedFigures:
    (section,) = find_sections(run)
    figures = find_published(section)
    assert figures is not None
    return figures


def row(run: Run, mode: str = "lvm") -> PublishedRow:
    (found,) = [each for each in view(run).rows if each.mode == mode]
    return found


def shown(run: Run) -> list[str]:
    """The lines of the terminal about published figures."""
    lines = summary_lines(run)
    start = next(number for number, line in enumerate(lines) if line.startswith("published: "))
    end = next(number for number, line in enumerate(lines[start + 1 :], start + 1) if not line.startswith("  "))
    return lines[start:end]


def test_page_terminal_and_markdown_have_the_figure_and_its_source() -> None:
    run = one_job(representative=True)
    for text in (page(run).text, "\n".join(summary_lines(run)), markdown_table(run)):
        assert "article 844577 on pcnews.ru" in text
        assert "Intel Optane 900P 280 GB, PCIe 3.0 x4" in text
        assert NO_GATE in text
        assert "35 000 IOPS" in text.replace("\N{NARROW NO-BREAK SPACE}", " ")
        assert "0.175 (82.5 % lost)" in text


def test_the_disk_of_the_study_is_named_below_the_figures_and_never_above_those_of_another_disk() -> None:
    run = one_job(representative=True)
    for text in (page(run).text, "\n".join(summary_lines(run)), markdown_table(run)):
        before, _, after = text.partition("Intel Optane 900P")
        assert "0.175 (82.5 % lost)" in before
        assert "82.5 % lost" not in after


def test_the_chart_has_the_published_ratio_and_ours_with_its_interval() -> None:
    run = one_job()
    (cell,) = [each for each in run.cells if each.mode == "lvm" and each.job.iodepth == row_depth(run)]
    loss = cell.metrics["iops"].overhead
    assert loss is not None
    assert loss.high is not None
    theirs, ours = page(run).json("figures")["disk1-published"]["data"]
    assert (theirs["x"], theirs["y"]) == ([pytest.approx(0.175, abs=0.001)], [f"{JOB} lvm"])
    assert (ours["x"], ours["y"]) == ([pytest.approx(1 - loss.point)], [f"{JOB} lvm"])
    assert ours["x"][0] - ours["error_x"]["arrayminus"][0] == pytest.approx(1 - loss.high)


def test_rows_without_a_ratio_of_ours_are_not_drawn() -> None:
    void = [f"optane-lvm-{JOB}-qd{depth}" for depth in (1, 32)]
    found = page(one_job(void=void))
    assert "disk1-published" not in found.json("figures")
    assert "ours is not a result (void)" in found.text


def row_depth(run: Run) -> int:
    own = row(run).own
    assert own is not None
    return own.iodepth


def test_page_links_to_the_source_and_shows_setup_and_notes() -> None:
    found = page(one_job())
    assert [each["href"] for tag, each in found.tags if tag == "a" and "pcnews.ru" in (each.get("href") or "")]
    assert "The study's setup: Asus Z10PE-D16" in found.text
    assert "The study does not state the cache mode and the bus of its guests." in found.text


def test_a_run_without_a_link_shows_nothing() -> None:
    run = synthetic_run()
    assert run.run.published == {}
    assert all(find_published(section) is None for section in find_sections(run))
    assert "Published figures" not in page(run).text
    assert "ublished figures" not in "\n".join(summary_lines(run)) + markdown_table(run)


def test_a_lab_that_is_not_real_hardware_shows_ratios_and_no_absolute_values_and_says_why() -> None:
    lines = shown(one_job())
    assert "This lab does not represent real hardware, so its absolute values cannot be compared" in lines[0]
    assert "no ratio is published: 1 figure" in lines[0]  # the host's own IOPS
    assert len(lines) == 3
    assert lines[1].startswith("  randread-4k lvm: published guest/host 0.175 (82.5 % lost), iodepth not stated; ours ")
    assert "IOPS" not in lines[1]
    (cells,) = [each for each in page(one_job()).rows if each[:2] == [JOB, "lvm"]]
    assert not [each for each in cells if "IOPS" in each]


def test_real_hardware_shows_absolute_values_of_host_and_guest() -> None:
    lines = shown(one_job(representative=True))
    assert "does not represent" not in lines[0]
    assert lines[1] == (
        "  randread-4k host: published 200 000 IOPS, iodepth not stated; ours 198 000 IOPS, iodepth 32; "
        "the nearest of our 2 depths"
    )
    assert lines[2].startswith(
        "  randread-4k lvm: published 35 000 IOPS, guest/host 0.175 (82.5 % lost), iodepth not stated; ours 40 800 IOPS"
    )


def test_a_figure_without_a_depth_says_so_and_is_compared_with_the_nearest_depth() -> None:
    found = row(one_job())
    assert found.depth == "not stated"
    assert [cell.iodepth for cell in found.cells] == [1, 32]
    assert found.own is not None
    assert found.own.ratio is not None
    distances = {cell.iodepth: abs(1 - (cell.overhead.point if cell.overhead else 0) - 0.175) for cell in found.cells}
    assert found.own.iodepth == min(distances, key=lambda depth: distances[depth])
    assert found.remarks == ("the nearest of our 2 depths",)


def test_a_figure_with_a_depth_is_shown_beside_that_depth_alone() -> None:
    run = linked(
        synthetic_run(profile="standard", workloads=[JOB], modes=["host", "lvm"]), "public_reports.consumer_nvme"
    )
    rows = view(run).rows
    assert [each.depth for each in rows] == ["64", "64"]
    assert [[cell.iodepth for cell in each.cells] for each in rows] == [[64], [64]]
    assert [each.published_ratio for each in rows] == [
        "0.500 to 0.550 (45.0 to 50.0 % lost)",
        "0.800 to 0.850 (15.0 to 20.0 % lost)",
    ]


@pytest.mark.parametrize(
    ("lost", "difference"),
    [
        (0.825, ()),
        (0.80, ()),
        (0.88, ()),
        (0.70, ("our guest/host is higher by a factor of 1.71",)),
        (0.20, ("our guest/host is higher by a factor of 4.57",)),
        (0.95, ("our guest/host is lower by a factor of 3.50",)),
    ],
)
def test_a_big_difference_is_noted_with_its_size_and_a_small_one_is_not(lost: float, difference: tuple[str]) -> None:
    run = losing(one_job(), lost)
    assert tuple(each.sentence for each in row(run).differences) == difference
    for text in (page(run).text, "\n".join(shown(run)), markdown_table(run)):
        assert ("by a factor of" in text) == bool(difference)
        assert all(each in text for each in difference)
        assert NO_GATE in text


def test_absolute_values_that_differ_a_lot_are_noted_on_real_hardware_only() -> None:
    def slower(run: Run) -> Run:
        cells = []
        for cell in run.cells:
            iops = cell.metrics["iops"]
            host, guest = (tuple(value / 4 for value in values) for values in (iops.host, iops.guest))
            slow = replace(iops, host=host, guest=guest, adjusted={})
            cells.append(replace(cell, metrics={**cell.metrics, "iops": slow}))
        return replace(run, cells=tuple(cells))

    (host,) = row(slower(one_job(representative=True)), "host").differences
    assert host.sentence.startswith("our value (IOPS) is lower by a factor of 4.0")
    assert row(slower(one_job())).differences == ()


def test_what_differs_a_lot_comes_first_in_the_terminal() -> None:
    run = one_job(modes=["lvm", "raw"])
    bad = losing(replace(run, cells=tuple(cell for cell in run.cells if cell.mode == "raw")), 0.2).cells
    run = replace(run, cells=(*(cell for cell in run.cells if cell.mode != "raw"), *bad))
    assert [line.split()[1] for line in shown(run)[1:-1]] == ["raw:", "lvm:"]


def test_a_void_cell_is_not_compared() -> None:
    found = row(one_job(void=["optane-lvm-randread-4k-qd1", "optane-lvm-randread-4k-qd32"]))
    assert found.own is None
    assert found.differences == ()
    assert found.remarks == ("ours is not a result (void)",)
    one_left = row(one_job(void=["optane-lvm-randread-4k-qd32"]))
    assert one_left.own is not None
    assert one_left.own.iodepth == 1


def test_differences_change_no_verdict() -> None:
    run = synthetic_run(workloads=[JOB], modes=["host", "lvm"])
    before, after = run, linked(run)
    assert outcome_counts(before.cells) == outcome_counts(after.cells)
    assert [cell.outcome for cell in before.cells] == [cell.outcome for cell in after.cells]


def test_words_of_a_source_without_a_number_are_shown() -> None:
    run = linked(synthetic_run(workloads=["seqread-256k"], modes=["host", "raw"]))
    (line,) = shown(run)[1:-1]
    assert "seqread-256k raw: published 2 to 3 times the others at low depth, converging with load" in line
    assert "factor" not in line


def test_an_array_is_compared_by_how_it_scales() -> None:
    run = on(linked(synthetic_run(workloads=["seqread-1m"], modes=["host", "lvm"]), "raid0_scaling"), Md(0, 16))
    found = row(run, "lvm, on the host")
    assert (found.relation, found.published_ratio, found.depth) == ("array/disk", "6.13", "1, 2, 4, 8, 16, 32")
    layer = [cell.metrics["bw"].layer for cell in found.cells]
    farthest = min(1 - each.point for each in layer if each is not None)
    assert found.own is not None
    assert found.own.ratio is not None
    assert found.own.ratio.point == pytest.approx(farthest)
    assert found.remarks == (f"our array/disk is lower by a factor of {1600 / 261 / farthest:.2f}",)


def test_a_study_of_guests_without_a_host_has_nothing_to_compare_in_an_emulated_lab() -> None:
    def study(*, representative: bool) -> Run:
        run = synthetic_run(workloads=[JOB], modes=["host", "lvm"], representative=representative)
        return on(linked(run, "array_vm"), Md(5, 6))

    assert shown(study(representative=False))[0].endswith("no ratio is published: 3 figures.")
    assert len(shown(study(representative=False))) == 1
    real = shown(study(representative=True))[1:-1]
    assert [line.partition("; ours")[0].split("published ")[1] for line in real] == [
        "11.8 MB/s, iodepth 1",
        "2 870 IOPS, iodepth 1",
        "339 us, iodepth 1",
    ]


def test_a_guest_on_an_array_is_relative_to_the_array_in_the_same_cell() -> None:
    run = synthetic_run(workloads=[JOB], modes=["host", "lvm"], representative=True)
    found = view(on(linked(run, "array_vm"), Md(5, 6))).rows[0]
    virtualisation = run.cell("optane-lvm-randread-4k-qd1").metrics[found.metric].virtualisation
    assert virtualisation is not None
    assert found.own is not None
    assert found.own.ratio is not None
    assert found.own.ratio.point == pytest.approx(1 - virtualisation.point)
    assert found.relation == "guest/array"


def test_a_link_without_a_figure_for_the_run_says_so() -> None:
    run = linked(synthetic_run(workloads=["randread-8k"], modes=["host", "lvm"]))
    assert "None of these figures is for a mode and job of this run." in shown(run)[0]


def test_a_run_of_another_version_may_name_figures_that_are_not_known() -> None:
    run = linked(one_job(), "local_disks.<b>floppy")
    assert 'The figures "local_disks.<b>floppy". This version of virt-overhead does not have them.' in page(run).text
    assert shown(run) == [
        'published: The figures "local_disks.<b>floppy". This version of virt-overhead does not have them.'
    ]


def test_a_second_controller_is_compared_with_what_the_study_found() -> None:
    run = measured(["seqread-1m", "randread-4k", "randwrite-4k"])
    cells = run.records
    (sentence,) = describe_gains("raid0_scaling", run.scalings, cells)
    # The disks and controllers of the lab: two of them do twice as much. The study has 1 MiB at depth 1 only.
    assert re.fullmatch(
        r"`raid0-16-paths` against `raid0-16`: "
        r"(1\.9\d|2\.0\d) times \[\S+, \S+\] in randread-4k-qd32 \(published: 2\); "
        r"(1\.9\d|2\.0\d) times \[\S+, \S+\] in randwrite-4k-qd32 \(published: 1\)\.",
        sentence,
    )
    assert [*describe_gains("array_vm", run.scalings, cells), *describe_gains(None, run.scalings, cells)] == []
    doubtful = [replace(record, doubt="bytes twin:raid0-16") for record in run.scalings]
    assert [*describe_gains("raid0_scaling", doubtful, cells)] == []


def of_class(run: Run, disk_class: DiskClass | None) -> Run:
    """The run on a disk that its host describes."""
    (name,) = {cell.disk for cell in run.cells}
    return replace(run, disks=(DiskRecord(name=name, facts=DiskFacts(device="nvme0n1", disk_class=disk_class)),))


def test_figures_of_another_disk_of_the_class_are_shown_without_being_named() -> None:
    run = synthetic_run(profile="standard", workloads=[JOB], modes=["host", "lvm"], representative=True)
    for text in (page(of_class(run, "nvme")).text, "\n".join(summary_lines(of_class(run, "nvme")))):
        assert "The disk is another one of the same class, with the same job." in text
        assert NO_GATE in text
        assert "0.500 to 0.550 (45.0 to 50.0 % lost)" in text
        assert "The published figures are of: a consumer NVMe disk." in text
        assert "PCIe 5.0" not in text  # no job of this run
    for disk_class in (None, "hdd"):
        assert "Published figures" not in page(of_class(run, disk_class)).text


def test_figures_of_the_class_stand_below_those_that_the_scenario_names_and_are_not_repeated() -> None:
    run = synthetic_run(profile="standard", workloads=[JOB], modes=["host", "lvm"])
    both = shown_headings(of_class(linked(run), "nvme"))
    assert [line.partition(" (")[0] for line in both] == [
        "published: Local HDD, SATA SSD and Optane: host, passthrough, LVM and RAW under Proxmox VE 5.2",
        "published: Single figures from public reports",
    ]
    assert len(shown_headings(of_class(linked(run, "public_reports.consumer_nvme"), "nvme"))) == 1


def shown_headings(run: Run) -> list[str]:
    return [line for line in summary_lines(run) if line.startswith("published: ")]
