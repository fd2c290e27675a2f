"""Loading scenario files: what they mean, and how mistakes are reported."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.features.published.figures import links
from harness.model.attach import Attach, Attachment, Vfio
from harness.model.base import Device, Md
from harness.model.job import Workload
from harness.model.layout import Layout, Lvm, LvmThin, Partition, Qcow2, RawFile, ZfsFile, Zvol
from harness.model.mode import Mode
from harness.scenario.load import MOST_PROBLEMS, find_scenarios, load_scenario
from harness.scenario.scenario import Scenario

KIB, MIB = 1024, 1024**2

GOOD = """
title = "A disk"
modes = ["host", "lvm"]
workloads = ["randread-4k"]
write_rate = "1 GiB/s"
"""


def load(directory: Path, text: str, name: str = "disk.toml") -> Scenario:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return load_scenario(path)


def complaint(directory: Path, text: str, name: str = "disk.toml") -> list[str]:
    """The lines of the error that `text` is refused with, without the file's name."""
    with pytest.raises(ConfigError) as error:
        load(directory, text, name)
    lines = error.value.message.splitlines()
    prefix = f"{directory / name}: "
    assert all(line.startswith(prefix) for line in lines)
    return [line.removeprefix(prefix) for line in lines]


def good_but(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_a_minimal_file_is_named_by_its_stem_and_measures_the_disk_of_that_name(tmp_path: Path) -> None:
    scenario = load(tmp_path, GOOD, "fast_nvme.toml")
    assert (scenario.name, scenario.disk, scenario.published) == ("fast_nvme", "fast_nvme", None)
    assert scenario.write_rate == 1024**3
    assert scenario.workloads == (Workload("randread", 4096),)


def test_the_presets_are_the_modes_of_the_study(tmp_path: Path) -> None:
    scenario = load(tmp_path, good_but('"host", "lvm"', '"host", "passthrough", "lvm", "raw", "raw-cached"'))
    assert scenario.modes == (
        Mode("host", Device(), None),
        Mode("passthrough", Device(), Attach("virtio-scsi", "none", "native", iothread=True)),
        Mode("lvm", Lvm(), Attach()),
        Mode("raw", RawFile("ext4"), Attach()),
        Mode("raw-cached", RawFile("ext4"), Attach("virtio-scsi", "writeback", "io_uring", iothread=True), cached=True),
    )


def test_a_scenario_may_have_modes_of_its_own(tmp_path: Path) -> None:
    own = """
[mode.lvm-unsafe]
layout = { kind = "lvm" }
attach = { bus = "sata", cache = "unsafe", aio = "io_uring", iothread = false }
"""
    scenario = load(tmp_path, good_but('"lvm"', '"lvm-unsafe"') + own)
    assert scenario.modes[1] == Mode("lvm-unsafe", Lvm(), Attach("sata", "unsafe", "io_uring", iothread=False))


@pytest.mark.parametrize(
    ("table", "layout"),
    [
        ('kind = "device"', Device()),
        ('kind = "partition"', Partition()),
        ('kind = "lvm"', Lvm()),
        ('kind = "lvm-thin", chunk = "1 MiB"', LvmThin(MIB)),
        ('kind = "raw", filesystem = "xfs", preallocation = "full"', RawFile("xfs", "full")),
        ('kind = "raw", filesystem = "btrfs"', RawFile("btrfs")),
        ('kind = "raw", filesystem = "btrfs", nodatacow = true', RawFile("btrfs", nodatacow=True)),
        ('kind = "raw"', RawFile("ext4", "falloc")),
        (
            'kind = "qcow2", cluster_size = "2 MiB", preallocation = "off", lazy_refcounts = true',
            Qcow2("ext4", 2 * MIB, "off", lazy_refcounts=True),
        ),
        ('kind = "md", level = 6, disks = 4, chunk = "64 KiB"', Md(6, 4, 64 * KIB)),
        ('kind = "md", level = 1, disks = 4, legs = 2', Md(1, 4, legs=2)),
        ('kind = "md", level = 5, disks = 3, state = "degraded"', Md(5, 3, state="degraded")),
        (
            'kind = "md", level = 5, disks = 3, state = "rebuilding", spares = 1',
            Md(5, 3, state="rebuilding", spares=1),
        ),
        ('kind = "zvol", volblocksize = "64k"', Zvol(64 * KIB)),
        ('kind = "zfs"', ZfsFile(128 * KIB)),
        ('kind = "lvm", on = { kind = "md", level = 5, disks = 3 }', Lvm(Md(5, 3))),
        ('kind = "qcow2", on = { kind = "device" }', Qcow2()),
        (
            'kind = "raw", filesystem = "xfs", on = { kind = "md", level = 10, disks = 4, chunk = "1 MiB" }',
            RawFile("xfs", on=Md(10, 4, MIB)),
        ),
    ],
)
def test_a_layout_is_composed_of_its_kind_its_options_and_what_it_is_on(
    tmp_path: Path, table: str, layout: Layout
) -> None:
    own = f"[mode.own]\nlayout = {{ {table} }}\nattach = {{}}\n"
    text = 'disks = ["ssd1", "ssd2", "ssd3", "ssd4"]' + good_but('"lvm"', '"own"') + own
    assert load(tmp_path, text).modes[1] == Mode("own", layout, Attach())


@pytest.mark.parametrize(
    ("table", "attach"),
    [
        ("", Attach()),
        ('device = "vfio"', Vfio()),
        ('device = "lun", aio = "threads"', Attach(aio="threads", device="lun")),
        (
            'bus = "virtio-blk", queues = 4, queue_size = 1024, iothread = false, iothread_vq_mapping = 2',
            Attach("virtio-blk", iothread=False, queues=4, queue_size=1024, iothread_vq_mapping=2),
        ),
        (
            'controller = "shared", discard = "unmap", detect_zeroes = "unmap", read_only = true',
            Attach(controller="shared", discard="unmap", detect_zeroes="unmap", read_only=True),
        ),
        (
            'bus = "nvme", iothread = false, logical_block_size = "512", physical_block_size = "4 KiB"',
            Attach("nvme", iothread=False, logical_block_size=512, physical_block_size=4 * KIB),
        ),
    ],
)
def test_a_disk_is_attached_with_every_option_that_the_file_names(
    tmp_path: Path, table: str, attach: Attachment
) -> None:
    own = f'[mode.own]\nlayout = {{ kind = "device" }}\nattach = {{ {table} }}\n'
    assert load(tmp_path, good_but('"lvm"', '"own"') + own).modes[1] == Mode("own", Device(), attach)


def test_the_first_of_several_disks_is_the_baseline(tmp_path: Path) -> None:
    scenario = load(tmp_path, 'disks = ["ssd3", "ssd1"]' + GOOD)
    assert (scenario.disk, scenario.disks) == ("ssd3", ("ssd3", "ssd1"))
    assert load(tmp_path, 'disk = "ssd3"' + GOOD).disks == ("ssd3",)


def test_a_disk_is_named_once(tmp_path: Path) -> None:
    (line,) = complaint(tmp_path, 'disks = ["ssd1", "ssd1"]' + GOOD)
    assert line == 'disks[1] = "ssd1": the same as disks[0]; allowed: each value once'


def test_a_profile_is_changed_field_by_field(tmp_path: Path) -> None:
    changed = load(tmp_path, GOOD + '[profile.smoke]\niodepth = [1, 8]\nspan = "128 MiB"\nruntime = "2 s"\n')
    before, after = load(tmp_path, GOOD).profiles, changed.profiles
    smoke = dataclasses.replace(before[0], iodepth=(1, 8), span=128 * 1024**2, runtime=2.0)
    assert after == (smoke, *before[1:])


def test_a_profile_says_when_to_stop_and_how_to_prepare(tmp_path: Path) -> None:
    own = """
[profile.smoke]
rounds = 4
most_rounds = 9
target = "2.5 %"
time_limit = "2 h"
conditioning = "steady"
blocks = 6
reboot = true
"""
    smoke = load(tmp_path, GOOD + own).profiles[0]
    assert (smoke.rounds, smoke.most_rounds, smoke.target, smoke.time_limit) == (4, 9, 0.025, 7200)
    assert (smoke.conditioning, smoke.blocks, smoke.reboot) == ("steady", 6, True)


def test_none_takes_back_a_target_and_a_time_limit(tmp_path: Path) -> None:
    own = '[profile.standard]\ntarget = "none"\ntime_limit = "none"\n'
    standard = load(tmp_path, GOOD + own).profiles[1]
    assert (standard.target, standard.time_limit, standard.most_rounds) == (None, None, 24)


def test_more_rounds_than_the_profiles_most_are_a_fixed_number(tmp_path: Path) -> None:
    smoke = load(tmp_path, GOOD + "[profile.smoke]\nrounds = 7\n").profiles[0]
    assert (smoke.rounds, smoke.most_rounds) == (7, 7)


def test_modes_that_an_older_file_expects_to_be_void_are_cached(tmp_path: Path) -> None:
    text = good_but('"lvm"]', '"lvm", "raw"]\nexpect_void = ["raw"]')
    assert [(mode.name, mode.cached) for mode in load(tmp_path, text).modes] == [
        ("host", False),
        ("lvm", False),
        ("raw", True),
    ]


@pytest.mark.parametrize(
    ("text", "workload"),
    [
        ("seqwrite-256k", Workload("write", 256 * 1024)),
        ("seqread-1m", Workload("read", 1024**2)),
        ("randwrite-512-nj4", Workload("randwrite", 512, numjobs=4)),
        ("randrw-8k-r67", Workload("randrw", 8192, read_share=0.67)),
        ("seqrw-64k-nj2-r50", Workload("rw", 65536, numjobs=2, read_share=0.5)),
        ("randread-4k-i1000", Workload("randread", 4096, rate=1000)),
        ("randrw-8k-nj4-r67-i400", Workload("randrw", 8192, numjobs=4, read_share=0.67, rate=400)),
    ],
)
def test_a_workload_is_pattern_and_block_size(tmp_path: Path, text: str, workload: Workload) -> None:
    assert load(tmp_path, good_but("randread-4k", text)).workloads == (workload,)


ALL_MODES = (
    "host, passthrough, lvm, raw, raw-cached, partition, lvm-thin, raw-xfs, qcow2, zvol, passthrough-blk, lvm-blk, vfio"
)
NO_NAME = "not a valid name; allowed: letters, digits and `_`, `.`, `-`, with a letter or digit first"
ALL_KINDS = "device, partition, lvm, lvm-thin, raw, qcow2, md, zvol, zfs, rbd"
ALL_PATTERNS = "seqread, seqwrite, seqrw, randread, randwrite, randrw, seqtrim, randtrim, seqtrimwrite"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"lvm"', '"lmv"', f'modes[1] = "lmv": no such mode; allowed: {ALL_MODES} (did you mean "lvm"?)'),
        ('"lvm"', "7", "modes[1] = 7: must be text in quotes"),
        ('"lvm"', '"lvm", "host"', 'modes[2] = "host": the same as modes[0]; allowed: each value once'),
        ('["host", "lvm"]', "[]", "modes = []: must not be empty"),
        (
            '"lvm"]',
            '"lvm"]\nexpect_void = ["lmv"]',
            f'expect_void[0] = "lmv": no such mode; allowed: {ALL_MODES} (did you mean "lvm"?)',
        ),
        (
            '"lvm"]',
            '"lvm"]\nexpect_void = ["lvm", "lvm"]',
            'expect_void[1] = "lvm": the same as expect_void[0]; allowed: each value once',
        ),
        ('["host", "lvm"]', '"host"', 'modes = "host": must be a list in brackets'),
        ('title = "A disk"', "", "title: missing, and it has no default"),
        ('write_rate = "1 GiB/s"', "", 'write_rate: missing, and it has no default; for example "500 MiB/s"'),
        ('"A disk"', "4", "title = 4: must be text in quotes"),
        (
            "randread-4k",
            "randraed-4k",
            f'workloads[0] = "randraed-4k": no such pattern; allowed: {ALL_PATTERNS} (did you mean "randread"?)',
        ),
        (
            "randread-4k",
            "randread",
            (
                'workloads[0] = "randread": not a workload; allowed: PATTERN-BS[-njNUMJOBS][-rREADS][-iIOPS]'
                "[-buffered], for example randread-4k, randrw-8k-r67 or randread-4k-i1000 (the depth is iodepth of "
                "[profile.NAME]); a named workload, for example wal or cdm8; or a file NAME.fio"
            ),
        ),
        (
            "randread-4k",
            "randread-1000",
            'workloads[0] = "randread-1000": not a valid block size; allowed: multiples of 512 bytes up to 16m',
        ),
        (
            "randread-4k",
            "randrw-4k",
            (
                'workloads[0] = "randrw-4k": a mixed pattern needs a share of reads in percent; '
                "allowed: for example randrw-4k-r70"
            ),
        ),
        (
            "randread-4k",
            "randread-4k-r70",
            'workloads[0] = "randread-4k-r70": a share of reads (-r) is for mixed patterns; allowed: seqrw, randrw',
        ),
        (
            "randread-4k",
            "randrw-4k-r100",
            'workloads[0] = "randrw-4k-r100": share of reads out of range; allowed: r1 to r99 (percent)',
        ),
        (
            "randread-4k",
            "randread-4k-nj0",
            'workloads[0] = "randread-4k-nj0": numjobs out of range; allowed: nj1 to nj64',
        ),
        (
            "randread-4k",
            "randread-4k-nj4-i1002",
            (
                'workloads[0] = "randread-4k-nj4-i1002": not a rate that fio supports; '
                "allowed: i1 to i10000000, a multiple of numjobs"
            ),
        ),
        (
            "randread-4k",
            "randread-4k-i0",
            (
                'workloads[0] = "randread-4k-i0": not a rate that fio supports; '
                "allowed: i1 to i10000000, a multiple of numjobs"
            ),
        ),
        (
            "randread-4k",
            "randrw-4k-r99-i10",
            (
                'workloads[0] = "randrw-4k-r99-i10": the rate is too low for a mix of reads and writes; '
                "allowed: more I/Os per second"
            ),
        ),
        (
            '"randread-4k"',
            '"randread-4k", "randread-4096"',
            'workloads[1] = "randread-4096": the same as workloads[0]; allowed: each value once',
        ),
        (
            '"randread-4k"',
            "4",
            'workloads[0] = 4: must be text in quotes; allowed: for example "randread-4k"',
        ),
        ("1 GiB/s", "1 GB/s", 'write_rate = "1 GB/s": GB is ambiguous; allowed: GiB (powers of 1024)'),
        ("1 GiB/s", "0 GiB/s", 'write_rate = "0 GiB/s": allowed: more than 0'),
        ('"A disk"', '"  "', 'title = "  ": must not be empty'),
        ('"A disk"', '"a\\nb"', 'title = "a\\nb": allowed: one line of printable characters'),
        ('"A disk"', '"\\u001b[31mred"', 'title = "\\u001b[31mred": allowed: one line of printable characters'),
        ('"A disk"', '"A disk"\ndisk = "/dev/sda"', f'disk = "/dev/sda": {NO_NAME}'),
        ('"A disk"', '"A disk"\ndisk = ""', f'disk = "": {NO_NAME}'),
        (
            "randread-4k",
            "randread-\u0664k",  # a digit all the same, to Python
            (
                'workloads[0] = "randread-\u0664k": not a workload; allowed: PATTERN-BS[-njNUMJOBS][-rREADS][-iIOPS]'
                "[-buffered], for example randread-4k, randrw-8k-r67 or randread-4k-i1000 (the depth is iodepth of "
                "[profile.NAME]); a named workload, for example wal or cdm8; or a file NAME.fio"
            ),
        ),
        (
            "1 GiB/s",
            "1 GiB",
            'write_rate = "1 GiB": not a valid rate; allowed: for example 500 MiB/s or 2 GiB/s',
        ),
    ],
)
def test_a_mistake_is_reported_with_key_value_and_what_is_allowed(
    tmp_path: Path, old: str, new: str, line: str
) -> None:
    assert complaint(tmp_path, good_but(old, new)) == [line]


