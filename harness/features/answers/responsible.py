"""Which layer is responsible for what a guest loses: the disk itself, the storage layer, or virtualisation. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from statistics import fmean

from harness.analysis import PRACTICAL, Estimate
from harness.features.answers.decision import get_answers, select_results
from harness.model.attach import Attach, Unknown
from harness.model.mode import ModeDetail, Place
from harness.report.blocks import Block, On, Sentence
from harness.report.numbers import percent, percent_with_interval, significant
from harness.report.section import Section
from harness.results.cells import ArmName, CellRecord
from harness.results.contrasts import loss_over_jobs

BUSY = 0.85
"""From this share of a CPU on, a thread limits the disk that it serves."""
_EQUAL = PRACTICAL - 1


class ResponsibleLayer(StrEnum):
    """Where the loss comes from."""

    NOTHING = "nothing to gain"
    """The guest loses less than `PRACTICAL` of the host's throughput, or adds less than that to its latency."""
    DISK = "disk"
    """The host without a guest has most of the latency."""
    STORAGE = "storage layer"
    VIRTUALISATION = "virtualisation"
    BOTH = "storage layer and virtualisation"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class ServingThread:
    """The thread of QEMU that serves a disk, and the share of a CPU that it used."""

    name: str
    busy: float


@dataclass(frozen=True, slots=True)
class Blame:
    """The layer that is responsible for the loss of one mode, in one metric, with the parts of the loss."""

    mode: str
    detail: ModeDetail
    metric: str
    cells: tuple[CellRecord, ...]
    layer: ResponsibleLayer
    overhead: Estimate
    """The guest against the host, as a share."""
    storage: Estimate | None
    """The twin against the host; None on the bare device."""
    virtualisation: Estimate
    """The guest against its twin, or the host."""
    thread: ServingThread | None
    """The busiest thread that serves the disk, over the jobs; None if it was not counted."""

    @property
    def host(self) -> float:
        """The mean on the bare host, in the metric's unit, over the jobs."""
        return self._compute_mean("host")

    @property
    def guest(self) -> float:
        return self._compute_mean("guest")

    @property
    def on_proxmox(self) -> bool:
        """Whether a guest of Proxmox VE was measured, whose API does not offer every option of QEMU."""
        return any(cell.effective.pve_drive is not None for cell in self.cells)

    def _compute_mean(self, place: ArmName) -> float:
        means = (cell.mean(cell.metrics[self.metric], place) for cell in self.cells)
        return fmean(mean.point for mean in means if mean is not None)


def judge_throughput(cells: Sequence[CellRecord], confidence: float) -> Blame | None:
    """The layer behind the loss of throughput of these cells of one mode; None without a job at full speed."""
    usable = tuple(cell for cell in cells if cell.job.is_saturating and "iops" in cell.metrics)
    if not usable:
        return None
    return _make_blame(usable, "iops", confidence)


def judge_flushes(cells: Sequence[CellRecord], confidence: float) -> Blame | None:
    """Which side is responsible for the latency of fdatasync, by its p99 if there is one; None without flushes.

    What the host takes without a guest is the disk's part: with more than half of the guest's latency, the disk is
    responsible (the argument of etcd's pull request 10578).
    """
    for metric in ("sync_p99", "sync_mean"):
        if usable := tuple(cell for cell in cells if metric in cell.metrics and cell.job.flushes):
            blame = _make_blame(usable, metric, confidence)
            side = _judge_side(blame.overhead)
            return replace(blame, layer=side) if side is not None else blame
    return None


def _make_blame(cells: tuple[CellRecord, ...], metric: str, confidence: float) -> Blame:
    """The layer that has the larger part of the loss, and the parts."""
    estimate = partial(loss_over_jobs, cells, metric=metric, confidence=confidence)
    has_twin = all(cell.metrics[metric].samples(Place.TWIN) for cell in cells)
    overhead, storage = estimate(), estimate(of=Place.TWIN) if has_twin else None
    rest = estimate(than=Place.TWIN) if has_twin else overhead
    return Blame(
        mode=cells[0].mode,
        detail=cells[0].mode_detail,
        metric=metric,
        cells=cells,
        layer=_choose_layer(overhead, storage, rest),
        overhead=overhead,
        storage=storage,
        virtualisation=rest,
        thread=_find_busiest(cells),
    )


def _choose_layer(overhead: Estimate, storage: Estimate | None, rest: Estimate) -> ResponsibleLayer:
    """By intervals: a layer is responsible if its part is shown and the whole interval lies above the other part."""
    if overhead.high is not None and overhead.high < _EQUAL:
        return ResponsibleLayer.NOTHING
    if overhead.low is None or overhead.low <= 0:
        return ResponsibleLayer.UNDECIDED
    if storage is None:
        return ResponsibleLayer.VIRTUALISATION
    (low, high), (rest_low, rest_high) = ((estimate.low or 0.0, estimate.high or 0.0) for estimate in (storage, rest))
    if rest_low > max(high, 0):
        return ResponsibleLayer.VIRTUALISATION
    if low > max(rest_high, 0):
        return ResponsibleLayer.STORAGE
    return ResponsibleLayer.BOTH if low > 0 and rest_low > 0 else ResponsibleLayer.UNDECIDED


