"""Limits that the host's kernel applies to a guest's I/O: those of the control groups of its process."""

from __future__ import annotations

from collections import defaultdict

from harness.lab.transport.base import Runner
from harness.model.effective import Effective
from harness.model.throttle import NO_LIMIT
from harness.shipped import read_script
from harness.untrusted import reading

_LOOK = read_script("harness.guest", "read_io_limits.sh")


def read_io_limit(runner: Runner, pid_file: str, path: str) -> Effective:
    """The limits for the disk at `path` (a device or a file) of the process with the id in `pid_file`.

    Raises HostError if there is no such process, or its control groups cannot be read.
    """
    printed = runner.run(["sh", "-s", "--", pid_file, path], stdin=_LOOK, deadline=60).stdout
    with reading(f"{runner.name}: the limits of I/O of QEMU's control group ({pid_file})"):
        return Effective(host_io_limit=parse_io_limit(printed))


def parse_io_limit(printed: str) -> str | None:
    """The limits, from the output of the script; None if no control group can be read.

    Of several limits, the kernel applies all, so all are shown. If the devices below the disk are not known, every
    limit is. Raises ValueError for other output.
    """
    lines = [line.split() for line in printed.splitlines()]
    if ["known"] not in lines:
        return None
    below = {line[1] for line in lines if line[:1] == ["device"]}
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for word, *rest in lines:
        if word == "limit":
            device, *settings = rest
            if not below or device in below:
                found[device] |= dict.fromkeys(setting for setting in settings if not setting.endswith("=max"))
    return "; ".join(f"{device} {' '.join(settings)}" for device, settings in found.items() if settings) or NO_LIMIT
