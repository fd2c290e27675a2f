"""The record of settings that were changed on a host. It stays on the host until they are restored."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass

from harness.doctor.findings import Setting
from harness.errors import HostError
from harness.lab.lease import start_ticks
from harness.lab.paths import LEASE_DIRECTORY
from harness.untrusted import parse_json, reading

RECORD_NAME = "tuned"
# On a file system that is emptied at a reboot, because a reboot also resets sysfs.
RECORD_FILE = f"{LEASE_DIRECTORY}/{RECORD_NAME}"


@dataclass(frozen=True, slots=True)
class Record:
    """The process that changed settings, and their old values in the order in which to restore them.

    `started` is the start time of the process in ticks since boot. It distinguishes it from a later process with the
    same id.
    """

    machine: str
    pid: int
    started: str
    before: tuple[Setting, ...]

    @classmethod
    def of_this_process(cls, before: tuple[Setting, ...]) -> Record:
        return cls(socket.gethostname(), os.getpid(), start_ticks(os.getpid()), before)

    @classmethod
    def parse(cls, text: str) -> Record | None:
        """The record that was written as `text`; None for any other text."""
        try:
            with reading(RECORD_FILE):
                found = parse_json(text, RECORD_FILE)
                before = tuple(Setting(path, value) for path, value in found["before"])
                record = cls(found["machine"], found["pid"], found["started"], before)
                return record if record._is_plain else None
        except HostError:
            return None

    def text(self) -> str:
        before = [[setting.path, setting.value] for setting in self.before]
        record = {"machine": self.machine, "pid": self.pid, "started": self.started, "before": before}
        return json.dumps(record, indent=1) + "\n"

    @property
    def _is_plain(self) -> bool:
        texts = [self.machine, self.started, *(text for each in self.before for text in (each.path, each.value))]
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
