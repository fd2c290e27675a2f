"""Every disk of the catalogue in the lab, where LVM, md, LUKS, guests and failing sectors are real: each is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.lab.inventory import DiskById
from harness.lab.transport.ssh import SshRunner
from tests import safety_page
from tests.e2e.machines import on_lab_host
from tests.refusals.catalogue import CASES, DISK_BYTES, Case
from tests.refusals.trial import Trial

DIRECTORY = "/var/lib/virt-overhead/guard-test"
NAME = "sim_guard"
DISK = DiskById("guard", f"/dev/disk/by-id/lab-{NAME}", NAME, destroy=True)
MIB = 1 << 20

# $1: the disk's directory of null_blk, $2: its size in MiB.
_CREATE = """
mkdir "$1" && cd "$1" && echo "$2" >size && echo 1 >memory_backed && echo 512 >blocksize && echo 1 >discard &&
    echo 1 >power && udevadm settle
"""
_REMOVE = 'echo 0 >"$1/power"; rmdir "$1"'

found: dict[str, str] = {}


@pytest.fixture(scope="module")
def runner() -> Iterator[SshRunner]:
    with on_lab_host() as host:
        yield host


@pytest.fixture(scope="module")
def trial(runner: SshRunner) -> Iterator[Trial]:
    """A disk of its own in the lab host's memory, with a serial number and a link."""
    directory = f"/sys/kernel/config/nullb/{NAME}"
    runner.run(["sh", "-c", _CREATE, "sh", directory, str(DISK_BYTES // MIB)], deadline=60)
    runner.run(["mkdir", "-p", DIRECTORY], deadline=20)
    try:
        yield Trial(runner, f"/dev/{NAME}", DISK.id, DISK, DIRECTORY)
    finally:
        runner.run(["rm", "-rf", DIRECTORY], deadline=20)
        runner.run(["sh", "-c", _REMOVE, "sh", directory], deadline=60)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_disk_is_refused_and_stays_as_it_is(trial: Trial, case: Case) -> None:
    lacking = trial.lacking(case)
    assert not lacking, f"the lab lacks {lacking}"
    said = trial.refused(case)
    assert case.message in said
    found[case.name] = said


def test_the_page_has_what_was_found(regenerate: bool) -> None:
    if not regenerate:
        pytest.skip("the messages have names of the day: --regenerate writes them")
    assert set(found) == {case.name for case in CASES}, "every case has to be tried, and refused, in the same run"
    rows = [(case.name, f"`{found[case.name]}`", "unchanged") for case in CASES]
    safety_page.write_section(
        "refusals", safety_page.table(("what is on the disk", "the guard says", "checksum"), rows)
    )
