"""Tests one case on a real device: the guard refuses, nothing is written, and without the case it accepts the disk."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import repeat

import pytest

from harness.errors import SafetyError
from harness.lab.guard import inspect, require_writable
from harness.lab.inventory import DiskSpec
from harness.lab.transport.base import Runner
from harness.signals import Deadline, attempts
from tests.patience import patience
from tests.refusals.catalogue import Case

_PATH = 'export LC_ALL=C HOME="${HOME:-/root}" PATH="$PATH:/usr/sbin:/sbin"\n'
# Sectors that cannot be read are part of the checksum.
_CHECKSUM = 'dd if="$1" bs=4K count={blocks} conv=noerror,sync status=none 2>/dev/null | cksum'
_BLANK = """
wipefs --all --quiet "$1"
dd if=/dev/zero of="$1" bs=1M conv=notrunc,fsync status=none 2>/dev/null
blockdev --rereadpt "$1" 2>/dev/null
! command -v udevadm >/dev/null || udevadm settle --timeout=20
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """A device of a host for the tests: its kernel path, the link to it, and its entry in the lab file."""

    runner: Runner
    device: str
    link: str
    spec: DiskSpec
    directory: str
    """An empty directory on the host, for the cases."""

    def lacking(self, case: Case) -> list[str]:
        """The programs of the case that the host does not have."""
        ask = _PATH + "for tool; do command -v $tool >/dev/null || echo $tool; done"
        return self.runner.run(["sh", "-c", ask, "sh", *case.needs], deadline=30).stdout.split()

    def refused(self, case: Case) -> str:
        """The guard's reasons to refuse the disk of the case, with placeholders for names."""
        place = f"{self.directory}/case"
        self._sh('rm -rf "$2" && mkdir -p "$2"', place)
        try:
            self._sh(case.prepare, place)
            checksum = _CHECKSUM.format(blocks=case.unchanged // 4096)
            before = self._sh(checksum, place)
            refusal = self._refusal()
            assert self._sh(checksum, place) == before, "the disk has changed"
        finally:
            self._sh(case.undo or "true", place)
            self._sh(_BLANK, place)
        self._require_accepted()
        reasons = refusal.message.partition("will not be written to: ")[2]
        name = self.device.rpartition("/")[2]
        general = reasons.replace(place, "DIRECTORY").replace(self.link, "LINK").replace(self.device, "DISK")
        return general.replace(name, "DISK")

    def _require_accepted(self) -> None:
        """Raises SafetyError if the guard goes on to refuse the disk without the case.

        It does so for a moment if another process made a mount namespace meanwhile, with a copy of the mount.
        """
        deadline = Deadline.after(patience(10))
        for attempt in attempts(deadline, repeat(0.5)):
            try:
                require_writable(self.runner, self.spec, self.link)
            except SafetyError:
                if attempt.is_last:
                    raise
            else:
                return

    def _refusal(self) -> SafetyError:
        try:
            require_writable(self.runner, self.spec, self.link)
        except SafetyError as error:
            return error
        pytest.fail(f"the guard accepted it; another inspection shows {inspect(self.runner, self.link)}")

    def _sh(self, script: str, place: str) -> str:
        words = ["sh", "-c", _PATH + script, "sh", self.device, place, self.link]
        done = self.runner.run(words, deadline=120, check=False)
        assert done.status == 0 or script == _BLANK, f"{shlex.join(words[3:])}: {done.stderr}"
        return done.stdout
