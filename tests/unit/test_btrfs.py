"""Files on btrfs: what is made, where a file is copied on write, what is read back, and when its arms run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.features.proxmox.layouts import refuse_layout
from harness.lab.storages import FoundStorage
from harness.layout.storage_files import Files, StoredFiles, read_nodatacow
from harness.model.attach import Attach
from harness.model.job import Job
from harness.model.layout import Layout, Qcow2, RawFile, amplification
from harness.model.mode import Arm, Mode, Place
from harness.model.option import Effective
from harness.model.workloads import parse_workloads
from harness.results.validity import configuration_check
from harness.scenario.timetable import stays_in_cache
from tests.unit.test_layouts_commands import MIB, NAME, Listening, log, regions
from tests.unit.test_measure_blocks import session
from tests.unit.test_scenario_load import complaint, good_but

IN_PLACE = RawFile("btrfs", nodatacow=True)
COPIED = RawFile("btrfs")


class BtrfsHost(Listening):
    """Its files are on a file system whose device the kernel does not show."""

    def _said(self, argv: list[str], stdin: str) -> str:
        script = argv[2] if argv[:2] == ["sh", "-c"] else ""
        if script.startswith("cd -P"):
            return f"{argv[4]}\n42:256\n"
        if "neither a block device nor a file" in script:
            return "".join(f"{path}\tfile\t42:{number}\n" for number, path in enumerate(argv[4:], start=300))
        return super()._said(argv, stdin)


def test_files_that_are_written_in_place_are_in_a_directory_with_the_attribute() -> None:
    host = BtrfsHost()
    (files,) = Files.group([("cow", COPIED), ("place", IN_PLACE), ("image", Qcow2("btrfs", nodatacow=True))])
    (region,) = regions(host, "a")
    with files.build(log(host), region, NAME, 64 * MIB) as sources:
        paths = {mode: pair.guest.path.partition(f"{NAME}-btrfs/")[2] for mode, pair in sources.items()}
        twin = sources["image"].twin.path
    assert paths == {"cow": "cow.raw", "place": "nodatacow/place.raw", "image": "nodatacow/image.qcow2"}
    assert twin.endswith("/nodatacow/image.raw")
    made = [command.split()[0] for command in host.commands if "mkfs.btrfs" in command or command.startswith("mount")]
    assert made == ["mkfs.btrfs", "mount"]
    assert sources["cow"].guest.writable.path == sources["cow"].guest.path


@pytest.mark.parametrize(
    ("printed", "asked", "ok"),
    [
        ("---------------C------ /m/x.raw\n", IN_PLACE, True),
        ("---------------------- /m/x.raw\n", IN_PLACE, False),
        ("---------------C------ /m/x.raw\n", RawFile("btrfs", nodatacow=False), False),
    ],
)
def test_the_attribute_is_read_back(printed: str, asked: Layout, *, ok: bool) -> None:
    host = Listening(lambda words, _script: printed if words[0] == "lsattr" else "")
    effective = read_nodatacow(host, asked, "/m/x.raw")
    assert effective is not None
    assert read_nodatacow(host, RawFile(), "/m/x.raw") is None
    check = configuration_check(Mode("own", asked, Attach()), effective.merged(Effective(bus="scsi")))
    assert check is not None
    assert check.ok is ok


def test_a_directory_in_use_decides_unless_the_layout_does() -> None:
    inherits = FoundStorage("directory", "/srv", "2", filesystem="btrfs", copies=1)
    copies = FoundStorage("directory", "/srv", "2", filesystem="btrfs", copies=2)
    files = StoredFiles()
    sizes = [
        files.bytes_of(storage, layout, 64 * MIB) // MIB
        for storage in (inherits, copies)
        for layout in (RawFile(), IN_PLACE, RawFile("btrfs", nodatacow=False))
    ]
    assert sizes == [64, 64, 128, 128, 64, 128]


@pytest.mark.parametrize(("layout", "alone"), [(COPIED, True), (IN_PLACE, False), (RawFile(), False)])
def test_no_other_arm_runs_while_btrfs_has_tables_to_write(layout: Layout, *, alone: bool) -> None:
    job = Job("randwrite", 4096, iodepth=32, ramp=0.0, seconds=0.25)
    mode = Mode("own", layout, Attach())
    assert stays_in_cache(Arm(Place.GUEST, mode), job) is alone
    assert stays_in_cache(Arm(Place.TWIN, mode), job) is alone
    assert not stays_in_cache(Arm(Place.GUEST, mode), Job("randread", 4096, iodepth=32, ramp=0.0, seconds=0.25))


@pytest.mark.parametrize(
    ("layout", "attach", "synced"),
    [
        (COPIED, Attach(), "sync --file-system "),
        (RawFile(), Attach(cache="writeback", aio="threads"), "sync /"),
        (RawFile(), Attach(), ""),
    ],
)
def test_the_tables_are_written_before_the_next_arm(
    tmp_path: Path, layout: Layout, attach: Attach, synced: str
) -> None:
    (tmp_path / "disk").touch()
    at = session(str(tmp_path / "disk"), "sda", counted=False, version="fio-3.39")
    host: Any = Listening()
    replace(at, host=replace(at.host, runner=host)).settle(Arm(Place.GUEST, Mode("lvm", layout, attach)))
    assert [command.partition(str(tmp_path)[1:])[0] for command in host.commands] == (
        [synced.removesuffix("/") + "/"] if synced else []
    )


def test_other_file_systems_have_no_such_choice(tmp_path: Path) -> None:
    mode = '[mode.own]\nlayout = { kind = "raw", nodatacow = true }\nattach = {}\n'
    (line,) = complaint(tmp_path, good_but('"lvm"', '"own"') + mode)
    assert line.startswith('mode.own: layout.nodatacow = true conflicts with layout.filesystem = "ext4" (the default)')
    assert line.endswith("which never copies a block to write it; allowed: filesystem btrfs, or no nodatacow")


def test_proxmox_ve_has_no_such_directory() -> None:
    assert "ext4 or xfs only" in (refuse_layout(COPIED) or "")


@pytest.mark.parametrize(
    ("layout", "workload", "most"),
    [
        (IN_PLACE, "randwrite-4k", 1.03),
        (COPIED, "randwrite-4k", 33.03),
        (COPIED, "seqwrite-256k", 1.53),
        (IN_PLACE, "wal", 25.03),
        (COPIED, "wal", 57.03),
        (RawFile(), "wal", 1.03),
    ],
)
def test_each_write_of_a_copied_file_changes_tables_and_each_flush_writes_a_log(
    layout: Layout, workload: str, most: float
) -> None:
    (pattern,) = parse_workloads(workload)
    job = pattern.job(1, ramp=0.0, seconds=1.0)
    assert amplification(layout, job).most_written == pytest.approx(most)
    assert amplification(layout, job).fewest_written == 1