@pytest.mark.parametrize(
    ("table", "line"),
    [
        (
            "[profile.smok]",
            'profile.smok: no such profile; allowed: smoke, standard, publish (did you mean "smoke"?)',
        ),
        (
            '[profile.smoke]\nruntme = "1 s"',
            (
                'profile.smoke.runtme = "1 s": no such key; '
                "allowed: ramp, runtime, rounds, iodepth, span, round_limit, blocks, most_rounds, target, time_limit, "
                'conditioning, reboot, own_times (did you mean "runtime"?)'
            ),
        ),
        (
            '[profile.smoke]\nspan = "64 GB"',
            'profile.smoke.span = "64 GB": GB is ambiguous; allowed: GiB (powers of 1024)',
        ),
        (
            '[profile.smoke]\nspan = "6 MiB"',
            'profile.smoke.span = "6 MiB": not a valid span; allowed: 16 MiB or more, in steps of 4 MiB',
        ),
        ("[profile.smoke]\nramp = 2", 'profile.smoke.ramp = 2: must be text in quotes; allowed: for example "10 s"'),
        (
            '[profile.smoke]\nramp = "2"',
            (
                'profile.smoke.ramp = "2": not a valid duration; allowed: a number and one of ns, us, ms, s, min, '
                "h, for example 10 us or 30 s"
            ),
        ),
        ('[profile.smoke]\nruntime = "0 s"', 'profile.smoke.runtime = "0 s": allowed: 100 ms or more'),
        ('[profile.smoke]\nruntime = "0.4 ms"', 'profile.smoke.runtime = "0.4 ms": allowed: 100 ms or more'),
        ('[profile.smoke]\nramp = "0.4 ms"', 'profile.smoke.ramp = "0.4 ms": allowed: 0 s, or 100 ms or more'),
        ('[profile.smoke]\nround_limit = "0 s"', 'profile.smoke.round_limit = "0 s": allowed: more than 0'),
        ('[profile.smoke]\nrounds = "4"', 'profile.smoke.rounds = "4": must be a whole number, without quotes'),
        ("[profile.smoke]\nrounds = true", "profile.smoke.rounds = true: must be a whole number, without quotes"),
        ("[profile.smoke]\nrounds = 0", "profile.smoke.rounds = 0: allowed: 1 or more"),
        ("[profile.smoke]\nmost_rounds = 10001", "profile.smoke.most_rounds = 10001: allowed: at most 10000"),
        ("[profile.smoke]\nrounds = inf", "profile.smoke.rounds = inf: must be a whole number, without quotes"),
        ("[profile.smoke]\niodepth = [1, 2048]", "profile.smoke.iodepth[1] = 2048: allowed: at most 1024"),
        (
            "[profile.smoke]\niodepth = [8, 1, 8]",
            "profile.smoke.iodepth[2] = 8: the same as profile.smoke.iodepth[0]; allowed: each value once",
        ),
        (
            '[budget]\nmetric = "iops"',
            "budget: allowed: a list of tables, each with its name in double brackets: [[NAME]]",
        ),
        (
            "[profiles.smoke]\nrounds = 4",
            (
                "profiles: no such key; allowed: title, disk, class, disks, modes, "
                "workloads, write_rate, guest, published, expect_void, mode, profile, budget, decompose, variant, "
                'search, workload, snapshot (did you mean "profile"?)'
            ),
        ),
        ("profile = 3", "profile = 3: must be a table"),
        (
            "[profile.smoke]\nmost_rounds = 1",
            "profile.smoke.most_rounds = 1: fewer than rounds = 2 (the default); allowed: 2 or more",
        ),
        (
            "[profile.standard]\nrounds = 8\nmost_rounds = 7",
            "profile.standard.most_rounds = 7: fewer than rounds = 8; allowed: 8 or more",
        ),
        (
            '[profile.standard]\ntarget = "5"',
            'profile.standard.target = "5": not a valid share; allowed: a number and %, for example 30 %',
        ),
        ('[profile.standard]\ntarget = "0 %"', 'profile.standard.target = "0 %": allowed: more than 0'),
        (
            "[profile.standard]\ntime_limit = 90",
            'profile.standard.time_limit = 90: must be text in quotes; allowed: for example "2 h"',
        ),
        (
            '[profile.smoke]\nconditioning = "stead"',
            'profile.smoke.conditioning = "stead": allowed: fill, steady (did you mean "steady"?)',
        ),
        ("[profile.smoke]\nreboot = 1", "profile.smoke.reboot = 1: must be true or false, without quotes"),
        (
            '[mode.lvm]\nlayout = { kind = "lvm" }\nattach = {}',
            "mode.lvm: is a preset, and a preset cannot be redefined; allowed: any other name",
        ),
        ('[decompose.x]\nsteps = ["host"]', 'decompose.x.steps = ["host"]: allowed: 2 or more'),
        (
            '[decompose."a b"]\nsteps = ["host", "twin:lvm"]',
            (
                'decompose."a b": not a valid name of a decomposition; '
                "allowed: lower case letters, digits and single hyphens"
            ),
        ),
        (
            '[mode.other]\nlayout = { kind = "lvm" }\nattach = {}',
            'mode.other: defined but not measured; add "other" to modes, or remove it',
        ),
    ],
)
def test_a_mistake_in_a_table_is_reported_with_key_and_value(tmp_path: Path, table: str, line: str) -> None:
    assert complaint(tmp_path, f"{GOOD}\n{table}\n") == [line]


