"""The scripts of the process that holds a host's lease on the host itself."""

from __future__ import annotations

PROGRAMS = ("bash", "flock", "stat")
"""What HOLD needs on the host: Debian and its relatives have them always."""

# bash, since its `read` has a timeout: a heartbeat costs a host that is being measured not a single new process.
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
"""Followed by HOLD, the words of PROGRAMS in one, and HOLD's own arguments."""

# $1: the directory, $2: seconds of silence, $3: who takes the lease, $4: when. Its first line is one of
#   held PID START | busy HOLDER | refused WHY | missing PROGRAM
# then it prints every line that it reads, and, where it can, as its last line `over WHY`.
# The lock is on the directory: its file is for people, and is replaced and removed under the lock alone. flock waits
# for a moment, since a doctor that asks whether the lock is free holds it for as long as that takes.
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
chmod 0700 . || refuse "$directory keeps its mode"
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
    [ $status -le 128 ] || over "the host heard nothing of this run for $silence s"
    [ $status -eq 0 ] || exit
    same || over "$directory was replaced on the host"
    echo "$beat"
done
"""

# The line of the file tells the holder from earlier ones, and the process that has the directory open as its lock shows
# that the file is not a dead run's.
FENCE = (
    "{{ {{ read -r holder && read -r process; }} 2>/dev/null <{directory}/lease"
    " && [ \"$process\" = '{process}' ] && [ /proc/{pid}/fd/9 -ef {directory} ]; }}"
)
"""A shell condition that is true on the host while the process holds the lease. `process`: its PID and START."""

# $1: the directory. Prints `free`, `ended HOLDER`, or why not. The process that is ended is one that has the locked
# directory open as its lock, whoever has that number by now.
END = r"""
export LC_ALL=C
[ -e "$1" ] || { echo free; exit; }
cd "$1" && exec 9<. || exit
if flock --shared --nonblock 9; then echo free; exit; fi
{ read -r holder && read -r pid start; } 2>/dev/null <lease || { echo "it has not written its name"; exit; }
read -r stat 2>/dev/null </proc/"$pid"/stat
set -- ${stat##*) }
[ "/proc/$pid/fd/9" -ef . ] && [ "${20}" = "$start" ] || { echo "$holder: its process is not seen there"; exit; }
kill "$pid"
for pause in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ "/proc/$pid/fd/9" -ef . ] || { echo "ended $holder"; exit; }
    [ "$pause" -ne 10 ] || kill -KILL "$pid"
    sleep 0.1
done
echo "$holder: its process does not end"
"""
