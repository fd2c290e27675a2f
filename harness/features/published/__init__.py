"""Published figures that results are shown beside, if a scenario names them by its key `published`, or if they are of
the class of the disk and of the same job.

figures.toml has the data with their sources, figures.py its schema, and which figure belongs to which cell. report.py
shows both, and the best slices of CrystalDiskMark's tests, as that shows the best of its passes. The figures are for
comparison only: no verdict, budget or exit status depends on them. A new figure is a line of figures.toml; a new study
or disk is also named in docs/scenarios.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.config.names import choices
from harness.feature import Feature

if TYPE_CHECKING:
    from harness.scenario.scenario import Scenario


def find_problems(scenario: Scenario) -> Iterator[str]:
    """A name that no figures have; figures of one array, where the modes build arrays.

    In that case, figures of the array would be shown beside a single disk.
    """
    from harness.features.published.figures import links

    name = scenario.published
    if name is None:
        return
    if name not in links():
        yield f'published = "{name}": no such published figures; {choices(name, links())}'
        return
    built = [mode.name for mode in scenario.modes if mode.detail.on_array]
    if built and links()[name].disk_is_array:
        study = name.partition(".")[0]
        yield (
            f'published = "{name}": is one array, and the mode {built[0]} builds arrays of several disks; '
            f'allowed: "{study}", from which each mode selects its array'
        )


FEATURE = Feature(
    name="published",
    find_problems=find_problems,
)
