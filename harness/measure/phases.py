"""Where the time of a run goes: its phases, the pauses between slices, and how long the rest takes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import chain, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from platformdirs import user_cache_path

from harness.events import Events
from harness.files import write_stored
from harness.lab.inventory import HostSpec
from harness.model.job import Job
from harness.model.mode import Arm
from harness.scenario.plan import Plan
from harness.scenario.setups import (
    AGAIN_SHARE,
    KINDS,
    LAB_SECONDS,
    PAUSE_SECONDS,
    RECOVERY_SECONDS,
    RUNNING,
    START_SECONDS,
    Group,
    Kind,
    Pace,
    Paces,
    pace_of,
)
from harness.scenario.timetable import (
    BACKUP_TAIL,
    Timetable,
    drain_seconds,
    find_ahead_seconds,
    rebuilds,
    stays_in_cache,
)
from harness.untrusted import read_stored

if TYPE_CHECKING:
    from harness.results import Measurement

MEASURE = "measure"
"""The efficiency of a run is the share of fio in this phase."""


class Phases:
    def __init__(self, events: Events) -> None:
        self.events = events
        self._ended: dict[str, float] = {}
        self._began: dict[str, float] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by name of the phase. A phase that has not ended counts up to now."""
        now = time.monotonic()
        names = [*self._ended, *(name for name in self._began if name not in self._ended)]
        return {name: self._ended.get(name, 0.0) + now - self._began.get(name, now) for name in names}

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds of an earlier part of the run, by name of the phase."""
        for phase, spent in seconds.items():
            self._ended[phase] = self._ended.get(phase, 0.0) + spent

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time of the block to `phase`, also if the block fails."""
        self._began[phase] = time.monotonic()
        try:
            yield
        finally:
            self.add({phase: time.monotonic() - self._began.pop(phase)})

    @contextmanager
    def step(self, phase: str, what: str) -> Iterator[None]:
        """The same as `timed`, and reports the step `what` to the listeners."""
        with self.events.step(what), self.timed(phase):
            yield


_PHASES: Mapping[str, Kind] = {
    "lab": "lab",
    "layouts": "build",
    "condition": "condition",
    "teardown": "end",
}
"""The kind of each phase of a run that is no measuring."""
_PRIOR: Mapping[Kind, float] = {
    "pause": 100 * PAUSE_SECONDS,
    "start": 2 * START_SECONDS,
    "recovery": RECOVERY_SECONDS,
}
"""Usual times of so much work count as much as what earlier runs took."""


