"""Conflicting options are refused before anything is touched. The message names the two keys."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from harness.errors import ConfigError
from harness.features.arrays import FEWEST_DISKS
from harness.model.attach import Aio, Attach, Cache
from harness.model.base import Device
from harness.model.option import Bus
from harness.scenario.legality import find_mode_problems
from harness.scenario.load import load_scenario
from harness.scenario.scenario import Scenario

DISKS = 'disks = ["ssd1", "ssd2", "ssd3", "ssd4", "ssd5", "ssd6"]'
VIRTIO = ("virtio-blk", "virtio-scsi")
DIRECT = ("none", "directsync")


def load(
    directory: Path, mode: str, *, head: str = DISKS, modes: str = '"host", "own"', workload: str = "randread-4k"
) -> Scenario:
    path = directory / "disk.toml"
    text = f"""
title = "A disk"
{head}
modes = [{modes}]
workloads = ["{workload}"]
write_rate = "1 GiB/s"
{mode}
"""
    path.write_text(text, encoding="utf-8")
    return load_scenario(path)


def complaint(
    directory: Path, mode: str, *, head: str = DISKS, modes: str = '"host", "own"', workload: str = "randread-4k"
) -> str:
    """The one line of the error, without the file's name."""
    with pytest.raises(ConfigError) as error:
        load(directory, mode, head=head, modes=modes, workload=workload)
    (line,) = error.value.message.splitlines()
    return line.removeprefix(f"{directory / 'disk.toml'}: ")


def own(layout: str = 'kind = "device"', attach: str = "") -> str:
    return f"[mode.own]\nlayout = {{ {layout} }}\nattach = {{ {attach} }}\n"


NO_THREAD = "iothread = false"
LUN = 'device = "lun", aio = "threads"'
FOUR_K = 'logical_block_size = "4 KiB", physical_block_size = "4 KiB"'

