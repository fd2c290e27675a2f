"""A user's own fio file as this machine's fio runs it. fio's log of every I/O is the second count of its bytes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.lab.transport.local import LocalRunner
from harness.measure.fio import JobResult, Target, TimedSection, job_file, parse
from harness.measure.platform import ScheduledFio, Start, fio_command, remove_waits
from tests.features.fio_files.fio_files import DATABASE, job_of, read, read_in

pytestmark = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")

MIB = 1024**2
SECONDS = 0.3
LIMITED = ("timeout", "-k", "5", "60", *fio_command())
"""fio of some versions does not always end."""
AT_ONCE = """
[global]
ioengine=libaio
iodepth=4
[small]
rw=randread
bs=4k
[split]
rw=randrw
rwmixread=30
bssplit=512/20:8k/50:64k/30,1k/70:16k/30
[log]
rw=write
bs=2k
fdatasync=1
[alone]
stonewall
rw=randrw
bsrange=1k-32k
ioengine=psync
"""


@dataclass(frozen=True)
class Ran:
    """The jobs of a file: as parsed, as fio printed them, and the I/Os and bytes in fio's log of each section."""

    results: Sequence[JobResult]
    printed: Mapping[str, Any]
    logged: Mapping[str, Counter[str]]


def a_disk(folder: Path) -> Path:
    path = folder / "disk"
    with path.open("wb") as file:
        file.truncate(64 * MIB)
    return path


def sections(folder: Path, name: str, disk: Path, delay: float | None = None) -> list[TimedSection]:
    jobs = [job_of(each, SECONDS) for each in read_in(folder, name)]
    return [TimedSection(job.id, job, Target(str(disk), 0, 64 * MIB, direct=False), delay) for job in jobs]


def document(output: str) -> Mapping[str, Any]:
    found = json.loads(output[output.index("{") :])
    return {each["jobname"]: each for each in found["jobs"]}


def logged(path: Path) -> Counter[str]:
    """The I/Os and the bytes of each direction in a log of fio."""
    found: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        if match := re.search(r" (read|write) [0-9]+ ([0-9]+)$", line):
            found[f"{match[1]} ios"] += 1
            found[f"{match[1]} bytes"] += int(match[2])
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("own")
    read(folder, AT_ONCE)
    own = sections(folder, "db.fio", a_disk(folder))
    text = re.sub(
        r"^\[(db.*)\]$", rf"[\1]\nwrite_iolog={folder}/\1.log", job_file(own, 1, reports_start=False), flags=re.M
    )
    done = subprocess.run(LIMITED, input=text, capture_output=True, text=True, check=True, cwd=folder)
    logs = {path.stem: logged(path) for path in folder.glob("*.log")}
    return Ran(parse(done.stdout, own, "here"), document(done.stdout), logs)


def test_sections_at_once_are_added_up_exactly(ran: Ran) -> None:
    both, alone = ran.results
    assert (both.job, alone.job) == ("db-small-and-2", "db-alone")
    assert ran.logged.keys() == {"db-small-and-2", "db-small-and-2+1", "db-small-and-2+2", "db-alone"}
    assert all(ran.logged.values())
    total = sum((log for name, log in ran.logged.items() if name.startswith(both.job)), Counter[str]())
    for result, log in ((both, total), (alone, ran.logged["db-alone"])):
        assert (result.transferred.read, result.transferred.written) == (log["read bytes"], log["write bytes"])
        assert result.io_bytes == log["read bytes"] + log["write bytes"]
        assert result.ios == log["read ios"] + log["write ios"]


def test_the_result_is_fios_own_totals(ran: Ran) -> None:
    assert ran.printed.keys() == {each.job for each in ran.results}
    for found in ran.results:
        sides = [ran.printed[found.job][side] for side in ("read", "write")]
        assert found.metrics["bw"] == sum(side["bw_bytes"] for side in sides)
        assert found.metrics["iops"] == pytest.approx(sum(side["iops"] for side in sides))
        assert sum(found.histogram.values()) == found.ios
        means = sum(side["clat_ns"]["mean"] * side["total_ios"] for side in sides) / found.ios
        assert found.metrics["clat_mean"] == pytest.approx(means / 1e9)


def test_the_syncs_of_one_section_are_those_of_the_job(ran: Ran) -> None:
    both, alone = ran.results
    assert sum(both.sync_histogram.values()) == pytest.approx(ran.logged["db-small-and-2+2"]["write ios"], abs=4)
    assert both.metrics["sync_mean"] > 0
    assert "sync_mean" not in alone.metrics


def test_all_processes_of_all_sections_start_when_their_job_is_released(tmp_path: Path) -> None:
    own = sections(DATABASE.parent, DATABASE.name, a_disk(tmp_path), delay=0.1)
    now = float(Path("/proc/uptime").read_text().split()[0])
    starts = [Start(now + 1 + number * 2 * SECONDS, each.job.numjobs) for number, each in enumerate(own)]
    paced = ScheduledFio(str(tmp_path / "pacing-here"), LIMITED, tuple(starts))
    done = paced.run(
        LocalRunner("host here").run, job_file(own, 1, reports_start=False, waits=paced.waits), deadline=30
    )
    both, backup = parse(remove_waits(done.stdout), own, "here")
    assert both.seconds == pytest.approx(SECONDS, abs=0.2)
    assert backup.seconds == pytest.approx(SECONDS, abs=0.2)
    entry = document(remove_waits(done.stdout))[both.job]
    # Three processes ran for the whole time: two readers and the log.
    assert entry["job_runtime"] == pytest.approx(3 * SECONDS * 1000, rel=0.3)
    assert min(both.transferred.read, both.transferred.written, backup.transferred.read) > 0
    assert backup.transferred.written == 0
