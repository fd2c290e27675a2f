"""What a report says of a command: the side that is responsible, the CPU alone, and flushes that QEMU ignores."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.analysis import Better
from harness.features.commands.report import command_blocks, describe_command, describe_cpu, describe_side
from harness.features.commands.request import CommandRecord, note_ignored_flushes
from harness.model.attach import Attach
from harness.model.layout import RawFile
from harness.model.mode import Cell, Mode
from harness.model.workloads import parse_workloads
from harness.report.section import Section, find_sections
from harness.results import Run
from tests.build import synthetic_run, with_records
from tests.unit.pages import page


def scatter(value: float, seed: int, share: float = 0.02) -> tuple[float, ...]:
    chance = random.Random(seed)
    return tuple(value * chance.lognormvariate(0, share) for _ in range(10))


def record_of(
    run: Run,
    host: float,
    guest: float,
    *,
    mode: str = "raw",
    better: Better = "higher",
    cpu: float = 1.0,
    cpus: dict[str, int] | None = None,
) -> CommandRecord:
    cell = run.cells[0]
    return CommandRecord(
        id=f"g-command-fsyncs-{mode}",
        name="fsyncs",
        scenario=cell.scenario,
        host=cell.host,
        disk=cell.disk,
        mode=mode,
        command="syncload fsyncs 3",
        filesystem="ext4",
        unit="fsync/s",
        better=better,
        on_host=scatter(host, 1) if host else (),
        in_guest=scatter(guest, 2),
        raw=(),
        problem=None,
        cpu_on_host=scatter(4000, 3),
        cpu_in_guest=scatter(4000 * cpu, 4),
        cpus=cpus or {"host": 2, "guest": 2},
    )


@pytest.fixture(scope="module")
def run() -> Run:
    return synthetic_run(modes=["host", "lvm", "raw"], rounds=3)


def section_of(run: Run, records: Sequence[CommandRecord] = ()) -> Section:
    (section,) = find_sections(with_records(run, "commands", tuple(records)))
    return section


@pytest.mark.parametrize(
    ("host", "guest", "better", "side"),
    [
        (1000, 980, "higher", "the guest adds less than 5 %"),
        (1000, 700, "higher", "its disk is responsible for most of it, not the VM"),
        (1000, 200, "higher", "the VM is responsible for most of it, not the disk"),
        (1000, 500, "higher", "undecided"),
        (1000, 5000, "higher", "which is impossible if both store what they sync"),
        (10e6, 14e6, "lower", "its disk is responsible for most of it, not the VM"),
        (10e6, 90e6, "lower", "the VM is responsible for most of it, not the disk"),
        (10e6, 1e6, "lower", "which is impossible if both store what they sync"),
    ],
)
def test_the_side_that_is_responsible_is_named(run: Run, host: float, guest: float, better: Better, side: str) -> None:
    record = record_of(run, host, guest, better=better)
    assert side in describe_side(record, section_of(run, [record]))


def test_a_side_is_named_only_with_figures_of_both(run: Run) -> None:
    assert describe_side(record_of(run, 0, 900), section_of(run)) == ""


def test_a_figure_of_memory_is_refused_and_the_other_one_stays(run: Run) -> None:
    reads = {"host": (4 << 30, 40 << 20), "guest": (512 << 20, 510 << 20)}
    record = replace(record_of(run, 4536, 47), reads=reads)
    sentence = describe_side(record, section_of(run, [record]))
    assert sentence.startswith("the figure of the host is refused, because it is that of the host's memory")
    assert (
        "read 4 GiB, of which the disk gave 40 MiB; of what the guest's processes read, the disk gave 99.6 %"
        in sentence
    )
    assert "on the host" not in describe_command(record)
    other = replace(record, reads={"host": reads["guest"], "guest": reads["host"]})
    assert "in the guest" not in describe_command(other)
    assert "fsync/s on the host" in describe_command(other)


def test_flushes_that_qemu_ignores_are_named_with_what_the_host_does(run: Run) -> None:
    cells = tuple(
        replace(cell, effective=replace(cell.effective, qemu_cache_no_flush=cell.mode == "raw")) for cell in run.cells
    )
    planted = replace(run, cells=cells)
    records = [record_of(run, 1000, 900, mode="lvm"), record_of(run, 0, 90_000)]
    sentence = describe_side(records[1], section_of(planted, records))
    assert sentence.startswith("QEMU ignores the flushes of this guest (cache unsafe)")
    assert re.search(r"says nothing about the disk; the host alone has [0-9 ]+ fsync/s on lvm", sentence)
    assert "ignores" not in describe_side(records[0], section_of(planted, records))
    assert "QEMU ignores the flushes" in page(with_records(planted, "commands", tuple(records))).text


@pytest.mark.parametrize("workload", ["wal", "randwrite-4k"])
@pytest.mark.parametrize("cache", ["unsafe", "none"])
def test_a_cell_says_that_its_flushes_are_ignored(cache: str, workload: str) -> None:
    attach = Attach(cache="unsafe") if cache == "unsafe" else Attach()
    cell = Cell("d", "ssd1", Mode("raw", RawFile(), attach), parse_workloads(workload)[0].job(1, ramp=0, seconds=1))
    notes = list(note_ignored_flushes((), cell))
    assert bool(notes) == (cache == "unsafe" and workload == "wal")


def test_the_cpu_alone_is_told_from_the_path_to_the_disk(run: Run) -> None:
    both = describe_cpu(record_of(run, 1000, 500, cpu=0.9, cpus={"host": 8, "guest": 2}))
    assert both.startswith("the CPU alone is 1")
    assert " would remain for the path to the disk. The guest has 2 of the host's 8 CPUs" in both
    assert "can be all of the loss" in describe_cpu(record_of(run, 1000, 800, cpu=0.75))


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_what_remains_beside_the_cpu_is_the_ratio_of_both(run: Run, better: Better) -> None:
    figures = (1000.0, 500.0) if better == "higher" else (500.0, 1000.0)
    left = record_of(run, *figures, better=better, cpu=0.8).loss_beside_cpu
    assert left is not None
    # Half as fast on a CPU of 80 %: 62.5 % of the speed, 1.6 times the time.
    assert left.point == pytest.approx(0.375 if better == "higher" else 0.6, abs=0.05)


def test_a_report_has_the_sentences_of_each_command(run: Run) -> None:
    record = record_of(run, 1000, 200, cpu=0.95)
    text = page(with_records(run, "commands", (record,))).text
    assert "fsyncs on raw: the host alone takes" in text
    assert "CPU alone, %" in text
    assert list(command_blocks(section_of(run))) == []
