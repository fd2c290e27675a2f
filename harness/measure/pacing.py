"""Runs fio on one machine by a timetable: one process with a job for each slice, and each slice starts on time.

fio itself starts a delayed job only when it next looks, every 0.1 s. So fio creates each job early, and the job waits
in its `exec_prerun` command for a line from the pacing script. In the embedded lab, slices then start 10 to 40 ms after
their planned time. With a process for each slice, 0.43 s more pass there between two slices, and 1.5 s with a job for
`fio --server`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.lab.paths import LEASE_DIRECTORY, MARK
from harness.lab.transport.base import Completed, Runner

PIPES = 6
"""Jobs that may wait at the same time, each at a pipe of its own."""
_DEADLINE = 20.0

# $1: a new directory for the pipes. Standard input: a line of starts TIME:PIPE:PROCESSES, with the time in hundredths
# of a second of /proc/uptime, then fio's job file. The script uses only what busybox has, and starts few programs:
# in an emulated guest, each takes 10 ms. It keeps the pipes open, so that a line waits for its job if fio is late.
# A shell handles a signal only while it waits for a program in the background. First it removes what killed runs left.
#
# The first job notes when it waits. After fio has succeeded, the script prints that on standard error.
_PACE = r"""
directory=$1; shift
trap 'exit 143' TERM INT HUP
for old in "${directory%/*}"/pacing-*; do
    if read -r pid 2>/dev/null <"$old/pid" && ! kill -0 "$pid" 2>/dev/null; then rm -rf "$old"; fi
done
mkdir -p "${directory%/*}" && mkdir "$directory" || exit 1
trap 'kill $fio $nap 2>/dev/null; cd /; rm -rf "$directory"' EXIT
cd "$directory" && echo $$ >pid || exit 1
mkfifo go3 go4 go5 go6 go7 go8 || exit 1
exec 3<>go3 4<>go4 5<>go5 6<>go6 7<>go7 8<>go8
read -r starts
exec 9<&0
"$@" <&9 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9<&- &
fio=$!
for start in $starts; do
    processes=${start##*:} start=${start%:*}
    pipe=${start##*:} start=${start%:*}
    read -r now _ </proc/uptime
    left=$((start - ${now%.*}${now#*.}))
    if [ $left -gt 0 ]; then
        part=00$((left % 100))
        sleep "$((left / 100)).${part#"${part%??}"}" >/dev/null 2>&1 &
        nap=$!
        wait $nap
        nap=
    fi
    kill -0 $fio 2>/dev/null || break
    while [ $processes -gt 0 ]; do echo >&$pipe; processes=$((processes - 1)); done
done
wait $fio || exit
if read -r ready _ <ready; then echo "fio was ready at $ready" >&2; fi
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
    """fio on one machine with the starts of its jobs. `directory` holds the pipes while it runs."""

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
        return waits(number)

    def stdin(self, job_file: str) -> str:
        """The standard input of the command: the starts, then fio's job file."""
        starts = (f"{start.at * 100:.0f}:{pipe_of(i)}:{start.processes}" for i, start in enumerate(self.starts))
        return f"{' '.join(starts)}\n{job_file}"

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


def pipe_of(number: int) -> int:
    """The pipe at which the job with this number waits, which is also the number of the script's open file."""
    return 3 + number % PIPES


def waits(number: int) -> str:
    """fio's option for the job with this number: it waits for its start when everything else is ready."""
    note = "" if number else "cat /proc/uptime >ready && "
    return f"exec_prerun={note}read go <go{pipe_of(number)}"


def without_waits(output: str) -> str:
    """fio's output without the lines in which it says that a job runs its `exec_prerun` command."""
    return "".join(line for line in output.splitlines(keepends=True) if " : Saving output of prerun in " not in line)
