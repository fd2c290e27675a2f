# $1: the file with the process's id, $2: the guest's memory in KiB.
# The guest's memory is the smallest mapping that is large enough for it (QEMU has larger ones under emulation).
export LC_ALL=C
pid=$(cat "$1") || exit 1
for task in "/proc/$pid/task"/*; do
    echo "thread ${task##*/} $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "$task/status")"
done
echo "process $pid $(sed -n 's/^Mems_allowed_list:[[:space:]]*//p' "/proc/$pid/status")"
awk -v least="$2" '
    $1 == "Size:" { size = $2 }
    $1 == "KernelPageSize:" && size >= least && (!best || size < best) { best = size; page = $2 }
    END { if (best) print "page", page }
' "/proc/$pid/smaps"
exit 0
