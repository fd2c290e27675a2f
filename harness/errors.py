"""The exception tree: every error says what happened, where, and what to do next."""

from __future__ import annotations

from harness.terminal import clean

_LONGEST = 8000
"""Characters of a message. Messages quote the output of programs, which may be megabytes without a line break."""


class HarnessError(Exception):
    """A failure that the harness explains: `message` says what happened and where, `hint` what to do next."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        if len(message) > _LONGEST:
            left_out = f" [{len(message) - _LONGEST} characters left out] "
            message = message[: _LONGEST // 2] + left_out + message[-_LONGEST // 2 :]
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def with_hint(self) -> str:
        """Message and hint in one line, for a record of what was not measured."""
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __str__(self) -> str:
        """The message and the hint, without control characters: messages quote hosts, guests and files."""
        return clean(f"{self.message}\n  -> {self.hint}" if self.hint else self.message)


class ConfigError(HarnessError):
    """A scenario, lab file or option cannot be used. The message names the file and the key."""


class Unsupported(HarnessError):
    """The host lacks what a mode needs (no device-mapper, no iothreads): the cell is skipped."""


class LabUnavailable(HarnessError):
    """The lab cannot be reached or brought up: cells are skipped, or fail under --require-lab."""


class NotReached(LabUnavailable):
    """The host could not be reached: it is down, or its address or key is wrong."""


class SafetyError(HarnessError):
    """A write might destroy data that the run did not create: the run stops and nothing is retried."""


class HostError(HarnessError):
    """A command on a host failed or ran past its deadline."""


class GuestError(HarnessError):
    """The guest did not start, did not answer or died. From then on it counts as broken."""


class NotTried(HarnessError):
    """The cell is skipped, because measuring on its host stopped before."""


class MeasurementError(HarnessError):
    """fio failed, or its output is not a valid result."""


class ResultsError(HarnessError):
    """A stored run cannot be read or written."""
