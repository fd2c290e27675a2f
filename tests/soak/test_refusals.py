"""Every disk of the catalogue in the lab, where LVM, md, LUKS, guests and failing sectors are real: each is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from harness.config.names import RunId
from harness.errors import HostError, SafetyError
from harness.lab.created import CreationLog, read_log
from harness.lab.guard import require_writable
from harness.lab.inventory import DiskById
from harness.lab.transport.ssh import SshRunner
from harness.layout.disks import partitioned_disks
from harness.layout.regions import Need
from harness.measure.reap import describe_entry, reap
from tests import safety_page
from tests.e2e.machines import on_lab_host
from tests.patience import patience
from tests.refusals.catalogue import CASES, DISK_BYTES, Case
from tests.refusals.trial import Trial
from tests.unit.loop_disks import NO_HYPERVISOR

DIRECTORY = "/var/lib/virt-overhead/guard-test"
NAME = "sim_guard"
DISK = DiskById("guard", f"/dev/disk/by-id/lab-{NAME}", NAME, destroy=True)
MIB = 1 << 20

# $1: the disk's directory of null_blk, $2: its size in MiB.
_CREATE = """
mkdir "$1" && cd "$1" && echo "$2" >size && echo 1 >memory_backed && echo 512 >blocksize && echo 1 >discard &&
    echo 1 >power && udevadm settle
"""
_REMOVE = 'echo 0 >"$1/power"; rmdir "$1"'

found: dict[str, str] = {}


@pytest.fixture(scope="module")
def runner() -> Iterator[SshRunner]:
    with on_lab_host() as host:
        yield host


@pytest.fixture(scope="module")
def trial(runner: SshRunner) -> Iterator[Trial]:
    """A disk of its own in the lab host's memory, with a serial number and a link."""
    directory = f"/sys/kernel/config/nullb/{NAME}"
    runner.run(["sh", "-c", _CREATE, "sh", directory, str(DISK_BYTES // MIB)], deadline=patience(60))
    runner.run(["mkdir", "-p", DIRECTORY], deadline=patience(20))
    try:
        yield Trial(runner, f"/dev/{NAME}", DISK.id, DISK, DIRECTORY)
    finally:
        runner.run(["rm", "-rf", DIRECTORY], deadline=patience(20))
        runner.run(["sh", "-c", _REMOVE, "sh", directory], deadline=patience(60))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_disk_is_refused_and_stays_as_it_is(trial: Trial, case: Case) -> None:
    lacking = trial.lacking(case)
    assert not lacking, f"the lab lacks {lacking}"
    said = trial.refused(case)
    assert case.message in said
    found[case.name] = said


def test_a_device_with_an_unreadable_last_sector_is_refused_by_that(trial: Trial) -> None:
    """Made by device-mapper's error target. libblkid finds nothing there, and does not say that it failed."""
    runner = trial.runner
    sectors = DISK_BYTES // 512
    table = f"0 {sectors - 1} linear {trial.device} 0\n{sectors - 1} 1 error\n"
    runner.run(["mkfs.ext4", "-q", "-F", trial.device], deadline=patience(60))
    runner.run(["dmsetup", "create", "voh-guard"], stdin=table, deadline=patience(60))
    try:
        with pytest.raises(SafetyError, match=r"the probe `contents` could not tell: byte .* cannot be read"):
            require_writable(runner, DISK, "/dev/mapper/voh-guard")
    finally:
        runner.run(["dmsetup", "remove", "voh-guard"], deadline=patience(60))
        runner.run(["blkdiscard", "-z", "-f", trial.device], deadline=patience(60))


NVME = DiskById("nvme", "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_sim_nvme", "sim_nvme", destroy=True)
_XML = "<address domain='0x{0}' bus='0x{1}' slot='0x{2}' function='0x{3}'/>"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "/etc/libvirt/qemu/voh-test-guard.xml",
            f"<source dev='/dev/x'/>\n<hostdev mode='subsystem' type='pci'>\n<source>\n{_XML}\n</source></hostdev>",
        ),
        ("/etc/libvirt/qemu/voh-test-guard.xml", f"<disk type='nvme'><source type='pci'>{_XML}</source></disk>"),
        ("/etc/pve/nodes/pve1/qemu-server/100.conf", "hostpci0: {0}:{1}:{2}.{3},pcie=1"),
        ("/etc/pve/nodes/pve1/qemu-server/100.conf", "hostpci0: host=0000:77:00.0;{1}:{2}"),
        ("/etc/pve/mapping/pci.cfg", "disk\n\tmap id=1b36:0010,iommugroup=4,node=pve1,path={0}:{1}:{2}.{3}"),
    ],
    ids=["hostdev", "disk of type nvme", "hostpci", "hostpci of two controllers", "mapping"],
)
def test_a_disk_whose_controller_a_guest_gets_is_refused(runner: SshRunner, file: str, text: str) -> None:
    assert require_writable(runner, NVME, NVME.id)
    controller = runner.run(
        ["sh", "-c", 'cat "/sys/class/block/$(basename "$(readlink -f "$1")")/device/address"', "sh", NVME.id],
        deadline=patience(20),
    )
    address = re.split("[:.]", controller.stdout.strip())
    write = 'mkdir -p "$(dirname "$1")"; case $1 in /etc/pve/*) mkdir -p /etc/pve/nodes;; esac; cat >"$1"'
    try:
        runner.run(["sh", "-c", write, "sh", file], stdin=text.format(*address), deadline=patience(20))
        with pytest.raises(SafetyError, match="a virtual machine or a storage is defined with it: ") as error:
            require_writable(runner, NVME, NVME.id)
        assert file in error.value.message
        another = ["0000", "7a", *address[2:]]
        runner.run(["sh", "-c", write, "sh", file], stdin=text.format(*another), deadline=patience(20))
        assert require_writable(runner, NVME, NVME.id)
    finally:
        runner.run(["rm", "-rf", file, "/etc/pve"], deadline=patience(20))


