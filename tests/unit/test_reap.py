"""What a killed run left on a host goes; what cannot go is told, and never taken for gone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.measure import reap
from harness.measure.reap import sweep
from tests.unit.loop_disks import RUNNER, require, run

MARK = "VIRT_OVERHEAD=a-test"


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A mount as a run makes it, below directories that are this test's own."""
    require("mountpoint", "umount")
    monkeypatch.setattr(reap, "MARK", MARK)
    monkeypatch.setattr(reap, "TAG", "voh-a-test")
    for place in ("MOUNT_DIRECTORY", "CONSOLE_DIRECTORY", "NULL_BLK"):
        monkeypatch.setattr(reap, place, str(tmp_path / place.lower()))
    point = tmp_path / "mount_directory" / "run"
    point.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "none", point], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    yield point
    if point.is_mount():
        run("umount", str(point))


@contextmanager
def using(point: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that works in `point`."""
    with subprocess.Popen([*words, "sleep", "60"], cwd=point) as process:
        try:
            yield process
        finally:
            process.kill()


def test_what_still_runs_is_ended_before_the_mount_under_it_goes(left: Path) -> None:
    with using(left, "env", MARK) as process:
        assert sweep(RUNNER) == [f"process sleep ({process.pid})", f"mount {left}"]
        assert process.wait(timeout=5) == -9
    assert not left.exists()
    assert sweep(RUNNER) == []


def test_a_mount_that_somebody_else_uses_is_told_and_not_taken_for_gone(left: Path) -> None:
    with using(left) as process:
        with pytest.raises(HostError, match=f"cannot be removed: mount {left}: .*busy"):
            sweep(RUNNER)
        assert process.poll() is None
    assert left.is_mount()
