"""A stand-in for fio 3.36 and later: it creates jobs, lets them wait, and reports when they started.

It moves no data. What it does wrong is in `paced_fio.json` beside the program, see `Mistakes`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from configparser import ConfigParser, SectionProxy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CLOCK = time.CLOCK_BOOTTIME


@dataclass(frozen=True)
class Mistakes:
    """Seconds by which jobs start late, by a part of their names, and the part of the name of a job that fails.

    `ready` is how many seconds it takes to read its jobs.
    """

    late: dict[str, float] = field(default_factory=dict)
    fails: str = ""
    ready: float = 0.0


def install(programs: Path, mistakes: Mistakes | None = None) -> None:
    """Make it the `fio` in the directory `programs`."""
    (programs / "paced_fio.json").write_text(json.dumps(asdict(mistakes or Mistakes())))
    (programs / "fio").write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {programs}/paced_fio.json "$@"\n')
    (programs / "fio").chmod(0o755)


def main() -> None:
    mistakes = Mistakes(**json.loads(Path(sys.argv[1]).read_text()))
    jobs = ConfigParser(allow_no_value=True, interpolation=None)
    jobs.read_string(sys.stdin.read())
    time.sleep(mistakes.ready)
    created = time.monotonic()
    found: dict[str, dict[str, Any]] = {}
    failed = threading.Event()

    def run(job: SectionProxy) -> None:
        time.sleep(max(created + _seconds(job["startdelay"]) - time.monotonic(), 0.0))
        for _ in range(int(job["numjobs"])):
            subprocess.run(["sh", "-c", job["exec_prerun"]], check=False)
        time.sleep(sum(late for part, late in mistakes.late.items() if part in job.name))
        if mistakes.fails and mistakes.fails in job.name:
            failed.set()
            return
        started = time.clock_gettime(CLOCK)
        time.sleep(_seconds(job["runtime"]))
        found[job.name] = _entry(job, started, time.clock_gettime(CLOCK) - started)

    threads = [threading.Thread(target=run, args=(jobs[name],), daemon=True) for name in jobs.sections()[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not failed.is_set():
            thread.join(0.02)
    if failed.is_set():
        sys.exit("fio: io_u error: Input/output error")
    sys.stdout.write(json.dumps({"jobs": [found[name] for name in jobs.sections()[1:]]}))


def _seconds(milliseconds: str) -> float:
    return int(milliseconds.removesuffix("ms")) / 1000


def _entry(job: SectionProxy, started: float, seconds: float) -> dict[str, Any]:
    """A thousand I/Os per second of 100 us each."""
    ios, bs = round(1000 * seconds), int(job["bs"])
    latency = {"mean": 100_000.0, "bins": {"100000": ios}}
    moved = {
        "io_bytes": ios * bs,
        "bw_bytes": 1000 * bs,
        "iops": 1000.0,
        "runtime": round(seconds * 1000),
        "total_ios": ios,
        "clat_ns": latency,
        "lat_ns": latency,
    }
    nothing = {key: 0 for key in moved if not key.endswith("_ns")} | {
        key: {"mean": 0.0, "bins": {}} for key in ("clat_ns", "lat_ns")
    }
    writes = "write" in job["rw"]
    return {
        "jobname": job.name,
        "read": nothing if writes else moved,
        "write": moved if writes else nothing,
        "usr_cpu": 1.0,
        "sys_cpu": 3.0,
        "ctx": ios,
        "job_runtime": round(seconds * 1000),
        "job_start": round(started * 1000),
    }


if __name__ == "__main__":
    main()