def test_a_disk_that_is_swapped_behind_its_link_is_neither_written_to_nor_wiped_at_the_end(runner: SshRunner) -> None:
    ours, theirs = "/dev/disk/by-id/lab-sim_ssd1", "/dev/sim_ssd2"
    spec = DiskById("ssd1", ours, "sim_ssd1", destroy=True)
    log = CreationLog(runner, RunId.new())
    runner.run(["mkfs.ext4", "-q", "-F", theirs], deadline=patience(60))
    before = runner.run(["sha256sum", theirs], deadline=patience(60)).stdout
    stack = ExitStack()
    (disk,), _ = stack.enter_context(partitioned_disks(log, [spec], [{"device": Need(0, 1)}], span=64 * MIB))
    runner.run(["ln", "-sfn", "../../sim_ssd2", ours], deadline=patience(20))
    # What was checked is written to, wherever the link leads now.
    disk.device.run(
        ["dd", "if=/dev/urandom", f"of={disk.device.path}", "bs=1M", "seek=2", "count=1"], deadline=patience(60)
    )
    with pytest.raises(HostError, match=r"not removed, .*: at .*lab-sim_ssd1 is now a disk with the identity sim_ssd2"):
        stack.close()
    assert runner.run(["sha256sum", theirs], deadline=patience(60)).stdout == before
    runner.run(["ln", "-sfn", "../../sim_ssd1", ours], deadline=patience(20))
    (entry,) = [entry for entry in read_log(runner) if entry.run_id == log.run_id]
    assert reap(runner, NO_HYPERVISOR, [entry]) == [f"removed after a killed run: {describe_entry(entry)}"]
    assert require_writable(runner, spec, ours).path == "/dev/sim_ssd1"
    runner.run(["blkdiscard", "-z", "-f", theirs], deadline=patience(60))


def test_the_page_has_what_was_found(regenerate: bool) -> None:
    if not regenerate:
        pytest.skip("the messages have names of the day: --regenerate writes them")
    assert set(found) == {case.name for case in CASES}, "every case has to be tried, and refused, in the same run"
    said = {name: re.sub(r"process \d+", "process N", text.replace("`", "'")) for name, text in found.items()}
    rows = [(case.name, f"`{said[case.name]}`", "unchanged") for case in CASES]
    safety_page.write_section(
        "refusals", safety_page.table(("what is on the disk", "the guard says", "checksum"), rows)
    )
