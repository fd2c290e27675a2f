"""Sets what findings ask for on a host, for as long as it is wanted, and puts back what was there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.doctor.findings import Finding, Setting
from harness.doctor.record import RECORD_NAME, Record
from harness.errors import HostError
from harness.lab.paths import LEASE_DIRECTORY
from harness.lab.transport.base import Runner
from harness.untrusted import reading

DEADLINE_SECONDS = 30.0

# A file that lists what it allows has its value in brackets.
_CURRENT = r"""
tab=$(printf '\t')
current() {
    value=$(cat "$1" 2>/dev/null)
    case $value in *\[*\]*) value=${value#*\[} value=${value%%\]*} ;; esac
}
"""
# Lines of a path on stdin; prints path and value of those that are there.
_READ = (
    _CURRENT
    + r"""
while read -r path; do [ ! -e "$path" ] || { current "$path"; printf '%s\t%s\n' "$path" "$value"; }; done
"""
)
# Lines of path and value on stdin. Prints path, the value that the file has then, and what the kernel said to it.
# A file that is gone (a disk pulled, a CPU switched off) keeps nothing, and is passed over.
_WRITE = (
    _CURRENT
    + r"""
while IFS=$tab read -r path wanted; do
    [ -e "$path" ] || continue
    said=''
    current "$path"
    [ "$value" = "$wanted" ] || said=$( { printf '%s\n' "$wanted" >"$path"; } 2>&1)
    current "$path"
    printf '%s\t%s\t%s\n' "$path" "$value" "$(printf %s "$said" | tr '\n\t' '  ')"
done
"""
)
# A link is made whole, or not at all where there is one: two cannot both get it.
_CLAIM = 'mkdir -p "$1" && cat >"$2.$$" && ln "$2.$$" "$2"; status=$?; rm -f "$2.$$"; exit $status'
_REPLACE = 'cat >"$1.new" && mv -f "$1.new" "$1"'


@dataclass(frozen=True, slots=True)
class Change:
    """A file of the host whose value was changed."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was changed on a host, and in words what could not be."""

    changed: tuple[Change, ...] = ()
    refused: tuple[str, ...] = ()


@contextmanager
def tuned(runner: Runner, findings: Sequence[Finding], *, directory: str = LEASE_DIRECTORY) -> Iterator[Tuning]:
    """Hold the settings that the findings ask for; at the end, however it comes, put back what was there.

    The old values are written to a record in `directory` on the host first, so that they survive this process. Raises
    HostError where the settings are held by somebody else already, or naming each file that could not be put back.
    """
    settings = [setting for finding in findings for setting in finding.settings]
    if not settings:
        yield Tuning()
        return
    # Each followed by what the kernel resets with it, so that the record is in the order to put back.
    before = _read(runner, [path for setting in settings for path in (setting.path, *setting.resets)])
    record = Record.of_this_process(tuple(Setting(path, value) for path, value in before.items()))
    file = f"{directory}/{RECORD_NAME}"
    try:
        claimed = runner.run(
            ["sh", "-c", _CLAIM, "sh", directory, file], stdin=record.text(), deadline=DEADLINE_SECONDS, check=False
        )
        if claimed.status != 0:
            raise _not_claimed(runner, file, claimed.stderr)
        yield _apply(runner, settings, before)
    finally:
        with _undisturbed():
            # Only what is this process's: the settings that somebody else holds are theirs to put back.
            if _stored(runner, file, record) == record:
                _put_back(runner, file, record)


def left_over(runner: Runner, *, directory: str = LEASE_DIRECTORY) -> Record | None:
    """The record of settings that were not put back on the host, or are held by somebody; None where there is none."""
    return _stored(runner, f"{directory}/{RECORD_NAME}", None)


def restore(runner: Runner, record: Record, *, directory: str = LEASE_DIRECTORY) -> None:
    """Put back what a process left that is gone. Raises HostError naming each file that could not be."""
    with _undisturbed():
        _put_back(runner, f"{directory}/{RECORD_NAME}", record)