def _judge_side(overhead: Estimate) -> ResponsibleLayer | None:
    """The disk, if the interval shows that the host alone has more than half of the guest's latency; else None."""
    if overhead.high is not None and overhead.high < 1:
        return ResponsibleLayer.DISK
    return ResponsibleLayer.UNDECIDED if overhead.low is None or overhead.low < 1 else None


def _find_busiest(cells: Sequence[CellRecord]) -> ServingThread | None:
    threads = [thread for cell in cells for thread in _list_threads(cell)]
    return max(threads, key=lambda thread: thread.busy, default=None)


def _list_threads(cell: CellRecord) -> list[ServingThread]:
    """The thread that serves the disk: CPU time per I/O times I/Os per second. Several iothreads share the time."""
    attach = cell.mode_detail.attach
    if not isinstance(attach, Attach):
        return []
    name, cost, number = ("the iothread", "cpu_iothread", attach.threads)
    if not number:
        name, cost, number = ("QEMU's main thread", "cpu_main", 1)
    costs = cell.accounting.get(cost)
    if costs is None or not costs.guest:
        return []
    return [ServingThread(name, fmean(costs.guest) * fmean(cell.metrics["iops"].guest) / number)]


ETCD_P99 = 0.010
"""Seconds. etcd wants a p99 of fdatasync below it (its documentation, and pull request 10578)."""


def get_blames(section: Section) -> tuple[Blame, ...]:
    """For throughput and for flushes: the layer that is responsible in the mode that is recommended for them."""
    return section.once(_judge_section)


def _judge_section(section: Section) -> tuple[Blame, ...]:
    cells = select_results(section)
    by_use = {answer.use.name: answer.mode for answer in get_answers(section) if answer.mode is not None}
    mode = next(iter(by_use.values()), None)
    if mode is None or any(isinstance(cell.mode_detail.attach, Unknown) for cell in cells):
        return ()  # nothing is known of the layers of an imported result
    confidence = max(cell.confidence for cell in cells)
    flushing = by_use.get("database", mode)
    blames = (
        judge_throughput([cell for cell in cells if cell.mode == mode], confidence),
        judge_flushes([cell for cell in cells if cell.mode == flushing], confidence),
    )
    return tuple(blame for blame in blames if blame is not None)


def yield_blame_sentences(section: Section) -> Iterator[str]:
    """Which layers are responsible for what a disk's guests lose, and what to do next."""
    return (sentence for blame in get_blames(section) for sentence in describe_blame(blame))


def yield_blame(section: Section) -> Iterator[Block]:
    """The same in short: a sentence for the cause, and one for what to do next."""
    blames = get_blames(section)
    for blame in blames:
        yield Sentence(f"Cause: {_say_cause(blame)}.", on=On.BRIEF)
    actions = dict.fromkeys(action for blame in blames if (action := suggest_action(blame)))
    for action in actions:
        yield Sentence(f"Next: {action}.".replace("`", ""), on=On.BRIEF)


def _say_cause(blame: Blame) -> str:
    """For example "virtualisation takes 28.9 %, the storage layer 9.8 %; the iothread was 86 % busy, ..."."""
    if blame.metric.startswith("sync"):
        return _compare_flushes(blame).replace("`", "")
    if blame.layer is ResponsibleLayer.NOTHING:
        return f"none to look for, {blame.mode} loses less than 5 %"
    parts = [("virtualisation", blame.virtualisation)]
    parts += [("the storage layer", blame.storage)] if blame.storage is not None else []
    parts.sort(key=lambda part: -part[1].point)
    if blame.layer is ResponsibleLayer.UNDECIDED:
        shares = " and ".join(f"{name} ({percent(part.point)} %)" for name, part in parts)
        return f"undecided between {shares}" if len(parts) > 1 else "undecided, the loss is not shown"
    (name, part), *others = parts
    shares = "".join(f", {name} {percent(max(part.point, 0))} %" for name, part in others)
    return f"{name} takes {percent(part.point)} %{shares}{_describe_thread(blame)}"


def describe_blame(blame: Blame) -> tuple[str, ...]:
    """What is responsible, and what to do next."""
    sentence = _describe_flush(blame) if blame.metric.startswith("sync") else _describe_throughput(blame)
    action = suggest_action(blame)
    return (sentence, f"Next: {action}.") if action else (sentence,)


