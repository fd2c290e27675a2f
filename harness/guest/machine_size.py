"""How large a guest is, whoever makes it."""

from __future__ import annotations

from harness.lab.facts import HostFacts

MOST_VCPUS = 4


def vcpus_for(facts: HostFacts) -> int:
    """Half of the host's CPUs, 1 to 4: the other half is for the guest's iothreads and the host's kernel."""
    return max(1, min(int(facts["cpus"] or 1) // 2, MOST_VCPUS))
