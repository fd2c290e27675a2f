"""What a difference between two runs means for their comparison. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase

from harness.results.compare_records import Effect

_NO_INFLUENCE = ("run.seed", "run.status", "lab.why", "host.hostname", "boots")
"""The seed only chooses the random order of the arms."""
_TIMES = ("job.seconds", "job.ramp")
"""How long a slice takes has no influence on its rate in a steady state. A longer slice only has less noise."""
_MEASURED = (
    "run.profile",
    "lab.accel",
    "lab.representative",
    "acceleration.accel",
    "host.fio",
    "images.guest.fio",
    "imported.*.fio",
    "span_bytes",
    "*.span",
    "*.conditioning",
    "*.conditioning.method",
    "job.*",
)
"""How the values were measured: by which fio, with which profile and job, where on the disk, and in which state of it.
A lab that emulates its disks, or its CPUs, measures something else than one with real ones."""
_MACHINE = ("host.cpu", "host.cpus", "*.disk", "*.disk[0-9]*[0-9]", "*.disk[0-9]")
"""What was measured on: the CPU and the disks."""


def effect_of(what: str, *, same_machine: bool) -> Effect:
    """What the difference with this name means. `same_machine`: both runs must be of the same CPU and disks."""
    if what in _NO_INFLUENCE:
        return Effect.NONE
    if what in _TIMES:
        return Effect.CAUSE
    ruling_out = (*_MEASURED, *_MACHINE) if same_machine else _MEASURED
    return Effect.RULES_OUT if any(fnmatchcase(what, pattern) for pattern in ruling_out) else Effect.CAUSE