class Timing:
    """The times of one run. `plans` are all plans of it, on one host."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = plans
        self._paces = plans[0].paces if plans else Paces()
        self._usual: dict[Kind, float] = {}
        self._took: dict[Kind, float] = {}
        self._prepared: set[tuple[str, int]] = set()
        self._known: set[tuple[str, str]] = set()
        """The ids of the groups and of their jobs that have run."""

    def record_prepared(self, plan: Plan, group: Group) -> None:
        self._prepared.add((group.scenario, plan.setup_of(group).number))

    def ran(self, group: Group, table: Timetable, seconds: float) -> None:
        """Note that a timetable took so many seconds, with all that precedes and follows its slices."""
        jobs = {(group.id, slice_.job.id) for slice_ in table.slices}
        if jobs <= self._known:
            # In the first timetable of a job, pauses are only guessed.
            pauses = sum(group.usual_pause(slice_.job, slice_.arm) for slice_ in table.slices)
            self._add(
                "pause",
                pauses,
                table.seconds - sum(slice_.job.wall + slice_.lead + slice_.tail for slice_ in table.slices),
            )
        self._known |= jobs
        beside = max(seconds - table.seconds, 0.0)
        if _recovers(table):
            start = START_SECONDS * self._estimate_pace("start")
            self._add("recovery", RECOVERY_SECONDS, max(beside - start, 0.0))
        else:
            self._add("start", START_SECONDS, beside)

    def seconds_of(self, tables: Iterable[Timetable]) -> float:
        start = START_SECONDS * self._estimate_pace("start")
        recovery = RECOVERY_SECONDS * self._estimate_pace("recovery")
        return sum(table.seconds + start + (recovery if _recovers(table) else 0.0) for table in tables)

    def boot_seconds(self, plan: Plan, group: Group) -> float:
        """The time of a boot before a round of the group; 0 without one."""
        if not plan.reboots(group):
            return 0.0
        return self._paces.seconds({"boot": plan.setup_of(group).boot_seconds})

    def after(self, group: Group, ended: Collection[str]) -> float:
        """The time of everything that follows this group. `ended` has the ids of the groups that are measured."""
        seconds = 0.0
        for plan in self._plans:
            left = [other for other in plan.groups if other.id not in ended and other.id != group.id]
            for other in left:
                work = plan.group_work(other)
                seconds += sum(usual * self._estimate_pace(kind) for kind, usual in work.items())
            setups = {other.setup for other in left if (other.scenario, other.setup) not in self._prepared}
            for setup in plan.expected_setups:
                if setup.number in setups:
                    seconds += self._paces.seconds(plan.setup_work(setup, plan.conditioner.rounds[0]))
                elif group.id in {other.id for other in setup.groups}:
                    seconds += self._paces.seconds({"end": setup.end_seconds})
        return seconds

    def pace(self, phases: Mapping[str, float], again_s: float) -> Pace:
        """What a complete run took of each kind, from the seconds of its phases and of measuring again."""
        usual = dict.fromkeys(KINDS, 0.0)
        for plan in self._plans:
            for kind, seconds in plan.work(plan.conditioner.rounds[0]).items():
                usual[kind] += seconds
        measuring = sum(self._took.get(kind, 0.0) for kind in ("pause", "start", "recovery"))
        took: dict[Kind, float] = {kind: phases.get(phase, 0.0) for phase, kind in _PHASES.items()}
        # Reading back how the disks are attached belongs to the first boot.
        took["boot"] = max(phases.get("boot", 0.0), phases.get("attach", 0.0))
        took |= {"again": again_s, **self._took}
        usual |= {"lab": LAB_SECONDS, **self._usual}
        usual["again"] = AGAIN_SHARE * (usual["fio"] + measuring)
        # The share of early and further rounds says nothing about the pace; a lab that ran already, nothing of boots.
        del usual["fio"]
        if self._plans[0].paces.fill_rate is not None and took["lab"] < 2 * RUNNING * usual["lab"]:
            del usual["lab"]
        return pace_of(sorted({plan.groups[0].scenario for plan in self._plans if plan.groups}), usual, took)

    def _add(self, kind: Kind, usual: float, took: float) -> None:
        self._usual[kind] = self._usual.get(kind, 0.0) + usual
        self._took[kind] = self._took.get(kind, 0.0) + took

    def _estimate_pace(self, kind: Kind) -> float:
        """The multiple of the usual time: as in earlier runs at first, then more and more as seen in this one."""
        known, prior = self._paces.of_kind(kind), _PRIOR.get(kind)
        if prior is None:
            return known
        return (self._took.get(kind, 0.0) + prior * known) / (self._usual.get(kind, 0.0) + prior)


def _recovers(table: Timetable) -> bool:
    return bool(table.slices) and rebuilds(table.slices[0].arm.mode)


MOST_RUNS = 15
"""Runs of a host that are stored, the newest first."""
_STORED = dict[str, tuple[Pace, ...]]


def pace_file() -> Path:
    """The file with the paces of all hosts: VIRT_OVERHEAD_PACES, or one in the user's cache directory."""
    chosen = os.environ.get("VIRT_OVERHEAD_PACES")
    return Path(chosen) if chosen else user_cache_path("virt-overhead") / "paces.json"


def identify_host(host: HostSpec) -> str:
    """What identifies a host in the file: its kind, and its name and address in the lab file."""
    if host.kind == "embedded":
        return "embedded"
    address = host.ssh.address if host.ssh is not None else ""
    return f"{host.kind} {host.name} {address}".strip()


def read_paces(host: HostSpec, path: Path | None = None) -> tuple[Pace, ...]:
    """What the last runs on the host took, the newest first; empty if nothing can be read."""
    stored: dict[str, tuple[Pace, ...]] = read_stored(path or pace_file(), _STORED) or {}
    return stored.get(identify_host(host), ())


def add_pace(host: HostSpec, pace: Pace, path: Path | None = None) -> None:
    """Store what a run took. A cache that cannot be written is no error: the next run is announced without it."""
    path = path or pace_file()
    known: Mapping[str, Sequence[Pace]] = read_stored(path, _STORED) or {}
    runs = [pace, *known.get(identify_host(host), ())][:MOST_RUNS]
    document = {
        name: [asdict(run_pace) for run_pace in several]
        for name, several in {**known, identify_host(host): runs}.items()
    }
    with suppress(OSError):
        write_stored(path, document)


