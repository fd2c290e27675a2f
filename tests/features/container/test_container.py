"""A container beside a VM: the modes, its configuration, what is read back, its removal, and the report's answer."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import RootModel

from harness.features.container import make_container_mode
from harness.features.container.lxc import Container, choose_cpus, make_config, parse_container, parse_io_stat
from harness.guest.protocol import GuestDisk
from harness.lab.guard.writable import issue
from harness.lab.pin import BlockPin, FilePin
from harness.layout import BlockSource
from harness.model.attach import Attach, InContainer
from harness.model.counters import Transferred
from harness.model.guest import GuestOptions
from harness.model.job import Job
from harness.model.layout import Lvm
from harness.model.mode import Arm, Cell, Mode, Place
from harness.model.option import Effective
from harness.report.html import render_html
from harness.report.markdown import markdown_table
from harness.report.terminal import difference_lines
from harness.results.byte_counts import check_bytes
from harness.results.validity import configuration_check
from harness.scenario.setups import by_guest, stored_volumes
from harness.units import parse_size
from tests.build import build_measurement, optane, synthetic_run
from tests.unit.test_scenario_load import complaint, load

VM = Mode("lvm", Lvm(), Attach(), GuestOptions(vcpus=2, memory=parse_size("1 GiB"), machine="q35"))
INSIDE = make_container_mode(VM)
JOB = Job("randread", 4096, iodepth=1, ramp=0, seconds=2)
FILE = """
title = "VM or container?"
modes = ["host", "own"]
workloads = ["randread-4k"]
write_rate = "1 GiB/s"
guest = { vcpus = 2, cpu = "host" }

