"""Whether a process that a test started has ended."""

from __future__ import annotations

from pathlib import Path

from harness.signals import wait_until

_SECONDS = 300.0


def has_ended(pid: int) -> bool:
    """Whether the process has ended. One that nobody has waited for remains as a zombie, which counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def ends(pid: int) -> bool:
    """Whether the process ends soon. A signal is sent at once, but the process needs a moment to end."""
    return wait_until(lambda: has_ended(pid), deadline=_SECONDS, every=0.01)