@pytest.mark.parametrize(
    ("layout", "attach", "line"),
    [
        (
            'kind = "lwm"',
            "",
            f'layout.kind = "lwm": no such kind; allowed: {ALL_KINDS} (did you mean "lvm"?)',
        ),
        ("", "", f"layout.kind: missing; allowed: {ALL_KINDS}"),
        ("kind = 3", "", f"layout.kind = 3: no such kind; allowed: {ALL_KINDS}"),
        ('kind = ["lvm"]', "", f'layout.kind = ["lvm"]: no such kind; allowed: {ALL_KINDS}'),
        (
            'kind = "lvm", filesystem = "ext4"',
            "",
            'layout.filesystem = "ext4": no such key; allowed: on, encryption, kind',
        ),
        (
            'kind = "raw", filesystem = "zfs"',
            "",
            'layout.filesystem = "zfs": allowed: ext4, xfs, btrfs (did you mean "xfs"?)',
        ),
        ('kind = "raw"', 'iothread = "yes"', 'attach.iothread = "yes": must be true or false, without quotes'),
        (
            'kind = "raw"',
            'bus = "virtio-blck"',
            (
                'attach.bus = "virtio-blck": allowed: virtio-blk, virtio-scsi, sata, ide, nvme, lsi, '
                "megasas, pvscsi "
                '(did you mean "virtio-blk"?)'
            ),
        ),
        (
            'kind = "raw"',
            'bus = "scsi"',
            (
                'attach.bus = "scsi": allowed: virtio-blk, virtio-scsi, sata, ide, nvme, lsi, megasas, pvscsi '
                '(did you mean "virtio-scsi"?)'
            ),
        ),
        (
            'kind = "raw"',
            'cach = "none"',
            (
                'attach.cach = "none": no such key; allowed: bus, cache, aio, iothread, queues, queue_size, '
                "iothread_vq_mapping, poll_max_ns, controller, discard, detect_zeroes, ssd, logical_block_size, "
                "physical_block_size, read_only, iops, bw, iops_burst, bw_burst, read_iops, write_iops, read_bw, "
                "write_bw, read_iops_burst, write_iops_burst, read_bw_burst, write_bw_burst, burst_seconds, "
                "throttle_group, packed, event_idx, metadata_cache, read_ahead_kb, server, device "
                '(did you mean "cache"?)'
            ),
        ),
    ],
)
def test_a_mistake_in_a_mode_is_reported_with_key_and_value(
    tmp_path: Path, layout: str, attach: str, line: str
) -> None:
    mode = f"[mode.own]\nlayout = {{ {layout} }}\nattach = {{ {attach} }}\n"
    assert complaint(tmp_path, good_but('"lvm"', '"own"') + mode) == [f"mode.own.{line}"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "not a valid name of a mode"),
        ("a.b", "not a valid name of a mode"),
        ("a--b", "not a valid name of a mode"),
        ("own\n", "not a valid name of a mode"),
        ("\u00fcn\u00ef", "not a valid name of a mode"),
        ("a" * 41, "the name has 41 characters; allowed: at most 40"),
        ("device", "is reserved"),
        ("pool-64k", "is reserved"),
        ("snapshot-lvm", "is reserved"),
        ("pvmove0", "is reserved"),
    ],
)
def test_a_mode_cannot_have_a_name_that_no_volume_can_have(tmp_path: Path, name: str, why: str) -> None:
    quoted = json.dumps(name, ensure_ascii=False)
    mode = f'[mode.{quoted}]\nlayout = {{ kind = "lvm" }}\nattach = {{}}\n'
    (line,) = complaint(tmp_path, good_but('"lvm"', quoted) + mode)
    key = name if re.fullmatch("[A-Za-z0-9_-]+", name) else quoted
    assert line.startswith(f"mode.{key}: {why}")