def suggest_action(blame: Blame) -> str:
    """The next action; empty if there is nothing to do, or nothing to conclude."""
    layer = blame.layer
    if layer is ResponsibleLayer.DISK:
        return "a faster disk, or one with power-loss protection, not another attachment"
    if layer is ResponsibleLayer.STORAGE:
        return "compare other layouts on this disk; the attachment is not the cause"
    if layer in (ResponsibleLayer.VIRTUALISATION, ResponsibleLayer.BOTH):
        return _suggest_attachment(blame)
    if layer is ResponsibleLayer.UNDECIDED:
        return f"measure for longer: {_say_open(blame)}"
    return ""


def _say_open(blame: Blame) -> str:
    """What the intervals leave open where no layer is shown to be responsible."""
    low = blame.overhead.low
    if low is None or low <= 0:
        return "so far, no loss is shown"
    if blame.metric.startswith("sync") and low < 1:
        return "so far, the disk or the VM may have more of the latency"
    return "so far, either layer may cause the loss"


def _describe_throughput(blame: Blame) -> str:
    if blame.layer is ResponsibleLayer.NOTHING:
        return f"`{blame.mode}`: less than 5 % is lost, so another attachment cannot gain more."
    if blame.layer is ResponsibleLayer.UNDECIDED:
        return f"`{blame.mode}`: which layer is responsible is undecided ({_describe_parts(blame)})."
    verb = "are" if blame.layer is ResponsibleLayer.BOTH else "is"
    return f"`{blame.mode}`: {blame.layer} {verb} responsible ({_describe_parts(blame)}{_describe_thread(blame)})."


def _describe_thread(blame: Blame) -> str:
    """How busy the thread is that serves the disk; empty if it is not busy."""
    thread = blame.thread
    if thread is None or thread.busy < 0.5:
        return ""
    limit = ", so it is the limit" if thread.busy >= BUSY else ""
    return f"; {thread.name} was {thread.busy * 100:.0f} % busy{limit}"


def _describe_parts(blame: Blame) -> str:
    storage, rest = blame.storage, blame.virtualisation
    parts = [("storage layer", storage)] if storage is not None else []
    return ", ".join(f"{name} {percent_with_interval(part, ' %')}" for name, part in (*parts, ("virtualisation", rest)))


def _describe_flush(blame: Blame) -> str:
    """What flushes take, which side is responsible, and how much the guest adds."""
    added = f"the guest adds {percent_with_interval(blame.overhead, ' %')}"
    return f"{_compare_flushes(blame)} ({added}).{_compare_with_etcd(blame)}"


def _compare_flushes(blame: Blame) -> str:
    """For example "fsync p99 is 12.1 ms in the guest of `lvm` and 11.6 ms on the host: the disk is responsible"."""
    host, guest = (f"{significant(value * 1e3)} ms" for value in (blame.host, blame.guest))
    name = "p99" if blame.metric == "sync_p99" else "mean"
    words = f"fsync {name} is {guest} in the guest of `{blame.mode}` and {host} on the host"
    side = {
        ResponsibleLayer.DISK: "the disk is responsible, not the VM",
        ResponsibleLayer.UNDECIDED: "which side is responsible is undecided",
    }.get(blame.layer, f"the VM is responsible, by its {blame.layer}")
    return f"{words}: {side}"


def _compare_with_etcd(blame: Blame) -> str:
    if blame.metric != "sync_p99":
        return ""
    kept = [value < ETCD_P99 for value in (blame.host, blame.guest)]
    if all(kept):
        return " Both are below the 10 ms that etcd wants."
    if kept[0]:
        return " The guest is above the 10 ms that etcd wants, the host is not."
    return "" if kept[1] else " The host alone is above the 10 ms that etcd wants."


def _suggest_attachment(blame: Blame) -> str:
    """What to try of the attachment: first what limits it, then what differs from the defaults."""
    attach, thread = blame.detail.attach, blame.thread
    if not isinstance(attach, Attach) or attach.server != "qemu":
        return "compare the guest's kernel and CPU model: QEMU serves no request of this disk"
    if attach.iops is not None or attach.bw is not None:
        return "measure the mode without its limit of IOPS or bandwidth"
    if attach.bus not in ("virtio-blk", "virtio-scsi"):
        return _measure("virtio instead of the emulated bus", 'bus = "virtio-scsi", iothread = true')
    busy = thread is not None and thread.busy >= BUSY
    levers = (
        (not attach.threads, "an iothread for the disk", "iothread = true"),
        (not attach.direct, "cache none", 'cache = "none"'),
        (
            busy and not attach.iothread_vq_mapping and not blame.on_proxmox,
            "several iothreads for its queues",
            "queues = 4, iothread = false, iothread_vq_mapping = 2",
        ),
    )
    for applies, what, options in levers:
        if applies:
            return _measure(what, options)
    if busy and blame.on_proxmox:
        return (
            "give the guest several disks, each with an iothread, and stripe over them inside it: Proxmox VE "
            "serves a disk with one iothread"
        )
    return "measure the options of the attachment one at a time: `pytest scenarios -k attach_matrix`"


def _measure(what: str, options: str) -> str:
    return f"measure {what}: a mode with `attach = {{ {options} }}`"