CONFLICTS = [
    # layout, attach, one key with its value, the other, what is allowed
    *(
        ("", f'cache = "{cache}"', 'attach.aio = "native" (the default)', f'attach.cache = "{cache}"', "aio threads")
        for cache in ("writeback", "writethrough", "unsafe")
    ),
    (
        "",
        'detect_zeroes = "unmap"',
        'attach.detect_zeroes = "unmap"',
        'attach.discard = "ignore" (the default)',
        'discard = "unmap"',
    ),
    *(
        conflict
        for bus in ("sata", "ide", "nvme")
        for conflict in (
            ("", f'bus = "{bus}"', "attach.iothread = true (the default)", f'attach.bus = "{bus}"', "iothread = false"),
            (
                "",
                f'bus = "{bus}", {NO_THREAD}, iothread_vq_mapping = 2',
                "attach.iothread_vq_mapping = 2",
                f'attach.bus = "{bus}"',
                "virtio-blk or virtio-scsi",
            ),
            (
                "",
                f'bus = "{bus}", {NO_THREAD}, queues = 4',
                "attach.queues = 4",
                f'attach.bus = "{bus}"',
                "virtio-blk or virtio-scsi",
            ),
            (
                "",
                f'bus = "{bus}", {NO_THREAD}, queue_size = 256',
                "attach.queue_size = 256",
                f'attach.bus = "{bus}"',
                "virtio-blk or virtio-scsi",
            ),
        )
    ),
    (
        "",
        "queues = 4, iothread_vq_mapping = 2",
        "attach.iothread = true (the default)",
        "attach.iothread_vq_mapping = 2",
        "iothread = false",
    ),
    (
        "",
        f"{NO_THREAD}, poll_max_ns = 0",
        "attach.poll_max_ns = 0",
        "attach.iothread = false",
        "iothread = true, or no poll_max_ns",
    ),
    (
        "",
        f"{NO_THREAD}, iothread_vq_mapping = 2",
        "attach.iothread_vq_mapping = 2",
        "attach.queues left out",
        "queues = 2 or more",
    ),
    (
        "",
        f"{NO_THREAD}, queues = 2, iothread_vq_mapping = 3",
        "attach.iothread_vq_mapping = 3",
        "attach.queues = 2",
        "queues = 3 or more",
    ),
    *(
        (
            "",
            f'bus = "{bus}", controller = "shared"' + ("" if bus in VIRTIO else f", {NO_THREAD}"),
            'attach.controller = "shared"',
            f'attach.bus = "{bus}"',
            "bus virtio-scsi",
        )
        for bus in ("virtio-blk", "sata", "ide", "nvme")
    ),
    *(
        conflict
        for bus in ("sata", "ide")
        for conflict in (
            (
                "",
                f'bus = "{bus}", {NO_THREAD}, read_only = true',
                "attach.read_only = true",
                f'attach.bus = "{bus}"',
                "virtio-scsi or nvme",
            ),
            (
                "",
                f'bus = "{bus}", {NO_THREAD}, {FOUR_K}',
                'attach.logical_block_size = "4 KiB"',
                f'attach.bus = "{bus}"',
                "virtio-scsi or nvme",
            ),
        )
    ),
    (
        "",
        'logical_block_size = "4 KiB"',
        'attach.logical_block_size = "4 KiB"',
        "attach.physical_block_size left out",
        'physical_block_size = "4 KiB" or more',
    ),
    (
        "",
        'logical_block_size = "4 KiB", physical_block_size = "512"',
        'attach.logical_block_size = "4 KiB"',
        'attach.physical_block_size = "512 B"',
        'physical_block_size = "4 KiB" or more',
    ),
    ("", f'{LUN}, bus = "virtio-blk"', 'attach.bus = "virtio-blk"', 'attach.device = "lun"', "bus virtio-scsi"),
    *(
        ("", f'{LUN}, cache = "{cache}"', f'attach.cache = "{cache}"', 'attach.device = "lun"', "cache none")
        for cache in ("directsync", "writeback", "writethrough", "unsafe")
    ),
    ("", 'device = "lun"', 'attach.aio = "native" (the default)', 'attach.device = "lun"', "aio threads"),
    (
        "",
        'device = "lun", aio = "io_uring"',
        'attach.aio = "io_uring"',
        'attach.device = "lun"',
        "aio threads",
    ),
    ("", f'{LUN}, discard = "unmap"', 'attach.discard = "unmap"', 'attach.device = "lun"', "device disk"),
    ("", f'{LUN}, detect_zeroes = "on"', 'attach.detect_zeroes = "on"', 'attach.device = "lun"', "device disk"),
    (
        "",
        f'{LUN}, logical_block_size = "512"',
        'attach.logical_block_size = "512 B"',
        'attach.device = "lun"',
        "device disk",
    ),
    (
        "",
        f'{LUN}, physical_block_size = "4 KiB"',
        'attach.physical_block_size = "4 KiB"',
        'attach.device = "lun"',
        "device disk",
    ),
    ("", f"{LUN}, iops = 1000", "attach.iops = 1000", 'attach.device = "lun"', "device disk"),
    ("", f'{LUN}, bw = "1 MiB/s"', 'attach.bw = "1 MiB/s"', 'attach.device = "lun"', "device disk"),
    ("", "iops_burst = 10", "attach.iops_burst = 10", "attach.iops left out", "iops, and iops_burst"),
    ("", "iops = 20, iops_burst = 10", "attach.iops_burst = 10", "attach.iops = 20", "that is not smaller"),
    (
        "",
        'bw = "2 MiB/s", bw_burst = "1 MiB/s"',
        'attach.bw_burst = "1 MiB/s"',
        'attach.bw = "2 MiB/s"',
        "not smaller",
    ),
    ("", "iops = 1, read_iops = 1", "attach.read_iops = 1", "attach.iops = 1", "iops, or read_iops and write_iops"),
    (
        "",
        'bw = "1 MiB/s", write_bw = "1 MiB/s"',
        'attach.write_bw = "1 MiB/s"',
        'attach.bw = "1 MiB/s"',
        "bw, or read_bw and write_bw",
    ),
    (
        "",
        "write_iops_burst = 9",
        "attach.write_iops_burst = 9",
        "attach.write_iops left out",
        "write_iops, and write_iops",
    ),
    ("", 'bus = "virtio-blk", ssd = true', "attach.ssd = true", 'attach.bus = "virtio-blk"', "bus virtio-scsi or sata"),
    ("", "iops = 1, burst_seconds = 2", "attach.burst_seconds = 2", "attach.iops_burst left out", "with iops_burst"),
    ("", 'metadata_cache = "1 MiB"', 'attach.metadata_cache = "1 MiB"', 'layout.kind = "device"', "kind qcow2"),
    (
        "",
        'server = "storage-daemon"',
        'attach.bus = "virtio-scsi" (the default)',
        'attach.server = "storage-daemon"',
        "bus virtio-blk",
    ),
    *(
        (
            "",
            f'bus = "virtio-blk", server = "storage-daemon", {key} = {value}',
            f"attach.{key} = {value}",
            'attach.server = "storage-daemon"',
            f"no {key}, or server qemu",
        )
        for key, value in (("packed", "true"), ("read_only", "true"), ("iops", "5"))
    ),
    *(
        ("", f'bus = "sata", {NO_THREAD}, {key} = true', f"attach.{key} = true", 'attach.bus = "sata"', "virtio-scsi")
        for key in ("packed", "event_idx")
    ),
    ("", f"{LUN}, read_only = true", "attach.read_only = true", 'attach.device = "lun"', "device disk"),
    *(
        (layout, attach, f"layout.{layout.split(',')[0]}", f"attach.{device}", "kind device")
        for layout in (
            'kind = "partition"',
            'kind = "lvm"',
            'kind = "lvm-thin"',
            'kind = "raw"',
            'kind = "qcow2"',
            'kind = "md", level = 0, disks = 2',
            'kind = "zvol"',
            'kind = "zfs"',
        )
        for device, attach in (('device = "lun"', LUN), ('device = "vfio"', 'device = "vfio"'))
    ),
    *(
        ("", f'device = "vfio", {key} = {value}', f"attach.{key}", 'attach.device = "vfio"', "device alone")
        for key, value in (
            ("bus", '"virtio-scsi"'),
            ("cache", '"none"'),
            ("aio", '"threads"'),
            ("iothread", "false"),
            ("queues", "4"),
            ("queue_size", "256"),
            ("iothread_vq_mapping", "0"),
            ("poll_max_ns", "0"),
            ("controller", '"single"'),
            ("discard", '"unmap"'),
            ("detect_zeroes", '"off"'),
            ("logical_block_size", '"512"'),
            ("physical_block_size", '"512"'),
            ("read_only", "true"),
            ("iops", "1"),
        )
    ),
    *(
        (
            f'kind = "md", level = {level}, disks = {fewest - 1}',
            "",
            f"layout.disks = {fewest - 1}",
            f"layout.level = {level}",
            f"disks = {fewest} or more",
        )
        for level, fewest in FEWEST_DISKS.items()
        if fewest > 2  # with one disk the file's shape is wrong, which is told for every level
    ),
    ('kind = "md", level = 0, disks = 5, legs = 2', "", "layout.disks = 5", "layout.legs = 2", "an even number"),
    *(
        (
            f'kind = "md", level = {level}, disks = {2 * fewest - 2}, legs = 2',
            "",
            "layout.legs = 2",
            f"layout.disks = {2 * fewest - 2}",
            f"disks = {2 * fewest} or more",
        )
        for level, fewest in FEWEST_DISKS.items()
    ),
    (
        'kind = "md", level = 0, disks = 4, legs = 2, starts = [1]',
        "",
        "layout.starts = [1]",
        "layout.legs = 2",
        "two places",
    ),
    (
        'kind = "md", level = 0, disks = 2, starts = [1, 3]',
        "",
        "layout.starts = [1, 3]",
        "layout.legs = 1 (the default)",
        "one place",
    ),
    (
        'kind = "md", level = 0, disks = 4, legs = 2, starts = [1, 2]',
        "",
        "layout.starts = [1, 2]",
        "layout.disks = 4",
        "2 or more apart",
    ),
    (
        'kind = "md", level = 1, disks = 2, chunk = "64 KiB"',
        "",
        'layout.chunk = "64 KiB"',
        "layout.level = 1",
        "no chunk",
    ),
    (
        'kind = "md", level = 0, disks = 4, state = "degraded"',
        "",
        'layout.state = "degraded"',
        "layout.level = 0",
        "level 1, 5, 6 or 10, or state",
    ),
    (
        'kind = "md", level = 5, disks = 6, legs = 2, state = "degraded"',
        "",
        'layout.state = "degraded"',
        "layout.legs = 2",
        "legs = 1, or state",
    ),
    (
        'kind = "md", level = 6, disks = 4, state = "rebuilding"',
        "",
        'layout.state = "rebuilding"',
        "layout.spares = 0 (the default)",
        "spares = 1",
    ),
    (
        'kind = "lvm", on = { kind = "md", level = 1, disks = 2, state = "degraded", spares = 1 }',
        "",
        "layout.on.spares = 1",
        'layout.on.state = "degraded"',
        'spares = 0, or state = "rebuilding"',
    ),
    (
        'kind = "md", level = 10, disks = 4, spares = 1',
        "",
        "layout.spares = 1",
        'layout.state = "optimal" (the default)',
        "spares = 0",
    ),
    (
        'kind = "lvm", on = { kind = "md", level = 5, disks = 2 }',
        "",
        "layout.on.disks = 2",
        "layout.on.level = 5",
        "disks = 3 or more",
    ),
]


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_a_conflict_within_a_mode_names_both_keys_and_what_is_allowed(
    tmp_path: Path, conflict: tuple[str, str, str, str, str]
) -> None:
    layout, attach, one, other, allowed = conflict
    line = complaint(tmp_path, own(layout or 'kind = "device"', attach))
    assert line.startswith(f"mode.own: {one} conflicts with {other}, ")
    assert allowed in line.partition("; allowed: ")[2]


