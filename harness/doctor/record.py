"""The record of settings that were changed on a host: kept there until they are put back."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass

from harness.doctor.findings import Setting
from harness.errors import HostError
from harness.lab.identity import start_ticks
from harness.lab.paths import LEASE_DIRECTORY
from harness.untrusted import parse_json, reading

RECORD_NAME = "tuned"
# On a file system that a reboot empties, as it resets what is in sysfs.
RECORD_FILE = f"{LEASE_DIRECTORY}/{RECORD_NAME}"


@dataclass(frozen=True, slots=True)
class Record:
    """Who changed settings, and what they were before, in the order to put them back.

    `started` is the start time of the process in ticks since boot: it tells it from a later one of that number.
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
        said = {"machine": self.machine, "pid": self.pid, "started": self.started, "before": before}
        return json.dumps(said, indent=1) + "\n"

    @property
    def _is_plain(self) -> bool:
        texts = [self.machine, self.started, *(text for each in self.before for text in (each.path, each.value))]
        return type(self.pid) is int and all(isinstance(text, str) for text in texts)

    @property
    def holder(self) -> str:
        return f"process {self.pid} of {self.machine}"

    @property
    def is_alive(self) -> bool:
        """Whether who changed the settings is known to be there still; of another machine's process nothing is."""
        return self.machine == socket.gethostname() and start_ticks(self.pid) == self.started

    @property
    def is_dead(self) -> bool:
        """Whether who changed the settings is known to be gone."""
        return self.machine == socket.gethostname() and not self.is_alive
