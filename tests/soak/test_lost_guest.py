"""A guest that hangs during a round: in a simulated lab it is started again, and the round does not count."""

from __future__ import annotations

from pathlib import Path

from harness.lab.transport.ssh import SshRunner
from harness.measure.host_measurer import KEPT_RUNNING
from tests.e2e.conftest import host
from tests.e2e.machines import latest, started, wait_for_measurements
from tests.patience import patience

__all__ = ["host"]


def test_a_guest_that_hangs_in_a_simulated_lab_is_started_again_and_its_round_does_not_count(
    tmp_path: Path, host: SshRunner
) -> None:
    with started(tmp_path, "-k", "optane-passthrough-randread", "--profile=smoke", "--rounds=2") as run:
        wait_for_measurements(tmp_path, run)
        host.run(["sh", "-c", "kill -STOP $(cat /run/libvirt/qemu/voh-*.pid)"], deadline=patience(30))
        output, _ = run.communicate(timeout=patience(300))
    assert run.returncode == 0, output
    (cell,) = latest(tmp_path).cells
    assert set(cell.rounds) in ({1, 3}, {2, 3})
    assert len(cell.rounds) == len(cell.metrics["iops"].guest) == 8
    assert any(note.endswith(f"which does not count; {KEPT_RUNNING}") for note in cell.notes)
    # It hung while fio ran, or while QEMU was asked for its counts.
    assert "libvirt reports that it still runs" in output or "QEMU did not answer" in output
