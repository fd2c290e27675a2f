"""An array of md that is there already, with a volume group on it, against a single disk of the same speed."""

from __future__ import annotations

from pathlib import Path

from harness.features.arrays.records import ScalingRecord
from harness.features.embedded.disks import NullBlkDisk
from harness.lab.transport.ssh import SshRunner
from tests.e2e.conftest import host
from tests.e2e.machines import ROOT
from tests.patience import patience
from tests.soak.own_disks import measured, own_disks, project

__all__ = ["host"]

FACTS = {"size_bytes": 2 << 30, "completion_ns": 20_000_000, "queue_depth": 4}
MEMBERS = tuple(NullBlkDisk(f"member{number}", **FACTS) for number in range(1, 5))
REFERENCE = NullBlkDisk("spare", **FACTS)
_TIMES = {"q1t1": (0.9, 1.1), "q32t16": (3.0, 4.1)}
"""What the array delivers in multiples of the reference. One request at a time keeps one member busy. Many requests
keep less than four busy: fio waits while the queue of one member is full, and others run empty meanwhile. A simulation
of these queues gives 3.7."""
_MAKE = """
export PATH="$PATH:/usr/sbin:/sbin"
mdadm --create /dev/md/there --quiet --run --metadata=1.2 --homehost=any --level=0 --chunk=64 --raid-devices=$# "$@" &&
vgcreate --quiet there /dev/md/there
"""
_REMOVE = """
export PATH="$PATH:/usr/sbin:/sbin"
vgremove --yes --quiet --force there
mdadm --quiet --stop /dev/md/there
mdadm --quiet --zero-superblock "$@"
rm -f /etc/lvm/archive/there_*.vg /etc/lvm/backup/there
"""
_STORAGE = """
[host.lab.storage.vms]
volume_group = "there"
array = { reference = "spare" }
"""


def test_the_array_delivers_as_many_times_the_reference_as_it_has_disks(tmp_path: Path, host: SshRunner) -> None:
    text = (ROOT / "scenarios" / "existing_array_vm.toml").read_text()
    directory = project(tmp_path, [REFERENCE.spec], {"existing_array_vm": text})
    with (directory / "lab.toml").open("a") as lab:
        lab.write(_STORAGE)
    paths = [f"/dev/{disk.device}" for disk in MEMBERS]
    with own_disks(host, *MEMBERS, REFERENCE):
        try:
            host.run(["sh", "-c", _MAKE, "sh", *paths], deadline=patience(60))
            run = measured(directory, "-k", "array_vm and lvm and not thin and rnd4k and read")
        finally:
            host.run(["sh", "-c", _REMOVE, "sh", *paths], deadline=patience(60), check=False)
    assert len(run.of(ScalingRecord)) == len(_TIMES)
    for each in run.of(ScalingRecord):
        # The host has reported level and number of disks: the lab file does not say them.
        assert (each.level, each.disks, each.reference) == (0, len(MEMBERS), REFERENCE.name)
        assert each.doubt == ""
        (least, most) = next(times for job, times in _TIMES.items() if job in each.cell)
        assert least <= each.metrics["iops"].speedup.point <= most, each
    (disk,) = [disk for disk in run.disks if disk.name == "vms"]
    assert disk.facts.array is not None
    assert disk.facts.array.chunk_bytes == 64 * 1024
