"""Settings of a host that are held for a while: changed, recorded there, and restored.

The record of the old values stays on the host until they are restored, so another process can do that if this one is
killed: `virt-overhead doctor --restore`.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.errors import HostError
from harness.files import read_script
from harness.lab.lease import start_ticks
from harness.lab.pin import LEASE_DIRECTORY
from harness.lab.transport.base import Runner, whole
from harness.model.mode import HostSetting
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
    def parse(cls, text: str, root: str = "") -> SettingsRecord | None:
        """The record that was written as `text`; None for any other, or of other files. `root` is in place of `/`."""
        try:
            with reading(RECORD_FILE):
                document = parse_json(text, RECORD_FILE)
                before = tuple(Tunable(path, value) for path, value in document["before"])
                record = cls(document["machine"], document["pid"], document["started"], before)
                return record if record._is_of_settings(root) else None
        except HostError:
            return None

    def text(self) -> str:
        before = [[setting.path, setting.value] for setting in self.before]
        record = {"machine": self.machine, "pid": self.pid, "started": self.started, "before": before}
        return json.dumps(record, indent=1) + "\n"

    def _is_of_settings(self, root: str) -> bool:
        texts = [
            self.machine,
            self.started,
            *(text for setting in self.before for text in (setting.path, setting.value)),
        ]
        if type(self.pid) is not int or not all(isinstance(text, str) and "\n" not in text for text in texts):
            return False
        below = re.compile(rf"({re.escape(root)})?/(proc/)?sys/[^\t]+")
        return all(below.fullmatch(setting.path) and "/../" not in setting.path for setting in self.before)

    @property
    def holder(self) -> str:
        return f"process {self.pid} of {self.machine}"

    @property
    def is_alive(self) -> bool:
        """Whether the process is known to run still. This is unknown for a process of another machine."""
        return self.machine == socket.gethostname() and start_ticks(self.pid) == self.started


DEADLINE_SECONDS = 30.0

_CURRENT = read_script("harness.features.doctor", "current_setting.sh")
_READ = _CURRENT + read_script("harness.features.doctor", "read_settings.sh")
_WRITE = _CURRENT + read_script("harness.features.doctor", "write_settings.sh")
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
            if read_settings(runner, file, record) == record:
                _restore(runner, file, record)


def find_unsettable(runner: Runner, settings: Sequence[HostSetting]) -> str | None:
    """Which of these settings the host does not have, with the remedy; None if it has all of them."""
    for setting in settings:
        if runner.run(["test", "-w", setting.path], deadline=DEADLINE_SECONDS, check=False).status != 0:
            return f"{setting.path} cannot be set there: load the module, or correct the name in the variant"
    return None


@contextmanager
def hold_all(runner: Runner, settings: Sequence[HostSetting], *, directory: str = LEASE_DIRECTORY) -> Iterator[None]:
    """Hold settings on the host during the block, as `hold_settings`. Raises HostError also if the host refuses one."""
    wanted = [Tunable(setting.path, setting.value) for setting in settings]
    with hold_settings(runner, wanted, directory=directory) as tuning:
        if tuning.refused:
            raise HostError(
                f"{runner.name}: a setting of the variant was refused: {'; '.join(tuning.refused)}",
                hint="correct the value in the variant; the kernel's documentation lists the allowed ones",
            )
        yield


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


def read_settings(runner: Runner, file: str, ours: SettingsRecord | None = None) -> SettingsRecord | None:
    """The record of settings that are held, or were left; None without one. `ours`: what may be left if it fails."""
    try:
        text = runner.run(["cat", file], deadline=DEADLINE_SECONDS, check=False).stdout
        return SettingsRecord.parse(text, file.removesuffix(RECORD_FILE))
    except HostError as error:
        if ours is None:
            raise
        raise _not_restored(runner, error.message, ours.before) from error


def _not_claimed(runner: Runner, file: str, reason: str) -> HostError:
    holder = read_settings(runner, file)
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
