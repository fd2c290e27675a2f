"""Settings of a host that are held for a while: changed, recorded on the host, and restored.

The record of the old values stays on the host until they are restored, so another process can do that if this one is
killed.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.errors import HostError
from harness.lab.lease import start_ticks
from harness.lab.paths import LEASE_DIRECTORY
from harness.lab.transport.base import Runner, whole
from harness.shipped import read_script
from harness.signals import cleaning_up
from harness.untrusted import parse_json, reading


@dataclass(frozen=True, slots=True)
class Tunable:
    """A file of sysfs on the host and the word to write to it.

    `resets` are files that the kernel resets when `path` is written. Those that exist are restored after `path`.
    """

    path: str
    value: str
    resets: tuple[str, ...] = ()


RECORD_NAME = "tuned"
# On a file system that is emptied at a reboot, because a reboot also resets sysfs.
RECORD_FILE = f"{LEASE_DIRECTORY}/{RECORD_NAME}"


@dataclass(frozen=True, slots=True)
class SettingsRecord:
    """The process that changed settings, and their old values in the order in which to restore them.

    `started` is the start time of the process in ticks since boot. It distinguishes it from a later process with the
    same id.
    """

    machine: str
    pid: int
    started: str
    before: tuple[Tunable, ...]

    @classmethod
    def of_this_process(cls, before: tuple[Tunable, ...]) -> SettingsRecord:
        return cls(socket.gethostname(), os.getpid(), start_ticks(os.getpid()), before)

    @classmethod
    def parse(cls, text: str) -> SettingsRecord | None:
        """The record that was written as `text`; None for any other text."""
        try:
            with reading(RECORD_FILE):
                document = parse_json(text, RECORD_FILE)
                before = tuple(Tunable(path, value) for path, value in document["before"])
                record = cls(document["machine"], document["pid"], document["started"], before)
                return record if record._is_plain else None
        except HostError:
            return None

    def text(self) -> str:
        before = [[setting.path, setting.value] for setting in self.before]
        record = {"machine": self.machine, "pid": self.pid, "started": self.started, "before": before}
        return json.dumps(record, indent=1) + "\n"

    @property
    def _is_plain(self) -> bool:
        texts = [
            self.machine,
            self.started,
            *(text for setting in self.before for text in (setting.path, setting.value)),
        ]
        return type(self.pid) is int and all(isinstance(text, str) for text in texts)

    @property
    def holder(self) -> str:
        return f"process {self.pid} of {self.machine}"

    @property
    def is_alive(self) -> bool:
        """Whether the process is known to run still. This is unknown for a process of another machine."""
        return self.machine == socket.gethostname() and start_ticks(self.pid) == self.started

    @property
    def is_dead(self) -> bool:
        """Whether the process is known to have ended."""
        return self.machine == socket.gethostname() and not self.is_alive


DEADLINE_SECONDS = 30.0

_CURRENT = read_script("harness.lab", "current_setting.sh")
# Reads one path per line on stdin; prints path and value of each file that exists.
_READ = (
    _CURRENT
    + r"""
while read -r path; do [ ! -e "$path" ] || { current "$path"; printf '%s\t%s\n' "$path" "$value"; }; done
"""
)
_WRITE = _CURRENT + read_script("harness.lab", "write_settings.sh")
# Creating a link is atomic and fails if it exists, so two processes cannot both get it.
_CLAIM = 'mkdir -p "$1" && cat >"$2.$$" && ln "$2.$$" "$2"; status=$?; rm -f "$2.$$"; exit $status'
_REPLACE = 'cat >"$1.new" && mv -f "$1.new" "$1"'


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A file of the host whose value was changed."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was changed on a host, and a text for each setting that could not be changed."""

    changed: tuple[ChangedSetting, ...] = ()
    refused: tuple[str, ...] = ()


@contextmanager
def hold_settings(runner: Runner, settings: Sequence[Tunable], *, directory: str = LEASE_DIRECTORY) -> Iterator[Tuning]:
    """Hold these settings on the host. At the end, also after a failure, restore the old values.

    First writes the old values to a record in `directory` on the host, which survives this process. Raises HostError if
    another process already holds the settings, or if files could not be restored; the error names each of them.
    """
    if not settings:
        yield Tuning()
        return
    # After each file come the files that the kernel resets with it: the order in which to restore them.
    before = _read(runner, [path for setting in settings for path in (setting.path, *setting.resets)])
    record = SettingsRecord.of_this_process(tuple(Tunable(path, value) for path, value in before.items()))
    file = f"{directory}/{RECORD_NAME}"
    try:
        claimed = runner.run(
            whole(["sh", "-c", _CLAIM, "sh", directory, file], record.text()),
            stdin=record.text(),
            deadline=DEADLINE_SECONDS,
            check=False,
        )
        if claimed.status != 0:
            raise _not_claimed(runner, file, claimed.stderr)
        yield _apply(runner, settings, before)
    finally:
        with cleaning_up():
            # Another process restores the settings that it holds itself.
            if _stored(runner, file, record) == record:
                _restore(runner, file, record)


