"""The scripts of the process on a host that holds the host's lease."""

from __future__ import annotations

from harness.shipped import read_script

PROGRAMS = ("bash", "flock", "stat")
"""The programs that HOLD needs on the host. Debian and its derivatives always have them."""

# bash, because its `read` has a timeout. So a heartbeat starts no process on a host that is being measured.
START = (
    "sh",
    "-c",
    """
PATH="$PATH:/usr/sbin:/sbin"
for program in $1; do command -v "$program" >/dev/null || { echo "missing $program"; exit 1; }; done
shift
exec bash --norc -c "$0" virt-overhead-lease "$@"
""",
)
"""Its arguments: HOLD, all names of PROGRAMS in one argument, and the arguments of HOLD."""

HOLD = read_script("harness.lab", "hold_lease.bash")

# The line in the file identifies the holder. A process that has the directory open as its lock shows that the file does
# not belong to a dead run.
FENCE = (
    "{{ {{ read -r holder && read -r process; }} 2>/dev/null <{directory}/lease"
    " && [ \"$process\" = '{process}' ] && [ /proc/{pid}/fd/9 -ef {directory} ]; }}"
)
"""A shell condition that is true on the host while the process holds the lease. `process`: its PID and START."""

END = read_script("harness.lab", "end_lease_holder.sh")
