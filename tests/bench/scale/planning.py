"""What `pytest --collect-only` needs for so many cells: reading the scenarios, items, plans, announcements."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from tests.bench.scale.figures import Clock, Figures, peak_bytes, workplace
from tests.bench.scale.matrix import PROFILE, scenario_file
from tests.unit.transport_servers import make_key

ROOT = Path(__file__).parents[3]
CELLS_PER_SCENARIO = 5000
LAB = """
[host.node1]
kind = "ssh"
address = "127.0.0.1"
key = "{key}"
[host.node1.disk.optane]
id = "/dev/disk/by-id/nvme-optane"
serial = "A"
destroy = true
"""


def figures(cells: int) -> Figures:
    """Of one pytest, from its start to its end. A scenario has at most CELLS_PER_SCENARIO cells."""
    with workplace() as here:
        _project(here, cells)
        command = [sys.executable, "-m", "pytest", "scenarios", "--collect-only", "-q", f"--profile={PROFILE}"]
        clock = Clock()
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider"],
            cwd=here,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        wall = clock.wall
    collected = sum(line.startswith("scenarios/test_overhead.py::") for line in done.stdout.splitlines())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Figures(collected, wall, used.ru_utime + used.ru_stime, peak_bytes(resource.RUSAGE_CHILDREN))


def _project(here: Path, cells: int) -> None:
    """A directory as a user has it, with a lab whose host is not asked."""
    make_key(here / "key")
    (here / "lab.toml").write_text(LAB.format(key=here / "key"))
    (here / "tox.ini").write_text("[pytest]\n")
    (here / "scenarios").mkdir()
    for path in ("conftest.py", "scenarios/test_overhead.py"):
        (here / path).write_text((ROOT / path).read_text())
    for number, begin in enumerate(range(0, cells, CELLS_PER_SCENARIO), start=1):
        text = scenario_file(min(CELLS_PER_SCENARIO, cells - begin))
        (here / "scenarios" / f"matrix{number}.toml").write_text(text)
