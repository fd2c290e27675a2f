"""The timetable of a round: which arm runs which job when, in short slices that do not overlap. Pure."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from typing import TypeVar

from harness.model.attach import Vfio
from harness.model.base import Md
from harness.model.job import Job
from harness.model.mode import Arm, ConcurrentJob, Mode

GUARD_SECONDS = 0.05
"""The shortest time between the ramp of a slice and its measured time."""
BACKUP_LEAD = 1.0
"""Seconds before a slice during a backup in which the backup begins: libvirt answers when QEMU has begun to copy."""
VZDUMP_LEAD = 6.0
"""The same for Proxmox VE, which starts a task, reads the VM's configuration and asks the guest's agent first."""
BACKUP_TAIL = 1.0
"""Seconds after such a slice in which the backup is cancelled, before it is known how long that takes."""
WRITE_BACK_SECONDS = 1.0
"""For how long a layout writes what was in memory, after its interval has ended."""
AHEAD_SECONDS = 0.1
"""For how long the kernel reads ahead after a buffered job has ended: 8 MiB at 80 MiB/s."""
INTERVALS = 2
"""The fewest intervals of a layout that a slice of a job that writes has."""
MOST_SLICES = 300
"""Slices that one fio process runs: those of a timetable on one machine."""
MOST_SECONDS = 180.0
"""The planned length of a timetable. Its measurements are stored when it has ended."""
FIRST_SLICES = 52
"""So many slices show how exactly the machines start, so the first timetable has as many, in whole blocks."""
FIRST_PAUSES = 5.0
"""The first timetable ends after so many seconds of pauses, because they are only guessed. It is left out if those of
all other slices are not longer: the guess is about twice what is needed, so it would not save the 2.2 s of a start."""
RECOVERY_SECONDS = 40.0
"""The planned length of a timetable during a recovery. A longer one would need a slower recovery, to outlast it."""
RECOVERY_PAUSE = 1.0
"""Of each pause, so much counts for this length: pauses that are only guessed must not lead to more recoveries."""

Pause = Callable[[Job, Arm], float]
"""Seconds between a slice of a job on an arm and the next slice."""
T = TypeVar("T")
_Planned = tuple[int, Job, "ScheduledArm"]
"""Block, job and turn of a slice."""


@dataclass(frozen=True, slots=True)
class ScheduledArm:
    """An arm in a block. `again` is 2 if the arm is already in the block under another name, as in a calibration."""

    arm: Arm
    again: int = 1
    name: str = ""
    """Its name in messages. If empty, the arm's id is used."""

    def __str__(self) -> str:
        return self.name or self.arm.id


@dataclass(frozen=True, slots=True)
class Slice:
    """One arm running one job for a short time. `start` in seconds from the start of the timetable.

    `block` is the number of its block within the round: one slice of every arm of a job.
    """

    block: int
    turn: ScheduledArm
    job: Job
    start: float
    settle: float = GUARD_SECONDS
    """Seconds between the ramp and the measured time, in which the I/Os of the ramp complete: the same as the pause
    after the slice. Otherwise the disk would be busy with them when the measured time begins, and all figures would be
    too low."""
    write_limit: int | None = None
    """Bytes per second that fio may write at most; None for no limit."""
    lead: float = 0.0
    """Seconds before the slice in which its backup begins."""
    tail: float = 0.0
    """Seconds after the slice in which its backup ends, or in which its layout writes what is in memory."""

    @property
    def arm(self) -> Arm:
        return self.turn.arm

    @property
    def parts(self) -> tuple[ConcurrentJob, ...]:
        """The jobs that run at the same time in it."""
        return self.turn.arm.parts(self.job)

    @property
    def of_block(self) -> tuple[int, Job]:
        """The number and the job of its block."""
        return self.block, self.job

    @property
    def measured_from(self) -> float:
        """The planned start of the measured time, after the ramp."""
        return self.start + (self.job.ramp + self.settle if self.job.ramp else 0.0)

    @property
    def end(self) -> float:
        """The planned end of the measured time."""
        return self.measured_from + self.job.seconds


