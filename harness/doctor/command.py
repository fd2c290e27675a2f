"""`virt-overhead doctor`: each host looked at and shown, and tuned for as long as it is wanted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from harness.doctor.examine import examine, known_proof
from harness.doctor.findings import Finding, as_records, has_problem
from harness.doctor.hold import run_command, until_interrupted
from harness.doctor.probe import WINDOW_SECONDS, HostState, look
from harness.doctor.record import RECORD_FILE, Record
from harness.doctor.screen import finding_lines, tuning_lines
from harness.doctor.tune import held_already, left_over, restore, tuned
from harness.errors import HarnessError, HostError, LabUnavailable
from harness.lab.embedded import lab as embedded
from harness.lab.facts import read_facts
from harness.lab.hosts import connect
from harness.lab.inventory import EMBEDDED, HostSpec, Inventory, load_lab
from harness.lab.paths import LEASE_DIRECTORY
from harness.lab.transport.base import Runner
from harness.lab.withdrawn import withdraw_secrets
from harness.signals import ended_like_ctrl_c
from harness.untrusted import reading

THIS_MACHINE = Inventory("this machine", "smoke", (HostSpec("here", "local", ssh=None, disks=()),))


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """What the user asked for. `command` is run while the settings are held; empty: they are held until Ctrl-C."""

    tune: bool = False
    restore: bool = False
    as_json: bool = False
    command: tuple[str, ...] = ()
    window: float = WINDOW_SECONDS
    """How long CPUs and disks are watched."""
    root: str = ""
    """A directory that stands for `/` on the hosts, instead of theirs."""

    @property
    def directory(self) -> str:
        return f"{self.root}{LEASE_DIRECTORY}"


@dataclass(frozen=True, slots=True)
class _Patient:
    """A host that was looked at. `seen` and `runner` are None where it could not be; then `error` says why."""

    spec: HostSpec
    runner: Runner | None = None
    seen: HostState | None = None
    findings: tuple[Finding, ...] = ()
    error: str = ""


def hosts_of(lab: Path | None, host: str | None) -> Inventory:
    """The hosts to look at: those of the lab file, this machine without one, the embedded lab's where it runs.

    Raises ConfigError for a file that cannot be used or an unknown host, LabUnavailable where the embedded lab is
    asked for and does not run: looking at it does not start it.
    """
    if lab is None and host == EMBEDDED:
        return Inventory("the embedded lab", "smoke", (embedded.running_host_spec(),))
    inventory = load_lab(lab) if lab else THIS_MACHINE
    withdraw_secrets(inventory.hosts)
    return inventory.only(host) if host else inventory


Beyond = Callable[[HostSpec, Runner], Sequence[Finding]]
"""Looks at what a host is beside a machine: its hypervisor."""


def doctor(inventory: Inventory, order: DoctorRequest, beyond: Beyond = lambda _host, _runner: ()) -> int:
    """Look at the hosts, show what was found, and do what was ordered; the exit status.

    0: fit for measuring, perhaps with advice. 1: a problem on a host, or a host that could not be looked at. With a
    command, that command's. Raises HostError where settings cannot be held, or were not put back.
    """
    out = Console(highlight=False)
    # With --json, standard output is for JSON alone.
    notes = Console(highlight=False, stderr=order.as_json)
    with ExitStack() as stack:
        stack.enter_context(ended_like_ctrl_c())
        patients = [_look_at(spec, order, stack, notes, beyond) for spec in inventory.hosts]
        _show(patients, order, out)
        if order.tune:
            for patient in patients:
                stack.enter_context(_held(patient, order, notes))
            if order.command:
                return run_command(order.command)
            until_interrupted(lambda: _say(notes, "held until Ctrl-C"))
    return int(any(patient.error or has_problem(patient.findings) for patient in patients))


def _look_at(spec: HostSpec, order: DoctorRequest, stack: ExitStack, notes: Console, beyond: Beyond) -> _Patient:
    try:
        runner = connect(spec)
        stack.callback(runner.close)
        facts = read_facts(runner)
        _restore_left_over(runner, order, notes)
        seen = look(runner, facts, spec.disks, root=order.root, window=order.window)
        with reading(f"host {spec.name}: its settings"):
            findings = [each for each in examine(seen, known_proof(facts)) if _concerns(each, spec)]
        return _Patient(spec, runner, seen, (*findings, *beyond(spec, runner)))
    except HarnessError as error:
        return _Patient(spec, error=str(error))


def _concerns(finding: Finding, spec: HostSpec) -> bool:
    return finding.check not in spec.hypervisor.needless_checks


def _restore_left_over(runner: Runner, order: DoctorRequest, notes: Console) -> None:
    """Put back what a killed process left; with --restore also where it cannot be known whether it is gone."""
    record = left_over(runner, directory=order.directory) if order.tune or order.restore else None
    if record is None:
        return
    if order.restore and record.is_alive:
        raise HostError(
            f"{runner.name}: {record.holder} still holds its settings", hint="end that process: it puts them back"
        )
    if order.restore or record.is_dead:
        restore(runner, record, directory=order.directory)
        _say(notes, f"{runner.name}: {len(record.before)} settings put back that {record.holder} had left")


@contextmanager
def _held(patient: _Patient, order: DoctorRequest, notes: Console) -> Iterator[None]:
    if patient.runner is None or patient.seen is None:
        yield
        return
    name = patient.spec.name
    _require_tunable(patient.seen, name)
    with tuned(patient.runner, patient.findings, directory=order.directory) as tuning:
        for line in tuning_lines(name, tuning):
            _say(notes, line)
        yield
    if tuning.changed:
        _say(notes, f"host {name}: all put back as it was")


def _require_tunable(seen: HostState, host: str) -> None:
    if seen.facts["user"] != "0":
        raise HostError(
            f"host {host}: settings are changed as root, but this is user {seen.facts['user']}",
            hint="run it with sudo, or log in as root",
        )
    if record := Record.parse(seen.text(RECORD_FILE)):
        raise held_already(f"host {host}", record)
    if holder := seen.text(f"{LEASE_DIRECTORY}/lease"):
        raise LabUnavailable(
            f"host {host} is being measured by another run ({holder}): its settings stay as they are",
            hint="wait for it, or start that run by: virt-overhead doctor --tune -- pytest ...",
        )


def _show(patients: list[_Patient], order: DoctorRequest, out: Console) -> None:
    if order.as_json:
        hosts = [
            {"host": patient.spec.name, "findings": as_records(patient.findings)}
            | ({"error": patient.error} if patient.error else {})
            for patient in patients
        ]
        out.print(json.dumps({"hosts": hosts}, indent=1), markup=False, soft_wrap=True)
        return
    for patient in patients:
        if patient.error:
            _say(out, patient.error)
        else:
            for line in finding_lines(patient.spec.name, patient.findings, width=out.width):
                out.print(line, soft_wrap=True)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