def left_over(runner: Runner, *, directory: str = LEASE_DIRECTORY) -> SettingsRecord | None:
    """The record of settings that were not restored on the host or are still held; None if there is no record."""
    return _stored(runner, f"{directory}/{RECORD_NAME}", None)


def restore(runner: Runner, record: SettingsRecord, *, directory: str = LEASE_DIRECTORY) -> None:
    """Restore the settings that a process left. Raises HostError with the name of each file that was not restored."""
    with cleaning_up():
        _restore(runner, f"{directory}/{RECORD_NAME}", record)


def held_already(host: str, record: SettingsRecord) -> HostError:
    """The error for settings that another process holds: it may restore them in the middle of a measurement."""
    return HostError(
        f"{host}: {record.holder} has already changed settings; nothing was changed now",
        hint="end that process; if it has already ended: virt-overhead doctor --restore",
    )


def _apply(runner: Runner, settings: Sequence[Tunable], before: dict[str, str]) -> Tuning:
    now = _write(runner, settings)
    changed = tuple(
        ChangedSetting(setting.path, before[setting.path], setting.value)
        for setting in settings
        if now.get(setting.path, ("", ""))[0] == setting.value != before.get(setting.path)
    )
    refused = tuple(
        f"{setting.path} is still {value}" + (f": {error}" if error else "")
        for setting in settings
        for value, error in [now.get(setting.path, ("unchanged", "it no longer exists"))]
        if value != setting.value
    )
    return Tuning(changed, refused)


def _restore(runner: Runner, file: str, record: SettingsRecord) -> None:
    try:
        now = _write(runner, record.before)
        left = [setting for setting in record.before if now.get(setting.path, (setting.value, ""))[0] != setting.value]
        if left:
            rest = replace(record, before=tuple(left)).text()
            replacing = whole(["sh", "-c", _REPLACE, "sh", file], rest)
            runner.run(replacing, stdin=rest, deadline=DEADLINE_SECONDS)
        else:
            runner.run(["rm", "-f", file], deadline=DEADLINE_SECONDS)
    except HostError as error:
        raise _not_restored(runner, error.message, record.before) from error
    if left:
        lines = [f"{setting.path} is still {' '.join(now[setting.path]).strip()}" for setting in left]
        raise _not_restored(runner, "; ".join(lines), left)


def _read(runner: Runner, paths: Sequence[str]) -> dict[str, str]:
    printed = runner.run(["sh", "-c", _READ], stdin=_lines(paths), deadline=DEADLINE_SECONDS).stdout
    with reading(f"{runner.name}: its settings"):
        return dict(line.split("\t", 1) for line in printed.splitlines())


def _write(runner: Runner, settings: Sequence[Tunable]) -> dict[str, tuple[str, str]]:
    """For each file that exists: its value afterwards, and the kernel's error if it refused."""
    lines = _lines([f"{setting.path}\t{setting.value}" for setting in settings])
    printed = runner.run(whole(["sh", "-c", _WRITE], lines), stdin=lines, deadline=DEADLINE_SECONDS).stdout
    with reading(f"{runner.name}: its settings"):
        return {path: (value, why) for path, value, why in (line.split("\t", 2) for line in printed.splitlines())}


def _lines(words: Sequence[str]) -> str:
    return "".join(f"{word}\n" for word in words)


def _stored(runner: Runner, file: str, ours: SettingsRecord | None) -> SettingsRecord | None:
    """The record on the host. `ours` is the record that may not have been restored if the host does not answer."""
    try:
        return SettingsRecord.parse(runner.run(["cat", file], deadline=DEADLINE_SECONDS, check=False).stdout)
    except HostError as error:
        if ours is None:
            raise
        raise _not_restored(runner, error.message, ours.before) from error


def _not_claimed(runner: Runner, file: str, reason: str) -> HostError:
    holder = _stored(runner, file, None)
    if holder is None:
        return HostError(
            f"{runner.name}: no setting was changed, because the old values cannot be stored: {reason.strip()}",
            hint=f"free space for {file}, or remove what is in its place",
        )
    return held_already(runner.name, holder)


def _not_restored(runner: Runner, why: str, settings: Sequence[Tunable]) -> HostError:
    by_hand = "\n     ".join(f"echo {setting.value} > {setting.path}" for setting in settings)
    return HostError(
        f"{runner.name}: settings were not restored: {why}",
        hint=f"try: virt-overhead doctor --restore; or restore them on {runner.name}:\n     {by_hand}",
    )