@dataclass(frozen=True, slots=True)
class Timetable:
    """Slices in the order of time, which run without a break. `seconds` is the time until the last one has ended."""

    slices: tuple[Slice, ...]
    seconds: float
    quiet: float | None = None
    """Seconds at the end of each pause when the last I/Os have usually completed; None if that is not known."""

    @property
    def blocks(self) -> int:
        """The number of blocks that have a slice in it, of all jobs together."""
        return len({slice_.of_block for slice_ in self.slices})

    def paused(self, pause: Pause, backup_tail: float = BACKUP_TAIL, quiet: float | None = None) -> Timetable:
        """The same slices in the same order, with these pauses."""
        slices = [(slice_.block, slice_.job, slice_.turn) for slice_ in self.slices]
        return replace(_timetable(slices, pause, backup_tail), quiet=quiet)

    def spread(self, seconds: float) -> Timetable:
        """The same slices in the same order, with pauses that are longer by so many seconds."""
        later = tuple(
            replace(slice_, start=slice_.start + number * seconds) for number, slice_ in enumerate(self.slices)
        )
        quiet = None if self.quiet is None else self.quiet + seconds
        return Timetable(later, self.seconds + len(later) * seconds, quiet)

    def limited(self, limit: Callable[[Slice], int | None]) -> Timetable:
        """The same slices at the same times, with these limits for the bytes that each writes per second."""
        return replace(self, slices=tuple(replace(slice_, write_limit=limit(slice_)) for slice_ in self.slices))


