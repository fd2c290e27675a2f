"""Which layer is responsible for a loss, and the next action, in words."""

from __future__ import annotations

from dataclasses import dataclass

from harness.model.attach import Attach
from harness.report.numbers import percent, percent_interval, significant
from harness.results.responsible import BUSY, Blame, Layer

ETCD_P99 = 0.010
"""Seconds. etcd wants a p99 of fdatasync below it (its documentation, and pull request 10578)."""


@dataclass(frozen=True, slots=True)
class BlameView:
    """The layer that is responsible in one mode."""

    record: Blame

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is responsible, and what to do next."""
        found = [self._flush if self.record.metric.startswith("sync") else self._throughput]
        return (*found, f"Next: {self.action}.") if self.action else tuple(found)

    @property
    def action(self) -> str:
        """The next action; empty if there is nothing to do, or nothing to conclude."""
        layer = self.record.layer
        if layer is Layer.DISK:
            return "a faster disk, or one with power-loss protection, not another attachment"
        if layer is Layer.STORAGE:
            return "compare other layouts on this disk; the attachment is not the cause"
        if layer in (Layer.VIRTUALISATION, Layer.BOTH):
            return self._attachment
        if layer is Layer.UNDECIDED:
            return "measure for longer: the interval allows for no loss, or for both layers"
        return ""

    @property
    def _throughput(self) -> str:
        record = self.record
        if record.layer is Layer.NOTHING:
            return f"`{record.mode}`: less than 5 % is lost, so another attachment cannot gain more."
        if record.layer is Layer.UNDECIDED:
            return f"`{record.mode}`: which layer is responsible is undecided ({self._parts})."
        thread = record.thread
        busy = f"; {thread.name} was {thread.busy:.0%} busy".replace("%", " %") if thread and thread.busy >= 0.5 else ""
        limit = ", so it is the limit" if thread and thread.busy >= BUSY else ""
        return f"`{record.mode}`: {record.layer} is responsible ({self._parts}{busy}{limit})."

    @property
    def _parts(self) -> str:
        storage, rest = self.record.storage, self.record.virtualisation
        parts = [("storage layer", storage)] if storage is not None else []
        return ", ".join(
            f"{name} {percent(part.point)} % {percent_interval(part)}".rstrip()
            for name, part in (*parts, ("virtualisation", rest))
        )

    @property
    def _flush(self) -> str:
        """For example "fsync p99 is 12.1 ms in the guest of `lvm` and 11.6 ms on the host: the disk is responsible"."""
        record = self.record
        host, guest = (f"{significant(value * 1e3)} ms" for value in (record.host, record.guest))
        name = "p99" if record.metric == "sync_p99" else "mean"
        words = f"fsync {name} is {guest} in the guest of `{record.mode}` and {host} on the host"
        added = f"the guest adds {percent(record.overhead.point)} % {percent_interval(record.overhead)}".rstrip()
        side = {
            Layer.DISK: "the disk is responsible, not the VM",
            Layer.UNDECIDED: "which side is responsible is undecided",
        }.get(record.layer, f"the VM is responsible, by its {record.layer}")
        return f"{words}: {side} ({added}).{self._etcd}"

    @property
    def _etcd(self) -> str:
        if self.record.metric != "sync_p99":
            return ""
        kept = [value < ETCD_P99 for value in (self.record.host, self.record.guest)]
        if all(kept):
            return " Both are below the 10 ms that etcd wants."
        return (
            " The guest is above the 10 ms that etcd wants, the host is not."
            if kept[0]
            else (" The host alone is above the 10 ms that etcd wants." if not kept[1] else "")
        )

    @property
    def _attachment(self) -> str:
        """What to try of the attachment: first what limits it, then what differs from the defaults."""
        attach, thread = self.record.detail.attach, self.record.thread
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
                busy and not attach.iothread_vq_mapping and not self.record.on_proxmox,
                "several iothreads for its queues",
                "queues = 4, iothread = false, iothread_vq_mapping = 2",
            ),
        )
        for applies, what, options in levers:
            if applies:
                return _measure(what, options)
        if busy and self.record.on_proxmox:
            return (
                "give the guest several disks, each with an iothread, and stripe over them inside it: Proxmox VE "
                "serves a disk with one iothread"
            )
        return "measure the options of the attachment one at a time: `pytest scenarios -k attach_matrix`"


def _measure(what: str, options: str) -> str:
    return f"measure {what}: a mode with `attach = {{ {options} }}`"
