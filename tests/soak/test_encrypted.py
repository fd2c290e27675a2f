"""LUKS below the guest in the lab: its data, what is read back, its cost as a step, and that reap closes it."""

from __future__ import annotations

from pathlib import Path

from harness.lab.facts import read_facts
from harness.lab.transport.ssh import SshRunner
from harness.layout.storage_files import fill_image
from harness.model.layout import Layout, Lvm, LvmThin, Partition, Qcow2, RawFile
from tests.e2e.conftest import host
from tests.e2e.machines import command, lab_file, latest, measure, started, traces, wait_for_measurements
from tests.e2e.test_layouts import LAB, build, hold_what_is_written
from tests.patience import patience

__all__ = ["host"]

SELECTED = ("-k", "encrypted and lvm and randread", "--profile=smoke")
LAYOUTS: dict[str, Layout] = {
    "partition": Partition(encryption="luks2"),
    "plain": Lvm(),
    "lvm": Lvm(encryption="luks2"),
    "thin": LvmThin(encryption="luks2"),
    "raw": RawFile(encryption="luks2"),
    "qcow2": Qcow2("xfs", encryption="luks2"),
}
_PATTERNS = """dd if="$1" bs=1M skip="$2" count=1 iflag=direct status=none |
    od -An -v -tx1 | grep -c '5e ed 00 0. 5e ed 00 0.' || :"""


def test_every_encrypted_layout_holds_what_is_written_and_no_plain_text_is_below(host: SshRunner) -> None:
    with build(host, read_facts(host), [LAB.disk("optane")], LAYOUTS) as layouts:
        assert layouts.span == 16 << 20
        hold_what_is_written(host, layouts)
        for image in layouts.images:
            fill_image(image)
        group = layouts.by_mode["plain"].path.split("/")[2]
        patterns = {
            name: host.run(
                ["sh", "-c", _PATTERNS, "sh", f"/dev/{group}/{name}", skip], deadline=patience(60)
            ).stdout.strip()
            for name, skip in (("plain", "0"), ("lvm", "16"))
        }
        assert patterns == {"plain": str((1 << 20) // 16), "lvm": "0"}
        # raw has ext4 and qcow2 has xfs: each file system is on an encrypted partition of its own.
        listed = host.run(["lsblk", "-n", "-r", "-o", "NAME,TYPE"], deadline=patience(30)).stdout.splitlines()
        assert len({line for line in listed if line.endswith(" crypt")}) == 5


def test_it_is_measured_and_read_back(tmp_path: Path, host: SshRunner) -> None:  # noqa: ARG001 - nothing is left there
    done = measure(tmp_path, *SELECTED, "--lab=embedded")
    assert done.returncode == 0, done.stdout
    run = latest(tmp_path)
    cells = {cell.mode: cell for cell in run.cells if cell.skipped is None}
    assert {"lvm", "lvm-luks"} <= set(cells)
    found = cells["lvm-luks"].effective
    assert (found.host_encryption, found.host_cipher, found.host_key_bits) == ("luks2", "aes-xts-plain64", 512)
    assert cells["lvm"].effective.host_encryption is None
    assert all(check.ok for cell in cells.values() for check in cell.validity), [c.validity for c in cells.values()]


def test_after_a_kill_reap_closes_the_device(tmp_path: Path, host: SshRunner) -> None:
    before = traces(host)
    lab = f"--lab={lab_file(tmp_path)}"
    with started(tmp_path, lab, *SELECTED) as run:
        wait_for_measurements(tmp_path, run)
        run.kill()
        run.communicate(timeout=patience(60))
    assert "crypt" in host.run(["lsblk", "-n", "-o", "TYPE"], deadline=patience(30)).stdout
    done = command("reap", lab, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "removed after a killed run: the encrypted device" in done.stdout
    assert traces(host) == before
