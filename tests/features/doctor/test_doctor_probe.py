"""The state that is read of a host: its files, its disks, and its CPU time while it was watched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.features.doctor.machine import HostState, count_cpu_ticks, list_processes, look
from harness.lab.facts import HostFacts, read_facts
from harness.lab.inventory import DiskByFile, DiskById
from harness.lab.transport.local import LocalRunner
from tests.unit.sysfs_tree import DISK, FACTS, QUEUE, Tree

RUNNER = LocalRunner("host here")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root")


def state_of(tree: Tree, *disks: DiskById | DiskByFile) -> HostState:
    return look(RUNNER, FACTS, disks, root=str(tree.root), window=0)


def test_files_have_the_paths_that_they_have_on_the_host(tree: Tree) -> None:
    state = state_of(tree, DISK)
    assert state.text("/proc/cmdline") == "root=/dev/sda1 quiet"
    assert state.number("/sys/block/nvme0n1/queue/nr_requests") == 1023
    assert state.chosen("/sys/kernel/mm/transparent_hugepage/enabled") == "madvise"
    assert state.memory_bytes("MemTotal") == 32 << 30


def test_a_missing_file_is_empty(tree: Tree) -> None:
    tree.remove("sys/kernel/mm/ksm/run")
    state = state_of(tree)
    assert state.text("/sys/kernel/mm/ksm/run") == ""
    assert state.number("/sys/kernel/mm/ksm/run") is None
    assert state.matching("/sys/kernel/mm/ksm/*") == {}


def test_a_disk_is_found_behind_its_link(tree: Tree) -> None:
    (disk,) = state_of(tree, DISK).disks
    assert (disk.name, disk.device, disk.owned) == ("optane", "nvme0n1", True)


def test_a_broken_link_has_no_device(tree: Tree) -> None:
    gone = DiskById("hdd", "/dev/disk/by-id/ata-gone", "S1", destroy=True)
    missing, there = state_of(tree, gone, DISK).disks
    assert (missing.name, missing.device) == ("hdd", "")
    assert there.device == "nvme0n1"


def test_the_node_and_the_link_of_a_disk_are_those_of_its_controller(tree: Tree) -> None:
    device = tree.root / "sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/block/sda"
    (device / "queue").mkdir(parents=True)
    (tree.root / "sys/block/sda").symlink_to(device)
    (tree.root / "dev/sda").touch()
    tree.write("sys/devices/pci0000:00/0000:00:17.0/numa_node", "1")
    tree.write("sys/devices/pci0000:00/numa_node", "0")
    tree.write(
        "sys/devices/pci0000:00/0000:00:17.0/ata1/host0/scsi_host/host0/link_power_management_policy",
        "med_power_with_dipm",
    )
    (disk,) = state_of(tree, DiskById("sata_ssd", "/dev/sda", "S1", destroy=True)).disks
    assert (disk.device, disk.numa_node, disk.link_power) == ("sda", 1, "med_power_with_dipm")


def test_the_device_of_a_file_is_the_disk_that_holds_it(tmp_path: Path) -> None:
    spec = DiskByFile("sata_ssd", tmp_path / "later.img", 1 << 30, destroy=True)
    (disk,) = look(RUNNER, FACTS, [spec], window=0).disks
    assert not disk.owned
    assert disk.device == "" or Path(f"/sys/block/{disk.device}").is_dir()


def test_a_busy_process_is_listed_with_its_share_of_a_cpu() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        state = look(RUNNER, HostFacts({"cpus": str(os.cpu_count())}), (), window=1.0)
    finally:
        busy.kill()
        busy.wait()
    shares = {process.pid: process.cpu_share for process in list_processes(state)}
    # On a busy machine it gets only a part of a CPU.
    assert 0.01 < shares[busy.pid] < 1.5
    assert count_cpu_ticks(state)["busy"] > 0


def test_a_command_with_blanks_and_parentheses_is_one_word_of_its_line(tree: Tree) -> None:
    fields = "S 1 1 0 0 -1 0 0 0 0 0 5 5 0 0 20 0 1 0 4711 0 0"
    tree.write("proc/99/stat", f"99 (a) (b c) {fields}")
    assert [(process.pid, process.parent, process.command) for process in list_processes(state_of(tree))] == [
        (99, 1, "a) (b c")
    ]


def test_guests_are_listed_with_their_arguments(tree: Tree) -> None:
    tree.write("proc/7/cmdline", "/usr/bin/kvm\0-id\x00100\0-name\0web,debug-threads=on\0")
    tree.write("proc/8/cmdline", "/usr/sbin/sshd\0-D\0")
    state = state_of(tree)
    assert state.guests[7][:3] == ("/usr/bin/kvm", "-id", "100")
    assert 8 not in state.guests


def test_reading_the_state_changes_nothing(tree: Tree) -> None:
    before = {path: path.read_bytes() for path in tree.root.rglob("*") if path.is_file()}
    state_of(tree, DISK)
    assert {path: path.read_bytes() for path in tree.root.rglob("*") if path.is_file()} == before
    assert tree.read(f"{QUEUE}/scheduler") == "[none] mq-deadline"


def test_the_state_of_this_machine_can_be_read() -> None:
    state = look(RUNNER, read_facts(RUNNER), (), window=0)
    assert state.memory_bytes("MemTotal") == pytest.approx(
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.05
    )
    assert any(process.pid == os.getpid() for process in list_processes(state))


def test_a_missing_root_is_an_error_that_names_the_host(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"host here: its settings could not be read: .*absent"):
        look(RUNNER, FACTS, (), root=str(tmp_path / "absent"), window=0)