@pytest.mark.parametrize("digits", ["9" * 400, "9" * 5000])
@pytest.mark.parametrize(
    "text",
    [
        'write_rate = "{} GiB/s"',
        'workloads = ["randread-{}"]',
        'workloads = ["randread-4k-i{}"]',
        '[profile.smoke]\nspan = "{} GiB"',
        '[profile.smoke]\nruntime = "{} h"',
        '[profile.smoke]\ntarget = "{} %"',
        '[[budget]]\nmetric = "clat_mean"\nshare = "{} %"',
        '[[budget]]\nmetric = "clat_mean"\nabsolute = "+{} s"',
        '[mode.own]\nlayout = {{ kind = "md", level = 0, disks = 2, chunk = "{}" }}\nattach = {{}}',
    ],
)
def test_a_number_beyond_all_bounds_is_reported_in_a_readable_line(tmp_path: Path, text: str, digits: str) -> None:
    head = {"write_rate": 'write_rate = "1 GiB/s"', "workloads": 'workloads = ["randread-4k"]'}
    replaced = head.get(text.partition(" ")[0], "")
    new = text.format(digits)
    lines = complaint(tmp_path, good_but(replaced, new) if replaced else f"{GOOD}\n{new}\n")
    assert all(len(line) < 6000 for line in lines)
    assert not any("int string" in line for line in lines)


