"""Cached cells: what the host's memory serves of a guest's I/O, for modes that are declared with `cached = true`.

A figure from a cache is a figure about memory. So a cached cell compares its guest with a twin in the same state of the
cache: fio on the host on the same volume or file, in the same blocks. Before each round, the host reads all of it once.
The kernel asks `mode.cached` and does three things: it compares the bytes of such arms with QEMU's only
(`results/byte_counts.py`), makes the twin the baseline (`model/mode.py`), and keeps the cells out of all comparisons
with other modes (`report/section.py`). This feature measures how much memory served, by fio's bytes and those of the
disk, and reports it beside the memory that the host had, with the same guest against the disk itself as a figure of its
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from harness.analysis import Samples
from harness.feature import Feature, Subject
from harness.model.mode import Cell, Place
from harness.scenario.legality import describe_conflict
from harness.scenario.scenario import Scenario
from harness.units import format_size

if TYPE_CHECKING:
    from harness.results import CellRecord, Measurement
    from harness.results.cells import CachedRecord, MemoryShare
    from harness.results.contrasts import Blocks

SAME_STATE = 0.05
"""Shares of twin and guest, or of two halves of a run, that differ by more are of two states of the cache."""
NOTHING = 0.02
"""Up to this share, memory served nothing: it is the tolerance of the check of bytes."""

Direction = Literal["read", "written"]


@dataclass(frozen=True, slots=True)
class SliceBytes:
    """The bytes of one direction in a slice, by fio and by the disks."""

    fio: int
    disk: int

    def compute_share(self, copies: float) -> float:
        """What did not pass the disk, if the disks move each byte at least `copies` times."""
        return max(1 - self.disk / (self.fio * copies), 0.0)


def count_slice(slice_: Measurement, direction: Direction) -> SliceBytes | None:
    """The bytes of a slice; None if no disk counted them, or fio moved none.

    On a storage in use whose volume is a file, only the disks below count, which others use as well.
    """
    counters = slice_.counters
    moved = counters.disk or counters.storage
    fio: int = getattr(counters.fio, direction)
    return SliceBytes(fio, getattr(moved, direction)) if moved is not None and fio else None


def measure_share(slices: Sequence[Measurement], direction: Direction, copies: float = 1.0) -> MemoryShare | None:
    """What memory served of all these slices of an arm together, in this direction; None if nothing was counted.

    `copies` is how often the disks of a layout move each byte at least: a mirror of two writes it twice.
    """
    from harness.results.cells import MemoryShare

    counted = [count for slice_ in slices if (count := count_slice(slice_, direction)) is not None]
    if not counted:
        return None
    whole = SliceBytes(sum(count.fio for count in counted), sum(count.disk for count in counted))
    shares = [count.compute_share(copies) for count in counted]
    return MemoryShare(whole.fio, whole.disk, whole.compute_share(copies), min(shares), max(shares), len(counted))


def count_copies(cell: Cell, direction: Direction) -> float:
    """How often the disks of the cell's layout move each byte at least; 1 if nothing is known."""
    moved = cell.mode.amplification(cell.job)
    return max(moved.fewest_read if direction == "read" else moved.fewest_written, 1.0)


def measure_cached(
    cell: Cell, blocks: Blocks, _samples: Samples, confidence: float, span_bytes: int
) -> Mapping[str, Any]:
    """What the record of a cached cell has of the cache; nothing without blocks."""
    from harness.results.cells import CachedRecord
    from harness.results.contrasts import contrast

    if not blocks.keys:
        return {}
    arms = {arm: blocks.arms[arm] for arm in (Place.HOST, Place.GUEST) if arm in blocks.arms}
    memory = [slice_.counters.memory for slices in arms.values() for slice_ in slices]
    known = [counts for counts in memory if counts is not None]
    name = cell.job.headline
    beside = Place.DIRECT in blocks.arms and blocks.has(name)
    direct = contrast(
        blocks.series(name, Place.DIRECT) if beside else None,
        blocks.series(name, Place.GUEST) if beside and Place.GUEST in blocks.arms else None,
        confidence=confidence,
    )
    record = CachedRecord(
        working_set_bytes=cell.job.count_used(span_bytes),
        memory_bytes=max((counts.total for counts in known), default=None),
        available_bytes=min((counts.available for counts in known), default=None),
        reads=_measure_shares(arms, "read", cell) if cell.job.reads else {},
        writes=_measure_shares(arms, "written", cell) if cell.job.writes else {},
        metric=name,
        direct=blocks.values(name, Place.DIRECT) if beside else (),
        against_direct=None if direct is None else direct.loss,
    )
    return {"cached": record}


