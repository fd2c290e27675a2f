"""Every disk of the catalogue that needs no lab is refused, on real loop devices; the lab tries all of them (soak)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.lab.inventory import DiskByFile
from tests.refusals.catalogue import CASES, DISK_BYTES, Case
from tests.refusals.trial import Trial
from tests.unit.loop_disks import RUNNER, loop, require, sparse


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    require("unshare")
    file = sparse(tmp_path / "disk.img", DISK_BYTES)
    with loop(file) as device:
        link = tmp_path / "link"
        link.symlink_to(device)
        spec = DiskByFile("loop", file, DISK_BYTES, destroy=True)
        yield Trial(RUNNER, device, str(link), spec, str(tmp_path))


@pytest.mark.parametrize("case", [case for case in CASES if not case.lab], ids=lambda case: case.name)
def test_the_disk_is_refused_and_stays_as_it_is(trial: Trial, case: Case) -> None:
    if lacking := trial.lacking(case):
        pytest.skip(f"not installed here: {', '.join(lacking)}")
    assert case.message in trial.refused(case)
