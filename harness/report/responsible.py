"""Which layer is responsible for a loss, and the next action, in words."""

from __future__ import annotations

from collections.abc import Iterator

from harness.model.attach import Attach, Unknown
from harness.report.answers import answers_of, results_of
from harness.report.blocks import Block, On, Sentence
from harness.report.numbers import percent, percent_interval, significant
from harness.report.section import Section
from harness.results.responsible import BUSY, Blame, Layer, flush_blame, throughput_blame

ETCD_P99 = 0.010
"""Seconds. etcd wants a p99 of fdatasync below it (its documentation, and pull request 10578)."""


def blames_of(section: Section) -> tuple[Blame, ...]:
    """For throughput and for flushes: the layer that is responsible in the mode that is recommended for them."""
    return section.once(_blames_of)


def _blames_of(section: Section) -> tuple[Blame, ...]:
    cells = results_of(section)
    by_use = {answer.use.name: answer.mode for answer in answers_of(section) if answer.mode is not None}
    mode = next(iter(by_use.values()), None)
    if mode is None or any(isinstance(cell.mode_detail.attach, Unknown) for cell in cells):
        return ()  # nothing is known of the layers of an imported result
    confidence = max(cell.confidence for cell in cells)
    flushing = by_use.get("database", mode)
    blames = (
        throughput_blame([cell for cell in cells if cell.mode == mode], confidence),
        flush_blame([cell for cell in cells if cell.mode == flushing], confidence),
    )
    return tuple(blame for blame in blames if blame is not None)


def blame_sentences(section: Section) -> Iterator[str]:
    """Which layers are responsible for what a disk's guests lose, and what to do next."""
    return (sentence for blame in blames_of(section) for sentence in sentences_of(blame))


def blame_blocks(section: Section) -> Iterator[Block]:
    """The same, a line for each layer."""
    for blame in blames_of(section):
        yield Sentence(" ".join(sentences_of(blame)), on=On.BRIEF)


def sentences_of(blame: Blame) -> tuple[str, ...]:
    """What is responsible, and what to do next."""
    found = [_flush(blame) if blame.metric.startswith("sync") else _throughput(blame)]
    return (*found, f"Next: {next_action(blame)}.") if next_action(blame) else tuple(found)


def next_action(blame: Blame) -> str:
    """The next action; empty if there is nothing to do, or nothing to conclude."""
    layer = blame.layer
    if layer is Layer.DISK:
        return "a faster disk, or one with power-loss protection, not another attachment"
    if layer is Layer.STORAGE:
        return "compare other layouts on this disk; the attachment is not the cause"
    if layer in (Layer.VIRTUALISATION, Layer.BOTH):
        return _attachment(blame)
    if layer is Layer.UNDECIDED:
        return "measure for longer: the interval allows for no loss, or for both layers"
    return ""


def _throughput(blame: Blame) -> str:
    if blame.layer is Layer.NOTHING:
        return f"`{blame.mode}`: less than 5 % is lost, so another attachment cannot gain more."
    if blame.layer is Layer.UNDECIDED:
        return f"`{blame.mode}`: which layer is responsible is undecided ({_parts(blame)})."
    thread = blame.thread
    busy = f"; {thread.name} was {thread.busy:.0%} busy".replace("%", " %") if thread and thread.busy >= 0.5 else ""
    limit = ", so it is the limit" if thread and thread.busy >= BUSY else ""
    return f"`{blame.mode}`: {blame.layer} is responsible ({_parts(blame)}{busy}{limit})."


def _parts(blame: Blame) -> str:
    storage, rest = blame.storage, blame.virtualisation
    parts = [("storage layer", storage)] if storage is not None else []
    return ", ".join(
        f"{name} {percent(part.point)} % {percent_interval(part)}".rstrip()
        for name, part in (*parts, ("virtualisation", rest))
    )


def _flush(blame: Blame) -> str:
    """For example "fsync p99 is 12.1 ms in the guest of `lvm` and 11.6 ms on the host: the disk is responsible"."""
    host, guest = (f"{significant(value * 1e3)} ms" for value in (blame.host, blame.guest))
    name = "p99" if blame.metric == "sync_p99" else "mean"
    words = f"fsync {name} is {guest} in the guest of `{blame.mode}` and {host} on the host"
    added = f"the guest adds {percent(blame.overhead.point)} % {percent_interval(blame.overhead)}".rstrip()
    side = {
        Layer.DISK: "the disk is responsible, not the VM",
        Layer.UNDECIDED: "which side is responsible is undecided",
    }.get(blame.layer, f"the VM is responsible, by its {blame.layer}")
    return f"{words}: {side} ({added}).{_etcd(blame)}"


def _etcd(blame: Blame) -> str:
    if blame.metric != "sync_p99":
        return ""
    kept = [value < ETCD_P99 for value in (blame.host, blame.guest)]
    if all(kept):
        return " Both are below the 10 ms that etcd wants."
    return (
        " The guest is above the 10 ms that etcd wants, the host is not."
        if kept[0]
        else (" The host alone is above the 10 ms that etcd wants." if not kept[1] else "")
    )


def _attachment(blame: Blame) -> str:
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
