"""The limit of the bytes that a run writes to each disk (`--max-writes`), by the disk's own counter.

Before the run, `fitting` leaves out of the plans what would exceed the limit in their fewest rounds. During the run,
`limit` is asked before each setup, round and timetable, and gives fio a limit in each slice. Each permission is noted
in the journal before the step begins. Its meter reads the counters, so the count also holds for a run that was killed:
by the counter if the host still runs, else with the most that the step may have written. Further rounds follow as far
as the limit allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureLimit, import_later

if TYPE_CHECKING:
    from harness.features.write_limit import fitting, limit
    from harness.model.mode import Cell
    from harness.results import Measurement, ValidityCheck
else:
    fitting, limit = import_later(__name__, "fitting", "limit")


def _find_checks(slices: Sequence[Measurement], _cell: Cell) -> Iterable[ValidityCheck]:
    if not any(slice_.write_limit for slice_ in slices):
        return ()
    from harness.features.write_limit.limit import check_write_limits

    return check_write_limits(slices)


FEATURE = Feature(
    name="write_limit",
    find_checks=_find_checks,
    brings=(
        FeatureLimit(
            flag="--max-writes",
            metavar="SIZE",
            help="the most that a run may write to each disk, for example 2TiB, or a share of the `endurance` in the "
            "lab file, for example 1%%: the plan leaves out what would exceed it, and the run never does (default: no "
            "limit)",
            parse=lambda text: fitting.MaxWrites.parse(text),
            keep=lambda context: limit.WriteLimit(context),
        ),
    ),
)
