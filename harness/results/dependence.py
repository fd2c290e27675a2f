"""How the blocks of a job hang together: the boots of the guest, and the correlation of neighbouring blocks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.analysis import Caveat, Correlation, Estimate, Samples, log_ratios, pooled_correlation
from harness.results.cells import BlockKey, CellRecord

_CAVEATS = {
    Caveat.NOT_ESTIMATED: "too few blocks to see whether neighbours are correlated: the interval assumes they are not",
    Caveat.ROUGH: "the correlation of neighbouring blocks is estimated from few of them, so the interval is rough",
    Caveat.DRIFTING: "neighbouring blocks are so strongly correlated that there is no interval: measure for longer",
}


@dataclass(frozen=True, slots=True)
class CellBlocks:
    """The blocks of a cell in the order of time: their keys, the values of host and guest, and the guest's boots."""

    keys: Sequence[BlockKey]
    host: Sequence[float]
    guest: Sequence[float]
    boots: Sequence[int]


def samples_of(rounds: Sequence[int], boots: Sequence[int], correlation: Correlation | None) -> Samples:
    """The samples of a cell whose blocks have these rounds and boots, in a job with this correlation."""
    return Samples(tuple(boots), correlation, rounds=len(set(rounds)))


def of_difference(samples: Samples) -> Samples:
    """The same samples of the difference between two guests. It is correlated in another way than that to the host."""
    return replace(samples, correlation=None)


def job_correlation(cells: Iterable[CellBlocks]) -> Correlation | None:
    """The correlation that the cells of one job of a group have in common: they share their host's slices.

    Cells of other jobs do not: what a write leaves in a cache, for example, says nothing about reads. None if the
    blocks are of several boots, whose means are the samples then, or if no cell has a guest.
    """
    several = [cell for cell in cells if cell.host and cell.guest]
    if not several or any(len(set(each.boots)) > 1 for each in several):
        return None
    return pooled_correlation(dict(zip(each.keys, log_ratios(each.host, each.guest), strict=True)) for each in several)


def correlation_of(records: Iterable[CellRecord]) -> Correlation | None:
    """The correlation of the job of a group that has these records, by the job's headline metric."""
    found = ((record, record.metrics.get(record.job.headline)) for record in records)
    return job_correlation(
        CellBlocks(record.samples, metric.host, metric.guest, record.boots)
        for record, metric in found
        if metric is not None
    )


def paired_blocks(cells: Sequence[CellRecord]) -> list[tuple[int, ...]]:
    """The blocks of several jobs' cells that are one sample of their mean: the position of a block in each cell.

    They are the k-th blocks that count of each cell within the same boot, in the order of time, up to the fewest. So
    jobs of the same rounds have blocks that are close in time, and a job that was measured again later has blocks of
    other rounds. If the cells have no boot in common, the k-th boots of each belong together: the jobs were measured in
    boots of their own, or in groups, which number their boots themselves. There is at least one pair if each cell has a
    block. Cells of one job need no pairing: their slices are of the same block (`CellRecord.samples`).
    """
    return in_pairs([cell.boots or (1,) * len(cell.rounds) for cell in cells])


def in_pairs(boots_of: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """As `paired_blocks`, from the boot of each sample of each job."""
    of_jobs = []
    for boots in boots_of:
        by_boot: dict[int, list[int]] = {}
        for position, boot in enumerate(boots):
            by_boot.setdefault(boot, []).append(position)
        of_jobs.append(by_boot)
    common = sorted(set.intersection(*map(set, of_jobs)))
    orders = [common or sorted(by_boot) for by_boot in of_jobs]
    pairs: list[tuple[int, ...]] = []
    for boots in zip(*orders, strict=False):
        positions = [by_boot[boot] for by_boot, boot in zip(of_jobs, boots, strict=True)]
        pairs += zip(*positions, strict=False)
    return pairs


def caveat_note(overhead: Estimate | None) -> list[str]:
    """What a reader must know about the interval of a cell's overhead."""
    return [_CAVEATS[overhead.caveat]] if overhead is not None and overhead.caveat is not None else []
