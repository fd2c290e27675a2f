"""`virt-overhead doctor`: checks each host, shows the findings, and holds better settings on request."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.text import Text

from harness.console import CleanConsole
from harness.errors import ConfigError, HarnessError, HostError, LabUnavailable
from harness.feature import embedded_lab
from harness.features.doctor.devices import examine, find_proof, is_dead
from harness.features.doctor.machine import (
    WINDOW_SECONDS,
    HostFinding,
    HostState,
    Level,
    as_records,
    examine_storage,
    has_problem,
    list_settings,
    look,
)
from harness.features.doctor.settings import (
    RECORD_FILE,
    RECORD_NAME,
    SettingsRecord,
    Tuning,
    held_already,
    hold_settings,
    read_settings,
    restore,
)
from harness.features.doctor.syncs import examine_syncs
from harness.lab.facts import read_facts
from harness.lab.hosts import connect
from harness.lab.inventory import EMBEDDED, HostSpec, Inventory, whole_environment, withdraw_secrets
from harness.lab.lab_file import load_lab
from harness.lab.pin import LEASE_DIRECTORY
from harness.lab.transport.base import Runner
from harness.signals import ended_like_ctrl_c, handling
from harness.terminal import clean_json
from harness.untrusted import reading


def run_command(argv: Sequence[str]) -> int:
    """Run a command on this terminal and wait until it has ended by itself, also after Ctrl-C. Returns its exit status.

    The terminal sends Ctrl-C to the command as well, which may need time to clean up. SIGTERM and SIGHUP are forwarded
    to it. Raises ConfigError if the command cannot be run.
    """
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: FrameType | None) -> None:
        if process is not None:
            process.send_signal(number)

    # A handler that does nothing. With SIG_IGN, the command would inherit it and ignore the signal as well.
    with handling({signal.SIGINT: lambda *_: None, signal.SIGTERM: forward, signal.SIGHUP: forward}):
        try:
            # The command may start a run of virt-overhead, which needs the secrets that were withdrawn here.
            process = subprocess.Popen(argv, env=whole_environment())
        except OSError as error:
            raise ConfigError(
                f"cannot run {argv[0]}: {error.strerror}", hint="after --, give a command of this machine"
            ) from None
        status = process.wait()
    return status if status >= 0 else 128 - status


def wait_until_interrupted(ready: Callable[[], None]) -> None:
    """Wait for Ctrl-C, SIGTERM or SIGHUP, without a deadline. Calls `ready` as soon as the signals are handled."""
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    with handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), end)):
        ready()
        ended.wait()


_STYLES = {Level.OK: "green", Level.UNKNOWN: "dim", Level.ADVICE: "yellow", Level.PROBLEM: "bold red"}
_LABELS = {Level.OK: "ok", Level.UNKNOWN: "-", Level.ADVICE: "advice", Level.PROBLEM: "problem"}
_INDENT = " " * 9


def format_findings(host: str, findings: Sequence[HostFinding], *, width: int) -> Iterable[Text]:
    """A line per check with level, name and value; below it why the check matters, and what to do.

    Commands are not wrapped, because users copy them.
    """
    yield Text(f"host {host}", style="bold")
    for finding in findings:
        label = Text(f"{_LABELS[finding.level]:<{len(_INDENT)}}", style=_STYLES[finding.level])
        yield label.append(Text.assemble((finding.check, "bold"), f": {finding.value}", style="default"))
        for line in textwrap.wrap(finding.why, max(width - len(_INDENT), 40)):
            yield Text(f"{_INDENT}{line}", style="dim")
        if finding.advice:
            yield Text(f"{_INDENT}-> {finding.advice}")
    yield Text(_summarise(host, findings))


def format_tuning(host: str, tuning: Tuning) -> Iterable[str]:
    """What was changed and what could not be changed. Files with the same name and values share a line."""
    if not tuning.changed and not tuning.refused:
        yield f"host {host}: nothing to change"
    alike = Counter((change.path.rpartition("/")[2], change.before, change.after) for change in tuning.changed)
    for (name, before, after), number in alike.items():
        first = next(change.path for change in tuning.changed if change.path.endswith(f"/{name}"))
        others = f" and {number - 1} more" if number > 1 else ""
        yield f"host {host}: changed {first}{others}: {before} -> {after}"
    yield from (f"host {host}: not changed: {refusal}" for refusal in tuning.refused)


def _summarise(host: str, findings: Sequence[HostFinding]) -> str:
    count = Counter(finding.level for finding in findings)
    problems = [finding.check for finding in findings if finding.level is Level.PROBLEM]
    if problems:
        return f"host {host}: figures measured now would be wrong or cannot be measured: {', '.join(problems)}"
    if count[Level.ADVICE]:
        return f"host {host}: fit for measuring; see the {count[Level.ADVICE]} pieces of advice above to improve it"
    return f"host {host}: fit for measuring"


THIS_MACHINE = Inventory("this machine", "smoke", (HostSpec("here", "local", ssh=None, disks=()),))


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """What the user requested. `command` runs while the settings are held; without it, they are held until Ctrl-C."""

    tune: bool = False
    restore: bool = False
    as_json: bool = False
    command: tuple[str, ...] = ()
    sync: tuple[str, ...] = ()
    """Directories of the hosts in which syncs are timed."""
    window: float = WINDOW_SECONDS
    """How long CPUs and disks are watched, in seconds."""
    root: str = ""
    """A directory to use instead of `/` on the hosts."""

    @property
    def directory(self) -> str:
        return f"{self.root}{LEASE_DIRECTORY}"


@dataclass(frozen=True, slots=True)
class _CheckedHost:
    """A host that was checked. If that failed, `state` and `runner` are None and `error` gives the reason."""

    spec: HostSpec
    runner: Runner | None = None
    state: HostState | None = None
    findings: tuple[HostFinding, ...] = ()
    error: str = ""


def choose_hosts(lab: Path | None, host: str | None) -> Inventory:
    """The hosts to check: the hosts of the lab file, this machine if there is no file, or the embedded lab's host.

    Raises ConfigError if the file cannot be used or the host is unknown. Raises LabUnavailable if the embedded lab is
    requested but does not run: the doctor does not start it.
    """
    if lab is None and host == EMBEDDED:
        return Inventory("the embedded lab", "smoke", (embedded_lab().read_running_host(),))
    inventory = load_lab(lab) if lab else THIS_MACHINE
    withdraw_secrets(inventory.hosts)
    return inventory.only(host) if host else inventory


def doctor(inventory: Inventory, request: DoctorRequest) -> int:
    """Check the hosts, show the findings, and do what was requested. Returns the exit status.

    0: fit for measuring, perhaps with advice. 1: a problem on a host, or a host that could not be checked. With a
    command, the command's status. Raises HostError if settings cannot be held or were not restored.
    """
    out = CleanConsole()
    # With --json, standard output has only JSON.
    notes = CleanConsole(stderr=request.as_json)
    with ExitStack() as stack:
        stack.enter_context(ended_like_ctrl_c())
        hosts = [_check(spec, request, stack, notes) for spec in inventory.hosts]
        _show(hosts, request, out)
        if request.tune:
            for host in hosts:
                stack.enter_context(_hold(host, request, notes))
            if request.command:
                return run_command(request.command)
            wait_until_interrupted(lambda: _say(notes, "held until Ctrl-C"))
    return int(any(host.error or has_problem(host.findings) for host in hosts))


def _check(spec: HostSpec, request: DoctorRequest, stack: ExitStack, notes: CleanConsole) -> _CheckedHost:
    try:
        runner = connect(spec)
        stack.callback(runner.close)
        facts = read_facts(runner, spec.fio)
        _restore_what_was_left(runner, request, notes)
        state = look(runner, facts, spec.disks, root=request.root, window=request.window)
        with reading(f"host {spec.name}: its settings"):
            findings = examine(state, find_proof(facts))
        if spec.kind == "proxmox":
            # A node has no libvirt and does not need it.
            findings = [finding for finding in findings if finding.check != "libvirt"]
        findings += examine_syncs(runner, facts["fio_program"] or "fio", request.sync)
        return _CheckedHost(spec, runner, state, (*findings, *examine_hypervisor(spec, runner)))
    except HarnessError as error:
        return _CheckedHost(spec, error=str(error))


def examine_hypervisor(host: HostSpec, runner: Runner) -> list[HostFinding]:
    """The findings about the host's hypervisor. If it is unreachable, this is a finding and not an error."""
    if host.kind == "proxmox":
        from harness.features.doctor.node import node_findings  # noqa: PLC0415 - other hosts need no HTTP client

        return node_findings(host, runner)
    return [examine_storage(runner, storage) for storage in host.stored]


