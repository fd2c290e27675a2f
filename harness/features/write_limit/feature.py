"""What the limit of the bytes written adds to the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureLimit

if TYPE_CHECKING:
    from harness.features.write_limit.fitting import MaxWrites
    from harness.features.write_limit.limit import WriteLimit
    from harness.measure.rounds import RunContext


def _parse(text: str) -> MaxWrites:
    from harness.features.write_limit.fitting import MaxWrites

    return MaxWrites.parse(text)


def _keep(context: RunContext) -> WriteLimit:
    from harness.features.write_limit.limit import WriteLimit

    return WriteLimit(context)


FEATURE = Feature(
    name="write_limit",
    limit=FeatureLimit(
        flag="--max-writes",
        metavar="SIZE",
        help="the most that a run may write to each disk, for example 2TiB, or a share of the `endurance` in the lab "
        "file, for example 1%%: the plan leaves out what would exceed it, and the run never does (default: no limit)",
        parse=_parse,
        keep=_keep,
    ),
)
