"""Several hosts at the same time: `pytest -n N` with pytest-xdist, one worker for all cells of a host.

The controller distributes the cells by their hosts, shows the progress of all workers on its terminal, and adds their
outcomes to its own. A worker ends as after Ctrl-C, so it removes what it created (`workers.py`). At the end, one page
puts the runs of all hosts beside each other (`hosts.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature, import_later

if TYPE_CHECKING:
    from harness.features.parallel import hosts, workers
else:
    hosts, workers = import_later(__name__, "hosts", "workers")

FEATURE = Feature(
    name="parallel",
    make_plugin=lambda config: workers.make_plugin(config),
    print_runs=lambda runs, reporter: hosts.print_hosts(runs, reporter) if len(runs.paths) > 1 else None,
)
