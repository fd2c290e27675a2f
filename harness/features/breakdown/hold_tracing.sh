# $1: the directory of tracefs, $2: the name of the instance, $3: KiB of the buffer of a CPU, $4: the filter of the
# block events, then the events. Mounts tracefs for this time if it is not mounted. Prints a line with the events that
# the kernel has. Then each line NUMBER STATE switches them on (1) or off (0), and the answer is NUMBER or why not. It
# removes the instance when standard input ends.
#
# With an event that is on, the kernel also notes the names of programs at each change between programs and at each
# wake-up, of which an I/O has several. A trace needs no names here. An instance has the option record-cmd of the top
# level at the moment at which it is made (trace_array_create_dir in kernel/trace/trace.c), so it is off then.
export PATH="$PATH:/usr/sbin:/sbin"
tracing=$1 instance=$1/instances/$2 kib=$3 filter=$4 names=$1/options/record-cmd
shift 4
made= mounted= named=
end() {
    trap '' HUP INT TERM
    [ "$named" != 1 ] || echo 1 >"$names"
    [ -z "$made" ] || rmdir "$instance"
    [ -z "$mounted" ] || umount "$tracing"
}
trap end EXIT
trap 'exit 1' HUP INT TERM
if [ ! -d "$tracing/events" ]; then mount -t tracefs tracefs "$tracing" 2>/dev/null && mounted=1; fi
[ -d "$tracing/events/block" ] || { echo "missing"; exit 1; }
read -r named <"$names"
[ "$named" != 1 ] || echo 0 >"$names"
mkdir "$instance" && made=1
[ "$named" != 1 ] || echo 1 >"$names"
named=
[ -n "$made" ] || exit 1
cpus=$(grep -c '^processor' /proc/cpuinfo)
most=MOST_CPUS
[ "$cpus" -le "$most" ] || kib=$((kib * most / cpus))
echo boot >"$instance/trace_clock" || exit 1
echo "$kib" >"$instance/buffer_size_kb" || exit 1
echo 0 >"$instance/options/overwrite"
had=
for event; do
    [ -d "$instance/events/$event" ] || continue
    case $event in block/*) echo "$filter" >"$instance/events/$event/filter" || exit 1;; esac
    had="$had $event"
done
echo "ready$had"
while read -r number state; do
    for event in $had; do echo "$state" >"$instance/events/$event/enable" || exit 1; done
    echo "$number"
done
