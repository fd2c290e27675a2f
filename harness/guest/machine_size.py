"""The number of vCPUs of a guest, for all hypervisors."""

from __future__ import annotations

from collections.abc import Iterable

from harness.lab.facts import HostFacts
from harness.model.attach import Attach, Attachment

MOST_VCPUS = 4


def vcpus_for(facts: HostFacts, attachments: Iterable[Attachment] = ()) -> int:
    """Half of the host's CPUs, from 1 to 4: the other half is for the guest's iothreads and the host's kernel.

    More if a disk has more queues: the guest's kernel does not use more queues than it has CPUs.
    """
    half = max(1, min(int(facts["cpus"] or 1) // 2, MOST_VCPUS))
    return max([half, *(attach.queues or 0 for attach in attachments if isinstance(attach, Attach))])


def too_many_queues(attach: Attachment, cpus: int) -> str | None:
    """Why a host with this number of CPUs cannot have a guest for a disk's queues, with the remedy; None if it can."""
    if isinstance(attach, Attach) and (attach.queues or 0) > cpus:
        return f"queues = {attach.queues} needs as many vCPUs, but the host has {cpus} CPUs: request fewer queues"
    return None
