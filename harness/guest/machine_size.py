"""The number of vCPUs of a guest, for all hypervisors."""

from __future__ import annotations

from collections.abc import Iterable

from harness.lab.facts import HostFacts
from harness.model.attach import Attach, Attachment
from harness.model.guest import ANY_GUEST, GuestOptions

MOST_VCPUS = 4


def vcpus_for(facts: HostFacts, attachments: Iterable[Attachment] = (), guest: GuestOptions = ANY_GUEST) -> int:
    """The requested number. By default half of the host's CPUs, from 1 to 4.

    The other half is for the guest's iothreads and the host's kernel. More if a disk has more queues: the guest's
    kernel does not use more queues than it has CPUs.
    """
    if guest.vcpu_count is not None:
        return guest.vcpu_count
    half = max(1, min(int(facts["cpus"] or 1) // 2, MOST_VCPUS))
    return max([half, *(attach.queues or 0 for attach in attachments if isinstance(attach, Attach))])


def too_many_queues(attach: Attachment, cpus: int, guest: GuestOptions = ANY_GUEST) -> str | None:
    """Why a host with this number of CPUs cannot have a guest for a disk's queues, with the remedy; None if it can."""
    queues, vcpus = attach.queues or 0, guest.vcpu_count
    if vcpus is not None and queues > vcpus:
        return f"queues = {queues} needs as many vCPUs, but the guest has {vcpus}: request fewer queues or more vCPUs"
    if queues > cpus:
        return f"queues = {queues} needs as many vCPUs, but the host has {cpus} CPUs: request fewer queues"
    return None
