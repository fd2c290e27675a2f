"""Runs fio on one machine by a timetable: one process with a job for each slice, and each slice starts on time.

fio itself starts a delayed job only when it next looks, every 0.1 s. So fio creates each job early, and the job sleeps
in its `exec_prerun` command until its time. In the embedded lab on a slow machine, it then starts 20 to 90 ms late.
With a process for each slice, 0.43 s more pass there between two slices, and 1.5 s with a job for `fio --server`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.lab.paths import LEASE_DIRECTORY, MARK
from harness.lab.transport.base import Completed, Runner

_DEADLINE = 20.0

# $1: a new directory. Then fio's command. Standard input: fio's job file. The script uses only what busybox has.
# A shell handles a signal only while it waits for a program in the background. First it removes what killed runs left.
# fio ends only when no job of it waits any more, so a signal also ends the commands in which they wait: its children.
#
# wait_until is the command of each job. $1 is its start, in hundredths of a second of /proc/uptime. When the time has
# come, only one program must wake up and end: each takes 20 ms in an emulated guest. The first job notes when it waits.
# After fio has succeeded, the script prints that on standard error.
_PACE = r"""
directory=$1 fio=; shift
stop() {
    [ -n "$fio" ] && kill $fio || return
    for stat in /proc/[0-9]*/stat; do
        read -r line <"$stat" || continue
        set -- ${line##*) }
        [ "$2" != $fio ] || kill "${line%% *}"
    done
}
trap 'stop 2>/dev/null; exit 143' TERM INT HUP
for old in "${directory%/*}"/pacing-*; do
    if read -r pid 2>/dev/null <"$old/pid" && ! kill -0 "$pid" 2>/dev/null; then rm -rf "$old"; fi
done
mkdir -p "${directory%/*}" && mkdir "$directory" || exit 1
trap 'cd /; rm -rf "$directory"' EXIT
cd "$directory" && echo $$ >pid || exit 1
cat >wait_until <<'END' || exit 1
read -r now _ </proc/uptime
[ -e ready ] || echo "$now" >ready
left=$(($1 - ${now%.*}${now#*.}))
[ $left -gt 0 ] || exit 0
part=00$((left % 100))
exec sleep "$((left / 100)).${part#"${part%??}"}"
END
exec 9<&0
"$@" <&9 9<&- &
fio=$!
wait $fio || exit
if read -r ready <ready; then echo "fio was ready at $ready" >&2; fi
"""

_READY = re.compile(r"^fio was ready at (\d+\.\d+)$", re.MULTILINE)

# It may not have started yet.
_STOP = r"""
for try in 1 2 3 4 5 6 7 8 9 10; do
    if read -r pid 2>/dev/null <"$1/pid"; then kill "$pid"; break; fi
    sleep 0.2
done
"""


@dataclass(frozen=True, slots=True)
class Start:
    """The start of one job: `at` in seconds of the machine's uptime, and the number of its processes."""

    at: float
    processes: int


@dataclass(frozen=True, slots=True)
class Pacing:
    """fio on one machine with the starts of its jobs. `directory` exists while it runs."""

    directory: str
    fio: tuple[str, ...]
    starts: tuple[Start, ...]

    @classmethod
    def of(cls, token: str, fio: Sequence[str], starts: Sequence[Start]) -> Pacing:
        """`token` is part of the name of the directory, and unique in this process."""
        process = MARK[-8:]
        return cls(f"{LEASE_DIRECTORY}/pacing-{token}-{process}", tuple(fio), tuple(starts))

    @property
    def argv(self) -> tuple[str, ...]:
        return ("env", MARK, "sh", "-c", _PACE, "sh", self.directory, *self.fio)

    def waits(self, number: int) -> str:
        return f"exec_prerun=exec sh wait_until {self.starts[number].at * 100:.0f}"

    def stdin(self, job_file: str) -> str:
        return job_file

    def run(self, run: Callable[..., Completed], job_file: str, *, deadline: float) -> Completed:
        """Run it with `run`, which is called as `Runner.run`. Any exit status is accepted."""
        return run(self.argv, stdin=self.stdin(job_file), deadline=deadline, check=False)

    def ready(self, done: Completed) -> float | None:
        """The machine's uptime at which fio's first job waited for its start. None if it was not noted."""
        found = _READY.search(done.stderr)
        return float(found[1]) if found else None

    def stop(self, runner: Runner) -> None:
        """End it on the machine, if it runs there. Raises HostError."""
        runner.run(["sh", "-c", _STOP, "sh", self.directory], deadline=_DEADLINE, check=False)


def without_waits(output: str) -> str:
    """fio's output without the lines in which it says that a job runs its `exec_prerun` command."""
    return "".join(line for line in output.splitlines(keepends=True) if " : Saving output of prerun in " not in line)
