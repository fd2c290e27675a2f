# $1: the file with the id of the container's first process. Prints the bytes that its control group moved, by device,
# after `counted`; nothing if the group does not count them.
read -r pid <"$1" && [ -d "/proc/$pid" ] || exit 1
file=/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$pid/cgroup")/io.stat
[ ! -r "$file" ] || { echo counted && cat "$file"; }