READ_ONLY = own(attach="read_only = true")


@pytest.mark.parametrize(
    ("file", "conflict"),
    [
        (
            (DISKS, '"host", "own"', READ_ONLY, "randwrite-4k"),
            ("mode.own.attach.read_only = true", 'workloads[0] = "randwrite-4k"', "seqread and randread"),
        ),
        (
            (DISKS, '"host", "own"', READ_ONLY, "seqrw-4k-r50"),
            ("mode.own.attach.read_only = true", 'workloads[0] = "seqrw-4k-r50"', "seqread and randread"),
        ),
        (
            (DISKS, '"host", "own"', own(attach=FOUR_K), "randread-512"),
            ('mode.own.attach.logical_block_size = "4 KiB"', 'workloads[0] = "randread-512"', "multiples of 4 KiB"),
        ),
        (
            (DISKS, '"host", "own"', own(attach=FOUR_K), "randread-6k"),
            ('mode.own.attach.logical_block_size = "4 KiB"', 'workloads[0] = "randread-6k"', "multiples of 4 KiB"),
        ),
        (
            ('disks = ["a", "b", "c"]', '"host", "own"', own('kind = "md", level = 5, disks = 4'), "randread-4k"),
            ("mode.own.layout.disks = 4", 'disks = ["a", "b", "c"]', "4 or more names in disks"),
        ),
        (
            (
                'disk = "a"',
                '"host", "own"',
                own('kind = "qcow2", on = { kind = "md", level = 0, disks = 2 }'),
                "randread-4k",
            ),
            ("mode.own.layout.on.disks = 2", 'disk = "a"', "2 or more names in disks"),
        ),
        (
            (DISKS, '"host", "own"', own('kind = "md", level = 0, disks = 4, chunk = "32 MiB"'), "randread-4k"),
            ('mode.own.layout.chunk = "32 MiB"', 'profile.smoke.span = "64 MiB"', "a smaller chunk"),
        ),
        (
            (
                DISKS,
                '"host", "own"',
                own('kind = "lvm", on = { kind = "md", level = 1, disks = 4, legs = 2, chunk = "1 GiB" }'),
                "randread-4k",
            ),
            ('mode.own.layout.on.chunk = "1 GiB"', 'profile.smoke.span = "64 MiB"', "a larger span"),
        ),
        (
            ('disk = "a"', '"host", "lvm", "vfio"', "", "randread-4k"),
            ('modes[1] = "lvm"', 'modes[2] = "vfio"', "host and one mode with vfio"),
        ),
        (
            ('disk = "a"', '"host", "own", "passthrough"', own(attach='device = "vfio"'), "randread-4k"),
            ('modes[2] = "passthrough"', 'modes[1] = "own"', "host and one mode with vfio"),
        ),
        (
            ('disks = ["a", "b"]', '"host", "vfio"', "", "randread-4k"),
            ('disks = ["a", "b"]', 'modes[1] = "vfio"', "disk with one name"),
        ),
        (
            ('disk = "a"\ndisks = ["a", "b"]', '"host", "lvm"', "", "randread-4k"),
            ('disk = "a"', 'disks = ["a", "b"]', "one of the two"),
        ),
    ],
)
def test_a_conflict_within_a_scenario_names_both_keys_and_what_is_allowed(
    tmp_path: Path, file: tuple[str, str, str, str], conflict: tuple[str, str, str]
) -> None:
    (head, modes, mode, workload), (one, other, allowed) = file, conflict
    line = complaint(tmp_path, mode, head=head, modes=modes, workload=workload)
    assert line.startswith(f"{one}: conflicts with {other}")
    assert allowed in line.partition("; allowed: ")[2]


