"""What the limit of the bytes written adds to the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureLimit

if TYPE_CHECKING:
    from harness.features.write_limit.fitting import MaxWrites
    from harness.features.write_limit.limit import WriteLimit
    from harness.measure.rounds import RunContext
    from harness.model.mode import Cell
    from harness.results import Measurement, ValidityCheck


def _parse(text: str) -> MaxWrites:
    from harness.features.write_limit.fitting import MaxWrites

    return MaxWrites.parse(text)


def _keep(context: RunContext) -> WriteLimit:
    from harness.features.write_limit.limit import WriteLimit

    return WriteLimit(context)


def _find_checks(slices: Sequence[Measurement], _cell: Cell) -> Iterable[ValidityCheck]:
    if not any(slice_.write_limit for slice_ in slices):
        return ()
    from harness.features.write_limit.limit import check_write_limits

    return check_write_limits(slices)


FEATURE = Feature(
    name="write_limit",
    find_checks=_find_checks,
    limit=FeatureLimit(
        flag="--max-writes",
        metavar="SIZE",
        help="the most that a run may write to each disk, for example 2TiB, or a share of the `endurance` in the lab "
        "file, for example 1%%: the plan leaves out what would exceed it, and the run never does (default: no limit)",
        parse=_parse,
        keep=_keep,
    ),
)
