"""Programs that a run starts on a host and that continue if the run is killed: fio, perf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from harness.lab.created import HostThing

END = r"""
marked() { grep -qzxF "$mark" "/proc/$1/environ" 2>/dev/null; }
mark=$1 done=absent
for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    marked "$pid" || continue
    kill -KILL "$pid" 2>/dev/null
    done=removed
    for try in $(seq 100); do marked "$pid" || break; sleep 0.1; done
    ! marked "$pid" || { echo "process $pid does not end: it waits for a device" >&2; exit 1; }
done
echo "$done"
"""
"""Ends all processes that have the variable $1 in their environment."""


class Processes(HostThing):
    """All processes with `mark` in their environment, a variable whose value no other run has."""

    kind: Literal["processes"] = "processes"
    mark: str

    removal: ClassVar[str] = END

    @property
    def words(self) -> str:
        return "processes that measure"

    def arguments(self) -> Sequence[str]:
        return [self.mark]
