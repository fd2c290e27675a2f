"""The wall time of many hosts against one, with one controller; and what is left when one of them is lost.

    python -m tests.bench.many_hosts --hosts=16

Starts simulated hosts on addresses of this machine (`hosts.py`), and has pytest with xdist measure one of them, all of
them, and all of them again while one is lost. Their fio waits as long as a real one, and prints what a real one once
printed. It needs root, OpenSSH's server and some minutes. This machine does the work of all hosts as well as that of
the controller. So the CPU time of both is printed, and the share of one CPU that they need together.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.features.compare.history_store import HistoryStore
from tests.bench.many_hosts.hosts import simulated_hosts
from tests.bench.many_hosts.measuring import Measured, measure, project
from tests.bench.scale.figures import workplace


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.many_hosts", description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=16, help="the number of hosts (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each job: how long a run is (%(default)s)")
    parser.add_argument("--only", choices=("walls", "loss"), help="only the wall times, or only the loss of a host")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs in this new directory")
    options = parser.parse_args()
    with workplace() as temporary:
        here = options.keep or temporary
        servers = here / "servers"
        servers.mkdir(parents=True)
        with simulated_hosts(servers, options.hosts) as hosts:
            project(here, hosts)
            if options.only != "loss":
                one = measure(here / "one", hosts[:1], options.rounds)
                print(one.line, flush=True)
                every = measure(here / "every", hosts, options.rounds)
                print(every.line, flush=True)
                print(
                    f"wall time of {options.hosts} hosts: {every.wall / one.wall:.3f} of that of one; "
                    f"measuring on the median host: {every.measuring / one.measuring:.3f}",
                    flush=True,
                )
            if options.only != "walls":
                lost = measure(here / "loss", hosts, options.rounds, loses=hosts[-1])
                print("\n".join((lost.line, *_left(lost, here / "loss" / "history"))), flush=True)
    return 0


def _left(lost: Measured, history: Path) -> Iterator[str]:
    """What each host has, and whether one report and one history have it."""
    for run in sorted(lost.runs, key=lambda run: run.lab.host):
        cause = f": {run.run.cause}".partition("\n")[0] if run.run.cause else ""
        yield f"  {run.lab.host}: {run.run.status}, {len(run.cells)} cells{cause}"
    complete = [run for run in lost.runs if run.run.status == "complete"]
    yield f"complete: {len(complete)} of {lost.hosts} hosts"
    page = lost.page.read_text()
    shown = sum(cell.id in page for run in lost.runs for cell in run.cells)
    yield f"one report, {lost.page.name}: {shown} of {sum(len(run.cells) for run in lost.runs)} cells"
    rows = HistoryStore.at(str(history)).query("SELECT count(DISTINCT run), count(DISTINCT cell) FROM history", {})
    yield f"one history: {rows[0][0]} runs, {rows[0][1]} cells"


if __name__ == "__main__":
    sys.exit(main())
