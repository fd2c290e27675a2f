"""Disks on a network, in the lab: a disk in memory that the host exports to itself, by NVMe over TCP and by iSCSI.

They are measured and described by the network. A disk that the host has by two paths is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness.errors import LabUnavailable
from harness.features.embedded.disks import NullBlkDisk
from harness.lab.guard import inspect, refusals
from harness.lab.inventory import DiskById
from harness.lab.transport.ssh import SshRunner
from harness.model.disk import NetworkPath
from tests.e2e.conftest import host
from tests.e2e.machines import traces
from tests.patience import patience
from tests.soak.own_disks import measured, own_disks, project
from tests.soak.unpacked import ISCSI, unpacked

__all__ = ["host"]

FAR = NullBlkDisk("far", 256 << 20, completion_ns=100_000, queue_depth=16)
NQN, IQN, SERIAL = "nqn.2026-11.test:far", "iqn.2026-11.test:far", "sim_far_away"
_PATH = 'export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"\n'
# $1: the disk, $2: the name of the target, $3: the serial number.
_EXPORT_NVME = """
set -e
modprobe -a nvmet-tcp nvme-tcp
cd /sys/kernel/config/nvmet
mkdir "subsystems/$2" "subsystems/$2/namespaces/1" ports/7
echo 1 >"subsystems/$2/attr_allow_any_host"
echo "$3" >"subsystems/$2/attr_serial"
echo "$1" >"subsystems/$2/namespaces/1/device_path"
echo 1 >"subsystems/$2/namespaces/1/enable"
echo tcp >ports/7/addr_trtype
echo ipv4 >ports/7/addr_adrfam
echo 127.0.0.1 >ports/7/addr_traddr
echo 4420 >ports/7/addr_trsvcid
ln -s "/sys/kernel/config/nvmet/subsystems/$2" "ports/7/subsystems/$2"
echo "transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn=$2" >/dev/nvme-fabrics
udevadm settle
"""
_UNEXPORT_NVME = """
for controller in /sys/class/nvme/nvme*; do
    [ "$(cat "$controller/subsysnqn")" != "$2" ] || echo 1 >"$controller/delete_controller"
done
cd /sys/kernel/config/nvmet
rm -f "ports/7/subsystems/$2"
rmdir ports/7 "subsystems/$2/namespaces/1" "subsystems/$2"
udevadm settle
modprobe -r nvme-tcp nvmet-tcp
"""
_EXPORT_ISCSI = """
set -e
modprobe -a target_core_iblock iscsi_target_mod iscsi_tcp
cd /sys/kernel/config/target
mkdir -p core/iblock_7/far
echo "udev_path=$1" >core/iblock_7/far/control
echo "$1" >core/iblock_7/far/udev_path
echo 1 >core/iblock_7/far/enable
echo "$3" >core/iblock_7/far/wwn/vpd_unit_serial
mkdir -p "iscsi/$2/tpgt_1/lun/lun_0" "iscsi/$2/tpgt_1/np/127.0.0.1:3260"
ln -s /sys/kernel/config/target/core/iblock_7/far "iscsi/$2/tpgt_1/lun/lun_0/far"
for setting in authentication=0 generate_node_acls=1 cache_dynamic_acls=1 demo_mode_write_protect=0; do
    echo "${setting#*=}" >"iscsi/$2/tpgt_1/attrib/${setting%=*}"
done
echo 1 >"iscsi/$2/tpgt_1/enable"
mkdir -p /etc/iscsi
echo InitiatorName=iqn.2026-11.test:lab >/etc/iscsi/initiatorname.iscsi
iscsid
iscsiadm --mode discovery --type sendtargets --portal 127.0.0.1
iscsiadm --mode node --targetname "$2" --login
udevadm settle
"""
_UNEXPORT_ISCSI = """
iscsiadm --mode node --targetname "$2" --logout
iscsiadm -k 0
cd /sys/kernel/config/target
rm -f "iscsi/$2/tpgt_1/lun/lun_0/far"
rmdir "iscsi/$2/tpgt_1/lun/lun_0" "iscsi/$2/tpgt_1/np/127.0.0.1:3260" "iscsi/$2/tpgt_1" "iscsi/$2" core/iblock_7/far \\
    core/iblock_7
