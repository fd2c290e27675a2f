"""A command whose input ends early does not start: a part of a job file or a record is never taken for all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.lab.guard.writable import issue
from harness.lab.pin import read_pins
from harness.lab.transport.base import Completed, whole
from harness.lab.transport.local import LocalRunner

RUNNER = LocalRunner("host here")
JOBS = "[global]\nrw=write\n\n[a'$x\\b \u00e4]\nsize=4k\n\n"


class CutOff(LocalRunner):
    """This machine, over a connection that is lost in the middle of the input."""

    def run(self, argv, *, deadline, stdin=None, check=True) -> Completed:  # type: ignore[no-untyped-def]
        return super().run(argv, deadline=deadline, stdin=stdin and stdin[: len(stdin) // 2], check=check)


def test_the_command_gets_its_input_unchanged_and_its_status_is_reported() -> None:
    done = RUNNER.run(whole(["sh", "-c", "cat; exit 3"], JOBS), stdin=JOBS, deadline=20, check=False)
    assert (done.stdout, done.status) == (JOBS, 3)
    assert RUNNER.run(whole(["cat"], ""), stdin="", deadline=20).stdout == ""


@pytest.mark.parametrize("size", range(0, len(JOBS) - 1, 7))
def test_the_command_does_not_start_with_a_part_of_its_input(tmp_path: Path, size: int) -> None:
    mark = tmp_path / "started"
    done = RUNNER.run(whole(["touch", str(mark)], JOBS), stdin=JOBS[:size], deadline=20, check=False)
    assert done.status == 1
    assert "bytes of its input arrived" in done.stderr
    assert not mark.exists()


def test_fio_does_not_get_a_part_of_its_job_file(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(4096))
    runner = CutOff("host here")
    (pin,) = read_pins(runner, [str(disk)])
    device = issue(runner, pin, ["PHM1"])
    mark = tmp_path / "started"
    done = device.run(["touch", str(mark)], stdin=JOBS, deadline=20, check=False)
    assert "bytes of its input arrived" in done.stderr
    assert not mark.exists()
