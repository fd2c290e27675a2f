"""A file system in the guest as part of a mode: its keys, its arms and volumes, its bytes, and what is read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from harness.errors import HostError
from harness.features.filesystem import annotate, find_notes
from harness.features.filesystem.volumes import choose_options, compute_overhead, parse_mounts
from harness.model.attach import Attach
from harness.model.job import Job
from harness.model.layout import InnerFilesystem, Lvm, RawFile
from harness.model.mode import Cell, Mode, ModeDetail
from harness.model.option import Effective
from harness.results.byte_counts import check_bytes
from harness.results.validity import configuration_check
from harness.scenario.setups import regions
from harness.units import parse_size
from tests.build import build_measurement, counters, synthetic_run
from tests.unit.test_scenario_load import complaint, load

INSIDE = InnerFilesystem("ext4")
MODE = Mode("lvm-ext4", Lvm(), Attach(), filesystem=INSIDE)
WRITE = Job("randwrite", 4096, iodepth=1, ramp=0, seconds=2)
FILE = """
title = "ext4 in the guest"
modes = ["host", "own"]
workloads = ["randread-4k"]
write_rate = "1 GiB/s"

[mode.own]
layout = { kind = "lvm" }
attach = {}
filesystem = "ext4"
mount_options = "noatime,commit=30"
"""
VARIANTS = """[variant.old]
[variant.new.sysctl]
'vm.swappiness' = 1
"""
# As the kernel 6.12 has them, with a mount below that has the same beginning.
MOUNTS = """22 1 0:20 / / rw - rootfs rootfs rw
36 22 254:3 / /run/m/own rw,noatime shared:5 - ext4 /dev/vdb rw,commit=30
37 22 254:4 / /run/m/own-2 rw,relatime - xfs /dev/vdc rw,attr2,inode64
"""


def test_a_mode_has_its_file_system_and_a_volume_of_its_own_for_the_twin(tmp_path: Path) -> None:
    host, inner = load(tmp_path, FILE).modes
    assert inner.filesystem == InnerFilesystem("ext4", "noatime,commit=30")
    assert host.filesystem is None
    cell = Cell("d", "d", inner, WRITE)
    assert [arm.id for arm in cell.arms] == ["host", "twin:own", "guest:own"]
    assert len(regions([inner])) == 2
    assert len(regions([replace(inner, filesystem=None)])) == 1


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('filesystem = "ext4"', 'filesystem = "zfs"', "own.filesystem"),
        ('filesystem = "ext4"\n', "", "mount_options conflicts with filesystem left out"),
        ("noatime,commit=30", "noatime commit", "own.mount_options"),
        ("noatime,commit=30", "noatime,", "own.mount_options"),
        ('kind = "lvm"', 'kind = "device"', 'conflicts with layout.kind = "device"'),
        ('kind = "lvm"', 'kind = "qcow2"', 'conflicts with layout.kind = "qcow2"'),
        ("attach = {}", "attach = { read_only = true }", "conflicts with attach.read_only = true"),
        (
            "attach = {}",
            'attach = { cache = "writeback", aio = "threads" }',
            'conflicts with attach.cache = "writeback"',
        ),
        ("attach = {}", "attach = {}\nguests = 2", "conflicts with guests"),
        ("attach = {}", "attach = {}\nbackup = true", "conflicts with backup"),
        ("attach = {}", "attach = {}\ncontainer = true", "conflicts with container"),
        ('workloads = ["randread-4k"]', 'workloads = ["randtrim-4k"]', "because fio trims devices only"),
        (
            "[mode.own]",
            "[variant.old]\n[variant.new.sysctl]\n'vm.swappiness' = 1\n[mode.own]",
            "conflicts with variants",
        ),
    ],
)
def test_what_a_file_system_cannot_have_is_refused(before: str, after: str, said: str, tmp_path: Path) -> None:
    lines = complaint(tmp_path, FILE.replace(before, after))
    assert any(said in line for line in lines), lines


def test_another_mode_with_the_name_of_the_twins_volume_is_refused(tmp_path: Path) -> None:
    text = FILE.replace('"own"]', '"own", "own-twin"]') + "\n[mode.own-twin]\nlayout = { kind = 'lvm' }\nattach = {}\n"
    assert any('needs the name "own-twin"' in line for line in complaint(tmp_path, text))


def test_the_file_system_must_be_what_host_and_guest_report() -> None:
    read = Effective(guest_filesystem="ext4", host_filesystem="ext4", cache="none")
    check = configuration_check(MODE, read)
    assert check is not None
    assert check.ok
    wrong = configuration_check(MODE, replace(read, guest_filesystem="xfs"))
    assert wrong is not None
    assert "requested guest_filesystem = ext4, it is xfs" in wrong.detail


@pytest.mark.parametrize(("more", "ok"), [(0.0, True), (0.02, True), (0.10, False)])
def test_a_journal_may_add_a_little_to_what_qemu_and_the_disk_count_and_not_more(more: float, *, ok: bool) -> None:
    counted = 1e8 * (1 + more)
    counts = {"fio_written": 1e8, "disk_written": counted, "qemu_written": counted}
    slice_ = build_measurement("guest:lvm-ext4", job=WRITE, counts=counts)
    (check,) = check_bytes([slice_], 4096, MODE.amplification(WRITE), inside=INSIDE.amplification(WRITE))
    assert check.ok is ok, check.detail


@pytest.mark.parametrize(("written", "ok"), [(212, True), (400, False)])
def test_a_slow_guest_has_the_commits_of_its_journal_and_no_other_writes(written: int, *, ok: bool) -> None:
    # As ext4 of Linux 6.12 in a guest whose emulated disk did a dozen writes per second.
    counts = {"fio_written": 144 * 1024, "qemu_written": written * 1024}
    slices = [build_measurement("guest:lvm-ext4", job=WRITE, started=at) for at in (1000.0, 1020.0)]
    slices[0] = replace(slices[0], counters=counters(counts))
    moved, inside = MODE.amplification(WRITE), INSIDE.amplification(WRITE)
    (check,) = check_bytes(slices, 4096, moved, inside=inside, journal=INSIDE.count_journal)
    assert check.ok is ok, check.detail


@pytest.mark.parametrize(("arm", "by", "ok"), [("host", "disk", True), ("guest:lvm", "qemu", False)])
def test_a_journal_falls_into_slices_of_other_modes_on_their_disk_but_not_in_their_guests(
    arm: str, by: str, *, ok: bool
) -> None:
    # As the bare host beside ext4 on a RAW file.
    counts = {"fio_written": 1348 * 1024, f"{by}_written": 1445 * 1024}
    slices = [replace(build_measurement(arm, job=WRITE), counters=counters(counts))]
    (check,) = check_bytes(slices, 4096, journal=INSIDE.count_journal)
    assert check.ok is ok, check.detail
    (alone,) = check_bytes(slices, 4096)
    assert not alone.ok


def test_btrfs_has_the_tables_of_a_file_that_is_copied_on_write() -> None:
    copied = Mode("lvm-btrfs", Lvm(), Attach(), filesystem=InnerFilesystem("btrfs"))
    assert copied.writes_later
    assert copied.amplification(WRITE).most_written > 10 > MODE.amplification(WRITE).most_written
    assert not MODE.writes_later


def test_a_flush_of_a_loop_device_writes_the_times_of_its_file() -> None:
    # 4 KiB with fdatasync, on ext4 by a loop device on a file on ext4: the disk had 3.1 times as much.
    in_file = replace(MODE, layout=RawFile())
    wal = replace(WRITE, syncs=True)
    assert in_file.amplification(wal).most_written > 3.1 > MODE.amplification(wal).most_written
    assert in_file.amplification(WRITE).most_written < 1.1


def test_the_options_are_those_of_the_user_and_btrfs_trims_only_if_asked() -> None:
    assert choose_options(InnerFilesystem("ext4", "noatime")) == ("noatime",)
    assert choose_options(InnerFilesystem("xfs")) == ()
    assert choose_options(InnerFilesystem("btrfs", "compress=zstd")) == ("nodiscard", "compress=zstd")
    assert choose_options(InnerFilesystem("btrfs", "discard=async")) == ("discard=async",)


def test_what_is_mounted_is_read_from_mountinfo() -> None:
    assert parse_mounts(MOUNTS, "/run/m/own", "guest") == ("ext4", "rw,noatime,commit=30")
    assert parse_mounts(MOUNTS, "/run/m/own-2", "guest") == ("xfs", "rw,relatime,attr2,inode64")
    with pytest.raises(HostError, match="guest: nothing is mounted at /run/m"):
        parse_mounts(MOUNTS, "/run/m", "guest")
    with pytest.raises(HostError, match="mountinfo"):
        parse_mounts("22 1 0:20", "/run/m", "guest")


def test_a_volume_has_room_for_the_journal_and_the_tables() -> None:
    span = parse_size("64 MiB")
    assert compute_overhead("ext4", span) == parse_size("68 MiB")
    assert compute_overhead("xfs", span) == parse_size("304 MiB")


def test_a_reader_is_told_what_fio_uses_and_that_options_differ(tmp_path: Path) -> None:
    scenario = load(tmp_path, FILE)
    (note,) = find_notes([], Cell("d", "d", MODE, WRITE))
    assert "a file on ext4; the twin is a file on the same file system" in note
    bare, inner = synthetic_run(scenario=scenario).cells
    assert inner.mode_detail.filesystem == InnerFilesystem("ext4", "noatime,commit=30")
    assert list(annotate([bare, inner])) == []
    options = Effective(host_mount_options="rw,relatime", guest_mount_options="rw,relatime,discard")
    ((of, said),) = annotate([bare, replace(inner, effective=options)])
    assert (of, said) == (inner.id, "mounted with other options: only on the host nothing; only in the guest discard")


def test_the_record_of_a_mode_without_one_is_as_before(tmp_path: Path) -> None:
    bare, inner = (TypeAdapter(ModeDetail).dump_python(mode.detail) for mode in load(tmp_path, FILE).modes)
    assert "filesystem" not in bare
    assert inner["filesystem"] == {"kind": "ext4", "options": "noatime,commit=30"}