def timetables(
    turns_of: Mapping[Job, Sequence[ScheduledArm]],
    blocks: int,
    *,
    chance: random.Random,
    pause: Pause,
    backup_tail: float = BACKUP_TAIL,
    short_first: bool = False,
) -> list[Timetable]:
    """The timetables of a round, in the order in which they run: the slices that alternate, then the other ones.

    Each job of `turns_of` has `blocks` blocks, with a slice of each of its turns in random order. Successive blocks
    have different jobs, so the blocks of one job are spread over the round. `pause` is the time after each slice.
    After a slice with a backup, there is `backup_tail` in addition.
    With `short_first`, the first timetable has only the first blocks of each job: enough to learn how exactly slices
    start on these machines, and few to lose if they need longer pauses (`choose_first_blocks`).

    These slices have timetables of their own, with one arm in each:
    - writes of an arm with a host cache: what is still in the cache after a slice would be written in the next one;
    - all slices, if the guest has one of the disks for itself (VFIO), because passing the disk on takes seconds;
    - those of each guest, if the guests of variants run one after the other, because a boot takes seconds.
    The arms of a mode on an array that is rebuilding have timetables of their own as well, during which the recovery
    runs: it would disturb all other arms on these disks.
    """
    orders = list(_job_orders(list(turns_of), blocks, chance))
    blocked = [
        (number, job, turn)
        for number in range(1, blocks + 1)
        for job in orders[number - 1]
        for turn in _shuffled(turns_of[job], chance)
    ]
    sequential = _one_at_a_time(turn.arm for _, _, turn in blocked)
    alternating: list[_Planned] = []
    apart: dict[Hashable, list[_Planned]] = {}
    for block, job, turn in blocked:
        key = _apart(turn, job, sequential=sequential)
        (apart.setdefault(key, []) if key else alternating).append((block, job, turn))
    pauses = sum(pause(job, turn.arm) for _, job, turn in alternating) / max(blocks, 1)
    short = choose_first_blocks(blocks, len(alternating) // max(blocks, 1), pauses) if short_first else ()
    ends = [0, *accumulate(short), blocks]
    parts = [[planned for planned in alternating if begin < planned[0] <= end] for begin, end in pairwise(ends)]
    # What follows a short timetable needs about half of the guessed pauses, so more of it fits into one.
    later = parts.pop() if short else []
    pieces = [*_pieces_of(parts, pause), *_pieces(later, lambda job, arm: pause(job, arm) / 2)]
    pieces += _pieces_of(_shuffled(apart.values(), chance), pause)
    return [_timetable(piece, pause, backup_tail) for piece in pieces]


def choose_first_blocks(blocks: int, slices: int, pauses: float) -> tuple[int, ...]:
    """How many of these blocks of each job the first timetables have; empty if none is worth a start of its own.

    Together, the jobs have so many slices in a block, and pauses of so many seconds. If they are so long that the first
    timetable is too short to show how exactly machines start, a second one does.
    """
    if not slices:
        return ()
    enough = math.ceil(FIRST_SLICES / slices)
    first = min(enough, max(int(FIRST_PAUSES / pauses), 1)) if pauses > 0 else enough
    if (blocks - first) * pauses <= FIRST_PAUSES:
        return ()
    second = first < enough and (blocks - first - enough) * slices > 2 * FIRST_SLICES
    return (first, enough) if second else (first,)


@dataclass(frozen=True, slots=True)
class Counts:
    """What the timetables of a round have together, in the first round and in each further one."""

    slices: int
    timetables: int
    recoveries: int
    """Timetables during which an array recovers."""
    first: int
    """Timetables that only the first round has in addition."""


def count_timetables(jobs_by_arm: Mapping[Arm, Iterable[Job]], blocks: int, pause: Pause) -> Counts:
    """How many timetables `timetables` makes of these arms in a round."""
    sequential = _one_at_a_time(jobs_by_arm)
    together: dict[Hashable, dict[Job, list[tuple[bool, float]]]] = {}
    alternating: list[float] = []
    for arm, jobs in jobs_by_arm.items():
        for job in jobs:
            key = _apart(ScheduledArm(arm), job, sequential=sequential)
            after = (_short(pause) if rebuilds(arm.mode) else pause)(job, arm)
            takes = arm.in_guest, job.wall + waiting(job, arm, jobs_by_arm) + after
            together.setdefault(key, {}).setdefault(job, []).append(takes)
            if not key:
                alternating.append(after)
    recovering = {
        _apart(ScheduledArm(arm), job, sequential=sequential)
        for arm, jobs in jobs_by_arm.items()
        if rebuilds(arm.mode)
        for job in jobs
    }
    counted = {
        key: _count_pieces(list(of_key.values()) * blocks, RECOVERY_SECONDS if key in recovering else MOST_SECONDS)
        for key, of_key in together.items()
    }
    slices = blocks * sum(len(several) for of_key in together.values() for several in of_key.values())
    recoveries = sum(counted[key] for key in recovering)
    first = choose_first_blocks(blocks, len(alternating), sum(alternating))
    return Counts(slices, sum(counted.values()), recoveries, first=len(first))


def _count_pieces(blocks: Sequence[Sequence[tuple[bool, float]]], most: float) -> int:
    """The number of `_pieces` of blocks whose slices run in a guest or not, and take so many seconds each."""
    pieces, number, seconds = 1, Counter[bool](), 0.0
    for block in blocks:
        slices, takes = Counter(in_guest for in_guest, _ in block), sum(took for _, took in block)
        if number and (max((number + slices).values()) > MOST_SLICES or seconds + takes > most):
            pieces, number, seconds = pieces + 1, Counter(), 0.0
        number += slices
        seconds += takes
    return pieces


def in_order(job: Job, blocks: Iterable[Sequence[ScheduledArm]], *, pause: float) -> Timetable:
    """A timetable of one job with exactly these turns in each block, in this order. `pause` follows each slice."""
    turns = [(number, job, turn) for number, block in enumerate(blocks, start=1) for turn in block]
    return _timetable(turns, lambda _job, _arm: pause)


def stays_in_cache(arm: Arm, job: Job) -> bool:
    """Whether data that the job writes on this arm, or tables of its file system, may be in the host's cache later."""
    return arm.mode is not None and arm.mode.writes_later and arm.writes(job)


def rebuilds(mode: Mode | None) -> bool:
    """Whether the mode is on an array that is rebuilding while its arms are measured."""
    base = mode.layout.base if mode else None
    return isinstance(base, Md) and base.state == "rebuilding"


def find_ahead_seconds(job: Job) -> float:
    """Seconds after a slice of the job in which the kernel still reads ahead."""
    return AHEAD_SECONDS if job.reads_ahead else 0.0


def drain_seconds(job: Job, arm: Arm | None, iops: float) -> float:
    """For how long the I/Os in flight at the end of a slice keep disks busy that complete so many per second each.

    All disks of an array share them. It does several I/Os for a block that has parity, or whose disk is missing.
    """
    base = arm.mode.layout.base if arm is not None and arm.mode is not None else None
    if not isinstance(base, Md):
        return job.depth / iops + find_ahead_seconds(job)
    moved = base.amplification(job)
    requests = max(moved.most_written + moved.read_for_write if job.writes else 0.0, moved.most_read)
    return job.depth * requests / (iops * base.disks) + find_ahead_seconds(job)


def _find_lead(arm: Arm) -> float:
    return VZDUMP_LEAD if arm.mode is not None and arm.mode.on_node else BACKUP_LEAD


def backed_up(arm: Arm) -> bool:
    """Whether a backup runs during the slices of the arm."""
    return arm.in_guest and arm.mode is not None and arm.mode.backup


def waiting(job: Job, arm: Arm, arms: Iterable[Arm]) -> float:
    """Seconds before and after each slice in which a backup begins and ends, or a layout writes what is in memory.

    `arms` are those of the job's blocks.
    """
    return (_find_lead(arm) + BACKUP_TAIL if backed_up(arm) else 0.0) + _write_back(job, arms)


def find_interval(job: Job, modes: Iterable[Mode | None]) -> float:
    """The longest interval in which a layout of these modes writes what the job, or a neighbour, leaves in memory."""
    written = (
        mode.layout.write_interval
        for mode in modes
        if mode is not None and (job.writes or (mode.neighbour is not None and mode.neighbour.workload.writes))
    )
    return max(written, default=0.0)


def last_whole_intervals(job: Job, interval: float) -> Job:
    """The job with slices of whole intervals, whose first one does not count: it only fills the memory.

    The memory takes writes faster than the disks, so a shorter slice would show the speed of the memory. What is still
    there at the end of a slice is about as much as at its beginning.
    """
    if not interval:
        return job
    intervals = max(math.ceil(job.seconds / interval), INTERVALS)
    return replace(job, ramp=max(job.ramp, interval), seconds=intervals * interval)


def _write_back(job: Job, arms: Iterable[Arm]) -> float:
    """Seconds after a slice in which no other runs, because layouts of the job's arms still write what it left.

    All arms of a block wait, so that none has a longer rest than another.
    """
    interval = find_interval(job, (arm.mode for arm in arms))
    return interval + WRITE_BACK_SECONDS if interval else 0.0


def takes_turns(modes: Iterable[Mode]) -> bool:
    """Whether arms of these modes cannot alternate within seconds: only one machine has the disk at a time, or only one
    guest runs at a time."""
    return any(isinstance(mode.attach, Vfio) or mode.alternating for mode in modes)


def _one_at_a_time(arms: Iterable[Arm]) -> bool:
    """Whether each arm has timetables of its own, because only one machine has the disk at a time."""
    return any(arm.mode is not None and isinstance(arm.mode.attach, Vfio) for arm in arms)


def _apart(turn: ScheduledArm, job: Job, *, sequential: bool) -> Hashable:
    """What the slices of a timetable have in common that others must not disturb; empty for those that alternate.

    All jobs of a mode on a rebuilding array share a recovery, because beginning and ending one takes long.
    """
    keys: tuple[Hashable, ...] = (turn,) if sequential or stays_in_cache(turn.arm, job) else ()
    if not sequential and turn.arm.in_guest and turn.arm.mode is not None and turn.arm.mode.alternating:
        keys = (turn.arm.mode.variant_name,)
    return (*keys, turn.arm.mode) if rebuilds(turn.arm.mode) else keys


def _job_orders(jobs: Sequence[Job], blocks: int, chance: random.Random) -> Iterator[list[Job]]:
    """The order of the jobs in each of the blocks. If there are several, none follows itself."""
    last = None
    for _ in range(blocks):
        order = _shuffled(jobs, chance)
        if len(order) > 1 and order[0] == last:
            order.insert(chance.randint(1, len(order) - 1), order.pop(0))
        yield order
        last = order[-1] if order else None


def _timetable(slices: Sequence[_Planned], pause: Pause, backup_tail: float = BACKUP_TAIL) -> Timetable:
    pauses = {each: pause(*each) for each in dict.fromkeys((job, turn.arm) for _, job, turn in slices)}
    written = {job: _write_back(job, (arm for other, arm in pauses if other == job)) for job, _ in pauses}
    planned, now = [], 0.0
    for block, job, turn in slices:
        lead, tail = (_find_lead(turn.arm), backup_tail) if backed_up(turn.arm) else (0.0, 0.0)
        tail, after = tail + written[job], pauses[job, turn.arm]
        planned.append(Slice(block, turn, job, now + lead, settle=max(after, GUARD_SECONDS), lead=lead, tail=tail))
        now = planned[-1].end + tail + after
    return Timetable(tuple(planned), now)


def _pieces(slices: Sequence[_Planned], pause: Pause) -> Iterator[list[_Planned]]:
    """The slices in pieces of whole blocks, within MOST_SLICES on the host and in guests, and within MOST_SECONDS.

    A single block may be larger.
    """
    piece: list[_Planned] = []
    number, seconds = Counter[bool](), 0.0
    most = MOST_SECONDS
    if slices and rebuilds(slices[0][2].arm.mode):
        most, pause = RECOVERY_SECONDS, _short(pause)
    for _, block in groupby(slices, key=lambda slice_: slice_[:2]):
        together = list(block)
        of_block, takes = Counter(turn.arm.in_guest for *_, turn in together), _timetable(together, pause).seconds
        if piece and (max((number + of_block).values()) > MOST_SLICES or seconds + takes > most):
            yield piece
            piece, number, seconds = [], Counter(), 0.0
        piece += together
        number += of_block
        seconds += takes
    if piece:
        yield piece


def _pieces_of(parts: Iterable[Sequence[_Planned]], pause: Pause) -> Iterator[list[_Planned]]:
    return (piece for slices in parts for piece in _pieces(slices, pause))


def _short(pause: Pause) -> Pause:
    return lambda job, arm: min(pause(job, arm), RECOVERY_PAUSE)


def _shuffled(items: Iterable[T], chance: random.Random) -> list[T]:
    several = list(items)
    return chance.sample(several, len(several))
