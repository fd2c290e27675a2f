# Runs a command in a directory of a file system on a device or in a file, in namespaces of its own.
# $1: the mark of processes that measure, $2: the mount point, then what run_inside gets.
# Prints `STATUS SECONDS` and, from the second line on, what the command printed. Status 125: nothing was run.
set -u
mark=$1 point=$2
shift 2
mkdir -p "$point" || exit
inside=$(cat <<'INSIDE'
point=$1 device=$2 filesystem=$3 options=$4 directory=$5 seconds=$6 most=$7 command=$8
fail() { echo "125 0"; echo "$1"; exit; }
# The first process of a name space of its own: what follows would otherwise end and mount for the whole machine.
[ $$ = 1 ] || fail "there are no namespaces"
mount --make-rprivate / 2>/dev/null
mount -t proc proc /proc || fail "there are no namespaces"
loop=
if [ -f "$device" ]; then
    loop=$(losetup --find --show --direct-io=on "$device" 2>&1) || fail "no loop device for $device: $loop"
    device=$loop
fi
# A command that prints more than there is room for gets an error.
mount -t tmpfs -o "size=$most" tmpfs "$point" && mkdir "$point/volume" || fail "there are no namespaces"
# Others have the device open, so the kernel keeps what it read of it for the mount before.
blockdev --flushbufs "$device" 2>/dev/null
if [ -r /lib/modules/filesystems ] && ! grep -qw "$filesystem" /proc/filesystems; then
    while read -r module; do insmod "/lib/modules/$module" 2>/dev/null; done </lib/modules/filesystems
fi
mounted=$(mount -t "$filesystem" -o "${options:-rw}" "$device" "$point/volume" 2>&1)
status=$?
# It is detached when the file system is unmounted.
[ -z "$loop" ] || losetup -d "$loop"
[ $status = 0 ] || fail "$filesystem cannot be mounted: $mounted"
mkdir -p "$point/volume/$directory" && cd "$point/volume/$directory" || fail "no directory $directory"
read -r begun _ </proc/uptime
timeout -s KILL "$seconds" sh -c "$command" </dev/null >"$point/output" 2>&1
status=$?
read -r ended _ </proc/uptime
cd /
kill -s KILL -- -1 2>/dev/null
echo "$status $(echo "$begun $ended" | awk '{ printf "%.2f", $2 - $1 }')"
cat "$point/output"
for _ in 1 2 3 4 5 6 7 8 9 10; do umount "$point/volume" 2>/dev/null && exit; sleep 0.5; done
INSIDE
)
exec env "$mark" unshare -m -p -f sh -c "$inside" sh "$point" "$@"