_SLOWEST_IOPS = 2500.0
"""I/Os per second that a solid-state disk, or its guest, completes at least."""
_SLOWEST_IOPS_ROTATIONAL = 80.0
_DEEP = 32
"""With more I/Os in flight, a hard disk sorts them, and completes at least so many:"""
_SLOWEST_IOPS_DEEP = 160.0
_SLOWEST_CACHE = 200 * 1024**2
"""Bytes per second that a host or its guest writes to a cache at least."""
_LONG_PAUSE = 0.5
"""Seconds. If a job needs longer pauses than this, each arm has its own: the others need not wait for the slowest."""
_OF_ARM = 1.5
"""How much longer the last I/Os of an arm may take than in its few slices so far."""
UNKNOWN_JITTER = 0.06
"""Seconds by which starts of slices may differ from their planned times, before any was measured."""
FEW_JITTER = 0.05
"""The least jitter after fewer than _ENOUGH_PAIRS pairs of slices, which may be exact by chance."""
LEAST_JITTER = 0.01
"""The least one otherwise. In its middle, the host's counters are read."""
_ENOUGH_PAIRS = 50
_LOST_SLICES = 4.0
"""What an overlap costs: its two slices, and those of their block that are compared with them."""
_ONE_IN = 50
"""The last I/Os of one slice in so many may need longer than the pause."""
_HICCUP = 10
"""Of more values than this, the largest is left out."""
_USUAL = 3
"""So many pairs of slices show what is usual for them."""
MOST_AFTER_BACKUP = 10.0
"""Seconds. A backup that takes longer to end voids the next slice."""
_LONGER = 1.2
"""How much longer the end of a backup may take than of those before."""
_PILED = 2.0
"""How much longer than its share of a pile a slice may have taken by itself, because jobs differ."""
MOST_JITTER = 0.5
"""Seconds. A machine that hung for longer needs no longer pauses: its slices are measured again."""


class Pauses:
    """The pauses between the slices of a group. Each timetable that is measured makes them more exact.

    When a slice ends, fio waits for the I/Os in flight. Before the first timetable, this time is estimated from the
    queue depth and the kind of disk. After that, the slices of the job show it, separately on the host and in guests,
    where it is longer, and separately for each arm if it is long, or if the arm writes to a cache: then it says nothing
    about others, nor they about it. This allows for all but one slice in 50. Starts differ from their planned times,
    and the last round shows by how much: see `_estimate_jitter`.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, bool], dict[str, list[float]]] = {}
        """How long slices took, or would have as planned, by the job's id and whether in a guest, then by arm."""
        self._cached: set[tuple[str, str]] = set()
        """The ids of jobs and of arms that write them to a cache, as far as they were asked for."""
        self._cancelled: list[float] = []
        """How long after its slice each backup, and the last I/O beside it, ended."""
        self._round = 0
        self._closer: list[float] = []
        """By how much closer than usual two successive starts of the last round came."""
        self.jitter = UNKNOWN_JITTER
        """Seconds of each pause for starts that come closer to each other than usual, from the last round."""

    def learn(self, timetable: Sequence[Measurement]) -> None:
        """Take the measurements of a timetable into account. They are in the order of time, and at least one."""
        for measurement, most in zip(timetable, _bound_seconds(timetable), strict=True):
            if measurement.backup is not None:
                self._cancelled.append(min(measurement.backup.after, MOST_AFTER_BACKUP))
                continue
            longest = min(max([measurement.seconds, *(part.seconds for part in measurement.parts)]), most)
            of_job = self._seconds.setdefault((measurement.job, measurement.in_guest), {})
            of_job.setdefault(measurement.arm, []).append(longest - measurement.longer_s)
        if timetable[0].round != self._round:
            self._round, self._closer = timetable[0].round, []
        self._closer += [-deviation for deviation in _compute_deviations(timetable)]
        self.jitter = _estimate_jitter(self._closer, _LOST_SLICES * median(slice_.wall for slice_ in timetable))

    def after(self, job: Job, *, in_guest: bool, rotational: bool, arm: Arm | None = None) -> float:
        """Seconds between a slice of `job` and the next slice. `rotational` means that the disk is a hard disk.

        With `arm`, after a slice of this arm.
        """
        of_job = self._seconds.get((job.id, in_guest), {})
        of_arm = of_job.get(arm.id) if arm is not None else None
        cached = arm is not None and stays_in_cache(arm, job)
        if arm is not None and cached:
            self._cached.add((job.id, arm.id))
        others = (several for name, several in of_job.items() if (job.id, name) not in self._cached)
        if seconds := (of_arm if cached else list(chain(*others))):
            longest = max(_find_most(seconds) - job.seconds, 0.0)
            if of_arm and longest > _LONG_PAUSE:
                longest = min(longest, _OF_ARM * max(_find_most(of_arm) - job.seconds, 0.0))
            return self.jitter + longest + find_ahead_seconds(job)
        of_hard_disk = _SLOWEST_IOPS_DEEP if job.depth > _DEEP else _SLOWEST_IOPS_ROTATIONAL
        written = job.depth * job.bs / _SLOWEST_CACHE if cached else 0.0
        return self.jitter + written + drain_seconds(job, arm, of_hard_disk if rotational else _SLOWEST_IOPS)

    @property
    def after_backup(self) -> float:
        """Seconds after a slice with a backup, in addition to the pause after its job, until nothing of both runs."""
        return max([BACKUP_TAIL, *self._cancelled]) * (_LONGER if self._cancelled else 1)


