"""Reads the text that the kernel's tracefs prints: the moments at which I/Os pass the layers. Pure.

Source: the kernel's Documentation/trace/ftrace.rst and include/trace/events/{block,kvm}.h.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from harness.analysis import Passed, Point
from harness.untrusted import finite

BLOCK_EVENTS = {
    "block/block_bio_queue": Point.QUEUED,
    "block/block_rq_issue": Point.ISSUED,
    "block/block_rq_complete": Point.COMPLETED,
}
KVM_EVENTS = {
    "kvm/kvm_mmio": Point.KICK,
    "kvm/kvm_fast_mmio": Point.KICK,
    "kvm/kvm_msi_set_irq": Point.INTERRUPT,
}
_POINTS = {name.rpartition("/")[2]: point for name, point in (BLOCK_EVENTS | KVM_EVENTS).items()}
# For example `   IO iothread1-739     [000] d..1.    64.421710: kvm_msi_set_irq: dst 0 vec 42 (Fixed|physical|edge)`.
_LINE = re.compile(rf" (?P<moment>\d+\.\d+): (?P<event>{'|'.join(_POINTS)}): (?P<rest>.*)")
# The guest's reads of registers are no notifications.
_KEYS = {
    "kvm_mmio": re.compile(r"mmio write len \d+ gpa (0x[0-9a-f]+)"),
    "kvm_fast_mmio": re.compile(r"fast mmio at gpa (0x[0-9a-f]+)"),
    "kvm_msi_set_irq": re.compile(r"dst [0-9a-f]+ vec (\d+)"),
}


def parse_trace(lines: Iterable[str]) -> Iterator[Passed]:
    """The events of a file `trace` in tracefs, in its order, which is that of time. Other lines are left out."""
    for line in lines:
        found = _LINE.search(line)
        if found is None:
            continue
        key = _KEYS.get(found["event"])
        matched = key.match(found["rest"]) if key is not None else None
        if key is None or matched is not None:
            yield Passed(finite(found["moment"]), _POINTS[found["event"]], matched[1] if matched else "")
