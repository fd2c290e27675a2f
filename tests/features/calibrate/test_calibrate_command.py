"""`virt-overhead calibrate` where there is nothing to measure on, and what it prints where there was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli import main
from harness.config.names import RunId
from harness.errors import ConfigError, Unsupported
from harness.features.calibrate.calibration import BootNoise, Delay, SliceNoise
from harness.features.calibrate.command import choose_disk, summarise
from harness.features.calibrate.memory_disk import create_memory_disk
from harness.lab.created import CreationLog
from harness.lab.inventory import DiskByFile, HostSpec
from harness.lab.transport.local import LocalRunner
from tests.features.calibrate import calibrations

DISKS = tuple(DiskByFile(name, Path(f"/{name}"), 1, destroy=True) for name in ("optane", "hdd"))
HOST = HostSpec("node1", "local", ssh=None, disks=DISKS)
CALIBRATION = replace(calibrations.CALIBRATION, slices=())


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def test_the_first_disk_of_the_host_is_the_default() -> None:
    assert choose_disk(HOST, None) == "optane"
    assert choose_disk(HOST, "hdd") == "hdd"


def test_an_unknown_disk_is_reported_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match='host node1: no disk "hd"'):
        choose_disk(HOST, "hd")
    with pytest.raises(ConfigError, match="host node1 has no disk"):
        choose_disk(HostSpec("node1", "local", ssh=None, disks=()), None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rounds=1"], '"1": allowed: a whole number from 2'),
        (["--groups=0"], '"0": allowed: a whole number from 1'),
        (["--seconds=short"], '"short": allowed: a whole number from 1'),
        (["--slices=15"], '"15": allowed: a whole number from 16'),
        (["--boots=1"], '"1": allowed: a whole number from 2'),
        (["--groups=99999999"], '"99999999": allowed: a whole number from 1 to 10000'),
        ([f"--seed={'9' * 5000}"], f'"{"9" * 80} ...": allowed: a whole number from 0 to 2147483647'),
    ],
)
def test_a_meaningless_number_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["calibrate", *arguments])
    assert said in capsys.readouterr().err


def test_a_disk_that_the_embedded_lab_lacks_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--disk=floppy"]) == 2
    assert 'host lab: no disk "floppy"' in capsys.readouterr().err


def test_the_summary_shows_the_smallest_detectable_overhead() -> None:
    assert summarise(CALIBRATION) == [
        "host node1, disk optane, 40 groups of 3 blocks",
        "  false alarms of a device against itself: 2 of 40 (5% nominal, up to 7 by chance)",
        "  noise between blocks: 2.10%",
        "  smallest overhead that can be shown: 3 blocks: 6.62%, 5 blocks: 3.47%",
        "  noise of randread-4k-qd32 between boots: 3.00%, between blocks of a boot: 4.00%",
        "  share of the variance due to boots: 36% (0% to 90%, from 5 boots)",
        "  a delay of known size: not measured",
    ]


def test_the_summary_recommends_the_length_of_a_slice_and_shows_the_noise_of_boots() -> None:
    series = (
        SliceNoise("host", "randread-4k-qd32", 0.2, 120, 0.06, within=2e-4, between=1e-4, best_s=0.346),
        SliceNoise("guest", "randread-4k-qd32", 0.2, 120, 0.08, within=4e-4, between=2e-4, best_s=0.4),
    )
    own = ["host randread-4k-qd32: 346 ms (gap 60 ms)", "guest randread-4k-qd32: 400 ms (gap 80 ms)"]
    boots = BootNoise("randread-4k-qd32", 5, 3, sd=0.031, sd_of_blocks=0.042, share=(0.0, 0.353, 0.88))
    assert summarise(replace(CALIBRATION, slices=series, slice_s=0.37, boots=boots))[4:-1] == [
        "  best length of a slice: 370 ms; in the same time, intervals are 6% narrower than with slices of 1 s",
        f"  best length by arm and job: {', '.join(own)}",
        "  noise of randread-4k-qd32 between boots: 3.10%, between blocks of a boot: 4.20%",
        "  share of the variance due to boots: 35% (0% to 88%, from 5 boots)",
    ]


def test_the_summary_shows_the_measured_delay() -> None:
    found = Delay(1e-3, (0.98e-3, 1.01e-3, 1.04e-3), (0.99e-3, 1e-3, 1.01e-3), 8, 7, 8, 3, "randread-4k-qd1")
    assert summarise(replace(CALIBRATION, delay=found))[-3:] == [
        "  a delay of 1 ms in the guest: 1.01 ms (980 us to 1.04 ms)",
        "  the same on the host: 1 ms (990 us to 1.01 ms)",
        "  detected in 8 of 8 repetitions, recovered in 7",
    ]


def test_a_kernel_without_disks_in_memory_is_reported_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.features.calibrate.memory_disk.NULL_BLK", str(tmp_path / "absent"))
    with (
        pytest.raises(Unsupported, match="no null_blk") as error,
        create_memory_disk(CreationLog(LocalRunner("host here"), RunId.new()), "plain", size=1, answer_ns=1),
    ):
        pass
    assert "modprobe null_blk" in str(error.value)


def test_a_name_that_the_kernel_would_cut_off_is_refused() -> None:
    with (
        pytest.raises(ValueError, match="too long"),
        create_memory_disk(CreationLog(LocalRunner("host here"), RunId.new()), "delayed", size=1, answer_ns=1),
    ):
        pass
