"""Jobs that trim blocks, as a file system does with `discard` or `fstrim`: what they need, and what they show.

fio trims with the ioctl BLKDISCARD, on devices only, and waits for each trim. So the depth is 1, `-njN` trims from N
processes, and a mode with a file on the host has no twin for such a job. `seqtrimwrite` writes each block after it has
trimmed it. `randtrim` leaves trimmed blocks behind: before each slice, in its ramp, they are written again.

Trimmed blocks are not read from the disk, and a thin volume allocates them anew. So all jobs that trim have the end of
the arm's region for themselves, a quarter of it and at most 64 MiB (`Target.part_of`). No other job of the setup
uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from harness.feature import Feature, Subject
from harness.model.attach import Attach, Attachment
from harness.model.job import Job
from harness.model.layout import LvmThin, Zvol
from harness.model.mode import Arm, Cell, Place
from harness.scenario.scenario import Scenario
from harness.units import format_size

if TYPE_CHECKING:
    from harness.measure.session import Session
    from harness.results import CellRecord, Measurement

_DEADLINE = 20.0


def find_dropped_trims(scenario: Scenario) -> Iterator[str]:
    """Modes whose guest would measure nothing, beside jobs that only trim."""
    for index, workload in enumerate(scenario.workloads):
        for mode in scenario.modes if workload.only_trims else ():
            if drops_trims(mode.attach):
                yield (
                    f'mode.{mode.name}.attach.discard = "ignore": conflicts with workloads[{index}] = '
                    f'"{workload.name}", because QEMU drops the guest\'s trims; allowed: discard = "unmap", or '
                    "a workload that writes as well (seqtrimwrite)"
                )


def drops_trims(attach: Attachment | None) -> bool:
    """Whether QEMU answers the guest's trims without doing anything."""
    return isinstance(attach, Attach) and attach.device == "disk" and attach.discard == "ignore"


def refuse_trims(session: Session, arm: Arm, job: Job) -> str | None:
    """Why nothing can be trimmed on this arm, with the remedy. Raises HostError."""
    if not job.trims:
        return None
    if arm.in_guest and arm.mode is not None:
        most = session.effective[arm.mode.name].guest_discard_max_bytes
        return None if most != 0 else f"the guest's disk of {arm.mode.name} has no discard (discard_max_bytes is 0)"
    source = session.layouts.twin(arm.mode)
    if source.kind == "file":
        return f"the baseline is a file, and fio trims devices only: {job.name} needs a disk, or a storage with volumes"
    printed = session.host.runner.run(
        ["lsblk", "--nodeps", "--noheadings", "--bytes", "--output", "DISC-MAX", source.path], deadline=_DEADLINE
    ).stdout.strip()
    if printed != "0":
        return None
    return f"{source.path} has no discard (lsblk shows DISC-MAX 0): {job.name} needs a disk with trim, or unmap"


def find_notes(slices: Sequence[Measurement], cell: Cell) -> Iterator[str]:
    """What happened to the trims of each arm of the cell."""
    if not cell.job.trims:
        return
    if cell.job.only_trims:
        most = max((slice_.counters.fio.trimmed for slice_ in slices), default=0)
        yield (
            f"up to {format_size(most)} were trimmed in a slice, of a part of the region that was written before; "
            "a block that is trimmed twice in a slice costs less the second time"
        )
    if drops_trims(cell.mode.attach):
        yield 'QEMU drops the guest\'s trims (discard = "ignore"), so only the host and the twin trim'
    if cell.mode.layout.twin.is_file:
        yield "no twin: fio on the host trims devices only, and not files"
    yield from _note_passed(slices)


def _note_passed(slices: Iterable[Measurement]) -> Iterator[str]:
    by_arm: dict[str, list[tuple[int, int]]] = {}
    for slice_ in slices:
        if slice_.counters.disk is not None and slice_.counters.fio.trimmed:
            moved = slice_.counters.disk.trimmed, slice_.counters.fio.trimmed
            by_arm.setdefault(slice_.arm, []).append(moved)
    for arm, counts in by_arm.items():
        share = sum(passed for passed, _ in counts) / sum(trimmed for _, trimmed in counts)
        if arm != Place.HOST and share < _ALL:
            yield f"{arm}: {share:.0%} of the trimmed bytes reached the disk, the rest ended in the layers above it"


_ALL = 0.98


def explain_faster(cell: CellRecord) -> str | None:
    """A trim that does not reach the disk costs less than one that does."""
    if not cell.job.trims:
        return None
    if drops_trims(cell.mode_detail.attach):
        return 'QEMU drops its trims (discard = "ignore"), and those of the host reach the disk'
    layout = cell.mode_detail.layout
    return (
        f"its trims end in the layout {layout.kind}, and those of the host reach the disk"
        if layout.is_file or isinstance(layout, LvmThin | Zvol)
        else None
    )


FEATURE = Feature(
    name="trims",
    subject=Subject(
        in_scenario=lambda scenario: any(workload.trims for workload in scenario.workloads),
        in_cell=lambda cell, _slices: cell.job.trims,
    ),
    find_problems=find_dropped_trims,
    refuse_job=refuse_trims,
    find_notes=find_notes,
    explain_faster=explain_faster,
)