@pytest.mark.parametrize(
    ("layout", "attach", "line"),
    [
        ("", 'queue_size = "256"', 'attach.queue_size = "256": must be a whole number, without quotes'),
        ("", "queue_size = 100", "attach.queue_size = 100: allowed: powers of two, 4 to 1024"),
        ("", "queue_size = 2048", "attach.queue_size = 2048: allowed: powers of two, 4 to 1024"),
        ("", "queue_size = 2", "attach.queue_size = 2: allowed: powers of two, 4 to 1024"),
        ("", "queues = 0", "attach.queues = 0: allowed: 1 or more"),
        ("", "queues = 1023", "attach.queues = 1023: allowed: at most 1022"),
        ("", "iothread_vq_mapping = -1", "attach.iothread_vq_mapping = -1: allowed: 0 or more"),
        ("", "iothread_vq_mapping = 1023", "attach.iothread_vq_mapping = 1023: allowed: at most 1022"),
        (
            "",
            'logical_block_size = "8 KiB"',
            'attach.logical_block_size = "8 KiB": allowed: powers of two, 512 B to 4 KiB',
        ),
        (
            "",
            'physical_block_size = "4 MiB"',
            'attach.physical_block_size = "4 MiB": allowed: powers of two, 512 B to 2 MiB',
        ),
        (
            "",
            'physical_block_size = "1000"',
            'attach.physical_block_size = "1000": allowed: powers of two, 512 B to 2 MiB',
        ),
        (
            'kind = "md", level = 5, disks = 3, chunk = "48 KiB"',
            "",
            'layout.chunk = "48 KiB": allowed: powers of two, 4 KiB or more',
        ),
        (
            'kind = "md", level = 5, disks = 3, chunk = "2 KiB"',
            "",
            'layout.chunk = "2 KiB": allowed: powers of two, 4 KiB or more',
        ),
        ('kind = "md", level = 4, disks = 3', "", "layout.level = 4: allowed: 0, 1, 5, 6, 10"),
        *(
            (
                f'kind = "md", level = {level}, disks = 4',
                "",
                f"layout.level = {level}: must be a whole number, without quotes",
            )
            for level in ('"5"', "5.0", "true", "false")
        ),
        (
            f'kind = "md", level = {10**20}, disks = 4',
            "",
            f"layout.level = {10**20}: the number is too large",
        ),
        (
            'kind = "md", level = 0, disks = 4, legs = true',
            "",
            "layout.legs = true: must be a whole number, without quotes",
        ),
        ('kind = "md", level = 0, disks = 1', "", "layout.disks = 1: allowed: 2 or more"),
        ('kind = "md", level = 0, disks = 6, legs = 3', "", "layout.legs = 3: allowed: 1, 2"),
        ('kind = "md", disks = 6', "", "layout.level: missing, and it has no default"),
        ('kind = "lvm", on = { kind = "lvm" }', "", 'layout.on.kind = "lvm": no such kind; allowed: device, md'),
        (
            'kind = "lvm-thin", chunk = "96 KiB"',
            "",
            'layout.chunk = "96 KiB": allowed: multiples of 64 KiB up to 1 GiB',
        ),
        (
            'kind = "qcow2", cluster_size = "4 MiB"',
            "",
            'layout.cluster_size = "4 MiB": allowed: powers of two, 512 B to 2 MiB',
        ),
        (
            'kind = "raw", preallocation = "metadata"',
            "",
            'layout.preallocation = "metadata": allowed: off, falloc, full',
        ),
        (
            'kind = "qcow2", lazy_refcounts = "yes"',
            "",
            'layout.lazy_refcounts = "yes": must be true or false, without quotes',
        ),
        (
            'kind = "zvol", volblocksize = "12 KiB"',
            "",
            'layout.volblocksize = "12 KiB": allowed: powers of two, 512 B to 16 MiB',
        ),
        (
            'kind = "zfs", recordsize = "32 MiB"',
            "",
            'layout.recordsize = "32 MiB": allowed: powers of two, 512 B to 16 MiB',
        ),
        (
            'kind = "zfs", recordsize = 4096',
            "",
            'layout.recordsize = 4096: must be text in quotes; allowed: for example "64 KiB"',
        ),
        (
            "",
            'device = "vfoi"',
            'attach.device = "vfoi": no such device; allowed: disk, lun, vfio (did you mean "vfio"?)',
        ),
    ],
)
def test_a_value_out_of_range_is_reported_with_what_is_allowed(
    tmp_path: Path, layout: str, attach: str, line: str
) -> None:
    assert complaint(tmp_path, own(layout or 'kind = "device"', attach)) == f"mode.own.{line}"


