"""Measures the cells with the harness of a checkout, in a project of its own, and finds what it stored."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from harness.errors import ConfigError, MeasurementError

WORKLOADS = {"randread-4k": "iops", "randwrite-4k": "iops", "seqread-16k": "bw"}
"""The workloads, and the metric that is judged."""
IODEPTHS = {"optane": 32, "hdd": 1}
"""The disks. With more requests, the hdd loses about as much as the budget allows, so no version can decide."""
MODES = ("passthrough", "passthrough-blk", "lvm", "raw")
_TIME_LIMIT = re.compile("^time_limit = .*$", re.MULTILINE)
_CONFTEST = 'pytest_plugins = ["harness.plugin"]\n'


def scenario(disk: str, profile: str, minutes: int) -> str:
    """The scenario of 12 cells on this disk, in keys that all versions of the harness know."""
    lines = [
        f'title = "{disk}: deciding a budget of 10 %"',
        f'disk = "{disk}"',
        f"modes = [{_quoted(*MODES)}]",
        f"workloads = [{_quoted(*WORKLOADS)}]",
        'write_rate = "2200 MiB/s"',
        f"[profile.{profile}]",
        f"iodepth = [{IODEPTHS[disk]}]",
        'span = "64 MiB"',
        'conditioning = "fill"',
        f'time_limit = "{minutes} min"',
    ]
    for workload, metric in WORKLOADS.items():
        lines += [
            "[[budget]]",
            f"workloads = [{_quoted(workload)}]",
            'lab = ["emulated", "nested"]',
            f'metric = "{metric}"',
            'share = "10 %"',
        ]
    return "\n".join(lines) + "\n"


def measured(work: Path, checkout: Path | None, profile: str, minutes: int) -> Path | None:
    """The directory of the complete run in `work`. If there is none, it is measured with `checkout`, or resumed.

    A complete run with another time limit is resumed with `minutes`: its open cells get the rounds that fit.
    None without a checkout and without a complete run. Raises ConfigError if `checkout` is not a checkout, or if `work`
    has a run of another profile. Raises MeasurementError if the run is not complete.
    """
    wanted = {disk: scenario(disk, profile, minutes) for disk in IODEPTHS}
    latest = work / "reports" / "latest"
    if latest.exists():
        _require_same(work, wanted)
    if _is_complete(latest) and (checkout is None or _is_of(latest, work, wanted)):
        return latest
    if checkout is None:
        return None
    _write_project(work, checkout, wanted)
    reports = (work / "reports").resolve()
    command = [sys.executable, "-m", "pytest", "scenarios", "--lab=embedded", f"--profile={profile}"]
    # The checkout's plugin is loaded by its conftest.py; the installed package's entry point would look for its own.
    command += [f"--reports={reports}", "-p", "no:cacheprovider", "-p", "no:virt-overhead", "-c", "pytest.ini", "-q"]
    command += [f"--resume={reports / 'latest'}"] if latest.exists() else []
    print(f"{checkout}: {len(IODEPTHS)} disks, at most about {minutes} min each, and 5 min to prepare", flush=True)
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve())}
    done = subprocess.run(command, cwd=work, env=environment, check=False)
    if not _is_complete(latest):
        raise MeasurementError(
            f"{checkout}: pytest ended with status {done.returncode}, and the run in {reports} is not complete",
            hint="read its output above; the same command resumes the run",
        )
    return latest


def _is_complete(run: Path) -> bool:
    try:
        return bool(json.loads((run / "results.json").read_text())["run"]["status"] == "complete")
    except FileNotFoundError:
        return False


def _write_project(work: Path, checkout: Path, scenarios: dict[str, str]) -> None:
    """A project with these scenarios and the checkout's own test."""
    test = checkout / "scenarios" / "test_overhead.py"
    if not test.exists():
        raise ConfigError(f"{checkout} is not a checkout of virt-overhead: it has no {test}", hint="git worktree add")
    directory = work / "scenarios"
    directory.mkdir(parents=True, exist_ok=True)
    (work / "conftest.py").write_text(_CONFTEST)
    (work / "pytest.ini").write_text("[pytest]\n")
    shutil.copy(test, directory)
    for disk, text in scenarios.items():
        _scenario_path(work, disk).write_text(text)


def _require_same(work: Path, wanted: dict[str, str]) -> None:
    """All but the time limit must be as in the run."""
    for disk, text in wanted.items():
        path = _scenario_path(work, disk)
        if not path.exists() or _TIME_LIMIT.sub("", path.read_text()) != _TIME_LIMIT.sub("", text):
            raise ConfigError(
                f"{path}: the run in {work} has another profile", hint="use that profile, or another directory"
            )


def _is_of(run: Path, work: Path, wanted: dict[str, str]) -> bool:
    """Whether the run ended with these scenarios, and not only with earlier ones."""
    ended = (run / "results.json").stat().st_mtime
    paths = {_scenario_path(work, disk): text for disk, text in wanted.items()}
    return all(path.read_text() == text and path.stat().st_mtime <= ended for path, text in paths.items())


def _scenario_path(work: Path, disk: str) -> Path:
    return work / "scenarios" / f"decide_{disk}.toml"


def _quoted(*names: str) -> str:
    return ", ".join(f'"{name}"' for name in names)
