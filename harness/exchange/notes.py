"""What a reader must know about imported cells. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.exchange.reader import Point, differences, varying
from harness.model.cell import Arm, Place

NOT_ALTERNATING = (
    "imported: host and guest were not measured in alternation, so a change of the host between the two counts as "
    "overhead; neither the bytes nor the configuration of the guest were checked"
)


def cell_notes(by_arm: Mapping[Arm, Sequence[Point]]) -> Iterator[str]:
    """The notes of a cell whose arms have these points, each at least one."""
    guests = [(arm, points) for arm, points in by_arm.items() if arm.place is Place.GUEST]
    host = by_arm[Arm(Place.HOST)]
    for _, points in guests:
        yield NOT_ALTERNATING
        if len(host) != len(points):
            yield (
                f"{len(host)} results of the host and {len(points)} of the guest: only the first "
                f"{min(len(host), len(points))} of each, in the order of time, are compared"
            )
        if differ := list(differences(host, points)):
            yield f"host and guest differ in {', '.join(differ)}"
    for arm, points in by_arm.items():
        yield from _arm_notes(arm, points)


def _arm_notes(arm: Arm, points: Sequence[Point]) -> Iterator[str]:
    if any(point.buffered for point in points):
        yield f"{arm.id}: fio did not use direct I/O (direct=1), so a page cache may have served it"
    if vary := list(varying(points)):
        yield f"{arm.id}: its results differ in {', '.join(vary)}"
    if any(point.waits_for_each for point in points):
        yield f"{arm.id}: fio's engine waits for each I/O, so each process had one in flight, not {points[0].iodepth}"
    if further := points[0].further:
        shown = ", ".join(f"{name}={value}" if value else name for name, value in further.items())
        yield f"{arm.id}: fio ran the job with further options: {shown}"
    if not all("clat_mean" in point.metrics for point in points):
        yield f"{arm.id}: fio measured no latencies"
    elif not all(point.histogram for point in points):
        yield from _percentile_notes(arm, points)


def _percentile_notes(arm: Arm, points: Sequence[Point]) -> Iterator[str]:
    if all(point.total_latencies_only for point in points):
        yield (
            f"{arm.id}: no percentiles of the completion latency: fio measured only those of the total latency "
            "(lat_percentiles)"
        )
    elif any(point.percentiles_off for point in points):
        yield f"{arm.id}: no percentiles: fio printed neither percentiles nor a histogram of the completion latency"
    elif len(points) == 1 and (own := points[0].own_percentiles):
        yield f"{arm.id}: {', '.join(own)} {'is' if len(own) == 1 else 'are'} as fio printed, without a histogram"
    else:
        yield (
            f"{arm.id}: no percentiles, because fio's output has no histograms and percentiles cannot be averaged; "
            "measure with --output-format=json+"
        )
