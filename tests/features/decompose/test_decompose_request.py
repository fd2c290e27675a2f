"""Decompositions in scenario files: each step changes one thing, and its name says which. Other steps are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.features.decompose.records import Decomposition, compare_arms, find_step_problems, list_steps
from harness.model.attach import Attach, Vfio
from harness.model.base import Device, Md
from harness.model.job import parse_workload
from harness.model.layout import Layout, Lvm, LvmThin, Qcow2, RawFile
from harness.model.mode import Arm, Mode, Place
from harness.model.workloads import PROFILES
from harness.scenario.load import load_scenario
from harness.scenario.scenario import Requested, Scenario

HOST = Arm(Place.HOST)
BLK = Attach("virtio-blk")
WORKLOADS = ("randread-4k", "randwrite-4k")

MODES = (
    Mode("host", Device(), None),
    Mode("passthrough", Device(), BLK),
    Mode("blk", Lvm(), BLK),
    Mode("uring", Lvm(), Attach("virtio-blk", aio="io_uring")),
    Mode("cached", Lvm(), Attach("virtio-blk", "writeback", "io_uring")),
    Mode("scsi", Lvm(), Attach("virtio-scsi", aio="io_uring")),
    Mode("slow", Lvm(), Attach("virtio-scsi", aio="io_uring", iothread=False)),
    Mode("again", Lvm(), Attach("virtio-scsi", aio="io_uring")),
)
STEPS = ("host", "twin:blk", "guest:blk", "guest:uring", "guest:scsi", "guest:slow")


def scenario(*steps: str, workloads: tuple[str, ...] | None = None) -> Scenario:
    chosen = tuple(map(parse_workload, workloads)) if workloads is not None else None
    return Scenario(
        name="disk",
        title="A disk",
        disk="disk",
        modes=MODES,
        workloads=tuple(map(parse_workload, WORKLOADS)),
        write_rate=1 << 30,
        profiles=PROFILES,
        requests=(Requested("attach", Decomposition(steps, chosen)),),
    )


def problem(*steps: str) -> str:
    (line,) = find_step_problems(scenario(*steps))
    return line


def words(*steps: str) -> list[str]:
    asked = scenario(*steps)
    assert list(find_step_problems(asked)) == []
    return [change for _, change in list_steps(asked, asked.requests_of(Decomposition)["attach"])]


def test_each_step_is_named_after_the_one_thing_that_it_changes() -> None:
    assert words(*STEPS) == [
        "",
        "bare device -> lvm",
        "virtualisation (virtio-blk, cache none, aio native, iothread)",
        "aio native -> io_uring",
        "bus virtio-blk -> virtio-scsi",
        "iothread on -> off",
    ]


def test_the_guest_may_follow_the_host_on_the_same_device_and_a_cache_may_be_a_step() -> None:
    assert words("host", "guest:passthrough") == [
        "",
        "virtualisation (virtio-blk, cache none, aio native, iothread)",
    ]
    assert words("host", "twin:uring", "guest:uring", "guest:cached")[-1] == "cache none -> writeback"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (Lvm(), RawFile(), ["lvm -> raw"]),
        (RawFile("ext4"), RawFile("xfs"), ["filesystem ext4 -> xfs"]),
        (RawFile("ext4", "off"), RawFile("xfs", "full"), ["filesystem ext4 -> xfs", "preallocation off -> full"]),
        (RawFile("btrfs", nodatacow=False), RawFile("btrfs", nodatacow=True), ["nodatacow off -> on"]),
        (Qcow2(cluster_size=65536), Qcow2(cluster_size=1 << 20), ["cluster size 64 KiB -> 1 MiB"]),
        (Qcow2(), Qcow2(lazy_refcounts=True), ["lazy refcounts off -> on"]),
        (Device(), Md(5, 3), ["bare device -> RAID 5 over 3 disks"]),
        (Md(5, 3), Lvm(on=Md(5, 3)), ["RAID 5 over 3 disks -> lvm"]),
        (Md(5, 4), Md(6, 4), ["level 5 -> 6"]),
        (Lvm(on=Md(5, 4)), Lvm(on=Md(6, 4)), ["level 5 -> 6"]),
        (Lvm(), Lvm(on=Md(0, 2)), ["bare device -> RAID 0 over 2 disks"]),
        (Device(), Lvm(on=Md(0, 2)), ["bare device -> RAID 0 over 2 disks", "bare device -> lvm"]),
        (Lvm(), LvmThin(), ["lvm -> lvm-thin"]),
        (Lvm(), Lvm(), []),
    ],
    ids=str,
)
def test_layouts_differ_in_the_array_the_layer_on_it_and_its_options(
    before: Layout, after: Layout, said: list[str]
) -> None:
    found = compare_arms(Arm(Place.GUEST, Mode("a", before, BLK)), Arm(Place.GUEST, Mode("b", after, BLK)))
    assert [change.words for change in found] == said


def test_the_twin_of_an_image_is_a_raw_file_so_its_guest_also_differs_in_the_format() -> None:
    image = Mode("image", Qcow2(preallocation="falloc"), BLK)
    plain = Mode("plain", RawFile(), BLK)
    twin, guest = Arm(Place.TWIN, image), Arm(Place.GUEST, image)
    assert [change.words for change in compare_arms(HOST, twin)] == ["bare device -> raw"]
    assert [change.key for change in compare_arms(twin, guest)] == ["layout.kind", "guest"]
    assert [change.key for change in compare_arms(twin, Arm(Place.GUEST, plain))] == ["guest"]


def test_vfio_against_what_qemu_serves_is_one_change() -> None:
    (change,) = compare_arms(Arm(Place.GUEST, MODES[1]), Arm(Place.GUEST, Mode("vfio", Device(), Vfio())))
    assert change.words == "virtio-blk, cache none, aio native, iothread -> VFIO"
    (change,) = compare_arms(HOST, Arm(Place.GUEST, Mode("vfio", Device(), Vfio())))
    assert change.words == "virtualisation (VFIO)"


def test_a_step_that_changes_more_is_refused_with_the_names_of_all_differences() -> None:
    assert problem("host", "twin:blk", "guest:blk", "guest:slow") == (
        'decompose.attach.steps[3] = "guest:slow": changes 3 things against "guest:blk": '
        "attach.bus (bus virtio-blk -> virtio-scsi), attach.aio (aio native -> io_uring), "
        "attach.iothread (iothread on -> off); allowed: one change per step"
    )


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (("host", "guest:blk"), 'changes 2 things against "host": layout.kind (bare device -> lvm), guest ('),
        (("host", "twin:blk", "guest:cached"), "page cache off -> on"),
        (("host", "twin:cached"), "page cache off -> on"),
        (("host", "twin:blk", "guest:uring", "guest:scsi", "guest:again"), "changes nothing against"),
        (("twin:blk", "guest:blk"), 'steps[0] = "twin:blk": not the bare host'),
        (("host", "twin:blk", "guest:blk", "twin:uring"), "goes back from guest to twin"),
        (
            ("host", "twin:passthrough"),
            "not an arm of this scenario; allowed: host, guest:passthrough, twin:blk, guest",
        ),
        (("host", "guest:blck"), '(did you mean "guest:blk"?)'),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_steps_are_refused_with_the_reason(steps: tuple[str, ...], said: str) -> None:
    assert said in problem(*steps)


def test_a_workload_that_is_not_measured_is_refused() -> None:
    (line,) = find_step_problems(scenario("host", "guest:passthrough", workloads=("randread-4k", "randread-8k")))
    assert line.startswith(
        'decompose.attach.workloads[1] = "randread-8k": not a workload of this scenario; allowed: randread-4k,'
    )


def test_modes_that_are_not_measured_in_the_same_rounds_are_refused() -> None:
    volumes = tuple(Mode(f"lvm-{number}", Lvm(), Attach(queues=number)) for number in range(1, 12))
    steps = ("host", "twin:lvm-1", "guest:lvm-1", "guest:lvm-11")
    crowded = replace(scenario(*steps), modes=(MODES[0], *volumes))
    (line,) = find_step_problems(crowded)
    assert line.startswith(
        "decompose.attach.steps: the modes of these steps are in different setups (lvm-1 and lvm-11)"
    )
    near = replace(scenario(*steps[:3], "guest:lvm-2"), modes=crowded.modes)
    assert list(find_step_problems(near)) == []


FILE = """
title = "A disk"
modes = ["host", "lvm", "lvm-uring"]
workloads = ["randread-4k", "seqread-256k"]
write_rate = "1 GiB/s"

