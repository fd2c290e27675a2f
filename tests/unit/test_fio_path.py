"""Paths as fio's job file has them: the real fio opens the very file that was meant, or the path is refused before."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from harness.errors import MeasurementError
from harness.lab.lab_schema import fio_path
from harness.measure.fio import Target, TimedSection, fill_file, job_file
from harness.model.job import Job

JOB = Job("randread", 4096, iodepth=1, ramp=0, seconds=0.1)
SIZE = 64 * 1024

FITTING = [
    "md-uuid-3aaa0122:29827cfa:5331ad66:ca767371",
    "pci-0000:00:1f.2-ata-1",
    ":leading",
    "trailing:",
    "a::b:::c",
    "back\\slash",
    "back\\:slash",
    "ends with \\",
    "\\\\:two",
    "a b",
    " leading blank",
    "a,b",
    "a%b",
    "a%20b",
    "a=b",
    "$jobnum",
    "$HOME",
    "$(id)",
    "`id`",
    "[section]",
    "a*b?c",
    "'single' \"double\"",
    "~",
    "@a|b&c<d>e",
    "größe",
]
REFUSED = [
    ("a;b", "fio treats the text after ; as a comment"),
    ("a#b", "fio treats the text after # as a comment"),
    ("#", "fio treats the text after # as a comment"),
    ("a$pagesize", r"fio replaces \$pagesize"),
    ("a$mb_memory", r"fio replaces \$mb_memory"),
    ("a$ncpus-b", r"fio replaces \$ncpus"),
    ("a${HOME}", r"fio replaces \$\{"),
    ("trailing blank ", "without blanks at its end"),
    ("a\nfilename=/dev/sda", "cannot contain line breaks"),
    ("a\tb", "cannot contain line breaks"),
    ("a\0b", "cannot contain line breaks"),
    ("a\udcffb", "cannot contain line breaks"),
]


@pytest.mark.parametrize("name", FITTING)
def test_fio_opens_the_file_of_that_name(name: str, tmp_path: Path) -> None:
    if not shutil.which("fio"):
        pytest.skip("no fio here: install fio")
    file = tmp_path / name
    file.write_bytes(bytes(SIZE))
    run(fill_file([(str(file), 0, SIZE)], block=4096))
    filled = file.read_bytes()
    assert len(filled) == SIZE
    assert filled.count(0) < SIZE // 10
    printed = run(
        job_file([TimedSection("job", JOB, Target(str(file), 0, SIZE, direct=False))], seed=1, reports_start=False)
    )
    assert '"total_ios" : 0' not in printed.split('"write"')[0]
    assert [each.name for each in tmp_path.iterdir()] == [name]


def run(job: str) -> str:
    # A tmpfs has no direct I/O in older kernels; what is tried here is the name.
    job = job.replace("direct=1", "direct=0")
    done = subprocess.run(
        ["fio", "--output-format=json", "-"], input=job, text=True, capture_output=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "why"), REFUSED)
def test_a_path_that_fio_cannot_have_is_refused_before_anything_is_written(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        fio_path(f"/dev/{name}")
    with pytest.raises(MeasurementError, match=f"cannot be measured: .*{why}"):
        fill_file([("/dev/fine", 0, SIZE), (f"/dev/{name}", 0, SIZE)], block=4096)
    with pytest.raises(MeasurementError, match=f"cannot be measured: .*{why}"):
        job_file([TimedSection("job", JOB, Target(f"/dev/{name}", 0, SIZE, direct=True))], seed=1)


@pytest.mark.parametrize("path", ["", "relative", "-", "nbd://host"])
def test_a_path_that_is_not_absolute_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="absolute path"):
        fio_path(path)


def test_only_colons_are_changed() -> None:
    assert fio_path("/dev/disk/by-id/md-uuid-3aaa0122:2982") == "/dev/disk/by-id/md-uuid-3aaa0122\\:2982"
    assert fio_path("/dev/disk/by-id/nvme-INTEL_900P") == "/dev/disk/by-id/nvme-INTEL_900P"
