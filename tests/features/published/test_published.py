"""The published figures: what is in the file, what a scenario can link to, and which figure belongs to which cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.features.published.figures import (
    FIGURES,
    Band,
    PublishedFigure,
    find_counterparts,
    links,
    list_class_links,
    read_figures,
)
from harness.model.attach import Attach, Vfio
from harness.model.base import Device, Md
from harness.model.job import parse_workload
from harness.model.layout import Layout, Lvm, LvmThin, Partition, Qcow2, RawFile
from harness.model.mode import ModeDetail

ALL = [
    "local_disks.hdd",
    "local_disks.sata_ssd",
    "local_disks.optane",
    "raid0_scaling",
    "raid0_scaling.one_controller_8",
    "raid0_scaling.one_controller_16",
    "raid0_scaling.two_controllers_16",
    "array_vm",
    "array_vm.raid5",
    "array_vm.raid6",
    "array_vm.raidf1",
    "public_reports.consumer_nvme",
    "optane_dcpmm.pmem",
    "windows_drivers.pcie5_nvme",
    "cloud_hypervisor.low_end_nvme",
    "indirect_descriptors.not_stated",
    "vhost_user.nvme_rdma",
]
STUDY = '[study.one]\ntitle = "T"\nsource = "S"\n[study.one.disk.a]\nmodel = "M"\n'


def found(link: str, job: str, layout: Layout | None, iodepth: int = 32, *, attach: object = None) -> list[str]:
    """The figures for a guest on `layout` (None: the mode host), as "ARM PLACE VALUE" with the value as stored."""
    how = attach if isinstance(attach, Attach | Vfio) else Attach()
    mode = ModeDetail(layout, how) if layout is not None else ModeDetail(Device(), None)
    matches = find_counterparts(links()[link], mode, parse_workload(job).job(iodepth, ramp=0, seconds=1))
    return [f"{each.arm} {each.place} {each.figure.value(each.arm) or 0:g}" for each in matches]


def figures_from(directory: Path, text: str) -> list[str]:
    """The problems of a file with this text, without its name."""
    path = directory / "figures.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        read_figures(path)
    lines = error.value.message.splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    return [line.removeprefix(f"{path}: ") for line in lines]


def test_the_file_has_the_studies_and_every_name_that_a_scenario_can_use() -> None:
    assert list(links()) == ALL


def test_every_study_names_its_source() -> None:
    sources = {link.name.partition(".")[0]: link.study.source for link in links().values()}
    assert "pcnews.ru" in sources["local_disks"]
    assert "Hardwareluxx" in sources["array_vm"]
    assert all(sources.values())


@pytest.mark.parametrize(
    ("read", "iops", "mb_s", "us"),
    [
        ("randread-4k", 2874.27, 11.77, 338.99),
        ("randwrite-4k", 6349.12, 26.01, 149.24),
    ],
)
def test_values_of_one_job_agree_with_each_other(read: str, iops: float, mb_s: float, us: float) -> None:
    mode, job = ModeDetail(Device(), Attach()), parse_workload(read).job(1, ramp=0, seconds=1)
    values = {
        each.figure.metric: each.figure.value("guest")
        for each in find_counterparts(links()["array_vm.raid5"], mode, job)
    }
    assert values == {"iops": iops, "bw": pytest.approx(mb_s * 1e6), "lat_mean": pytest.approx(us * 1e-6)}
    assert iops * 4096 == pytest.approx(mb_s * 1e6, rel=0.001)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (None, ["host host 200000"]),
        (Device(), ["passthrough guest 35000"]),
        (Lvm(), ["lvm guest 35000"]),
        (RawFile("ext4"), ["raw guest 35000"]),
        (RawFile("ext4", "full"), ["raw guest 35000"]),
        (RawFile("xfs"), []),
        (LvmThin(), []),
        (Qcow2(), []),
        (Partition(), []),
        (Md(0, 4), []),
        (Lvm(on=Md(0, 4)), []),
    ],
)
def test_a_figure_belongs_to_the_mode_with_the_layout_of_the_study(layout: Layout | None, expected: list[str]) -> None:
    assert found("local_disks.optane", "randread-4k", layout) == expected


def test_a_guest_that_qemu_does_not_serve_is_another_mode() -> None:
    assert found("local_disks.optane", "randread-4k", Device(), attach=Vfio()) == []
    assert found("local_disks.optane", "randread-4k", Device(), attach=Attach(aio="threads", device="lun")) == []
    cached = Attach(cache="writeback", aio="io_uring")
    assert found("local_disks.optane", "randread-4k", RawFile(), attach=cached) == ["raw guest 35000"]


@pytest.mark.parametrize(
    "job",
    ["randread-8k", "randread-4k-nj4", "randread-4k-i1000", "randrw-4k-r67", "seqread-4k"],
)
def test_a_job_that_differs_in_one_thing_has_no_figure(job: str) -> None:
    assert found("local_disks.optane", job, Lvm()) == []


def test_a_figure_for_a_depth_replaces_the_one_without_a_depth() -> None:
    assert found("local_disks.hdd", "seqread-256k", Lvm(), 128) == ["lvm guest 1.9e+08"]
    assert found("local_disks.hdd", "seqread-256k", Lvm(), 256) == ["lvm guest 1.5e+08"]
    assert found("local_disks.hdd", "seqread-256k", RawFile(), 256) == ["raw guest 0"]


def test_a_figure_for_a_depth_belongs_to_no_other_depth() -> None:
    array = Md(0, 16)
    assert found("raid0_scaling", "randread-4k", array, 32) == ["array twin 150000"]
    assert found("raid0_scaling", "randread-4k", array, 16) == []


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (Md(0, 8), ["array twin 1.6e+09"]),
        (Md(0, 16, 65536), ["array twin 1.6e+09"]),
        (Md(0, 16, legs=2), ["array twin 2.245e+09"]),
        (Md(0, 8, legs=2), []),
        (Md(0, 4), []),
        (Md(5, 16), []),
        (Lvm(on=Md(0, 16)), []),
        (Device(), []),
        (None, []),
    ],
)
def test_a_study_of_arrays_is_matched_by_level_disks_and_legs(layout: Layout | None, expected: list[str]) -> None:
    assert found("raid0_scaling", "seqread-1m", layout, 1) == expected


def test_a_guest_on_an_array_is_matched_whatever_lies_between() -> None:
    assert found("array_vm", "seqread-1m", Md(5, 6), 1) == ["guest guest 9.9132e+08"]
    assert found("array_vm", "seqread-1m", Lvm(on=Md(6, 6)), 1) == ["guest guest 1.12401e+09"]
    assert found("array_vm", "seqread-1m", Md(5, 8), 1) == []
    assert found("array_vm", "seqread-1m", Device(), 1) == []


def test_with_one_array_named_the_disk_is_that_array() -> None:
    assert found("array_vm.raidf1", "seqread-1m", RawFile(), 1) == ["guest guest 1.10437e+09"]
    assert found("raid0_scaling.two_controllers_16", "seqread-1m", None, 1) == ["array host 2.245e+09"]
    assert found("array_vm.raid5", "seqread-1m", Md(5, 6), 1) == []


def test_ratios_are_relative_to_the_arm_below() -> None:
    def ratio(link: str, job: str, layout: Layout, iodepth: int) -> Band | None:
        (each,) = find_counterparts(
            links()[link], ModeDetail(layout, Attach()), parse_workload(job).job(iodepth, ramp=0, seconds=1)
        )
        return each.ratio

    assert ratio("local_disks.optane", "randread-4k", Lvm(), 1) == Band(0.175, 0.175)
    assert ratio("raid0_scaling", "seqread-1m", Md(0, 16, legs=2), 1) == Band(2245 / 261, 2245 / 261)
    assert ratio("array_vm", "seqread-1m", Md(5, 6), 1) is None
    lost = links()["public_reports.consumer_nvme"].disks[0].figures[0]
    assert lost.ratio("guest", "host") == Band(0.5, 0.55)


def test_a_guest_on_an_array_is_relative_to_the_array_and_not_to_a_single_disk(tmp_path: Path) -> None:
    path = tmp_path / "figures.toml"
    values = "{ host = 100, array = 400, guest = 300 }"
    figure = f'{{ workload = "randread-4k", metric = "iops", values = {values} }}'
    path.write_text(f"{STUDY}array = {{ level = 5, disks = 6 }}\nfigures = [{figure}]\n", encoding="utf-8")
    job = parse_workload("randread-4k").job(1, ramp=0, seconds=1)
    matches = find_counterparts(read_figures(path).links["one"], ModeDetail(Md(5, 6), Attach()), job)
    assert {each.arm: each.ratio for each in matches} == {"array": Band(4, 4), "guest": Band(0.75, 0.75)}


def test_a_figure_belongs_to_guests_that_get_the_disk_as_the_source_states() -> None:
    name, job = "optane_dcpmm.pmem", "randread-4k"
    with_thread = found(name, job, Device(), 1, attach=Attach(bus="virtio-blk", iothread=True))
    assert with_thread == ["guest guest 58700", "guest guest 1.65e-05"]
    assert found(name, job, Device(), 1, attach=Attach(bus="virtio-blk", iothread=False))[0] == "guest guest 31300"
    assert found(name, job, Device(), 1, attach=Attach(bus="sata")) == []
    assert found(name, job, None, 1) == ["host host 334000"] * 4 + ["host host 2.76e-06"] * 4
    served = Attach(bus="virtio-blk", server="storage-daemon")
    assert found("vhost_user.nvme_rdma", "randread-4k", Device(), attach=served) == ["guest guest 300000"]
    assert found("vhost_user.nvme_rdma", "randread-4k", Device(), attach=Attach(bus="virtio-blk")) == []


def test_a_loss_on_qcow2_belongs_to_no_other_layout() -> None:
    attach = Attach(bus="virtio-blk", iothread=True)
    assert found("windows_drivers.pcie5_nvme", "randread-4k-nj16", Qcow2(), attach=attach) == ["qcow2 guest 0"]
    assert found("windows_drivers.pcie5_nvme", "randread-4k-nj16", RawFile(), attach=attach) == []
    lost = links()["windows_drivers.pcie5_nvme"].disks[0].figures[1]
    ratio = lost.ratio("qcow2", "host")
    assert ratio is not None
    assert ratio.low == pytest.approx(0.27)
    assert ratio.high == pytest.approx(0.32)
    assert lost.ratio("guest", "host") is None


def test_the_figures_of_a_class_are_those_of_its_disks_with_their_sources() -> None:
    of_nvme = list_class_links("nvme")
    assert [link.name for link in of_nvme] == [
        "public_reports.consumer_nvme",
        "windows_drivers.pcie5_nvme",
        "cloud_hypervisor.low_end_nvme",
        "vhost_user.nvme_rdma",
    ]
    assert all(link.study.url for link in of_nvme[1:])
    assert list_class_links(None) == list_class_links("hdd") == ()


def test_a_band_tells_how_far_a_value_is_from_it() -> None:
    band = Band(10, 20)
    assert [band.factor(value) for value in (5, 10, 15, 20, 40)] == [2, 1, 1, 1, 2]


def test_the_file_in_the_package_is_what_is_loaded() -> None:
    assert list(read_figures(FIGURES).links) == ALL
    disks = [disk for link in links().values() for disk in link.disks]
    assert all(isinstance(figure, PublishedFigure) for disk in disks for figure in disk.figures)


@pytest.mark.parametrize(
    ("figure", "problem"),
    [
        ('workload = "randread", metric = "iops", values = { host = 1 }', "workload"),
        ('workload = "randread-4k", metric = "iopss", values = { host = 1 }', 'did you mean "iops"?'),
        ('workload = "randread-4k", metric = "iops", values = { lvn = 1 }', 'did you mean "lvm"?'),
        ('workload = "randread-4k", metric = "iops", values = { host = -1 }', "host = -1: allowed: a number above 0"),
        (
            'workload = "randread-4k", metric = "iops", values = { host = true }',
            "host = true: allowed: a number above 0",
        ),
        ('workload = "randread-4k", metric = "iops", values = { host = "" }', "must not be empty"),
        ('workload = "randread-4k", metric = "iops", value = { host = 1 }', 'did you mean "values"?'),
        ('workload = "randread-4k", metric = "iops"', "allowed: either values or lost_percent"),
        ('workload = "randread-4k", metric = "clat_mean", lost_percent = { guest = [1, 2] }', "is for throughput"),
        ('workload = "randread-4k", metric = "iops", lost_percent = { guest = [2, 1] }', "the smaller number first"),
    ],
)
def test_a_mistake_in_the_file_is_reported_with_its_key(tmp_path: Path, figure: str, problem: str) -> None:
    problems = figures_from(tmp_path, f"{STUDY}figures = [{{ {figure} }}]\n")
    assert all(line.startswith("study.one.disk.a.figures[0]") for line in problems)
    assert any(problem in line for line in problems)
