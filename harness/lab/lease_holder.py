"""The scripts of the process on a host that holds the host's lease."""

from __future__ import annotations

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

# $1: the directory, $2: seconds of silence, $3: the holder, $4: the time. Its first line is one of
#   held PID START | busy HOLDER | refused WHY | missing PROGRAM
# Then it prints every line that it reads. Its last line is `over WHY`, if it can still print it.
# The lock is on the directory. The file in it is for people, and is replaced and removed only under the lock. flock
# waits for a moment, because a doctor holds the lock for a moment to check whether it is free.
HOLD = r"""
export LC_ALL=C
directory=$1 silence=$2 holder=$3 since=$4
refuse() { echo "refused $*"; exit 1; }
same() { [ ! -L "$directory" ] && [ "$directory" -ef . ]; }
umask 077
mkdir "$directory" 2>/dev/null
[ ! -L "$directory" ] && [ -d "$directory" ] || refuse "$directory is not a directory"
cd -P "$directory" && exec 9<. && same || refuse "$directory cannot be opened"
case $(stat -c %u:%a .) in
    $EUID:7[0145][0145]) ;;
    *) refuse "$directory does not belong to user $EUID alone: $(stat -c 'owner %u, mode %a' .)" ;;
esac
chmod 0700 . || refuse "the mode of $directory cannot be changed"
flock --wait 1 --conflict-exit-code 75 9
case $? in
    0) ;;
    75)
        [ -f lease ] && [ ! -L lease ] && [ -O lease ] && read -r found <lease
        echo "busy ${found:-a run without a name so far}"
        exit 1 ;;
    *) refuse "$directory cannot be locked" ;;
esac
same || refuse "$directory was replaced meanwhile"
if [ -L lease ] || [ -e lease ]; then
    [ ! -L lease ] && [ -f lease ] && [ -O lease ] || refuse "$directory/lease is not a regular file of user $EUID"
    rm -f lease
fi
read -r -a stat </proc/$$/stat
set -C
printf '%s, since %s\n%s\n' "$holder" "$since" "$$ ${stat[21]}" >lease || refuse "$directory/lease cannot be written"
trap 'rm -f lease' EXIT
over() { echo "over $*"; exit; }
echo "held $$ ${stat[21]}"
while :; do
    read -r -t "$silence" beat
    status=$?
    [ $status -le 128 ] || over "the host received nothing from this run for $silence s"
    [ $status -eq 0 ] || exit
    same || over "$directory was replaced on the host"
    echo "$beat"
done
"""

# The line in the file identifies the holder. A process that has the directory open as its lock shows that the file does
# not belong to a dead run.
FENCE = (
    "{{ {{ read -r holder && read -r process; }} 2>/dev/null <{directory}/lease"
    " && [ \"$process\" = '{process}' ] && [ /proc/{pid}/fd/9 -ef {directory} ]; }}"
)
"""A shell condition that is true on the host while the process holds the lease. `process`: its PID and START."""

# $1: the directory. Prints `free`, `ended HOLDER`, or the reason for a failure. It ends only a process that has the
# locked directory open as its lock, because another process may have the same process id by now.
END = r"""
export LC_ALL=C
[ -e "$1" ] || { echo free; exit; }
cd "$1" && exec 9<. || exit
if flock --shared --nonblock 9; then echo free; exit; fi
{ read -r holder && read -r pid start; } 2>/dev/null <lease || { echo "the holder has no name yet"; exit; }
read -r stat 2>/dev/null </proc/"$pid"/stat
set -- ${stat##*) }
[ "/proc/$pid/fd/9" -ef . ] && [ "${20}" = "$start" ] || { echo "$holder: its process is not visible there"; exit; }
kill "$pid"
for pause in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ "/proc/$pid/fd/9" -ef . ] || { echo "ended $holder"; exit; }
    [ "$pause" -ne 10 ] || kill -KILL "$pid"
    sleep 0.1
done
echo "$holder: its process does not end"
"""
