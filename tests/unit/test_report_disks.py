"""What the reports say of the disks of a run: what they are, how they changed, and what to know about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from pydantic import JsonValue

from harness.model.disk import (
    ArrayFacts,
    Controller,
    DiskFacts,
    DiskHealth,
    DiskRecord,
    NetworkPath,
    PcieLink,
    SerialLink,
)
from harness.report.contents import NO_MODEL, disk_notes, disk_sentence, disks_of
from harness.report.markdown import markdown_table
from harness.report.terminal import summary_lines
from harness.results import Run
from tests.build import synthetic_run
from tests.unit.pages import page

FAST = DiskFacts(
    device="nvme0n1",
    disk_class="nvme",
    vendor="Samsung",
    model="Samsung SSD 990 PRO 2TB",
    firmware="4B2QJXD7",
    size_bytes=2_000_398_934_016,
    logical_block_bytes=512,
    physical_block_bytes=4096,
    pcie=PcieLink(16.0, 4, 16.0, 4),
    scheduler="none",
    write_cache="write back",
    numa_node=1,
)
HEALTH = DiskHealth(at=1.0, source="smartctl", celsius=38, used_percent=2, written_bytes=10 << 40, errors=0)


def a_run(*disks: DiskRecord, asked: Mapping[str, JsonValue] | None = None) -> Run:
    run = synthetic_run(workloads=["randread-4k"], modes=["host", "lvm"])
    return replace(run, disks=disks, provenance={**run.provenance, "asked": dict(asked or {})})


def sentence(facts: DiskFacts, before: DiskHealth | None = None, after: DiskHealth | None = None) -> str:
    record = DiskRecord(name="optane", facts=facts, before=before, after=after)
    (disk,) = disks_of(a_run(record), "optane", "optane")
    return disk_sentence(*disk)


def test_a_disk_is_described_in_one_sentence() -> None:
    assert sentence(FAST) == (
        "optane: Samsung SSD 990 PRO 2TB, firmware 4B2QJXD7, 2 000 GB (1.819 TiB), blocks of 512/4096 B, "
        "PCIe 16 GT/s x4, scheduler none, write back, NUMA node 1"
    )


def test_a_disk_on_a_network_is_described_with_the_network() -> None:
    network = NetworkPath("NVMe/TCP", "nqn.2026-11.x:disk", ("192.0.2.1:4420", "192.0.2.2:4420"))
    by = "NVMe/TCP at 192.0.2.1:4420 and 192.0.2.2:4420 (nqn.2026-11.x:disk)"
    assert f", by {by}, scheduler none" in sentence(replace(FAST, pcie=None, network=network))
    assert by in page(a_run(DiskRecord(name="optane", facts=replace(FAST, network=network)))).text


def test_a_disk_that_reports_nothing_is_not_given_a_name() -> None:
    assert sentence(DiskFacts(device="sim_optane")) == f"optane: {NO_MODEL}"


def test_temperature_and_wear_are_those_before_and_after() -> None:
    after = replace(HEALTH, celsius=52, written_bytes=(10 << 40) + (64 << 30), errors=3)
    assert sentence(FAST, HEALTH, after).endswith(
        "; 38 to 52 C, 2 % of its rated endurance used, 64 GiB written meanwhile by its own count, "
        "3 media errors, 3 of them new"
    )
    assert sentence(FAST, HEALTH).endswith("; 38 C, 2 % of its rated endurance used, 10 TiB written in its life")


def test_an_array_is_described_by_its_controller() -> None:
    facts = DiskFacts(
        device="sda",
        vendor="BROADCOM",
        model="MR9361-8i",
        array=ArrayFacts("RAID5", 256 << 10, 6, "RWBD", "storcli64"),
        controller=Controller("Broadcom", "MegaRAID 9361-8i", "megaraid_sas", "4.680", PcieLink(8.0, 4, 8.0, 8)),
    )
    assert sentence(facts) == (
        "optane: BROADCOM MR9361-8i, RAID5 of 6 disks, strips of 256 KiB, cache policy RWBD, "
        "behind Broadcom MegaRAID 9361-8i, firmware 4.680, driver megaraid_sas, PCIe 8 GT/s x4 of 8 GT/s x8"
    )


def test_disks_that_are_alike_are_described_once_and_the_first_is_the_baseline() -> None:
    facts = DiskFacts(device="sda", model="DC500M", serial_link=SerialLink("SATA", 6.0))
    names = ("b", "a", "c")
    records = [DiskRecord(name=name, facts=replace(facts, device=f"sd{name}")) for name in names]
    run = a_run(*records, asked={f"optane.disk.{name}": "" for name in ("a", "b", "c")})
    (disk,) = disks_of(run, "optane", "b")
    assert disk_sentence(*disk) == "b, a, c: DC500M, SATA 6 Gbit/s"
    with_health = replace(run, disks=(replace(records[0], before=HEALTH), *records[1:]))
    assert [names for names, _ in disks_of(with_health, "optane", "b")] == [("b",), ("a", "c")]


def test_disks_of_other_scenarios_are_left_out() -> None:
    run = a_run(DiskRecord(name="optane", facts=FAST), DiskRecord(name="other", facts=FAST))
    assert [names for names, _ in disks_of(run, "optane", "optane")] == [("optane",)]


def test_a_note_is_said_once_with_all_of_its_disks() -> None:
    note = "temperature and wear are not known, because host node1 has no smartctl: apt-get install smartmontools"
    records = [
        DiskRecord(name="a", facts=FAST, notes=(note,)),
        DiskRecord(name="b", facts=replace(FAST, model="X"), notes=("its link is slow", note)),
    ]
    disks = disks_of(a_run(*records, asked={"optane.disk.b": ""}), "optane", "a")
    assert disk_notes(disks) == (f"a, b: {note}", "b: its link is slow")


@pytest.mark.parametrize("show", [lambda run: page(run).text, lambda run: "\n".join(summary_lines(run))])
def test_every_report_shows_the_disk_and_its_notes(show: object) -> None:
    assert callable(show)
    text = show(a_run(DiskRecord(name="optane", facts=FAST, before=HEALTH, notes=("its link is slow",))))
    assert "optane: Samsung SSD 990 PRO 2TB, firmware 4B2QJXD7" in text
    assert "38 C" in text
    assert "optane: its link is slow" in text


def test_markdown_shows_the_disk_without_its_markup() -> None:
    text = markdown_table(a_run(DiskRecord(name="optane", facts=replace(FAST, model="<b>|Disk|</b>"))))
    assert "- disk optane: Samsung \\<b\\>\\|Disk\\|\\</b\\>" in text


def test_the_page_has_all_facts_in_a_table_and_no_markup_of_a_disk() -> None:
    facts = replace(FAST, model="<script>x</script>")
    found = page(a_run(DiskRecord(name="optane", facts=facts, below=(FAST,), before=HEALTH, after=HEALTH)))
    rows = {row[0]: row[1] for row in found.rows if len(row) == 2}
    assert rows["model"] == "Samsung <script>x</script>"
    assert rows["link"] == "PCIe 16 GT/s x4"
    assert rows["on"] == "nvme0n1 (Samsung SSD 990 PRO 2TB, 4B2QJXD7, PCIe 16 GT/s x4)"
    assert rows["before"] == rows["afterwards"] == "38 C, 2 % of its rated endurance used, 10 TiB written in its life"


def test_a_run_of_an_older_version_says_nothing_of_its_disks() -> None:
    assert "disk optane:" not in "\n".join(summary_lines(a_run()))
