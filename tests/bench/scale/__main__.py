"""How time and memory of the harness itself grow with the number of cells.

    python -m tests.bench.scale plan 1000 10000 100000
    python -m tests.bench.scale store 500 1000 2000
    python -m tests.bench.scale report 500 1000 2000 5000

Nothing is measured on a disk. `plan` collects and plans scenarios of so many cells. `store` makes up the rounds of a
real campaign, which looks at them and stores them. `report` makes the page of a stored run. Each number of cells has a
process of its own, so its peak memory is its own. The last column of each line is the growth of the CPU time per cell
since the line before, which holds on any machine: 1.00 is linear, and the ratio of the numbers of cells is quadratic.

The files are in memory (/dev/shm), if there is such a directory, so a slow disk does not count.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Sequence

from tests.bench.scale import planning, reporting, storing
from tests.bench.scale.figures import Figures, lines

BENCHMARKS = {"plan": planning.figures, "store": storing.figures, "report": reporting.figures}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.scale", description="Time and memory of the harness by the number of cells."
    )
    parser.add_argument("benchmark", choices=sorted(BENCHMARKS))
    parser.add_argument("cells", type=int, nargs="+", help="numbers of cells, the smallest first")
    options = parser.parse_args(arguments)
    before: Figures | None = None
    for number in options.cells:
        with multiprocessing.get_context("spawn").Pool(1) as own_process:
            found = own_process.apply(BENCHMARKS[options.benchmark], (number,))
        print("\n".join(lines(found, before)), flush=True)
        before = found
    return 0


if __name__ == "__main__":
    sys.exit(main())