def _bound_seconds(timetable: Sequence[Measurement]) -> list[float]:
    """How long each slice can have taken at most, in seconds, if it had not waited for the I/Os of those before it.

    On a disk that is much slower than was expected, slices pile up: each takes as long as all of them. Together they
    took no longer than the disk was busy, so each took about its share of that.
    """
    piles: list[list[Measurement]] = []
    ended = -math.inf
    for slice_ in timetable:
        if slice_.started >= ended:
            piles.append([])
        piles[-1].append(slice_)
        ended = max(ended, slice_.started + slice_.seconds)
    busy = [max(slice_.started + slice_.seconds for slice_ in pile) - pile[0].started for pile in piles]
    shares = [_PILED * took / len(pile) if len(pile) > 1 else math.inf for took, pile in zip(busy, piles, strict=True)]
    return [share for share, pile in zip(shares, piles, strict=True) for _ in pile]


def _estimate_jitter(closer: Sequence[float], lost: float) -> float:
    """The seconds that cost least together with the overlaps that they do not avoid. An overlap costs `lost` seconds.

    Half of all starts come closer than usual. Their distances are taken as exponential, with the mean b. So a pause p
    costs p, and an overlap in a share exp(-p / b) / 2 of all slices. The sum is least at p = b ln(lost / 2b).
    """
    if not closer:
        return UNKNOWN_JITTER
    pairs = len(closer)
    least = LEAST_JITTER if pairs >= _ENOUGH_PAIRS else FEW_JITTER
    distances = sorted(distance for distance in closer if distance > 0)
    if pairs > _HICCUP:
        distances = distances[:-1]
    if not distances:
        return least
    mean = fmean(distances)
    return min(max(mean * max(math.log(lost / (2 * mean)), 1.0), least), MOST_JITTER)


def _compute_deviations(timetable: Sequence[Measurement]) -> list[float]:
    """By how much more time than usual passed from each start to the next one, where it is known what is usual.

    In one timetable, the same pause follows each slice of a job on a machine. Then comes the ramp of the other slice.
    Before and after a slice with a backup, there is more time. A machine whose slices are all early or late is no
    deviation: the next timetable corrects it.
    """
    planned: dict[Hashable, list[tuple[tuple[bool, bool], float]]] = {}
    for one, other in pairwise(timetable):
        same = (one.job, one.in_guest, other.wall, one.backup is None, other.backup is None)
        planned.setdefault(same, []).append(((one.in_guest, other.in_guest), other.started - one.started))
    between: dict[tuple[bool, bool], list[float]] = {}
    for several in planned.values():
        if len(several) >= _USUAL:
            usual = median(apart for _, apart in several)
            for places, apart in several:
                between.setdefault(places, []).append(apart - usual)
    closer: list[float] = []
    for deviations in between.values():
        usual = median(deviations) if len(deviations) >= _USUAL else 0.0
        closer += [deviation - usual for deviation in deviations]
    return closer


def _find_most(values: Sequence[float]) -> float:
    """The largest value, without one in _ONE_IN. Of more than _HICCUP, one is left out: it may be a single hiccup."""
    left_out = max((len(values) - 1) // _ONE_IN, int(len(values) > _HICCUP))
    return sorted(values, reverse=True)[left_out]
