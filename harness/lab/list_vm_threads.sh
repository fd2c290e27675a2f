# $1: the file with the process id, often without a line break at its end.
pid=$(cat "$1") || exit 1
echo "$pid"
for task in "/proc/$pid/task"/*; do read -r name <"$task/comm" && echo "${task##*/} $name"; done
for vm in DEBUGFS/"$pid"-*; do [ -d "$vm" ] && echo "kvm $vm"; done
exit 0