def test_a_file_that_an_editor_began_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    assert load(tmp_path, f"\ufeff{GOOD}").title == "A disk"


def test_all_problems_of_a_file_are_reported_together(tmp_path: Path) -> None:
    text = GOOD.replace('"lvm"', '"lmv", "host"').replace("1 GiB/s", "fast") + '[profile.smoke]\nrounds = "4"\n'
    keys = [line.partition(" = ")[0] for line in complaint(tmp_path, text)]
    assert keys == ["modes[1]", "write_rate", "profile.smoke.rounds", "modes[2]"]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('title = "A\n', 'line 1, column 11: invalid TOML: .*: title = "A$'),
        ("a = 1\na = 2\n", r"line 2, column \d+: invalid TOML: .*: a = 2$"),
        ("modes = [\n", "end of the file: invalid TOML: "),
    ],
)
def test_a_syntax_error_is_reported_with_its_line(tmp_path: Path, text: str, where: str) -> None:
    (line,) = complaint(tmp_path, text)
    assert re.match(where, line)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("disk = optane\n", "text needs straight quotes"),
        ("cached = True\n", "only numbers, true and false have none"),
        ("disk = \u201coptane\u201d\n", "text needs straight quotes"),
        ("disk: optane\n", 'a line is KEY = "VALUE"'),
        ('{"disk": "optane"}\n', 'a line is KEY = "VALUE"'),
        ("[mode my lvm]\n", "the name of a table is in brackets"),
        ('title = "C:\\Users"\n', "write each backslash in text twice"),
        ('title = "C:\\me"\n', "write each backslash in text twice"),
        ("a = 1\na = 2\n", "write it once"),
        ("[mode.a]\n[mode.a]\n", "write it once"),
    ],
)
def test_a_syntax_error_says_how_to_write_it_and_not_what_python_has(tmp_path: Path, text: str, remedy: str) -> None:
    (tmp_path / "optane.toml").write_text(text)
    with pytest.raises(ConfigError, match="invalid TOML") as error:
        load_scenario(tmp_path / "optane.toml")
    assert remedy in str(error.value.hint)
    assert "('" not in error.value.message