def held_already(host: str, record: Record) -> HostError:
    """The error for settings that somebody else holds, and may end in the middle of what they are wanted for."""
    return HostError(
        f"{host}: settings are changed already, by {record.holder}, and are left as they are",
        hint="end that one; if it is gone: virt-overhead doctor --restore",
    )


def _apply(runner: Runner, settings: Sequence[Setting], before: dict[str, str]) -> Tuning:
    now = _write(runner, settings)
    changed = tuple(
        Change(setting.path, before[setting.path], setting.value)
        for setting in settings
        if now.get(setting.path, ("", ""))[0] == setting.value != before.get(setting.path)
    )
    refused = tuple(
        f"{setting.path} stays {value}" + (f": {said}" if said else "")
        for setting in settings
        for value, said in [now.get(setting.path, ("as it is", "it is gone"))]
        if value != setting.value
    )
    return Tuning(changed, refused)


def _put_back(runner: Runner, file: str, record: Record) -> None:
    try:
        now = _write(runner, record.before)
        kept = [setting for setting in record.before if now.get(setting.path, (setting.value, ""))[0] != setting.value]
        if kept:
            rest = replace(record, before=tuple(kept)).text()
            runner.run(["sh", "-c", _REPLACE, "sh", file], stdin=rest, deadline=DEADLINE_SECONDS)
        else:
            runner.run(["rm", "-f", file], deadline=DEADLINE_SECONDS)
    except HostError as error:
        raise _not_restored(runner, error.message, record.before) from error
    if kept:
        lines = [f"{setting.path} keeps {' '.join(now[setting.path]).strip()}" for setting in kept]
        raise _not_restored(runner, "; ".join(lines), kept)


def _read(runner: Runner, paths: Sequence[str]) -> dict[str, str]:
    said = runner.run(["sh", "-c", _READ], stdin=_lines(paths), deadline=DEADLINE_SECONDS).stdout
    with reading(f"{runner.name}: the settings that it shows"):
        return dict(line.split("\t", 1) for line in said.splitlines())


def _write(runner: Runner, settings: Sequence[Setting]) -> dict[str, tuple[str, str]]:
    """For each file that is there: its value afterwards, and what the kernel said where it refused."""
    lines = _lines([f"{setting.path}\t{setting.value}" for setting in settings])
    said = runner.run(["sh", "-c", _WRITE], stdin=lines, deadline=DEADLINE_SECONDS).stdout
    with reading(f"{runner.name}: the settings that it shows"):
        return {path: (value, why) for path, value, why in (line.split("\t", 2) for line in said.splitlines())}


def _lines(words: Sequence[str]) -> str:
    return "".join(f"{word}\n" for word in words)


def _stored(runner: Runner, file: str, ours: Record | None) -> Record | None:
    """The record on the host. `ours` is what may not have been put back if the host cannot be asked."""
    try:
        return Record.parse(runner.run(["cat", file], deadline=DEADLINE_SECONDS, check=False).stdout)
    except HostError as error:
        if ours is None:
            raise
        raise _not_restored(runner, error.message, ours.before) from error


def _not_claimed(runner: Runner, file: str, said: str) -> HostError:
    holder = _stored(runner, file, None)
    if holder is None:
        return HostError(
            f"{runner.name}: no setting was changed, for the old values cannot be kept: {said.strip()}",
            hint=f"make room for {file}, or remove what is there in its place",
        )
    return held_already(runner.name, holder)


def _not_restored(runner: Runner, why: str, settings: Sequence[Setting]) -> HostError:
    by_hand = "\n     ".join(f"echo {setting.value} > {setting.path}" for setting in settings)
    return HostError(
        f"{runner.name}: settings were not put back: {why}",
        hint=f"try: virt-overhead doctor --restore; or set them back on {runner.name}:\n     {by_hand}",
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No second Ctrl-C and no SIGTERM ends this; each command in it has its deadline."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
