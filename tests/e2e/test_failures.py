"""What goes wrong on real machines: each is one clear message with the remedy, and nothing is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.events import Events
from harness.lab.lease import lease
from harness.lab.transport.ssh import SshRunner
from tests.e2e.machines import command, lab_file, latest, measure, started, traces, wait_for_measurements
from tests.patience import patience

ONE_CELL = ("-k", "optane-lvm-randread", "--profile=smoke", "--rounds=1")


def refused(done: subprocess.CompletedProcess[str], *said: str) -> None:
    """The run failed, said this, and showed no traceback."""
    assert done.returncode not in (0, 5), done.stdout
    for words in said:
        assert words in done.stdout, done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_wrong_serial_stops_the_run_before_anything_is_written(tmp_path: Path) -> None:
    lab = lab_file(tmp_path, serial="PHM123")
    done = measure(tmp_path, f"--lab={lab}", *ONE_CELL)
    refused(done, "host kvm1: disk optane", "its serial number is", "sim_optane", "not PHM123", "correct id and serial")


def test_a_mounted_disk_is_not_written_to(tmp_path: Path, host: SshRunner) -> None:
    device = "/dev/disk/by-id/lab-sim_optane"
    host.run(["sh", "-c", f"mkfs.ext4 -q -F {device} && mount {device} /mnt"], deadline=patience(60))
    try:
        done = measure(tmp_path, f"--lab={lab_file(tmp_path)}", *ONE_CELL)
        refused(done, "/dev/sim_optane on /mnt is mounted", "there is a signature on it: sim_optane: ext4")
        assert host.run(["mountpoint", "/mnt"], deadline=patience(10), check=False).status == 0
    finally:
        host.run(["sh", "-c", f"umount /mnt; wipefs -a -q {device}; blkdiscard -z -f {device}"], deadline=patience(60))


def test_a_host_without_libvirt_is_told_how_to_start_it(tmp_path: Path, host: SshRunner) -> None:
    units = "libvirtd.service libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket"
    with put_back(host, f"systemctl stop {units}", "systemctl start libvirtd.socket libvirtd.service"):
        done = measure(tmp_path, f"--lab={lab_file(tmp_path)}", *ONE_CELL)
    refused(done, "host kvm1: libvirt cannot be reached", "systemctl start libvirtd")


def test_a_host_without_fio_is_told_how_to_install_it(tmp_path: Path, host: SshRunner) -> None:
    with put_back(host, "mv /usr/bin/fio /usr/bin/fio.away", "mv /usr/bin/fio.away /usr/bin/fio"):
        done = measure(tmp_path, f"--lab={lab_file(tmp_path)}", *ONE_CELL)
    refused(done, "host kvm1: fio is not installed", "apt-get install fio")


def test_setting_the_clock_of_the_host_does_not_end_the_lease_of_its_run(host: SshRunner) -> None:
    directory = "/run/virt-overhead-clock"
    leased = lease(host, "kvm1", "run1", Events(), directory=directory, beat=3600)
    with leased as held, put_back(host, "date -s '+1 hour'", "date -s '-1 hour'"):
        time.sleep(2)
        held.require_held()
    host.run(["rmdir", directory], deadline=patience(10))


def test_an_interrupted_run_goes_on_and_what_a_kill_then_leaves_is_removed(tmp_path: Path, host: SshRunner) -> None:
    before = traces(host)
    # With a limit of the bytes written, rounds are measured one after the other.
    modes = "optane and (lvm or raw) and not cached and randread"
    selected = ("-k", modes, "--profile=smoke", "--rounds=3", "--max-writes=10GiB")
    with started(tmp_path, *selected) as run:
        wait_for_measurements(tmp_path, run, rounds=2)
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=patience(120))
    assert run.returncode == 2, output
    found = latest(tmp_path)
    assert found.run.status == "interrupted"
    assert traces(host) == before
    journal = (tmp_path / "latest" / "journal.jsonl").read_text().splitlines()
    (abandoned,) = (line for line in journal if '"abandoned"' in line)
    assert (tmp_path / "latest" / "index.html").exists()

    with started(tmp_path, *selected, f"--resume={tmp_path}/latest") as run:
        wait_for_measurements(tmp_path, run, rounds=2)
        run.kill()
        run.communicate(timeout=patience(60))
    later = (tmp_path / "latest" / "journal.jsonl").read_text()
    assert later.startswith("\n".join(journal))
    begun = [json.loads(line)["round"] for line in later.split("\n")[len(journal) : -1] if '"begun"' in line]
    assert begun, later
    assert json.loads(abandoned)["round"] not in begun

    done = command("reap")
    assert done.returncode == 0, done.stderr
    for what in ("volume group voh-", "file system at /var/lib/virt-overhead", "partitions on /dev/disk/by-id/lab-sim"):
        assert what in done.stdout
    assert command("reap").stdout.endswith("nothing was left\n")


@contextmanager
def put_back(host: SshRunner, breaking: str, mending: str) -> Iterator[None]:
    host.run(["sh", "-c", breaking], deadline=patience(60))
    try:
        yield
    finally:
        host.run(["sh", "-c", mending], deadline=patience(60))