def test_a_file_name_must_not_make_ids_ambiguous(tmp_path: Path) -> None:
    (line,) = complaint(tmp_path, GOOD, "sata-ssd.toml")
    assert line == 'file name "sata-ssd": allowed: lower case letters, digits and single underscores'


def test_a_missing_file_is_reported_with_the_nearest_name(tmp_path: Path) -> None:
    load(tmp_path, GOOD, "optane.toml")
    with pytest.raises(ConfigError, match=r'optan\.toml: no such scenario file.*did you mean "optane\.toml"'):
        load_scenario(tmp_path / "optan.toml")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "disk.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"disk\.toml: line 1: not valid UTF-8\n.*save the file as UTF-8"):
        load_scenario(path)


def test_a_file_name_that_is_too_long_for_ids_is_refused(tmp_path: Path) -> None:
    (line,) = complaint(tmp_path, GOOD, f"{'x' * 41}.toml")
    assert line.endswith("allowed: at most 40 characters before .toml")


def test_scenarios_are_found_by_name(tmp_path: Path) -> None:
    for name in ("b.toml", "a.toml"):
        load(tmp_path, GOOD, name)
    (tmp_path / "test_overhead.py").touch()
    assert [path.name for path in find_scenarios(tmp_path)] == ["a.toml", "b.toml"]


