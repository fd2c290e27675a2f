"""Scenarios for a class of disks: which disks of a lab they measure, and under which names."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.model.disk import derive_class
from harness.scenario.load import load_scenario
from harness.scenario.plan import expand
from harness.scenario.scenario import ForLab, OfferedDisk, Scenario, for_lab, name_for

TEXT = """
title = "A question"
modes = ["host", "lvm"]
workloads = ["randread-4k"]
write_rate = "1 GiB/s"
"""
FAST = OfferedDisk("fast", "nvme", "class nvme assumed from its link nvme-x")
SLOW = OfferedDisk("big-disk.2", "hdd", "class hdd by the lab file")
UNKNOWN = OfferedDisk("old", None, "its class is not known before the host is asked")
POOL = OfferedDisk("pool", "storage", "class storage by the lab file")
DISKS = (FAST, SLOW, UNKNOWN, POOL)


def files(folder: Path, **lines: str) -> dict[str, Scenario]:
    for name, line in lines.items():
        (folder / f"{name}.toml").write_text(f"{line}\n{TEXT}")
    return {name: load_scenario(folder / f"{name}.toml") for name in lines}


def disks_of(found: ForLab) -> dict[str, str]:
    return {name: scenario.disk for name, scenario in found.scenarios.items()}


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ("any", {"fast": "fast", "big-disk_2": "big-disk.2", "old": "old"}),
        ("nvme", {"fast": "fast"}),
        ("hdd", {"big-disk_2": "big-disk.2"}),
        ("storage", {"pool": "pool"}),
    ],
)
def test_a_class_is_measured_on_each_of_its_disks_under_the_disks_name(
    tmp_path: Path, requested: str, expected: dict[str, str]
) -> None:
    found = for_lab(files(tmp_path, **{f"{requested}_disk": f'disk = "{requested}"'}), DISKS)
    assert disks_of(found) == expected
    assert not found.notes


def test_the_ids_of_cells_begin_with_the_name_of_the_disk(tmp_path: Path) -> None:
    found = for_lab(files(tmp_path, any_disk='disk = "any"'), [FAST])
    cells = expand(found.scenarios["fast"], "smoke")
    assert [cell.id for cell in cells] == ["fast-host-randread-4k-qd32", "fast-lvm-randread-4k-qd32"]


@pytest.mark.parametrize(
    ("file", "requested", "name"),
    [
        ("any", "any", "fast"),
        ("any_disk", "any", "fast"),
        ("any_disk_wal", "any", "fast_wal"),
        ("nvme_vfio", "nvme", "fast_vfio"),
        ("nvmeof", "nvme", "fast_nvmeof"),
        ("stalls", "nvme", "fast_stalls"),
    ],
)
def test_the_class_in_the_name_of_the_file_becomes_the_name_of_the_disk(file: str, requested: str, name: str) -> None:
    assert name_for(file, requested, "fast") == name


def test_a_disk_of_that_name_is_preferred_to_the_class(tmp_path: Path) -> None:
    scenarios = files(tmp_path, vfio='disk = "nvme"', matrix='disk = "optane"\nclass = "any"')
    named = [FAST, OfferedDisk("nvme", "ssd", ""), OfferedDisk("optane", "nvme", "")]
    assert disks_of(for_lab(scenarios, named)) == {"vfio": "nvme", "matrix": "optane"}
    assert disks_of(for_lab(scenarios, [FAST])) == {"fast_vfio": "fast", "fast_matrix": "fast"}


def test_a_disk_with_a_scenario_of_its_name_belongs_to_that_scenario(tmp_path: Path) -> None:
    scenarios = files(tmp_path, any_disk='disk = "any"', optane="", stalls='disk = "nvme"')
    found = for_lab(scenarios, [FAST, OfferedDisk("optane", "nvme", "")])
    assert disks_of(found) == {"fast": "fast", "optane": "optane", "fast_stalls": "fast"}
    why = "not on optane: measure it with the scenario of its name: -k optane"
    assert found.notes == (f"any_disk: {why}", f"stalls: {why}")


def test_a_simulated_disk_is_not_measured_by_its_class_unless_it_is_chosen(tmp_path: Path) -> None:
    scenarios = files(tmp_path, any_disk='disk = "any"')
    simulated = [OfferedDisk("ssd1", None, "", simulated=True), OfferedDisk("ssd2", None, "", simulated=True)]
    found = for_lab(scenarios, simulated)
    assert disks_of(found) == {}
    assert "--disk=NAME measures one of them" in found.notes[0]
    assert disks_of(for_lab(scenarios, simulated, {"ssd2"})) == {"ssd2": "ssd2"}


@pytest.mark.parametrize(
    ("requested", "said"),
    [
        ("storage", "a: the lab has no storage; add it as [host.NAME.storage.STORAGE]"),
        ("array", "a: the lab has no disk of class array; add it as [host.NAME.disk.DISK]"),
    ],
)
def test_a_lab_without_the_class_is_told_where_to_add_one(tmp_path: Path, requested: str, said: str) -> None:
    assert for_lab(files(tmp_path, a=f'disk = "{requested}"'), [FAST]).notes == (said,)


def test_chosen_disks_are_the_only_ones(tmp_path: Path) -> None:
    scenarios = files(tmp_path, any_disk='disk = "any"', spinning='disk = "hdd"')
    found = for_lab(scenarios, DISKS, {"fast"})
    assert disks_of(found) == {"fast": "fast"}
    assert found.notes == ("spinning: --disk names no disk of class hdd",)


def test_a_class_without_a_disk_says_whose_class_is_not_known(tmp_path: Path) -> None:
    found = for_lab(files(tmp_path, quick='disk = "ssd"'), DISKS)
    assert found.scenarios == {}
    (note,) = found.notes
    assert note == (
        "quick: the lab has no disk of class ssd; the class of old is not known without asking the host: "
        "set `class` in the lab file"
    )


def test_two_files_may_not_have_the_same_name_on_a_disk(tmp_path: Path) -> None:
    scenarios = files(tmp_path, any_disk='disk = "any"', nvme='disk = "nvme"')
    with pytest.raises(ConfigError, match="scenarios any_disk and nvme: both would be named fast on disk fast"):
        for_lab(scenarios, DISKS)


def test_the_bytes_written_are_bounded_by_the_class_of_the_disk(tmp_path: Path) -> None:
    scenarios = files(tmp_path, any_disk='disk = "any"', matrix='disk = "optane"\nclass = "any"')
    found = for_lab(scenarios, DISKS).scenarios
    assert found["fast"].write_rate == found["old"].write_rate == 1 << 30  # as the file says
    assert found["big-disk_2"].write_rate == 550 << 20
    # The file's rate is that of the disk that it names, and this one is another disk.
    assert found["fast_matrix"].write_rate == 14 << 30


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("nvme-Samsung_SSD_990_PRO_2TB_S7", "nvme"),
        ("ata-Samsung_SSD_860_EVO_500GB_S3", "ssd"),
        ("ata-WDC_WD40EFRX-68N32N0_WD-1", None),
        ("ata-ASSDX_1", None),
        ("scsi-36001438005deb47", None),
        ("wwn-0x5002538e40b5f0a4", None),
        ("md-uuid-5d3a8d6c:1f", "array"),
        ("lab-sim_optane", None),
    ],
)
def test_the_class_that_a_link_shows(link: str, expected: str | None) -> None:
    assert derive_class(f"/dev/disk/by-id/{link}") == expected


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            'disk = "any"\nclass = "nvme"',
            'class = "nvme": conflicts with disk = "any", which is a class; allowed: one of the two',
        ),
        (
            'disks = ["a", "b"]\nclass = "any"',
            'class = "any": conflicts with disks = ["a", "b"]; allowed: only with disk',
        ),
        ('class = "sdd"', 'class = "sdd": allowed: any, nvme, ssd, hdd, array, storage (did you mean "ssd"?)'),
    ],
)
def test_a_class_that_contradicts_something_is_refused(tmp_path: Path, lines: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        files(tmp_path, wrong=lines)
    assert error.value.message == f"{tmp_path / 'wrong.toml'}: {problem}"
