"""Calibration for real: a guest's disk against itself, a delay that is known, and what a later run quotes of it."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.config.names import RunId
from harness.features.calibrate.calibration import Calibration, find_directory, find_path, read_calibration
from harness.features.calibrate.command import count_most_by_chance
from harness.features.calibrate.measuring import CalibrationSpec
from harness.features.calibrate.memory_disk import NULL_BLK, MemoryDisk
from harness.lab.created import CreationLog
from harness.lab.transport.ssh import SshRunner
from tests.e2e.conftest import host
from tests.e2e.machines import background, command, latest, measure
from tests.patience import patience

GROUPS = 4
REPETITIONS = 3
SLICES = 32
BOOTS = 2
LEFT = f"{NULL_BLK}/voh-20260101-000000-abcd-late"

__all__ = ["host"]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calibration]:
    """A short calibration of the embedded lab. The user's own one is put aside meanwhile."""
    path = find_path("embedded")
    kept = tmp_path_factory.mktemp("kept") / "calibration.json"
    if path.exists():
        shutil.move(path, kept)
    found = None
    try:
        done = command(
            "calibrate",
            f"--groups={GROUPS}",
            f"--repetitions={REPETITIONS}",
            f"--slices={SLICES}",
            f"--boots={BOOTS}",
            "--seed=1",
        )
        list_doubts = [line for line in done.stdout.splitlines() if "not reliable" in line]
        assert done.returncode == bool(list_doubts), done.stdout + done.stderr
        # Of so few rounds, a machine that does other work may hide a millisecond in the guest: then it has to say so.
        assert all("the delay was detected in" in doubt for doubt in list_doubts), done.stdout
        assert f"calibration: {path}" in done.stdout
        found = read_calibration(path)
        assert found is not None
        yield found
    finally:
        path.unlink(missing_ok=True)
        if found is not None:
            shutil.rmtree(find_directory() / "runs" / found.run)
        if kept.exists():
            shutil.move(kept, path)


def test_a_device_against_itself_raises_no_more_alarms_than_chance(calibrated: Calibration) -> None:
    assert (calibrated.groups, calibrated.rounds, calibrated.disk) == (GROUPS, 3, "optane")
    assert calibrated.false_alarms <= count_most_by_chance(GROUPS)
    assert 0 < calibrated.noise_sd < 1
    assert set(calibrated.noise_sd_by_job) == {"randread-4k-qd1", "randread-4k-qd32"}
    assert list(calibrated.smallest_detectable) == [3, 5, 8, 12, 20]


def test_the_best_length_of_a_slice_follows_from_series_on_host_and_guest(calibrated: Calibration) -> None:
    found = {(each.place, each.job): each for each in calibrated.slices}
    assert set(found) == {(place, f"randread-4k-qd{depth}") for place in ("host", "guest") for depth in (32, 1)}
    for each in found.values():
        assert 16 <= each.slices <= SLICES
        assert 0.2 <= each.best_s <= 3
        # The pause of the timetable; fio starts a slice some milliseconds later than planned, each about as late.
        assert 0.03 < each.gap_s < 0.5
        assert each.within + each.between > 0
    assert calibrated.slice_s is not None
    assert 0.2 <= calibrated.slice_s <= 3


def test_the_noise_of_boots_is_measured(calibrated: Calibration) -> None:
    boots = calibrated.boots
    assert boots is not None
    assert (boots.boots, boots.blocks) == (BOOTS, CalibrationSpec().boot_rounds)
    assert boots.sd_of_blocks > 0
    low, share, high = boots.share
    assert 0 <= low <= share <= high <= 1


def test_a_delay_of_a_millisecond_is_recovered_in_the_guest_and_on_the_host(calibrated: Calibration) -> None:
    measure_delay = calibrated.delay
    assert measure_delay is not None
    assert (measure_delay.set_s, measure_delay.of) == (1e-3, REPETITIONS)
    assert measure_delay.recovered >= REPETITIONS - count_most_by_chance(REPETITIONS)
    assert measure_delay.host_found_s[0] > 0
    # Where the guest's own figures are steady enough to show a millisecond, at least one repetition has to show it.
    assert measure_delay.detected > 0 or measure_delay.found_s[2] - measure_delay.found_s[0] > 0.6e-3
    # Of this few rounds the point itself is known to about 20 %, and on a machine that does other work to less.
    for low, point, high in (measure_delay.found_s, measure_delay.host_found_s):
        assert low < point < high
        assert abs(point - 1e-3) < max(0.5e-3, high - low)


def test_the_raw_outputs_of_fio_are_kept(calibrated: Calibration) -> None:
    raw = list((find_directory() / "runs" / calibrated.run / "raw").glob("*.json"))
    # The delay on the host, a series for host and guest at two depths, and in each boot one process on each of them.
    assert len(raw) == GROUPS + REPETITIONS + 1 + 4 + 2 * BOOTS


def test_a_later_run_quotes_the_calibration(calibrated: Calibration, tmp_path: Path) -> None:
    done = measure(tmp_path, "-k", "optane and passthrough and randread", "--profile=smoke", "--rounds=1")
    assert done.returncode == 0, done.stdout
    quote = latest(tmp_path).provenance["calibration"]
    assert isinstance(quote, dict)
    assert (quote["run"], quote["stale"]) == (calibrated.run, [])
    assert "Smallest overhead that" in (tmp_path / "latest" / "index.html").read_text()


def test_ctrl_c_leaves_nothing_on_the_host_and_the_last_calibration_as_it_was(calibrated: Calibration) -> None:
    runs = raw_outputs()
    with background([sys.executable, "-m", "harness.cli", "calibrate"]) as process:
        assert process.stdout is not None
        assert any("boot the guest: " in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=patience(120))
    assert (process.returncode, said.splitlines()[-1]) == (130, "virt-overhead: interrupted")
    assert read_calibration(find_path("embedded")) == calibrated
    assert raw_outputs() == runs


def test_a_disk_in_memory_that_a_killed_calibration_left_is_reaped(host: SshRunner) -> None:
    script = f"mkdir {LEFT} && cd {LEFT} && echo 16 >size && echo 1 >memory_backed && echo 1 >power"
    host.run(["sh", "-c", script], deadline=patience(30))
    # Its name is ours, and that is not evidence.
    assert command("reap").stdout.endswith("nothing was left\n")
    boot = host.run(["cat", "/proc/sys/kernel/random/boot_id"], deadline=patience(20)).stdout.strip()
    CreationLog(host, RunId("20260101-000000-abcd")).record(MemoryDisk(directory=LEFT, boot=boot))
    done = command("reap")
    assert "removed after a killed run: the disk in memory voh-20260101-000000-abcd-late" in done.stdout


def raw_outputs() -> set[str]:
    """The calibrations whose raw outputs are kept."""
    return {each.name for each in (find_directory() / "runs").iterdir() if not each.is_symlink()}
