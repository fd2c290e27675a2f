"""The comparison of runs, and baselines to compare with.

`virt-overhead compare` and `--baseline` of a measurement find the cells of two runs that belong together and what else
differs between the runs, estimate the change of each arm and judge it among all that are compared (comparison.py).
records.py is the JSON document, words.py says it in words for a terminal and as Markdown, page.py as a page.
`virt-overhead baseline` names a run (command.py). After a measurement on several hosts, hosts.py puts their runs beside
each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature, RunOption, import_later

if TYPE_CHECKING:
    from harness.features.compare import command, hosts
else:
    command, hosts = import_later(__name__, "command", "hosts")


FEATURE = Feature(
    name="compare",
    brings=(
        RunOption(
            flag="--baseline",
            metavar="NAME",
            help="compare the run with this baseline (`virt-overhead baseline`); a run that is worse is a failure",
            check=lambda name, reports: command.find_baseline(reports, name),
            judge=lambda name, runs: command.judge_runs(name, runs),
            print=lambda name, runs, reporter: command.print_comparisons(name, runs, reporter),
        ),
    ),
    print_runs=lambda runs, reporter: hosts.print_hosts(runs, reporter) if len(runs.paths) > 1 else None,
)