[mode.lvm-uring]
layout = { kind = "lvm" }
attach = { aio = "io_uring" }

[decompose.attach]
workloads = ["randread-4k"]
steps = ["host", "twin:lvm", "guest:lvm", "guest:lvm-uring"]
"""


def loaded(directory: Path, text: str) -> Scenario:
    path = directory / "disk.toml"
    path.write_text(text, encoding="utf-8")
    return load_scenario(path)


def test_a_file_names_the_steps_by_the_ids_of_the_arms(tmp_path: Path) -> None:
    found = loaded(tmp_path, FILE).requests_of(Decomposition)["attach"]
    assert found.steps == ("host", "twin:lvm", "guest:lvm", "guest:lvm-uring")
    read, sequential = (parse_workload(name).job(1, ramp=0, seconds=1) for name in ("randread-4k", "seqread-256k"))
    assert found.covers(read)
    assert not found.covers(sequential)


VARIANTS_PAGE = Path(__file__).resolve().parents[3] / "docs" / "variants.md"


def test_a_pinned_guest_and_one_without_polling_are_steps_of_one_waterfall(tmp_path: Path) -> None:
    _, _, section = VARIANTS_PAGE.read_text(encoding="utf-8").partition("## Pinning and polling in one waterfall")
    text = section.partition("```toml\n")[2].partition("```")[0]
    scenario = loaded(tmp_path, text)
    (decomposition,) = scenario.requests_of(Decomposition).values()
    assert [change for _, change in list_steps(scenario, decomposition)] == [
        "",
        "virtualisation (virtio-blk, cache none, aio native, iothread)",
        "no pinning -> pinning vCPUs on 2/3, iothreads on 4, emulator on 5",
        "poll max ns default -> 32768",
        "poll max ns 32768 -> 0",
    ]
    with pytest.raises(ConfigError, match=r"changes 2 things .*guest.memory .*guest.pin "):
        loaded(tmp_path, text.replace('"5" }', '"5", memory = "1 GiB" }'))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"guest:lvm", "guest:lvm-uring"',
            '"guest:lvm-uring", "guest:lvm-uring"',
            "the same as decompose.attach.steps",
        ),
        ('"twin:lvm", ', "", "changes 2 things"),
        ('["host", "twin:lvm", "guest:lvm", "guest:lvm-uring"]', '["host"]', "allowed: 2 or more"),
        ("[decompose.attach]", "[decompose.Attach]", "not a valid name of a decomposition"),
        ("\nsteps", "\nstep", "no such key"),
    ],
)
def test_a_mistake_in_a_file_is_reported(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in FILE
    with pytest.raises(ConfigError, match=said):
        loaded(tmp_path, FILE.replace(old, new))
