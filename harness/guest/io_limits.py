"""Limits that the host's kernel applies to a guest's I/O: those of the control groups of its process."""

from __future__ import annotations

from collections import defaultdict

from harness.lab.transport.base import Runner
from harness.model.effective import Effective
from harness.model.throttle import NO_LIMIT
from harness.untrusted import reading

# $1: the file with the process's id, $2: the disk's device or file. Prints the numbers of the devices below the disk,
# and each limit of the process's control groups, of version 2 (io.max) and of version 1 (blkio).
_LOOK = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
pid=$(cat "$1") || exit 1
from=$2
[ -b "$from" ] || from=$(findmnt -n -o SOURCE -T "$from")
lsblk -s -n -o MAJ:MIN "$from" 2>/dev/null | sed 's/^ */device /'
while IFS=: read -r _ controllers path; do
    at=
    case ",$controllers," in
    ,,) at=/sys/fs/cgroup ;;
    *,blkio,*) at=/sys/fs/cgroup/blkio ;;
    esac
    [ -n "$at" ] && [ -d "$at$path" ] || continue
    echo known
    while :; do
        sed 's/^/limit /' "$at$path/io.max" 2>/dev/null
        for name in read_iops read_bps write_iops write_bps; do
            file=$at$path/blkio.throttle.${name}_device
            sed "s/ / ${name%${name#?}}${name#*_}=/; s/^/limit /" "$file" 2>/dev/null
        done
        [ -n "${path#/}" ] || break
        path=${path%/*}
    done
done <"/proc/$pid/cgroup"
exit 0
"""


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
