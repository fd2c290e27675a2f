"""The calibration file of a lab host: written atomically, found again, and quoted with the changes since then."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import ResultsError
from harness.features.calibrate.calibration import (
    Calibration,
    Conditions,
    Delay,
    find_path,
    identify,
    quote,
    read_calibration,
    write_calibration,
)
from harness.image import EmulatorImage, GuestImage, Image, ImageSet, LabImage
from harness.image.manifest import Manifest
from harness.lab.facts import Acceleration, HostFacts
from harness.lab.hosts import GuestFiles, Host
from harness.lab.inventory import HostSpec
from harness.lab.transport.local import LocalRunner
from harness.report.contents import lab_sentences
from tests.build import synthetic_run
from tests.features.calibrate.calibrations import CALIBRATION

MANIFEST = Manifest(1, "any", "recipe", "trixie", "2026-01-01", 1.0, "fio-3.39", "6.12", "", {}, {}, {})
IMAGES = ImageSet(
    Image("fio", "f1", Path(), MANIFEST),
    GuestImage("guest", "g1", Path(), MANIFEST),
    EmulatorImage("emulator", "e1", Path(), MANIFEST),
    LabImage("lab", "l1", Path(), MANIFEST),
    Path(),
)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def host(kernel: str = "6.12.1", *, embedded: bool = False) -> Host:
    return Host(
        spec=HostSpec("node1", "embedded" if embedded else "local", ssh=None, disks=()),
        runner=LocalRunner("host node1"),
        ssh=None,
        target=None,
        facts=HostFacts({"kernel": kernel, "qemu": "QEMU 10.0", "hostname": "node/1"}),
        guest_files=GuestFiles("", "", Path(), ""),
        acceleration=Acceleration("kvm", "it was tried"),
    )


def calibration(at: Host) -> Calibration:
    return replace(
        CALIBRATION,
        noise_sd_by_job={"randread-4k-qd1": 0.02},
        delay=Delay(1e-3, (0.9e-3, 1e-3, 1.1e-3), (0.9e-3, 1e-3, 1.1e-3), 8, 8, 8, 3, "randread-4k-qd1"),
        conditions=Conditions.of(at, IMAGES),
    )


def calibrated(at: Host) -> Path:
    path = find_path(identify(at))
    write_calibration(path, calibration(at))
    return path


def test_a_written_calibration_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "node1.json"
    write_calibration(path, calibration(host()))
    assert read_calibration(path) == calibration(host())
    assert [each.name for each in path.parent.iterdir()] == ["node1.json"]


def test_a_host_that_was_never_calibrated_has_nothing_to_quote() -> None:
    assert quote(host(), IMAGES) is None


def test_a_run_quotes_the_calibration_and_its_report_describes_it() -> None:
    calibrated(host())
    quoted = quote(host(), IMAGES)
    assert isinstance(quoted, dict)
    assert (quoted["written"], quoted["false_alarms"], quoted["stale"]) == ("2026-01-02", 2, [])
    run = replace(synthetic_run(), provenance={"calibration": json.loads(json.dumps(quoted))})
    said = " ".join(lab_sentences(run))
    assert "Smallest overhead that 3 blocks can show here: 6.6 %" in said
    assert "2 false alarms in 40 groups" in said
    assert re.search(r"An added delay of 1.000 us was measured as 1.000 us", said)


def test_a_calibration_under_another_kernel_or_image_is_quoted_as_stale() -> None:
    calibrated(host())
    rebuilt = replace(IMAGES, guest=GuestImage("guest", "g2", Path(), MANIFEST))
    quoted = quote(host(kernel="6.12.2"), rebuilt)
    assert isinstance(quoted, dict)
    assert quoted["stale"] == ["kernel was 6.12.1, is 6.12.2", "guest image changed"]


def test_the_images_of_the_lab_host_count_only_in_the_embedded_lab() -> None:
    rebuilt = replace(IMAGES, lab=LabImage("lab", "l2", Path(), MANIFEST))
    for embedded, changes in ((False, []), (True, ["lab image changed"])):
        at = host(embedded=embedded)
        calibrated(at)
        quoted = quote(at, rebuilt)
        assert isinstance(quoted, dict)
        assert quoted["stale"] == changes


def test_each_host_has_its_own_file_with_a_valid_name() -> None:
    assert identify(host(embedded=True)) == "embedded"
    assert identify(host()).startswith("node-1")


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 3}', "[1"])
def test_an_invalid_file_is_reported_and_does_not_prevent_measurements(text: str) -> None:
    path = calibrated(host())
    path.write_text(text)
    with pytest.raises(ResultsError, match=r"is not a calibration of this version\n  -> virt-overhead calibrate"):
        read_calibration(path)
    quoted = quote(host(), IMAGES)
    assert isinstance(quoted, dict)
    assert str(path) in str(quoted["unreadable"])
    run = replace(synthetic_run(), provenance={"calibration": quoted})
    assert "cannot be read" in lab_sentences(run)[0]


def test_a_directory_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match="cannot be written"):
        write_calibration(tmp_path / "file" / "node1.json", calibration(host()))
