"""What is seen of a host: files as they are there, what its disks are, and what it did while it was watched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.doctor.probe import HostState, cpu_ticks, look, processes
from harness.errors import HostError
from harness.lab.facts import HostFacts, read_facts
from harness.lab.inventory import DiskByFile, DiskById
from harness.lab.transport.local import LocalRunner
from tests.unit.sysfs_tree import DISK, FACTS, QUEUE, Tree

RUNNER = LocalRunner("host here")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root")


def seen_in(tree: Tree, *disks: DiskById | DiskByFile) -> HostState:
    return look(RUNNER, FACTS, disks, root=str(tree.root), window=0)


def test_files_have_the_paths_that_they_have_on_the_host(tree: Tree) -> None:
    seen = seen_in(tree, DISK)
    assert seen.text("/proc/cmdline") == "root=/dev/sda1 quiet"
    assert seen.number("/sys/block/nvme0n1/queue/nr_requests") == 1023
    assert seen.chosen("/sys/kernel/mm/transparent_hugepage/enabled") == "madvise"
    assert seen.memory_bytes("MemTotal") == 32 << 30


def test_what_is_not_there_is_empty(tree: Tree) -> None:
    tree.remove("sys/kernel/mm/ksm/run")
    seen = seen_in(tree)
    assert seen.text("/sys/kernel/mm/ksm/run") == ""
    assert seen.number("/sys/kernel/mm/ksm/run") is None
    assert seen.matching("/sys/kernel/mm/ksm/*") == {}


def test_a_disk_is_found_behind_its_link(tree: Tree) -> None:
    (disk,) = seen_in(tree, DISK).disks
    assert (disk.name, disk.device, disk.owned) == ("optane", "nvme0n1", True)


def test_a_link_that_points_nowhere_is_no_disk(tree: Tree) -> None:
    gone = DiskById("hdd", "/dev/disk/by-id/ata-gone", "S1", destroy=True)
    missing, there = seen_in(tree, gone, DISK).disks
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
    (disk,) = seen_in(tree, DiskById("sata_ssd", "/dev/sda", "S1", destroy=True)).disks
    assert (disk.device, disk.numa_node, disk.link_power) == ("sda", 1, "med_power_with_dipm")


def test_a_disk_made_of_a_file_is_the_one_that_holds_the_file(tmp_path: Path) -> None:
    spec = DiskByFile("sata_ssd", tmp_path / "later.img", 1 << 30, destroy=True)
    (disk,) = look(RUNNER, FACTS, [spec], window=0).disks
    assert not disk.owned
    assert disk.device == "" or Path(f"/sys/block/{disk.device}").is_dir()


def test_a_process_that_calculates_is_seen_with_its_share_of_a_cpu() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        seen = look(RUNNER, HostFacts({"cpus": str(os.cpu_count())}), (), window=0.3)
    finally:
        busy.kill()
        busy.wait()
    shares = {process.pid: process.cpu_share for process in processes(seen)}
    assert 0.2 < shares[busy.pid] < 1.5
    assert cpu_ticks(seen)["busy"] > 0


def test_a_command_with_blanks_and_parentheses_is_one_word_of_its_line(tree: Tree) -> None:
    fields = "S 1 1 0 0 -1 0 0 0 0 0 5 5 0 0 20 0 1 0 4711 0 0"
    tree.write("proc/99/stat", f"99 (a) (b c) {fields}")
    assert [(process.pid, process.parent, process.command) for process in processes(seen_in(tree))] == [
        (99, 1, "a) (b c")
    ]


def test_guests_are_seen_with_their_arguments(tree: Tree) -> None:
    tree.write("proc/7/cmdline", "/usr/bin/kvm\0-id\x00100\0-name\0web,debug-threads=on\0")
    tree.write("proc/8/cmdline", "/usr/sbin/sshd\0-D\0")
    seen = seen_in(tree)
    assert seen.guests[7][:3] == ("/usr/bin/kvm", "-id", "100")
    assert 8 not in seen.guests


def test_nothing_is_changed_by_looking(tree: Tree) -> None:
    before = {path: path.read_bytes() for path in tree.root.rglob("*") if path.is_file()}
    seen_in(tree, DISK)
    assert {path: path.read_bytes() for path in tree.root.rglob("*") if path.is_file()} == before
    assert tree.read(f"{QUEUE}/scheduler") == "[none] mq-deadline"


def test_this_machine_shows_itself() -> None:
    seen = look(RUNNER, read_facts(RUNNER), (), window=0)
    assert seen.memory_bytes("MemTotal") == pytest.approx(
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.05
    )
    assert any(process.pid == os.getpid() for process in processes(seen))


def test_a_root_that_is_not_there_is_an_error_that_names_the_host(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"host here: its settings could not be read: .*absent"):
        look(RUNNER, FACTS, (), root=str(tmp_path / "absent"), window=0)