rm -rf /etc/iscsi /var/lib/iscsi
udevadm settle
"""
SCENARIO = """
title = "A disk of another machine"
disk = "far"
class = "any"
modes = ["host", "passthrough", "lvm"]
workloads = ["randread-4k", "randwrite-4k"]
write_rate = "1 GiB/s"

[profile.smoke]
iodepth = [1]
runtime = "2 s"
span = "32 MiB"
blocks = 3
rounds = 2
most_rounds = 2
"""


@contextmanager
def exported(host: SshRunner, export: str, unexport: str, target: str) -> Iterator[None]:
    """The disk, which the host has once more by its own network until the end of the block."""
    words = ["sh", f"/dev/{FAR.device}", target, SERIAL]
    with own_disks(host, FAR):
        try:
            host.run(["sh", "-c", _PATH + export, *words], deadline=patience(120))
            yield
        finally:
            host.run(["sh", "-c", _PATH + unexport, *words], deadline=patience(120), check=False)


def require_described(directory: Path, host: SshRunner, disk: DiskById, network: NetworkPath) -> None:
    before = traces(host)
    run = measured(project(directory, [disk], {"far": SCENARIO}), "--lab=lab.toml")
    assert traces(host) == before
    (record,) = run.disks
    assert record.facts.network == network
    assert any(f"it is reached by {network}" in note for note in record.notes), record.notes
    for cell in run.cells:
        assert cell.skipped is None, cell.skipped
        assert all(check.ok for check in cell.validity), [check for check in cell.validity if not check.ok]
    assert {cell.mode for cell in run.cells} == {"host", "passthrough", "lvm"}


def test_a_namespace_of_nvme_over_tcp_is_measured_and_named(tmp_path: Path, host: SshRunner) -> None:
    disk = DiskById("far", f"/dev/disk/by-id/nvme-Linux_{SERIAL}", SERIAL, destroy=True)
    with exported(host, _EXPORT_NVME, _UNEXPORT_NVME, NQN):
        require_described(tmp_path, host, disk, NetworkPath("NVMe/TCP", NQN, ("127.0.0.1:4420",)))


def test_a_lun_of_iscsi_is_measured_by_the_link_of_its_target(tmp_path: Path, host: SshRunner) -> None:
    link = f"/dev/disk/by-path/ip-127.0.0.1:3260-iscsi-{IQN}-lun-0"
    disk = DiskById("far", link, SERIAL, destroy=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(unpacked(host, ISCSI))
        except LabUnavailable as error:
            pytest.skip(f"the lab host cannot have open-iscsi: {error}")
        stack.enter_context(exported(host, _EXPORT_ISCSI, _UNEXPORT_ISCSI, IQN))
        require_described(tmp_path, host, disk, NetworkPath("iSCSI", IQN, ("127.0.0.1:3260",)))


# One disk of 64 MiB that two adapters show, as two paths to a LUN.
_TWO_PATHS = """
modprobe scsi_debug add_host=2 vpd_use_hostno=0 dev_size_mb=64 && udevadm settle
for disk in /sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*/block/*; do echo "/dev/${disk##*/}"; done
"""
_MAP = """
modprobe -a dm-multipath dm-round-robin
dmsetup create voh-paths --uuid mpath-voh --table \\
    "0 $(blockdev --getsz "$1") multipath 0 0 1 1 round-robin 0 2 1 $1 1 $2 1"
udevadm settle
"""


def test_a_disk_with_two_paths_is_refused_with_and_without_a_map(host: SshRunner) -> None:
    def run(script: str, *words: str) -> str:
        return host.run(["sh", "-c", _PATH + script, "sh", *words], deadline=patience(60)).stdout

    def refused(device: str) -> str:
        evidence = inspect(host, device)
        assert evidence is not None
        return json.dumps(refusals(DiskById("two", device, "0", destroy=True), evidence))

    with ExitStack() as stack:
        stack.callback(host.run, ["sh", "-c", f"{_PATH}modprobe -r scsi_debug"], deadline=patience(60))
        first, second = run(_TWO_PATHS).split()
        name = second.removeprefix("/dev/")
        assert f"it is the same disk as {name} (" in refused(first)
        stack.callback(run, "dmsetup remove voh-paths")
        run(_MAP, first, second)
        assert f"{first.removeprefix('/dev/')} is a path of the multipath map voh-paths" in refused(first)
        assert "it is a multipath map, and multipath is not supported" in refused("/dev/mapper/voh-paths")