def _restore_what_was_left(runner: Runner, request: DoctorRequest, notes: CleanConsole) -> None:
    """Restore what a killed process left. With --restore, also if it is unknown whether the process has ended."""
    record = read_settings(runner, f"{request.directory}/{RECORD_NAME}") if request.tune or request.restore else None
    if record is None:
        return
    if request.restore and record.is_alive:
        raise HostError(
            f"{runner.name}: {record.holder} still holds its settings", hint="end that process: it restores them"
        )
    if request.restore or is_dead(record):
        restore(runner, record, directory=request.directory)
        _say(notes, f"{runner.name}: {len(record.before)} settings restored that {record.holder} had left")


@contextmanager
def _hold(host: _CheckedHost, request: DoctorRequest, notes: CleanConsole) -> Iterator[None]:
    if host.runner is None or host.state is None:
        yield
        return
    name = host.spec.name
    _require_tunable(host.state, name)
    with hold_settings(host.runner, list_settings(host.findings), directory=request.directory) as tuning:
        for line in format_tuning(name, tuning):
            _say(notes, line)
        yield
    if tuning.changed:
        _say(notes, f"host {name}: all settings restored")


def _require_tunable(state: HostState, host: str) -> None:
    if state.facts["user"] != "0":
        raise HostError(
            f"host {host}: only root can change settings, but this is user {state.facts['user']}",
            hint="use sudo, or log in as root",
        )
    if record := SettingsRecord.parse(state.text(RECORD_FILE), state.root):
        raise held_already(f"host {host}", record)
    if holder := state.text(f"{LEASE_DIRECTORY}/lease"):
        raise LabUnavailable(
            f"host {host} is being measured by another run ({holder}), so its settings are not changed",
            hint="wait until that run has ended, or start it with: virt-overhead doctor --tune -- pytest ...",
        )


def _show(hosts: list[_CheckedHost], request: DoctorRequest, out: CleanConsole) -> None:
    if request.as_json:
        records = [
            {"host": host.spec.name, "findings": as_records(host.findings)}
            | ({"error": host.error} if host.error else {})
            for host in hosts
        ]
        sys.stdout.write(f"{clean_json(json.dumps({'hosts': records}, indent=1))}\n")
        return
    for host in hosts:
        if host.error:
            _say(out, host.error)
        else:
            for line in format_findings(host.spec.name, host.findings, width=out.width):
                out.print(line, soft_wrap=True)


def _say(console: CleanConsole, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