def _measure_shares(
    arms: Mapping[Place, Sequence[Measurement]], direction: Direction, cell: Cell
) -> dict[str, MemoryShare]:
    copies = count_copies(cell, direction)
    shares = {str(arm): measure_share(slices, direction, copies) for arm, slices in arms.items()}
    return {arm: share for arm, share in shares.items() if share is not None}


def find_change(slices: Sequence[Measurement], cell: Cell) -> Iterator[str]:
    """A note for each arm whose share of memory changed from the first half of its slices to the second."""
    for arm in (cell.by_role.get(Place.HOST), cell.by_role.get(Place.GUEST)):
        of_arm = [slice_ for slice_ in slices if arm is not None and slice_.arm == arm.id]
        half = len(of_arm) // 2
        for direction, what in _directions(cell):
            copies = count_copies(cell, direction)
            early, late = (measure_share(part, direction, copies) for part in (of_arm[:half], of_arm[half:]))
            if arm is not None and early and late and abs(late.share - early.share) > SAME_STATE:
                yield (
                    f"{arm.id}: the share of the bytes {what} that memory served changed during the run, from "
                    f"{early.share:.1%} to {late.share:.1%}: the cache was not in one state. Use more rounds, or a "
                    "span that fits into the memory"
                )


def _directions(cell: Cell) -> Iterator[tuple[Direction, str]]:
    if cell.job.reads:
        yield "read", "read"
    if cell.job.writes:
        yield "written", "written"


def annotate(cells: Sequence[CellRecord]) -> Iterator[tuple[str, str]]:
    """What is to be known about the state of the cache of each cached cell of a run."""
    for cell in cells:
        if cell.cached is not None:
            yield from ((cell.id, note) for note in describe_state(cell.cached))


def is_partial(cached: CachedRecord) -> bool:
    """Whether the working set is larger than the memory that was available, so that only a part can be cached."""
    return cached.available_bytes is not None and cached.working_set_bytes > cached.available_bytes


def describe_state(cached: CachedRecord) -> Iterator[str]:
    """What is special about the state of a cache: too little memory, two states, nothing cached, nothing counted."""
    if is_partial(cached) and cached.available_bytes is not None:
        yield (
            f"partly cached: the job uses {format_size(cached.working_set_bytes)}, and only "
            f"{format_size(cached.available_bytes)} of the host's memory were available"
        )
    shares = [(what, of) for what, of in (("read", cached.reads), ("written", cached.writes)) if of]
    if not shares:
        yield "how much memory served is not known: no counter of the host has the bytes of this disk"
    for what, of in shares:
        twin, guest = of.get(Place.HOST), of.get(Place.GUEST)
        if twin and guest and abs(twin.share - guest.share) > SAME_STATE:
            yield (
                f"memory served {guest.share:.1%} of the bytes {what} in the guest and {twin.share:.1%} in its twin: "
                "the two were not in the same state of the cache, so the overhead is partly that of the disk"
            )
    for what, of in shares:
        most = max(share.disk / share.fio for share in of.values())
        if most > 1 + NOTHING and min(share.share for share in of.values()) <= NOTHING:
            yield (
                f"the disks moved {most:.1f} times the bytes {what} by fio (records, copies, or I/O of others), so "
                "memory may have served more of them than is stated"
            )
    everything = [share for _, of in shares for share in of.values()]
    if everything and all(share.share <= NOTHING and share.disk <= share.fio * (1 + NOTHING) for share in everything):
        yield "declared as cached, but memory served nothing: remove cached = true, or use a cache"


def find_uncached(scenario: Scenario) -> Iterator[str]:
    """Modes that declare a cache where the host does not see the guest's I/O."""
    for mode in scenario.declared_modes:
        if mode.cached and mode.attach is not None and not mode.attach.host_counts:
            device = f'attach.device = "{mode.attach.device}"'
            why = "because the guest's I/O passes no cache of the host"
            yield f"mode.{mode.name}: {describe_conflict('cached', device, why, 'device disk, or no cached')}"


FEATURE = Feature(
    name="cached",
    subject=Subject(in_cell=lambda cell, _slices: cell.mode.cached, in_record=lambda cell: cell.is_cached),
    find_problems=find_uncached,
    measure=measure_cached,
    find_notes=find_change,
    annotate=annotate,
)
