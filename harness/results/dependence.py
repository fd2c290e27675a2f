"""How the blocks of a group hang together: the boots of the guest, and the correlation of neighbouring blocks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.analysis import Caveat, Correlation, Estimate, Samples, log_ratios, pooled_correlation
from harness.results.cells import CellRecord

_CAVEATS = {
    Caveat.NOT_ESTIMATED: "too few blocks to see whether neighbours are correlated: the interval assumes they are not",
    Caveat.ROUGH: "the correlation of neighbouring blocks is estimated from few of them, so the interval is rough",
    Caveat.DRIFTING: "neighbouring blocks are so strongly correlated that there is no interval: measure for longer",
}


def samples_of(rounds: Sequence[int], boots: Sequence[int], correlation: Correlation | None) -> Samples:
    """The samples of a cell whose blocks have these rounds and boots, in a group with this correlation."""
    return Samples(tuple(boots), correlation, rounds=len(set(rounds)))


def group_correlation(pairs: Iterable[tuple[Sequence[float], Sequence[float], Sequence[int]]]) -> Correlation | None:
    """The correlation that the cells of a group have in common, from host, guest and boot of each block of a cell.

    None if the blocks are of several boots, whose means are the samples then, or if no cell has a guest.
    """
    series = [(log_ratios(host, guest), set(boots)) for host, guest, boots in pairs if host and guest]
    if not series or any(len(boots) > 1 for _, boots in series):
        return None
    return pooled_correlation(ratios for ratios, _ in series)


def correlation_of(records: Iterable[CellRecord]) -> Correlation | None:
    """The correlation of a group with these records, by the headline metric of each cell."""
    found = ((record.metrics.get(record.job.headline), record.boots) for record in records)
    return group_correlation((metric.host, metric.guest, boots) for metric, boots in found if metric is not None)


def caveat_note(overhead: Estimate | None) -> list[str]:
    """What a reader must know about the interval of a cell's overhead."""
    return [_CAVEATS[overhead.caveat]] if overhead is not None and overhead.caveat is not None else []