[mode.own]
layout = { kind = "lvm" }
attach = {}
container = true
"""
TOKEN = "00000000-0000-4000-8000-000000000000"
MADE = Container(
    disks=("S1",), mark=f"VIRT_OVERHEAD_CONTAINER={TOKEN}", name="voh-run-1234", directory=f"/run/voh-{TOKEN}"
)


def test_the_vm_and_the_container_are_measured_in_the_same_blocks_on_the_same_volume(tmp_path: Path) -> None:
    host, own, inside = load(tmp_path, FILE).modes
    assert (host.name, own.name, inside.name) == ("host", "own", "own-container")
    assert inside.attach == InContainer()
    assert (inside.against, inside.stored, inside.volumes) == (own, own, (inside,))
    assert stored_volumes([own, inside]) == [own]
    assert by_guest([own, inside]) == {"": [own], "container": [inside]}
    cell = Cell("d", "d", inside, JOB)
    assert cell.by_role[Place.AGAINST] == Arm(Place.GUEST, own)
    assert [arm.id for arm in cell.arms] == ["host", "twin:own", "guest:own", "guest:own-container"]
    (part,) = cell.by_role[Place.GUEST].parts(JOB)
    assert part.machine == "guest-container"


def test_a_container_has_the_size_of_the_vm_and_nothing_that_only_a_vm_has(tmp_path: Path) -> None:
    scenario = load(tmp_path, FILE)
    assert scenario.modes[1].guest.cpu == "host"
    assert scenario.modes[2].guest == GuestOptions(vcpus=2)
    on_host = scenario.on(GuestOptions(memory=parse_size("2 GiB")))
    assert on_host.modes[2].guest.memory == parse_size("2 GiB")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('kind = "lvm"', 'kind = "qcow2"', "which only QEMU can read"),
        ("attach = {}", 'attach = { device = "vfio" }', 'conflicts with attach.device = "vfio"'),
        (
            "attach = {}",
            'attach = { cache = "writeback", aio = "threads" }',
            'conflicts with attach.cache = "writeback"',
        ),
        ("attach = {}", "attach = { read_only = true }", "conflicts with attach.read_only = true"),
        ("container = true", "container = true\nguests = 2", "container = true conflicts with guests"),
        ("container = true", "container = true\nbackup = true", "container = true conflicts with backup"),
        ("container = true", "unprivileged = true", "unprivileged = true needs container = true"),
        (
            '"lvm" }\nattach = {}\ncontainer = true',
            '"raw" }\nattach = {}\ncontainer = true\nunprivileged = true',
            'unprivileged = true conflicts with layout.kind = "raw"',
        ),
        ("container = true", "container = true\ncached = true", "container = true conflicts with cached = true"),
    ],
)
def test_what_a_container_cannot_have_is_refused(before: str, after: str, said: str, tmp_path: Path) -> None:
    lines = complaint(tmp_path, FILE.replace(before, after))
    assert any(said in line for line in lines), lines


def test_an_unprivileged_container_is_requested_and_read_back(tmp_path: Path) -> None:
    _, _, inside = load(tmp_path, FILE.replace("container = true", "container = true\nunprivileged = true")).modes
    assert inside.attach == InContainer(unprivileged=True)
    assert inside.attach.words == "unprivileged container"
    for found, ok in ((True, True), (False, False)):
        observed = Effective(container="lxc", guest_cpus=2, container_unprivileged=found)
        check = configuration_check(inside, observed)
        assert check is not None
        assert check.ok is ok, check.detail
    stored: Any = RootModel[InContainer]
    assert stored(InContainer()).model_dump() == {"device": "container"}
    assert stored(InContainer(unprivileged=True)).model_dump() == {"device": "container", "unprivileged": True}


def test_variants_of_a_container_are_refused_by_the_name_of_the_key(tmp_path: Path) -> None:
    lines = complaint(tmp_path, FILE + "\n[variant.old]\n[variant.new.sysctl]\n'vm.swappiness' = 1\n")
    assert any("variant.old: conflicts with mode.own.container" in line for line in lines), lines


def disk(name: str, pin: BlockPin | FilePin) -> GuestDisk:
    runner: Any = None
    kind: Literal["block", "file"] = "block" if isinstance(pin, BlockPin) else "file"
    grant = issue(runner, pin, ("S1",))
    return GuestDisk(name, BlockSource(f"/link/{name}", kind, 0, 4096, grant=grant), InContainer())


def test_the_configuration_has_only_its_own_disks() -> None:
    disks = [
        disk("lvm-container", BlockPin("/dev/dm-3", "254:3", "7", 8, "")),
        disk("raw-container", FilePin("/var/lib/my files/raw", 5, 6)),
    ]
    lines = make_config(MADE, disks, cpus="2-3", memory=1 << 30, programs=["/srv/fio 3/bin"]).splitlines()
    assert "lxc.cgroup2.devices.allow = b 254:3 rw" in lines
    assert sum("devices.allow" in line for line in lines) == 1
    assert "lxc.mount.entry = /dev/dm-3 disks/lvm-container none bind,create=file 0 0" in lines
    assert "lxc.mount.entry = /link/raw-container disks/raw-container none bind,create=file 0 0" in lines
    assert "lxc.mount.entry = /srv/fio\\0403/bin srv/fio\\0403/bin none bind,ro,create=dir 0 0" in lines
    assert "lxc.cgroup2.cpuset.cpus = 2-3" in lines
    assert "lxc.cgroup2.memory.max = 1073741824" in lines
    assert f"lxc.environment = VIRT_OVERHEAD_CONTAINER={TOKEN}" in lines


@pytest.mark.parametrize(
    ("options", "wanted", "cpus"),
    [
        (GuestOptions(), 2, "6-7"),
        (GuestOptions(), 9, "0-7"),
        (GuestOptions(pin_vcpus=("1", "3")), 2, "1,3"),
        (GuestOptions(pin_vcpus=("2-4",)), 3, "2-4"),
    ],
)
def test_a_container_gets_the_last_cpus_or_those_that_are_pinned(options: GuestOptions, wanted: int, cpus: str) -> None:
    assert choose_cpus(options, wanted, 8) == cpus


# As LXC 6.0.4 of Debian 13 had it in the lab host.
READ = """version=6.0.4
cpuset.cpus.effective=1
memory.max=805306368
root=0
seccomp=2
profile=unconfined
"""


def test_what_the_container_has_is_read_back() -> None:
    effective = parse_container(READ, {"kernel": "6.12.0", "fio_program": "/usr/bin/fio"})
    assert effective == Effective(
        container="lxc",
        container_version="6.0.4",
        container_cpus="1",
        container_memory=768 << 20,
        container_unprivileged=False,
        container_confinement="seccomp",
        guest_kernel="6.12.0",
        guest_fio="/usr/bin/fio",
    )
    unlimited = parse_container(READ.replace("805306368", "max").replace("root=0", "root=100000"), {})
    assert (unlimited.container_memory, unlimited.container_unprivileged) == (None, True)


@pytest.mark.parametrize(
    ("observed", "said"),
    [
        (Effective(container="lxc", container_memory=1 << 29), "requested container_memory = 1073741824"),
        (Effective(container="lxc", guest_cpus=1), "requested guest_cpus = 2, it is 1"),
        (Effective(container="lxc", host_io_limit="254:3 riops=100"), "requested host_io_limit = none"),
    ],
)
def test_a_container_with_other_limits_fails_its_check(observed: Effective, said: str) -> None:
    check = configuration_check(INSIDE, observed)
    assert check is not None
    assert (check.ok, said in check.detail) == (False, True), check.detail


def test_a_container_is_not_asked_for_what_only_a_vm_has() -> None:
    check = configuration_check(INSIDE, Effective(container="lxc", guest_cpus=2, container_memory=1 << 30))
    assert check is not None
    assert check.ok
    assert "qemu" not in check.detail


def test_the_bytes_of_the_control_group_are_by_device() -> None:
    # As the kernel 6.12 writes it. A device without I/O may have no counts.
    printed = "counted\n7:0 rbytes=2310144 wbytes=4096 rios=564 wios=1 dbytes=0 dios=0\n254:0 \n"
    assert parse_io_stat(printed) == {"7:0": Transferred(2310144, 4096)}
    assert parse_io_stat("") is None


def test_a_wrong_count_of_the_control_group_is_named_as_its_own() -> None:
    arm = Arm(Place.GUEST, INSIDE).id
    size = float(1 << 24)
    slices = [build_measurement(arm, counts={"fio_read": size, "disk_read": size, "qemu_read": size / 2})]
    (named,) = check_bytes(slices, JOB.bs, contained=arm)
    (otherwise,) = check_bytes(slices, JOB.bs)
    assert "its control group 8 MiB" in named.detail, named.detail
    assert "QEMU 8 MiB" in otherwise.detail


def remove(made: Container) -> str:
    script = f"export LC_ALL=C\n{made.removal}"
    done = subprocess.run(
        ["sh", "-c", script, "sh", *made.arguments()], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()[-1]


def test_the_removal_ends_the_processes_of_this_container_only(tmp_path: Path) -> None:
    made = MADE.model_copy(update={"directory": str(tmp_path / "ours"), "mark": "VIRT_OVERHEAD_CONTAINER=ours"})
    assert remove(made) == "absent"
    (tmp_path / "ours" / made.name / "rootfs" / "disks").mkdir(parents=True)
    (tmp_path / "others").mkdir()
    sleep = shutil.which("sleep")
    assert sleep
    ours, others = (
        subprocess.Popen([sleep, "1000"], env={"VIRT_OVERHEAD_CONTAINER": name}) for name in ("ours", "others")
    )
    try:
        assert remove(made) == "removed"
        assert ours.wait(timeout=30) != 0
        assert others.poll() is None
    finally:
        others.kill()
        others.wait(timeout=30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["others"]
    assert remove(made) == "absent"


def test_files_of_others_in_the_directory_stay(tmp_path: Path) -> None:
    made = MADE.model_copy(update={"directory": str(tmp_path / "ours"), "mark": "VIRT_OVERHEAD_CONTAINER=ours"})
    root = tmp_path / "ours" / made.name / "rootfs"
    root.mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "disk").touch()
    (root / "letter").write_text("theirs")
    assert remove(made).startswith("foreign: ")
    assert [path.name for path in root.iterdir()] == ["letter"]


def measured() -> Any:
    (lvm,) = (mode for mode in optane().modes if mode.name == "lvm")
    host = next(mode for mode in optane().modes if mode.attach is None)
    scenario = replace(optane(), modes=(host, lvm, make_container_mode(lvm)))

    def speed(arm: Arm, _job: Job) -> float:
        if arm.place is not Place.GUEST or arm.mode is None:
            return 100_000.0
        return 98_000.0 if arm.mode.in_container else 49_000.0

    return synthetic_run(scenario=scenario, speed=speed, rounds=6, noise=0.002)


def test_the_report_answers_vm_or_container_with_an_interval() -> None:
    run = measured()
    answer, *lines = difference_lines(run)
    assert answer.startswith("VM or container? The VM (`lvm`) loses 5"), answer
    assert "of the container's throughput over 8 jobs; against the host, the VM loses 51" in answer
    assert len(lines) == 8
    assert all("the VM loses" in line for line in lines), lines
    page, markdown = render_html(run), markdown_table(run)
    for text in (page, markdown):
        assert "VM or container?" in text
    assert "against the host, the VM loses 51" in page
    # A container is no attach mode of a VM, so it is never the best of them.
    assert "`lvm-container` loses least" not in markdown


def test_the_page_says_what_the_container_really_is() -> None:
    run = measured()
    effective = parse_container(READ, {})
    cells = tuple(replace(cell, effective=effective) if cell.mode_detail.in_container else cell for cell in run.cells)
    page = render_html(replace(run, cells=cells))
    assert "The container is privileged, of LXC 6.0.4 on the host&#39;s CPUs 1; confinement: seccomp." in page
