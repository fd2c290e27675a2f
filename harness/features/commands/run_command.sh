# Runs a command in a directory of a file system on a device or in a file, in namespaces of its own.
# $1: the mark of processes that measure, $2: the mount point, $3: seconds after which all of it is killed from outside,
# then what the part inside gets. Program and command are in the environment (SYNCLOAD, COMMAND) if the arguments are empty.
# Prints `STATUS SECONDS LOOPS CPUS PRINTED WRITTEN FETCHED READ` and, from the second line on, what the command printed.
# LOOPS: per second of `syncload cpu` after it. CPUS: of the machine. Then bytes. PRINTED: by the command, of which only
# the beginning may follow. WRITTEN, FETCHED: to the device and from it. READ: by the command's processes, from wherever.
# Status 125: nothing was run.
set -u
# shellcheck disable=SC2163 # the name and the value are in it
export "$1"
point=$2 limit=$3
shift 3
mkdir -p "$point" || exit
inside=$(cat <<'INSIDE'
point=$1 device=$2 filesystem=$3 options=$4 directory=$5 seconds=$6 most=$7 syncload=${8:-${SYNCLOAD-}} control=$9
shift 9
command=${1:-${COMMAND-}}
unset SYNCLOAD COMMAND
fail() { echo "125 0"; echo "$1"; exit; }
count_sectors() { awk '{ print $7, $3 }' "/sys/class/block/$name/stat" 2>/dev/null; }
# Those of processes that have ended and were waited for are added to the first process.
count_read() { awk '$1 == "rchar:" { print $2 }' /proc/1/io 2>/dev/null; }
# The first process of a namespace of its own: what follows would otherwise end and mount for the whole machine.
[ $$ = 1 ] || fail "there are no namespaces"
mount --make-rprivate / 2>/dev/null
mount -t proc proc /proc || fail "there are no namespaces"
# A command that prints more than there is room for gets an error.
mount -t tmpfs -o "size=$((most + 65536))" tmpfs "$point" && mkdir "$point/volume" "$point/bin" ||
    fail "there are no namespaces"
if [ -n "$syncload" ]; then
    echo "$syncload" | base64 -d >"$point/bin/syncload" && chmod +x "$point/bin/syncload" || fail "no room for syncload"
fi
# Others have the device open, so the kernel keeps what it read of it for the mount before.
[ -f "$device" ] || blockdev --flushbufs "$device" 2>/dev/null
if [ -r /lib/modules/filesystems ] && ! grep -qw "$filesystem" /proc/filesystems; then
    while read -r module; do insmod "/lib/modules/$module" 2>/dev/null; done </lib/modules/filesystems
fi
# The kernel detaches the loop device of this option with the file system, also if everything here is killed.
loop=
[ ! -f "$device" ] || loop=loop,
name=$(readlink -f "$device") name=${name##*/}
mounted=$(mount -t "$filesystem" -o "$loop${options:-rw}" "$device" "$point/volume" 2>&1) ||
    fail "$filesystem cannot be mounted: $mounted"
if [ -n "$loop" ]; then
    device=$(awk -v at="$point/volume" '$2 == at { print $1 }' /proc/mounts) name=${device##*/}
    # Its counter is read after the file system is unmounted.
    exec 7<"$device" && direct=$(losetup --direct-io=on "$device" 2>&1) || fail "no direct I/O on $device: $direct"
fi
sectors=$(count_sectors)
# With more processes than MiB of memory, a small guest would not respond any more. A guest without control groups has
# no limit; a host has those of its owner.
group=
if [ "$directory" = guest ] && mkdir "$point/groups" && mount -t cgroup2 cgroup2 "$point/groups" &&
    echo +pids >"$point/groups/cgroup.subtree_control" && mkdir -p "$point/groups/virt-overhead" &&
    awk '/^MemTotal/ { print int($2 / 1024) }' /proc/meminfo >"$point/groups/virt-overhead/pids.max"; then
    group=$point/groups/virt-overhead
fi 2>/dev/null
mkdir -p "$point/volume/$directory" && cd "$point/volume/$directory" || fail "no directory $directory"
read_before=$(count_read)
read -r begun _ </proc/uptime
# It gets none of the files that are open here: one of them is the device.
# If the memory is exhausted, the kernel ends its processes first. A small guest may not respond again in time.
first='echo 1000 >/proc/self/oom_score_adj; [ -z "$2" ] || echo 0 >"$2/cgroup.procs"; exec sh -c "$1"'
PATH=$point/bin:$PATH timeout -s KILL "$seconds" sh -c "$first" sh "$command" "$group" </dev/null >"$point/output" 2>&1 \
    3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-
status=$?
read -r ended _ </proc/uptime
cd /
kill -s KILL -- -1 2>/dev/null
read_after=$(count_read)
loops=-
[ $status != 0 ] || [ "$control" = 0 ] || loops=$("$point/bin/syncload" cpu "$control" | sed -n 's/^LOOPS.*: //p')
for _ in 1 2 3 4 5 6 7 8 9 10; do umount "$point/volume" 2>/dev/null && break; sleep 0.5; done
[ -z "$group" ] || rmdir "$group" 2>/dev/null
seconds=$(echo "$begun $ended" | awk '{ printf "%.2f", $2 - $1 }')
[ -z "$read_before" ] || [ -z "$read_after" ] || bytes=$((read_after - read_before))
moved=$(echo "$sectors $(count_sectors)" | awk 'NF == 4 { printf "%.0f %.0f", 512 * ($3 - $1), 512 * ($4 - $2) }')
cpus=$(grep -c ^processor /proc/cpuinfo) printed=$(wc -c <"$point/output")
echo "$status $seconds ${loops:--} $cpus $printed ${moved:-- -} ${bytes:--}"
head -c "$most" "$point/output"
INSIDE
)
# A command can stop what would end it inside of its namespace, but nothing outside.
(
    sleep "$limit"
    for parent in $(cat "/proc/$$/task/$$/children"); do
        for child in $(cat "/proc/$parent/task/$parent/children"); do kill -s KILL "$child"; done
    done
) >/dev/null 2>&1 &
outside=$!
unshare -m -p -f sh -c "$inside" sh "$point" "$@" </dev/null || echo "137 $limit"
# shellcheck disable=SC2046 # a list of processes
kill $(cat "/proc/$outside/task/$outside/children") "$outside" 2>/dev/null
wait 2>/dev/null
