"""Traces I/Os with the kernel's tracefs, on a host or in a guest, in a trace instance of its own.

An instance has its own buffers and events, so other users of tracefs neither see nor disturb it. Source: the kernel's
Documentation/trace/ftrace.rst, "Instances". tracefs needs no programs: perf and bpftrace need packages that few hosts,
and fewer guests, have.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from harness.errors import HostError, Unsupported
from harness.features.breakdown.parts import Passed, PathPoint
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing
from harness.lab.pin import TAG
from harness.lab.transport.base import HeldCommand, HoldingRunner, Runner
from harness.untrusted import finite, reading

BLOCK_EVENTS = {
    "block/block_bio_queue": PathPoint.QUEUED,
    "block/block_rq_issue": PathPoint.ISSUED,
    "block/block_rq_complete": PathPoint.COMPLETED,
}
KVM_EVENTS = {
    "kvm/kvm_mmio": PathPoint.KICK,
    "kvm/kvm_fast_mmio": PathPoint.KICK,
    "kvm/kvm_msi_set_irq": PathPoint.INTERRUPT,
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
        match = _LINE.search(line)
        if match is None:
            continue
        key = _KEYS.get(match["event"])
        matched = key.match(match["rest"]) if key is not None else None
        if key is None or matched is not None:
            yield Passed(finite(match["moment"]), _POINTS[match["event"]], matched[1] if matched else "")


TRACING = "/sys/kernel/tracing"
"""Where the kernel's documentation and systemd mount tracefs."""
HOST_KIB = 8 << 10
"""The size of the buffer of each CPU of a host, which has the events of about 20 000 I/Os."""
GUEST_KIB = 4 << 10
"""The same of a guest, which has fewer events."""
_MOST_CPUS = 64
"""On a larger machine, the buffers of all CPUs together are not larger than with so many."""
MOST_TEXT = 24 << 20
"""Bytes of a trace that are read. The limit of a command's output is larger."""
_DEADLINE = 60.0

_DEVICES = read_script("harness.features.breakdown", "list_devices_below.sh")

_HOLD = read_script("harness.features.breakdown", "hold_tracing.sh", MOST_CPUS=_MOST_CPUS)
# What is not read is not needed again.
_READ = 'head -c "$2" "$1/trace"; echo >"$1/trace"'
# $1: the directory of the instance.
_REMOVE = r"""
[ -d "$1" ] || { echo absent; exit; }
rmdir "$1" && echo removed
"""


class TraceInstance(HostThing):
    """A trace instance on the host. Its name has a UUID, so no other program made it."""

    kind: Literal["trace-instance"] = "trace-instance"
    path: str

    removal: ClassVar[str] = _REMOVE

    @property
    def words(self) -> str:
        return f"the trace instance {self.path}"

    def arguments(self) -> Sequence[str]:
        return [self.path]


@dataclass(frozen=True, slots=True)
class Tracer:
    """A trace instance that records nothing until it is switched on. `held` is the program that switches it."""

    runner: Runner
    path: str
    held: HeldCommand
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def switch(self, *, on: bool) -> str:
        """Request a switch. Returns its number."""
        number = str(next(self.numbers))
        self.held.send(f"{number} {int(on)}")
        return number

    def wait_until_switched(self, number: str) -> None:
        """Wait until this switch is done."""
        if not self.held.wait(lambda lines: number in lines, _DEADLINE):
            raise HostError(
                f"{self.runner.name}: its trace could not be switched: {self.held.lines[-1][:300]}",
                hint=f"look into {TRACING}/error_log",
            )

    def read_events(self) -> list[Passed]:
        """What was recorded, in the order of time, which is the machine's uptime in seconds. Raises HostError."""
        text = self.runner.run(["sh", "-c", _READ, "sh", self.path, str(MOST_TEXT)], deadline=2 * _DEADLINE).stdout
        with reading(f"{self.runner.name}: the trace of its I/Os"):
            return list(parse_trace(text.splitlines()))


def switch_tracers(tracers: Iterable[tuple[Tracer, bool]]) -> None:
    """Begin (True) or end to record on several machines at the same time, and wait until it is done.

    While it is off, the events are off in the kernel and cost nothing. Raises HostError.
    """
    waiting = [(tracer, tracer.switch(on=on)) for tracer, on in tracers]
    for tracer, number in waiting:
        tracer.wait_until_switched(number)


@contextmanager
def trace_devices(
    runner: Runner, paths: Sequence[str], log: CreationLog | None, directory: str = TRACING
) -> Iterator[Tracer]:
    """A tracer of the I/Os of these block devices, or files, of a machine and of the devices below them.

    With `log`, the machine is the host, whose KVM is traced too. Without, it is a guest. tracefs is mounted for the
    block if it is not. The instance is removed at the end, also if this process or the connection ends, and by
    `reap`. Raises Unsupported, with the remedy, if the machine cannot trace, and HostError.
    """
    if not isinstance(runner, HoldingRunner):
        raise Unsupported(f"{runner.name}: tracing needs a login that stays open", hint="give the VM a login by SSH")
    if not all(path.startswith("/") for path in paths):
        raise Unsupported(f"{runner.name}: only Linux has the kernel's trace events", hint="trace a guest with Linux")
    name = f"{TAG}-{uuid.uuid4()}"
    path = f"{directory}/instances/{name}"
    numbers = runner.run(["sh", "-c", _DEVICES, "sh", *paths], deadline=_DEADLINE).stdout.split()
    with reading(f"{runner.name}: the numbers of the block devices of {', '.join(paths)}"):
        block_filter = " || ".join(f"dev == {number}" for number in dict.fromkeys(map(_parse_device_number, numbers)))
    if not numbers:
        raise Unsupported(
            f"{runner.name}: there is no block device below {', '.join(paths)}, so its I/Os cannot be followed",
            hint="use a layout on a disk of this host, and not on ZFS or a network",
        )
    events = (*BLOCK_EVENTS, *(KVM_EVENTS if log is not None else ()))
    kib = HOST_KIB if log is not None else GUEST_KIB
    argv = ["sh", "-c", _HOLD, "sh", directory, name, str(kib), block_filter, *events]
    with ExitStack() as stack:
        if log is not None:
            stack.enter_context(log.making_here(TraceInstance(path=path)))
        held = stack.enter_context(runner.hold(argv, what="the trace of I/Os", deadline=_DEADLINE))
        printed = " ".join(held.lines)
        if printed.startswith("missing"):
            raise Unsupported(
                f"{runner.name}: the kernel offers no trace events of the block layer in {TRACING}",
                hint="use a kernel with CONFIG_EVENT_TRACING, as distributions have, and a login as root",
            )
        if held.lines[0].split()[0] != "ready":
            hint = f"look into {TRACING}/error_log"
            raise Unsupported(f"{runner.name}: its I/Os cannot be traced: {printed[:300]}", hint=hint)
        yield Tracer(runner, path, held)


def _parse_device_number(number: str) -> int:
    """The kernel's own number of a device `MAJOR:MINOR` (include/linux/kdev_t.h), by which its filters compare."""
    major, minor = map(int, number.split(":"))
    return major << 20 | minor
