"""How large a guest is, whoever makes it."""

from __future__ import annotations

from collections.abc import Iterable

from harness.lab.facts import HostFacts
from harness.model.attach import Attach, Attachment

MOST_VCPUS = 4


def vcpus_for(facts: HostFacts, attachments: Iterable[Attachment] = ()) -> int:
    """Half of the host's CPUs, 1 to 4: the other half is for the guest's iothreads and the host's kernel.

    More where a disk has more queues: the guest's kernel uses no more of them than it has CPUs.
    """
    half = max(1, min(int(facts["cpus"] or 1) // 2, MOST_VCPUS))
    return max([half, *(attach.queues or 0 for attach in attachments if isinstance(attach, Attach))])


def too_many_queues(attach: Attachment, cpus: int) -> str | None:
    """Why a host of so many CPUs has no guest for the queues of a disk, with the remedy; None where it has."""
    if isinstance(attach, Attach) and (attach.queues or 0) > cpus:
        return f"queues = {attach.queues} needs a guest of as many vCPUs, and the host has {cpus} CPUs: ask for fewer"
    return None
