marked() { grep -qzxF "$mark" "/proc/$1/environ" 2>/dev/null; }
mark=$1 done=absent
for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    marked "$pid" || continue
    kill -KILL "$pid" 2>/dev/null
    done=removed
    for _ in $(seq 100); do marked "$pid" || break; sleep 0.1; done
    ! marked "$pid" || { echo "process $pid does not end: it waits for a device" >&2; exit 1; }
done
echo "$done"