def test_a_directory_without_scenarios_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no scenario files"):
        find_scenarios(tmp_path)


def test_published_figures_that_do_not_exist_are_refused_with_the_names_that_do(tmp_path: Path) -> None:
    (line,) = complaint(tmp_path, GOOD + 'published = "local_disks.optan"')
    assert line.startswith('published = "local_disks.optan": no such published figures; allowed: local_disks.hdd, ')
    assert all(name in line for name in links())
    assert line.endswith('(did you mean "local_disks.optane"?)')
    (line,) = complaint(tmp_path, GOOD + "published = 3")
    assert line == "published = 3: must be text in quotes"


def test_figures_of_one_array_are_for_a_disk_that_is_this_array(tmp_path: Path) -> None:
    array = """
[mode.raid5]
layout = { kind = "lvm", on = { kind = "md", level = 5, disks = 6 } }
attach = {}
"""
    six = good_but('"lvm"', '"lvm", "raid5"') + 'disks = ["d1", "d2", "d3", "d4", "d5", "d6"]\n'
    assert load(tmp_path, six + 'published = "array_vm"' + array).published == "array_vm"
    (line,) = complaint(tmp_path, six + 'published = "array_vm.raid5"' + array)
    assert line == (
        'published = "array_vm.raid5": is one array, and the mode raid5 builds arrays of several disks; '
        'allowed: "array_vm", from which each mode selects its array'
    )
    assert load(tmp_path, GOOD + 'published = "array_vm.raid5"').published == "array_vm.raid5"


def test_a_message_lists_the_first_problems_and_says_how_many_follow(tmp_path: Path) -> None:
    names = [f"own-{number}" for number in range(MOST_PROBLEMS + 5)]
    text = f"title = 'x'\nmodes = {json.dumps(names)}\nworkloads = ['randread-4k']\nwrite_rate = '1 GiB/s'\n"
    lines = complaint(tmp_path, text)
    assert len(lines) == MOST_PROBLEMS + 1
    assert lines[-1].endswith("5 more problems are listed when these are corrected")