def test_each_conflict_of_a_mode_has_its_own_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, own('kind = "md", level = 6, disks = 3', 'bus = "ide", cache = "unsafe", read_only = true'))
    lines = error.value.message.splitlines()
    assert [line.partition("mode.own: ")[2].partition(" ")[0] for line in lines] == [
        "layout.disks",
        "attach.aio",
        "attach.iothread",
        "attach.read_only",
    ]


def test_all_conflicts_of_a_mode_are_reported() -> None:
    attach = Attach("sata", "writeback", iothread=True, queues=4, read_only=True, detect_zeroes="unmap")
    assert len(list(find_mode_problems(Device(), attach, ()))) == 5


@pytest.mark.parametrize(
    ("bus", "cache", "aio", "iothread"), list(product(get_args(Bus), get_args(Cache), get_args(Aio), (True, False)))
)
def test_exactly_the_legal_combinations_of_bus_cache_aio_and_iothread_are_accepted(
    bus: Bus, cache: Cache, aio: Aio, iothread: bool
) -> None:
    legal = (aio != "native" or cache in DIRECT) and (not iothread or bus in VIRTIO)
    assert (not list(find_mode_problems(Device(), Attach(bus, cache, aio, iothread), ()))) is legal


@pytest.mark.parametrize(
    "mode",
    [
        own('kind = "raw", preallocation = "off"'),
        own('kind = "qcow2", preallocation = "off", lazy_refcounts = true, cluster_size = "512"'),
        own('kind = "md", level = 1, disks = 4, legs = 2, chunk = "64 KiB"'),
        own('kind = "md", level = 10, disks = 5'),
        own('kind = "md", level = 1, disks = 2, state = "degraded"'),
        own('kind = "md", level = 5, disks = 5, state = "rebuilding", spares = 1'),
        own('kind = "md", level = 5, disks = 6, legs = 2'),
        own('kind = "md", level = 0, disks = 4, legs = 2, starts = [1, 4]'),
        own('kind = "md", level = 0, disks = 4, legs = 2, starts = [5, 1]'),
        own('kind = "md", level = 0, disks = 2, starts = [5]'),
        own(attach='bus = "nvme", iothread = false, read_only = true'),
        own(attach='bus = "virtio-blk", queues = 4, iothread = false, iothread_vq_mapping = 4, queue_size = 1024'),
        own(attach='controller = "shared", iothread = false, queues = 2'),
        own(attach='bus = "sata", iothread = false, physical_block_size = "4 KiB"'),
        own(attach='discard = "unmap", detect_zeroes = "unmap"'),
        own(attach=LUN),
    ],
)
def test_unusual_but_possible_options_are_accepted(tmp_path: Path, mode: str) -> None:
    assert load(tmp_path, mode).modes[1].name == "own"


def test_a_leg_that_starts_too_late_for_its_disks_names_both_keys(tmp_path: Path) -> None:
    line = complaint(tmp_path, own('kind = "md", level = 0, disks = 4, legs = 2, starts = [1, 6]'))
    assert line.startswith('mode.own.layout.starts = [1, 6]: conflicts with disks = ["ssd1", ')
    assert line.endswith(", which has only 6; allowed: 7 or more names in disks, or an array of fewer disks")


def test_an_array_without_a_disk_for_its_spare_names_both_keys(tmp_path: Path) -> None:
    line = complaint(tmp_path, own('kind = "md", level = 5, disks = 6, state = "rebuilding", spares = 1'))
    assert line.startswith('mode.own.layout.spares = 1: conflicts with disks = ["ssd1", ')
    assert line.endswith(", which has only 6; allowed: 7 or more names in disks, or an array of fewer disks")
