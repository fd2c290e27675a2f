"""Runs that are killed at random moments, next to things of others with names like ours: nothing of others is touched.

The seed is VIRT_OVERHEAD_SEED, else one of the day, and is in every message. VIRT_OVERHEAD_KILLS says how many runs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.lab.transport.ssh import SshRunner
from tests.e2e.machines import background, command, latest, measure, on_lab_host, pytest_command, traces
from tests.patience import patience

ROUNDS = 2
SELECTED = ("-k", "optane and (lvm or raw) and not cached and randread-4k", "--profile=smoke", f"--rounds={ROUNDS}")
KILLS = int(os.environ.get("VIRT_OVERHEAD_KILLS", "20"))
SEED = int(os.environ.get("VIRT_OVERHEAD_SEED", time.strftime("%Y%m%d")))
LONGEST_SECONDS = 60.0
"""About what such a run takes from its first command on the lab host to its end."""

# Things of others, each with a name as ours have it: a volume group with a volume, a partition, an array with a file
# system, a guest that runs and one that does not, a process, a file and a directory.
_BYSTANDERS = """
set -e
export PATH="$PATH:/usr/sbin:/sbin"
id=/dev/disk/by-id/lab-sim_
pvcreate -q --yes ${id}sata_ssd && vgcreate -q voh-data ${id}sata_ssd
lvcreate -q -W n -Z n -L 64m -n voh-20260101-000000-abcd voh-data
dd if=/dev/urandom of=/dev/voh-data/voh-20260101-000000-abcd bs=1M count=64 status=none
printf 'label: gpt\\nsize=64MiB, name="voh:old"\\nsize=32MiB, name="voh:20260101-000000-abcd:device"\\n' |
    sfdisk --quiet ${id}ssd1
udevadm settle
mkfs.ext4 -q -F ${id}ssd1-part1
mdadm --create /dev/md/voh-array --quiet --run --level=1 --raid-devices=2 --assume-clean --bitmap=none ${id}ssd2 ${id}ssd3
udevadm settle
mkfs.ext4 -q -F /dev/md/voh-array && mkdir -p /mnt/voh-mine && mount /dev/md/voh-array /mnt/voh-mine
dd if=/dev/urandom of=/mnt/voh-mine/data bs=1M count=16 status=none && sync
mkdir -p /srv/voh-files && dd if=/dev/urandom of=/srv/voh-files/voh-disk.img bs=1M count=8 status=none
domain() { echo "<domain type='qemu'><name>$1</name><memory unit='MiB'>16</memory><os><type>hvm</type></os><devices>$2</devices></domain>"; }
disk="<disk type='file'><source file='/srv/voh-files/voh-disk.img'/><target dev='vda' bus='virtio'/></disk>"
domain voh-prod "$disk" >/srv/voh-files/prod.xml && virsh -q define /srv/voh-files/prod.xml >/dev/null
domain voh-20260101-000000-abcd "" >/srv/voh-files/running.xml && virsh -q create /srv/voh-files/running.xml >/dev/null
VIRT_OVERHEAD=measuring nohup sleep 100000 >/dev/null 2>&1 & echo $! >/srv/voh-files/pid
"""
# Everything of theirs, as text.
_STATE = """
export PATH="$PATH:/usr/sbin:/sbin"
sha256sum /dev/voh-data/voh-20260101-000000-abcd /dev/disk/by-id/lab-sim_ssd1 /mnt/voh-mine/data /srv/voh-files/voh-disk.img
vgs --noheadings -o vg_name,vg_uuid voh-data; lvs --noheadings -o lv_name,lv_uuid voh-data
sfdisk --dump /dev/disk/by-id/lab-sim_ssd1
mdadm --detail --export /dev/md/voh-array | grep UUID; grep -A1 '^md' /proc/mdstat
mountpoint /mnt/voh-mine
virsh list --all --name | sort; virsh dumpxml voh-prod | sha256sum; virsh domstate voh-20260101-000000-abcd
kill -0 "$(cat /srv/voh-files/pid)" && echo runs
"""
_GONE = """
export PATH="$PATH:/usr/sbin:/sbin"
kill "$(cat /srv/voh-files/pid)"
virsh -q destroy voh-20260101-000000-abcd; virsh -q undefine voh-prod
umount /mnt/voh-mine; rmdir /mnt/voh-mine; rm -rf /srv/voh-files
mdadm --quiet --stop /dev/md/voh-array
vgremove -q --yes --force voh-data
for disk in sata_ssd ssd1 ssd2 ssd3; do
    wipefs --all --quiet /dev/disk/by-id/lab-sim_$disk; blkdiscard -z -f /dev/disk/by-id/lab-sim_$disk
done
udevadm settle
"""


@pytest.fixture(scope="module")
def host() -> Iterator[SshRunner]:
    with on_lab_host() as runner:
        yield runner


@pytest.fixture(scope="module")
def bystanders(host: SshRunner) -> Iterator[str]:
    """What others have on the lab host, as text: it must be the same after everything."""
    host.run(["sh", "-c", _BYSTANDERS], deadline=patience(180))
    try:
        yield state(host)
    finally:
        host.run(["sh", "-c", _GONE], deadline=patience(120), check=False)


def state(host: SshRunner) -> str:
    return host.run(["sh", "-c", _STATE], deadline=patience(120)).stdout


@pytest.mark.parametrize("number", range(KILLS))
def test_after_a_kill_at_a_random_moment_reap_leaves_what_others_have_and_the_run_can_be_resumed(
    tmp_path: Path, host: SshRunner, bystanders: str, number: int
) -> None:
    before = traces(host)
    moment = random.Random(SEED * 1000 + number).uniform(2.0, LONGEST_SECONDS)
    with background(pytest_command(tmp_path, "--lab=embedded", *SELECTED)) as run:
        try:
            run.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            os.kill(run.pid, signal.SIGKILL)
        run.communicate(timeout=patience(60))
    where = f"seed {SEED}, run {number}, killed after {moment:.1f} s"

    reaped = command("reap")
    assert reaped.returncode == 0, f"{where}: {reaped.stdout}{reaped.stderr}"
    assert state(host) == bystanders, where
    assert traces(host) == before, f"{where}: {reaped.stdout}"

    if not (tmp_path / "latest" / "results.json").exists():
        return  # Nothing was begun, so there is nothing to go on with.
    again = measure(tmp_path, "--lab=embedded", *SELECTED, f"--resume={tmp_path}/latest")
    assert again.returncode == 0, f"{where}: {again.stdout}"
    found = latest(tmp_path)
    assert found.run.status == "complete", where
    assert [len(group.rounds) for group in found.groups] == [ROUNDS], where
    assert all(cell.usable and cell.metrics["iops"].guest for cell in found.cells), where
    lines = [json.loads(line) for line in (tmp_path / "latest" / "journal.jsonl").read_text().splitlines()]
    measured = Counter(
        (line["group"], line["round"], line["block"], line["arm"], line["job"], line["repeat"])
        for line in lines
        if "event" not in line
    )
    assert [key for key, times in measured.items() if times > 1] == [], f"{where}: measured twice"
    assert state(host) == bystanders, where
    assert traces(host) == before, where
