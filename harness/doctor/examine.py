"""Makes the findings from the state of a host, in the order in which they are shown."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from harness.doctor import cpu, disk, machine, memory
from harness.doctor.findings import Finding, Level
from harness.doctor.probe import HostState
from harness.doctor.record import RECORD_FILE, Record
from harness.lab.accel import Acceleration, probes_file, read_answers
from harness.lab.facts import HostFacts


def examine(state: HostState, proof: Acceleration | None = None) -> list[Finding]:
    """The findings of all checks. Pure. `proof` is the result of booting a guest under the host's KVM, if one was."""
    checks = (*machine.CHECKS, *disk.CHECKS, *cpu.CHECKS, *memory.CHECKS)
    return [machine.kvm(state, proof), *chain.from_iterable(check(state) for check in checks), *_left_tuned(state)]


def known_proof(facts: HostFacts, probes: Path | None = None) -> Acceleration | None:
    """The result that `lab.hosts` stored of booting a guest on this host, with this kernel, CPU and QEMU and any image.

    `probes` is the file with the results. None if no boot was tried or the file cannot be read.
    """
    # The embedded lab's result for this machine does not count: it is also "tcg" if only nested KVM does not work.
    host = f"{facts['hostname']}, {facts['kernel']}, {facts['cpu']}, {facts['qemu']}, guest "
    answers = [answer for key, answer in read_answers(probes or probes_file()).items() if key.startswith(host)]
    return answers[-1] if answers else None


def _left_tuned(state: HostState) -> list[Finding]:
    """A finding only if there is a record of changed settings."""
    record = Record.parse(state.text(RECORD_FILE))
    if record is None:
        return []
    check = "tuned settings"
    why = "settings that were changed for measuring remain until the process that changed them restores them"
    value = f"{len(record.before)} files, held by {record.holder}"
    if record.is_alive:
        return [Finding(check, value, Level.OK, why)]
    gone = ", which has ended" if record.is_dead else ""
    return [Finding(check, f"{value}{gone}", Level.ADVICE, why, "virt-overhead doctor --restore")]
