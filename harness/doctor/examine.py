"""From what was seen of a host to the findings, in the order in which they are shown."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from harness.doctor import cpu, disk, machine, memory
from harness.doctor.findings import Finding, Level
from harness.doctor.probe import HostState
from harness.doctor.record import RECORD_FILE, Record
from harness.lab.accel import Acceleration, probes_file, read_answers
from harness.lab.facts import HostFacts


def examine(seen: HostState, proof: Acceleration | None = None) -> list[Finding]:
    """Every check's findings. Pure. `proof` is what came of booting a guest under the host's KVM, if that was tried."""
    checks = (*machine.CHECKS, *disk.CHECKS, *cpu.CHECKS, *memory.CHECKS)
    return [machine.kvm(seen, proof), *chain.from_iterable(check(seen) for check in checks), *_left_tuned(seen)]


def known_proof(facts: HostFacts, probes: Path | None = None) -> Acceleration | None:
    """What `lab.hosts` remembers of booting a guest on this host with this kernel, CPU and QEMU, whatever the image.

    `probes` is the file it is in. None where no boot was tried, or the file cannot be read.
    """
    # What the embedded lab remembers of this machine is of no use here: it also says "tcg" where KVM does not nest.
    host = f"{facts['hostname']}, {facts['kernel']}, {facts['cpu']}, {facts['qemu']}, guest "
    answers = [answer for key, answer in read_answers(probes or probes_file()).items() if key.startswith(host)]
    return answers[-1] if answers else None


def _left_tuned(seen: HostState) -> list[Finding]:
    """Worth a line where there is a record of settings that were changed."""
    record = Record.parse(seen.text(RECORD_FILE))
    if record is None:
        return []
    check = "tuned settings"
    why = "settings that were changed for measuring stay until who changed them puts them back"
    value = f"{len(record.before)} files, held by {record.holder}"
    if record.is_alive:
        return [Finding(check, value, Level.OK, why)]
    gone = ", which is gone" if record.is_dead else ""
    return [Finding(check, f"{value}{gone}", Level.ADVICE, why, "virt-overhead doctor --restore")]
